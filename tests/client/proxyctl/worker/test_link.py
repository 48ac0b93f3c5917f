import threading
from collections.abc import Iterator

import pytest
from support.worker_market import TOKEN, WorkerMarket, worker_market

from proxyctl.worker.link import Link, LinkError, RefusedError

QUESTION = {"capacity": {"slots": 1}, "attempts": [], "wait_s": 20}


@pytest.fixture
def market() -> Iterator[WorkerMarket]:
    with worker_market() as made:
        yield made


@pytest.fixture
def link(market: WorkerMarket) -> Iterator[Link]:
    link = Link(market.url, TOKEN)
    yield link
    link.close()


def test_a_connection_that_ended_while_it_was_idle_is_no_failure(
    market: WorkerMarket, link: Link
) -> None:
    assert link.post("/api/worker/sync", {"attempts": []})["ok"]
    market.stop()
    market.start()
    assert link.post("/api/worker/sync", {"attempts": []})["ok"]


def test_a_refusal_is_told_from_an_outage(market: WorkerMarket, link: Link) -> None:
    job = market.post("x")
    with pytest.raises(RefusedError) as caught:
        link.post(f"/api/worker/jobs/{job.id}/complete", {"attempt": 1})
    assert caught.value.is_gone
    market.is_revoked = True
    with pytest.raises(RefusedError) as caught:
        link.post("/api/worker/sync", {})
    assert caught.value.is_revoked
    market.stop()
    with pytest.raises(LinkError):
        link.post("/api/worker/sync", {})


def test_a_poll_is_interrupted_wherever_it_is(market: WorkerMarket, link: Link) -> None:
    stale = threading.Event()
    failures = []

    def ask() -> None:
        try:
            link.poll("/api/worker/next", QUESTION, 20, stale.is_set)
        except LinkError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    with market.changed:
        assert market.changed.wait_for(lambda: market.questions, timeout=20)
    stale.set()
    link.interrupt()
    thread.join(10)
    assert failures
    # Also one that is not under way yet.
    with pytest.raises(LinkError):
        link.poll("/api/worker/next", QUESTION, 20, stale.is_set)
    assert len(market.questions) == 1

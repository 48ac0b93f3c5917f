import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until_true
from support.targets.tls import make_certificate
from support.workers.market import TOKEN, WorkerMarket, worker_market

from proxyctl.worker.base.link import Link, LinkError, Outage, RefusedError

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


def test_silence_is_told_from_a_marketplace_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = Link(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN, seconds=0.05)
        with pytest.raises(LinkError) as caught:
            link.poll("/api/worker/next", QUESTION, 0, lambda: False)
        assert caught.value.is_silence
    with pytest.raises(LinkError) as caught:
        link.poll("/api/worker/next", QUESTION, 0, lambda: False)
    assert not caught.value.is_silence


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
    until_true(lambda: market.questions, "it is asked")
    stale.set()
    link.interrupt()
    thread.join(10)
    assert failures
    # Also one that is not under way yet.
    with pytest.raises(LinkError):
        link.poll("/api/worker/next", QUESTION, 20, stale.is_set)
    assert len(market.questions) == 1


def test_a_request_that_is_sent_while_a_poll_is_interrupted_is_never_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_clear: list[int] = []  # it lets go of the encryption, and then of the connection
    monkeypatch.setattr(ssl.SSLSocket, "shutdown", lambda _, how: in_the_clear.append(how))
    certificate = make_certificate(tmp_path)
    came = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with (
                listening.accept()[0] as sock,
                certificate.server.wrap_socket(sock, server_side=True) as peer,
            ):
                while data := peer.recv(1 << 16):
                    came.append(data)

        thread = threading.Thread(target=serve)
        thread.start()
        link = Link(f"https://127.0.0.1:{listening.getsockname()[1]}", TOKEN)
        link._tls = ssl.create_default_context(cafile=str(certificate.path))
        asking: list[Any] = []

        def ask() -> None:
            try:
                link.poll("/api/worker/next", QUESTION, 20, lambda: bool(asking))
            except LinkError as error:
                asking.append(error)

        poll = threading.Thread(target=ask)
        poll.start()
        until_true(lambda: b"".join(came).endswith(b"}"), "it is asked")
        asking.append("interrupted")
        link.interrupt()
        poll.join(10)
        thread.join(10)
    assert isinstance(asking[-1], LinkError)
    assert not in_the_clear


def test_the_first_answer_after_an_outage_is_logged_once() -> None:
    returns = []
    now = [0.0]
    outage = Outage(lambda: now[0])
    outage.callback = lambda: returns.append(now[0])
    outage.answered()
    outage.failed()
    now[0] = 1.0
    outage.answered()  # something did not succeed, and something else did
    assert returns == []
    outage.failed()
    now[0] = 30.0
    outage.failed()
    outage.answered()
    outage.answered()
    assert returns == [30.0]


def test_a_caller_that_waits_for_the_marketplace_is_notified_of_its_return(
    market: WorkerMarket,
) -> None:
    link = Link(market.url, TOKEN, outage_seconds=0.0)
    returned = threading.Event()
    link.on_return(returned.set)
    market.stop()
    for _ in range(2):
        with pytest.raises(LinkError):
            link.post("/api/worker/sync", {})
    assert not returned.is_set()
    market.start()
    link.post("/api/worker/sync", {})
    assert returned.is_set()
    link.close()

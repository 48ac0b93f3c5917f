"""proxyctl.worker.task.patience: whose fault it is that an attempt is not ready in time."""

import threading
import time
from typing import Any

from support.base.cases import cases
from support.base.waiting import until_true

from proxyctl.worker.task.patience import DEFAULT_SECONDS, IMAGE, INPUT, Patience, seconds_of


@cases(
    ("given", "seconds"),
    [(600, 600.0), *((each, DEFAULT_SECONDS) for each in (None, 0, -1, True, "9", 1e300, 10**9))],
)
def test_a_daemon_that_gives_no_bound_leaves_the_usual_one(given: Any, seconds: float) -> None:
    assert seconds_of({} if given is None else {"prepare_s": given}) == seconds


def over(patience: Patience) -> str:
    """Wait until the patience is over; return the kind."""
    until_true(patience.is_over, "it is not over")
    failure = patience.failure()
    assert failure is not None
    return failure.kind


@cases("kind", [INPUT, IMAGE])
def test_time_that_went_by_for_a_server_of_the_buyers_is_not_the_devices(kind: str) -> None:
    patience = Patience(0.2)
    assert patience.failure() is None
    with patience.waiting(kind):
        assert over(patience) == kind
    assert patience.left == 0


def test_of_two_servers_the_slower_one_is_named() -> None:
    patience = Patience(0.6)
    with patience.waiting(INPUT):
        time.sleep(0.1)
    with patience.waiting(IMAGE):
        assert over(patience) == IMAGE


def test_time_of_the_device_itself_is_not_the_buyers() -> None:
    patience = Patience(0.3)
    with patience.waiting(INPUT):
        pass
    assert over(patience) == "refused"


def test_the_reason_stays_the_same() -> None:
    patience = Patience(0.1)
    assert over(patience) == "refused"
    with patience.waiting(INPUT):
        time.sleep(0.3)
    assert over(patience) == "refused"


def test_a_server_has_one_grace_for_all_its_answers_together() -> None:
    patience = Patience(grace_seconds=0.3)
    for _ in range(10):
        with patience.waiting(INPUT):
            time.sleep(0.05)
    assert over(patience) == INPUT


def test_bytes_buy_time_at_the_least_speed_and_only_of_their_own_server() -> None:
    fast, slow = (Patience(grace_seconds=0.05, bytes_per_second_min=1_000) for _ in range(2))
    slow.came(1 << 30)  # of the marketplace
    with fast.waiting(INPUT), slow.waiting(INPUT):
        fast.came(3_600_000)
        assert over(slow) == INPUT
        assert fast.failure() is None


def test_an_attempt_that_is_no_longer_wanted_ends_without_a_failure() -> None:
    stopped = threading.Event()
    patience = Patience(is_stopped=stopped.is_set)
    assert not patience.is_over()
    stopped.set()
    assert patience.is_over()
    assert patience.failure() is None

"""How long an exit waits before it attaches again."""

import pytest

from proxyctl.exit.base import retries
from proxyctl.exit.base.retries import LOSSES_MAX, STEADY_SECONDS, USUAL, AttachRetries


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the longest time that might be drawn."""
    monkeypatch.setattr(retries.random, "uniform", lambda _, most: most)


def test_attempts_in_vain_are_further_and_further_apart(clock: Clock) -> None:
    waits = AttachRetries(clock)
    assert waits.delay(is_exhausted=False) == 1  # another node was not tried yet
    assert [waits.delay(is_exhausted=True) for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]


def test_failures_before_an_attachment_do_not_count_after_it(clock: Clock) -> None:
    waits = AttachRetries(clock)
    for _ in range(10):
        waits.delay(is_exhausted=True)
    for _ in range(3):
        clock.now += 50
        assert waits.lose(50)
        assert waits.delay(is_exhausted=True) == 2


def test_losses_one_after_the_other_are_backed_off_from_until_one_has_lasted(clock: Clock) -> None:
    waits = AttachRetries(clock)
    assert all(waits.lose(0.01) for _ in range(LOSSES_MAX))
    for _ in range(20):
        assert not waits.lose(0.01)
        clock.now += waits.delay(is_exhausted=True)
    assert waits.delay(is_exhausted=True) == USUAL.most_seconds
    assert waits.lose(STEADY_SECONDS + 1)
    assert waits.delay(is_exhausted=True) == 2


def test_a_move_is_short(clock: Clock) -> None:
    assert AttachRetries(clock).short_delay() == 0.3

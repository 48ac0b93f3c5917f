"""The pace of a log: a burst, a steady rate, and no bound on patience but one."""

import pytest
from support.base.clock import Clock

from market.logs.pace import BURST_SECONDS, HOLD_MAX_SECONDS, Pace

RATE = 1_000


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def hold(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("market.logs.pace.sleep", hold)
    return waits


def test_a_burst_is_free_and_then_time_is_to_be_paid(clock: Clock) -> None:
    pace = Pace(RATE, clock.steady)
    pace.take(int(BURST_SECONDS * RATE))
    assert pace.wait_seconds() == 0
    pace.take(3 * RATE)
    assert pace.wait_seconds() == 3
    clock.now += 2
    assert pace.wait_seconds() == 1
    clock.now += 1_000_000
    assert pace.wait_seconds() == 0
    pace.take(int(BURST_SECONDS * RATE) + 1)
    assert 0 < pace.wait_seconds() < 0.01


async def test_a_sender_that_does_not_wait_is_held(clock: Clock, held: list[float]) -> None:
    pace = Pace(RATE, clock.steady)
    await pace.hold()
    assert held == []
    pace.take(int(BURST_SECONDS * RATE) + RATE)
    await pace.hold()
    pace.take(1_000_000)
    await pace.hold()
    assert held == [1, HOLD_MAX_SECONDS]


async def test_without_a_rate_no_sender_waits(clock: Clock, held: list[float]) -> None:
    pace = Pace(0, clock.steady)
    pace.take(10**12)
    assert pace.wait_seconds() == 0
    await pace.hold()
    assert held == []

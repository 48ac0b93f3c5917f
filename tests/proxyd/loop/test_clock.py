"""The clocks: time that the process was there to observe."""

import pytest

from proxyd.loop.clock import ObservedTime


def test_time_between_ticks_is_counted_but_no_gap() -> None:
    now = 1_000.0
    observed_time = ObservedTime(lambda: now, 30.0)
    assert observed_time.seconds() == 0
    for step, seconds in ((15.0, 15.0), (30.0, 45.0), (1_200.0, 75.0), (0.0, 75.0)):
        now += step
        observed_time.tick()
        assert observed_time.seconds() == pytest.approx(seconds)
    now += 15
    assert observed_time.seconds() == pytest.approx(75.0)

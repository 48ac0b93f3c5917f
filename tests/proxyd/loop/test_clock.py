"""The clocks: how long somebody was there to notice things."""

import pytest

from proxyd.loop.clock import Attention


def test_attention_counts_what_passes_between_looks_but_no_gap() -> None:
    now = 1_000.0
    attention = Attention(lambda: now, 30.0)
    assert attention.seconds() == 0
    for step, seconds in ((15.0, 15.0), (30.0, 45.0), (1_200.0, 75.0), (0.0, 75.0)):
        now += step
        attention.look()
        assert attention.seconds() == pytest.approx(seconds)
    now += 15
    assert attention.seconds() == pytest.approx(75.0)

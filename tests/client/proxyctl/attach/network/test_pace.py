from proxyctl.attach.network.pace import Pace


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_kept_over_time() -> None:
    seconds = Seconds()
    pace = Pace(100, 1.0, seconds)
    taken = 0
    while seconds.now < 10:
        taken += 10
        seconds.now += pace.take(10)
    assert 1_000 <= taken <= 1_110


def test_unused_bytes_are_kept_only_for_a_burst() -> None:
    seconds = Seconds()
    pace = Pace(100, 0.5, seconds)
    seconds.now = 1_000.0
    assert pace.take(50) == 0.0
    assert pace.take(10) == 0.1


def test_no_rate_is_no_limit() -> None:
    pace = Pace(0, 1.0, Seconds())
    assert pace.take(10**12) == 0.0


def test_a_rate_can_change() -> None:
    seconds = Seconds()
    pace = Pace(0, 1.0, seconds)
    pace.change(100)
    seconds.now = 1.0
    assert pace.take(100) == 0.0
    assert pace.take(50) == 0.5
    pace.change(0)
    assert pace.take(10**9) == 0.0

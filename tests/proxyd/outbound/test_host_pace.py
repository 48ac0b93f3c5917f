"""The pace of webhooks at one host: a burst, then a rate, separately for each user and host."""

from proxyd.outbound import host_pace
from proxyd.outbound.host_pace import HostPace


def test_a_burst_goes_at_once_and_then_one_after_the_other() -> None:
    now = 1_000.0
    pace = HostPace(per_second=10, burst=5, clock=lambda: now)
    delays = [round(pace.delay("u", "a.example"), 3) for _ in range(8)]
    assert delays == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]
    assert pace.delay("u", "b.example") == pace.delay("v", "a.example") == 0
    now += 100
    assert [pace.delay("u", "a.example") for _ in range(5)] == [0] * 5


def test_the_remembered_hosts_are_bounded() -> None:
    now = 0.0
    pace = HostPace(per_second=10, burst=1, clock=lambda: now)
    for number in range(3 * host_pace.KNOWN_MAX):
        now += 0.2
        pace.delay("u", f"{number}.example")
    assert len(pace._next) <= host_pace.KNOWN_MAX

"""A session's speed limit: never more than its rate, in equal shares."""

import asyncio

import pytest

from proxyd.metering.pace import BURST_SECONDS, ROUND_SECONDS, Pace


class Timers:
    """A loop with nothing but its time, which the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, object]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, act: object) -> object:
        self.due.append((self.now + delay, act))
        return act

    def go(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due and min(at for at, _ in self.due) <= end:
            at, act = min(self.due, key=lambda each: each[0])
            self.due.remove((at, act))
            self.now = at
            act()  # type: ignore[operator]
        self.now = end


class Taker:
    """Takes all it may, again and again."""

    def __init__(self, pace: Pace, most: int = 1 << 60) -> None:
        self.pace = pace
        self.most = most
        self.taken = 0

    def go(self) -> None:
        size = min(self.pace.allowance(self), self.most)
        if size > 0:
            self.pace.spend(self, size)
            self.taken += size
        self.pace.wait(self.go)


@pytest.fixture
def timers() -> Timers:
    return Timers()


def paced(timers: Timers, rate: int) -> Pace:
    return Pace(timers, rate)  # type: ignore[arg-type]


def test_bytes_taken_in_advance_are_earned_before_any_others(timers: Timers) -> None:
    pace = paced(timers, 1000)
    assert 0 < pace.allowance("datagrams") < 1200
    pace.spend("datagrams", 1200)
    other = Taker(pace)
    other.go()
    timers.go(0.9)
    assert pace.allowance("datagrams") <= 0
    assert other.taken == 0
    timers.go(1.1)
    assert 0 < other.taken <= 1000


@pytest.mark.parametrize("rate", [7, 1000, 123_457, 50_000_000])
def test_no_more_than_the_rate_is_taken_and_hardly_less(timers: Timers, rate: int) -> None:
    taker = Taker(paced(timers, rate))
    taker.go()
    timers.go(20)
    most = rate * (20 + BURST_SECONDS)
    assert rate * (20 - 2 * ROUND_SECONDS) - 1 <= taker.taken <= most + 1


def test_all_takers_that_want_more_get_the_same(timers: Timers) -> None:
    pace = paced(timers, 1_000_000)
    takers = [Taker(pace) for _ in range(7)]
    for taker in takers:
        taker.go()
    timers.go(10)
    first = takers[0].taken - 1_000_000 * BURST_SECONDS  # it came while no other taker was there
    shares = [first, *(taker.taken for taker in takers[1:])]
    assert max(shares) - min(shares) <= 0.02 * max(shares)


def test_takers_take_turns_where_a_round_has_fewer_bytes_than_takers(timers: Timers) -> None:
    pace = paced(timers, 1)
    takers = [Taker(pace) for _ in range(3)]
    for taker in takers:
        taker.go()
    timers.go(9.5)
    first = takers[0].taken - 1  # it came while no other taker was there
    assert [first, *(taker.taken for taker in takers[1:])] == [3, 3, 3]


def test_bytes_that_one_taker_leaves_go_to_the_others(timers: Timers) -> None:
    pace = paced(timers, 1_000_000)
    modest, greedy = Taker(pace, most=100), Taker(pace)
    for taker in (modest, greedy):
        taker.go()
    timers.go(10)
    assert modest.taken <= 100 * (10 / ROUND_SECONDS + 2)
    assert modest.taken + greedy.taken >= 9_800_000


def test_a_taker_that_stops_waiting_is_not_called(timers: Timers) -> None:
    pace = paced(timers, 1000)
    taker = Taker(pace)
    taker.go()
    pace.stop_waiting(taker.go)
    before = taker.taken
    timers.go(5)
    assert taker.taken == before
    assert timers.due == []


async def test_it_runs_on_a_real_loop() -> None:
    pace = Pace(asyncio.get_running_loop(), 1000)
    assert pace.allowance(pace) == 200
    while left := pace.allowance(pace):  # including the bytes earned meanwhile on a slow machine
        pace.spend(pace, left)
    waited = asyncio.Event()
    pace.wait(waited.set)
    async with asyncio.timeout(10):
        await waited.wait()
    assert pace.allowance(pace) > 0


def test_another_speed_holds_from_the_next_round_on(timers: Timers) -> None:
    pace = paced(timers, 1_000_000)
    taker = Taker(pace)
    taker.go()
    timers.go(1.0)
    pace.change(1_000)
    before = taker.taken
    timers.go(10.0)
    assert taker.taken - before <= 1_000 * (10.0 + BURST_SECONDS)
    pace.change(2_000)
    before = taker.taken
    timers.go(10.0)
    assert taker.taken - before > 1_000 * 10.0


def test_no_speed_is_no_limit_also_for_waiting_takers(timers: Timers) -> None:
    pace = paced(timers, 1)
    taker = Taker(pace, most=5_000)
    taker.go()
    pace.change(0)
    assert taker.taken <= 1
    timers.go(2 * ROUND_SECONDS)
    assert taker.taken >= 5_000
    pace.change(1)
    assert 0 <= pace.allowance("other") <= 1


def test_a_lower_speed_makes_no_longer_wait_of_bytes_taken_in_advance(timers: Timers) -> None:
    pace = paced(timers, 1_000_000)
    pace.spend("datagrams", 1_200_000)  # a second's bytes more than there are
    pace.change(10)
    taker = Taker(pace)
    taker.go()
    timers.go(0.9)
    assert taker.taken == 0
    timers.go(10.0)
    assert 90 <= taker.taken <= 100


def test_bytes_taken_in_advance_are_forgiven_by_no_limit(timers: Timers) -> None:
    pace = paced(timers, 1_000)
    pace.spend("datagrams", 100_000)
    pace.change(0)
    pace.change(1_000)
    taker = Taker(pace)
    taker.go()
    timers.go(1.0)
    assert taker.taken >= 900

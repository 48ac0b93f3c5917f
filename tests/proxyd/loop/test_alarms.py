"""Alarms ring at their times, in their order; one that was stopped or set anew does not."""

import asyncio
from collections.abc import Callable

import pytest
from support.base.waiting import until

from proxyd.loop.alarms import EARLY_SECONDS, Alarms


class Bell:
    """Writes down that it has rung."""

    def __init__(self, rung: "list[Bell]", then: Callable[[], None] = lambda: None) -> None:
        self._rung = rung
        self._then = then

    def ring(self) -> None:
        self._rung.append(self)
        self._then()


async def test_alarms_ring_in_the_order_of_their_times() -> None:
    loop = asyncio.get_running_loop()
    rung: list[Bell] = []
    alarms, (late, soon, stopped, moved) = Alarms(loop), [Bell(rung) for _ in range(4)]
    began = loop.time()
    alarms.set(moved, loop.time() + 0.01)
    alarms.set(late, loop.time() + 0.06)
    alarms.set(soon, loop.time() + 0.02)
    alarms.set(stopped, loop.time() + 0.03)
    alarms.set(moved, loop.time() + 0.09)
    alarms.cancel(stopped)
    alarms.cancel(stopped)
    await until(lambda: moved in rung, "the last one")
    assert rung == [soon, late, moved]
    assert loop.time() >= began + 0.088


async def test_an_alarm_may_set_itself_and_a_failing_one_stops_no_other() -> None:
    loop, failures = asyncio.get_running_loop(), []
    rung: list[Bell] = []
    loop.set_exception_handler(lambda _, failure: failures.append(failure))
    alarms = Alarms(loop)

    def again() -> None:
        if rung.count(first) < 3:
            alarms.set(first, loop.time() + 0.0)

    def fail() -> None:
        raise ValueError

    first, failing, last = Bell(rung, again), Bell(rung, fail), Bell(rung)
    for each in (first, failing, last):
        alarms.set(each, loop.time() + 0.005)
    await until(lambda: last in rung and rung.count(first) == 3, "all of them")
    assert rung.count(failing) == len(failures) == 1


def test_an_alarm_that_sets_itself_a_moment_ahead_waits_for_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulation found it: the clock stood still, and the alarm rang without an end."""
    loop, now = asyncio.new_event_loop(), 5.0
    monkeypatch.setattr(loop, "time", lambda: now)
    rung: list[Bell] = []
    alarms = Alarms(loop)

    def again() -> None:
        if rung.count(bell) < 3:
            alarms.set(bell, now + EARLY_SECONDS / 2)

    bell, later = Bell(rung, again), Bell(rung)
    alarms.set(bell, now)
    alarms.set(later, now + EARLY_SECONDS)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert rung == [bell]
    now += EARLY_SECONDS
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert rung == [bell, bell, later]
    loop.close()


async def test_nothing_rings_after_the_end() -> None:
    loop = asyncio.get_running_loop()
    rung: list[Bell] = []
    alarms, other = Alarms(loop), Alarms(loop)
    alarms.set(Bell(rung), loop.time() + 0.0)
    alarms.close()
    alarms.close()
    last = Bell(rung)
    other.set(last, loop.time() + 0.02)
    await until(lambda: bool(rung), "the other one")
    assert rung == [last]


async def test_an_alarm_that_is_cancelled_before_the_timer_rings_is_never_sorted() -> None:
    loop = asyncio.get_running_loop()
    rung: list[Bell] = []
    alarms = Alarms(loop)
    for _ in range(100):
        stopped = Bell(rung)
        alarms.set(stopped, loop.time() + 60.0)
        alarms.cancel(stopped)
    last = Bell(rung)
    alarms.set(last, loop.time() + 0.02)
    assert not alarms._heap
    await until(lambda: rung == [last], "the one that is left")
    assert not alarms._heap

"""Whoever is not done in time is told, the oldest first; the others never are."""

import asyncio

from support.base.waiting import until

from proxyd.loop.deadlines import Deadlines


class Waiting:
    """Writes down that its time is over."""

    def __init__(self, told: "list[Waiting]") -> None:
        self._told = told

    def timed_out(self) -> None:
        self._told.append(self)


async def test_late_entries_are_notified_in_order() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 0.05)
    waiting = [Waiting(told) for _ in range(3)]
    for each in waiting:
        deadlines.add(each)
    assert len(deadlines) == 3
    await until(lambda: len(told) == 3, "all are late")
    assert told == waiting
    assert len(deadlines) == 0


async def test_an_entry_that_is_done_is_not_notified() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 0.05)
    done, late = Waiting(told), Waiting(told)
    deadlines.add(done)
    deadlines.add(late)
    deadlines.discard(done)
    deadlines.discard(done)
    await until(lambda: bool(told), "the other is late")
    assert told == [late]


async def test_adding_again_does_not_give_more_time() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 0.05)
    first, second = Waiting(told), Waiting(told)
    deadlines.add(first)
    deadlines.add(second)
    deadlines.add(first)
    await until(lambda: len(told) == 2, "both are late")
    assert told == [first, second]


async def test_a_late_entry_may_begin_again() -> None:
    loop, failures = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, failure: failures.append(failure))
    deadlines = Deadlines(loop, 0.02)
    rounds = 0

    class Again:
        def timed_out(self) -> None:
            nonlocal rounds
            rounds += 1
            if rounds < 3:
                deadlines.add(self)

    deadlines.add(Again())
    await until(lambda: rounds == 3, "it was told each time")
    assert failures == []


async def test_no_entry_is_late_after_the_close() -> None:
    told: list[Waiting] = []
    loop = asyncio.get_running_loop()
    deadlines, others = Deadlines(loop, 0.02), Deadlines(loop, 0.06)
    deadlines.add(Waiting(told))
    deadlines.close()
    others.add(late := Waiting(told))
    await until(lambda: bool(told), "the others are told")
    assert told == [late]


async def test_the_oldest_may_be_notified_early() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 3600.0)
    first, gone, last = (Waiting(told) for _ in range(3))
    for each in (first, gone, last):
        deadlines.add(each)
    assert deadlines.expire_oldest(-1.0)
    deadlines.discard(gone)
    assert deadlines.expire_oldest(-1.0)
    assert told == [first, last]
    assert not deadlines.expire_oldest(-1.0)
    deadlines.close()


async def test_no_entry_is_late_before_its_time() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 7200.0)
    deadlines.add(Waiting(told))
    assert not deadlines.expire_oldest(3600.0)
    assert (told, len(deadlines)) == ([], 1)
    deadlines.close()


async def test_a_shorter_time_is_not_held_up_by_an_entry_with_a_longer_one() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 7200.0)
    early, late = Waiting(told), Waiting(told)
    deadlines.add(early)
    deadlines.seconds = 0.02
    deadlines.add(late)
    await until(lambda: told == [early, late], "both are late")
    deadlines.close()


async def test_the_oldest_makes_room_with_any_earlier_time() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 7200.0)
    waiting = Waiting(told)
    deadlines.add(waiting)
    deadlines.seconds = 15.0
    assert deadlines.expire_oldest(0.0)
    assert told == [waiting]
    deadlines.close()

"""Deadlines: each is told once, the oldest first, and early if somebody else wants its place."""

import asyncio

from support.waiting import until

from proxyd.deadlines import Deadlines


class Waiting:
    """Notes that its time is over."""

    def __init__(self, told: list["Waiting"]) -> None:
        self._told = told

    def timed_out(self) -> None:
        self._told.append(self)


async def test_everybody_is_told_once_and_in_order() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 0.1)
    waiting = [Waiting(told) for _ in range(3)]
    for each in waiting:
        deadlines.add(each)
    await until(lambda: len(deadlines) == 0, "all are told")
    assert told == waiting
    deadlines.close()


async def test_the_oldest_may_be_told_early() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 3600.0)
    first, gone, last = (Waiting(told) for _ in range(3))
    for each in (first, gone, last):
        deadlines.add(each)
    assert deadlines.end_oldest(0.0)
    deadlines.discard(gone)
    assert deadlines.end_oldest(0.0)
    assert told == [first, last]
    assert not deadlines.end_oldest(0.0)
    deadlines.close()


async def test_nobody_is_told_earlier_than_that() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 7200.0)
    deadlines.add(Waiting(told))
    assert not deadlines.end_oldest(3600.0)
    assert (told, len(deadlines)) == ([], 1)
    deadlines.close()

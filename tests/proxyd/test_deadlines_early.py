"""Whoever has had some of its time may be told early, when somebody else wants its place."""

import asyncio

from proxyd.deadlines import Deadlines


class Waiting:
    """Notes that its time is over."""

    def __init__(self, told: list["Waiting"]) -> None:
        self._told = told

    def timed_out(self) -> None:
        self._told.append(self)


async def test_the_oldest_may_be_told_early() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 3600.0)
    first, gone, last = (Waiting(told) for _ in range(3))
    for each in (first, gone, last):
        deadlines.add(each)
    assert deadlines.end_oldest(-1.0)
    deadlines.discard(gone)
    assert deadlines.end_oldest(-1.0)
    assert told == [first, last]
    assert not deadlines.end_oldest(-1.0)
    deadlines.close()


async def test_nobody_is_told_earlier_than_that() -> None:
    told: list[Waiting] = []
    deadlines = Deadlines(asyncio.get_running_loop(), 7200.0)
    deadlines.add(Waiting(told))
    assert not deadlines.end_oldest(3600.0)
    assert (told, len(deadlines)) == ([], 1)
    deadlines.close()

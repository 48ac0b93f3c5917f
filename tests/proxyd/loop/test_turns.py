"""Turns come in order, and a long queue lets the loop go on in between."""

import asyncio

from proxyd.loop.turns import Turns


class Moving:
    """A mover that notes its turns, and wants so many."""

    def __init__(self, name: str, queue: Turns, log: list[str], wanted: int) -> None:
        self._name, self._queue, self._log, self._left = name, queue, log, wanted

    def turn(self) -> None:
        self._log.append(self._name)
        self._left -= 1
        if self._left:
            self._queue.add(self)


async def test_each_has_its_turn_before_any_has_another() -> None:
    queue, log = Turns(asyncio.get_running_loop()), []
    for name in "abc":
        queue.add(Moving(name, queue, log, 2))
    while len(log) < 6:
        await asyncio.sleep(0)
    assert "".join(log) == "abcabc"


async def test_the_loop_goes_on_between_slices() -> None:
    queue, log = Turns(asyncio.get_running_loop(), slice_seconds=-1.0), []
    for name in "abc":
        queue.add(Moving(name, queue, log, 2))
    seen = []
    while len(log) < 6:
        await asyncio.sleep(0)
        seen.append(len(log))
    assert seen[-6:] == [1, 2, 3, 4, 5, 6]


class Failing:
    """A mover whose turn goes wrong."""

    def turn(self) -> None:
        raise RuntimeError("nobody has handled this")


async def test_a_turn_that_goes_wrong_costs_no_other_turn() -> None:
    loop, told = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    queue, log = Turns(loop), []
    queue.add(Moving("a", queue, log, 2))
    queue.add(Failing())
    queue.add(Moving("b", queue, log, 2))
    while len(log) < 4:
        await asyncio.sleep(0)
    queue.add(Failing())
    while len(told) < 2:
        await asyncio.sleep(0)
    queue.add(Moving("c", queue, log, 1))
    while len(log) < 5:
        await asyncio.sleep(0)
    assert "".join(log) == "ababc"
    assert told == ["nobody has handled this"] * 2


async def test_a_mover_that_comes_when_none_waits_is_served() -> None:
    queue, log = Turns(asyncio.get_running_loop()), []
    for count in (1, 2):
        queue.add(Moving("a", queue, log, 1))
        while len(log) < count:
            await asyncio.sleep(0)

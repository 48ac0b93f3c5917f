"""Turns: one unit makes its next statement; others may wait for a row of another one.

A unit has four states: it *asks* for its next statement; it is *moving* (its statement runs, or its
code does); it *waits* for a lock; it is *over*. A turn is given when no unit is moving. So the
server's word on a moving statement is final: the unit that holds the lock stands still.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from enum import Enum, auto
from random import Random
from typing import Any

import asyncpg

# A statement that takes longer than 4 ms may wait for a lock, and a query to the server decides.
# Most statements take less.
ASK_SECONDS = 0.004
# A unit without a statement for 30 seconds hangs: all statements take milliseconds.
STALLED_SECONDS = 30.0
# More turns than two units have statements, even if each is run five times.
TURNS_MOST = 2_000


class StalledError(Exception):
    """A unit neither ended nor asked for a statement."""


class _State(Enum):
    MOVING = auto()
    ASKING = auto()
    WAITING = auto()
    OVER = auto()


class _Unit:
    """One side of a trial.

    Attributes:
        label: its name in the lines.
        state: see the module.
        gate: set when it gets its turn.
        pid: of the server's process that runs its statement; None while none runs.
        is_victim: whether its statement was ended because of a deadlock.
        beginning: the line of its present unit, which is written with the first statement.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.state = _State.MOVING
        self.gate = asyncio.Event()
        self.pid: int | None = None
        self.is_victim = False
        self.beginning = ""


class Order:
    """Draws the order of statements; some seeds change the unit often, and some seldom.

    Args:
        seed: decides all draws.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"order {seed}")
        self._stays = (0.2, 0.5, 0.8)[int(self._draw.random() * 3)]
        self._last = ""

    def next(self, labels: Sequence[str]) -> str:
        """Return the label of the unit that makes its next statement."""
        stays, which = self._draw.random() < self._stays, self._draw.random()
        if not (stays and self._last in labels):
            self._last = labels[int(which * len(labels))]
        return self._last

    def ended(self, label: str) -> None:
        """Note that a unit of a side has ended."""


class UnitOrder(Order):
    """Runs each unit without a break, in a given order.

    Args:
        labels: of the units; a side with several has its label several times.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__(0)
        self._labels = list(labels)

    def next(self, labels: Sequence[str]) -> str:
        """Return the side whose unit runs, or any other one where that is over."""
        wanted = next(iter(self._labels), "")
        return wanted if wanted in labels else labels[0]

    def ended(self, label: str) -> None:
        """Go on to the next unit."""
        if label in self._labels:
            self._labels.remove(label)


class Turns:
    """Gives turns to the units of one trial.

    Attributes:
        lines: the statements in their order, waits and errors.
        deadlocks: their number.
        waits: how often a unit waited for a lock.
        units: the sides whose units have ended, in that order.

    Args:
        order: of the statements.
        monitor: a connection of its own, which asks the server for blocked statements.
    """

    def __init__(self, order: Order, monitor: asyncpg.Connection) -> None:
        self._order = order
        self._monitor = monitor
        self._units: dict[str, _Unit] = {}
        self._changed = asyncio.Event()
        self.lines: list[str] = []
        self.deadlocks = 0
        self.waits = 0
        self.units: list[str] = []

    async def run(self, sides: Mapping[str, Callable[[], Awaitable[Any]]]) -> dict[str, Any]:
        """Run actions to their ends; return for each its result or its exception.

        Raises:
            StalledError: one hangs.
        """
        self._units = {label: _Unit(label) for label in sides}
        tasks = {label: asyncio.create_task(self._side(label, sides[label])) for label in sides}
        try:
            for _ in range(TURNS_MOST):
                await self._settle()
                if all(unit.state is _State.OVER for unit in self._units.values()):
                    break
                await self._give()
            else:
                raise StalledError("the units go on for ever")
        finally:
            for task in tasks.values():
                task.cancel()
            ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
        return dict(zip(tasks, ended, strict=True))

    async def ask(self, label: str, text: str) -> None:
        """Wait for the turn of a unit, and write the line of its statement."""
        unit = self._units[label]
        unit.gate.clear()
        self._become(unit, _State.ASKING)
        await unit.gate.wait()
        if unit.beginning:
            self.lines.append(f"{label}   {unit.beginning}")
            unit.beginning = ""
        self.lines.append(f"{label} {text}")

    def begins(self, label: str, text: str) -> None:
        """Note that a unit begins; those of both sides may do so at the same time."""
        self._units[label].beginning = text

    def says(self, label: str, text: str) -> None:
        """Write a line."""
        self.lines.append(f"{label} {text}")

    async def execute(self, label: str, pid: int, statement: Coroutine[Any, Any, Any]) -> Any:
        """Run a statement, which may wait for another unit.

        Raises:
            DeadlockDetectedError: it was chosen as the one to give way.
        """
        unit = self._units[label]
        unit.pid, unit.is_victim = pid, False
        try:
            return await statement
        except Exception as error:
            if unit.is_victim:
                raise asyncpg.DeadlockDetectedError("it gives way") from error
            raise
        finally:
            unit.pid = None
            self._become(unit, _State.MOVING)

    def committing(self, label: str, pid: int | None) -> None:
        """Note that a unit's COMMIT runs in a process of the server; None when it is over."""
        self._units[label].pid = pid

    def ended(self, label: str) -> None:
        """Note that a unit is over, and will not be run again."""
        self.units.append(label)
        self._order.ended(label)

    def freed(self, label: str) -> None:
        """Note that a transaction is over: those who wait for its rows may go on."""
        self._units[label].pid = None
        for unit in self._units.values():
            if unit.state is _State.WAITING:
                unit.state = _State.MOVING
        self._changed.set()

    async def _side(self, label: str, action: Callable[[], Awaitable[Any]]) -> Any:
        unit = self._units[label]
        try:
            return await action()
        finally:
            self._become(unit, _State.OVER)

    def _become(self, unit: _Unit, state: _State) -> None:
        unit.state = state
        self._changed.set()

    async def _settle(self) -> None:
        """Wait until no unit is moving; find those that wait for locks."""
        loop = asyncio.get_running_loop()
        late = loop.time() + STALLED_SECONDS
        while moving := [each for each in self._units.values() if each.state is _State.MOVING]:
            self._changed.clear()
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                for unit in moving:
                    await self._look(unit)
            if loop.time() > late:
                names = ", ".join(each.label for each in moving)
                raise StalledError(f"{names}: no statement for {STALLED_SECONDS:g} s")

    async def _look(self, unit: _Unit) -> None:
        """Ask the server whether a statement waits for a lock."""
        pid = unit.pid
        if pid is None:
            return
        is_blocked = await self._monitor.fetchval(
            "SELECT cardinality(pg_blocking_pids($1)) > 0", pid
        )
        if is_blocked and unit.pid == pid and unit.state is _State.MOVING:
            unit.state = _State.WAITING
            self.waits += 1
            self.lines.append(f"{unit.label}   waits for a lock")

    async def _give(self) -> None:
        """Give a turn; where all units wait for each other, have one of them give way."""
        units = self._units.values()
        asking = sorted(each.label for each in units if each.state is _State.ASKING)
        if asking:
            unit = self._units[self._order.next(asking)]
            unit.state = _State.MOVING
            unit.gate.set()
            return
        waiting = sorted(each.label for each in units if each.state is _State.WAITING)
        victim = self._units[self._order.next(waiting)]
        self.deadlocks += 1
        self.lines.append(f"{victim.label}   gives way: a deadlock")
        victim.is_victim, victim.state = True, _State.MOVING
        await self._monitor.execute("SELECT pg_cancel_backend($1)", victim.pid)
        # Until its statement has ended, the server calls it blocked.
        late = asyncio.get_running_loop().time() + STALLED_SECONDS
        while victim.pid is not None and asyncio.get_running_loop().time() < late:
            await asyncio.sleep(0)

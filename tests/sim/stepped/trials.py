"""Trials: two or three units in the order of a seed, compared with those one after the other.

A trial fails when it breaks a rule, or when its end differs from the ends of all orders. The end
is the rows of all tables, and the answers. An action of several units may end as if only these ran
without a break, in the order of their commits or in another one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import Any, NamedTuple

from market.base.errors import MarketError
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.site import NODES, Site, differences
from tests.sim.stepped.turns import Order, Turns, UnitOrder
from tests.sim.stepped.units import Meeting, excused_table
from tests.sim.stepped.world import World, build

SHOWN_MOST = 12
UNIT_ORDERS_MAX = 20  # of three units a side; more would take seconds


class End(NamedTuple):
    """Where the units have led: the answer of each, and the changed rows."""

    answers: tuple[str, ...]
    changes: Counter[str]

    def without(self, table: str) -> "End":
        """Return the same end but for the rows of a table; "" for none."""
        kept = (each for each in self.changes.elements() if each.split(" ")[1] != table)
        return End(self.answers, Counter(kept))


@dataclass
class Trial:
    """One meeting of units.

    Attributes:
        lines: of the statements.
        failures: why it fails; empty if it passes.
        deadlocks: their number.
        waits: how often a unit waited for a row of another one.
    """

    meeting: Meeting
    seed: int
    lines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    deadlocks: int = 0
    waits: int = 0

    def report(self) -> str:
        """Return all that a reader needs."""
        lines = [f"{self.meeting}, seed {self.seed}"]
        lines += [f"  | {each}" for each in self.lines]
        lines += [f"  failed: {each}" for each in self.failures]
        lines.append(f'  replay: make sim-steps SEED={self.seed} PAIR="{self.meeting}"')
        return "\n".join(lines)


class Trials:
    """Runs trials on one site.

    Attributes:
        lockers: functions that have locked, in all trials.
        late: ways to an account that was locked too late (`Held`), in all trials.
    """

    def __init__(self, site: Site, world: World) -> None:
        self._site = site
        self._world = world
        self._serial: dict[tuple[Meeting, tuple[str, ...]], End] = {}
        self._sound: dict[Meeting, list[End]] = {}  # ends without a broken rule

    @classmethod
    async def of(cls, site: Site) -> "Trials":
        """Make the rows of the start, and keep them."""
        world = await build(site)
        await site.keep()
        return cls(site, world)

    @property
    def lockers(self) -> set[str]:
        """Return the functions that have locked rows so far."""
        return {each for store in self._site.stores.values() for each in store.lockers}

    @property
    def late(self) -> set[str]:
        """Return the ways to an account that was locked too late."""
        return {each for store in self._site.stores.values() for each in store.late}

    async def run(self, meeting: Meeting, seed: int) -> Trial:
        """Have units meet in the order of a seed."""
        trial, turns = Trial(meeting, seed), self._site.turns(Order(seed))
        try:
            end = await self._meet(meeting, turns)
        finally:
            trial.lines, trial.deadlocks, trial.waits = turns.lines, turns.deadlocks, turns.waits
        sound = self._sound.setdefault(meeting, [])
        if end not in sound:
            trial.failures += await self._site.broken()
            if not trial.failures:
                sound.append(end)
        if turns.deadlocks:
            trial.failures.append("a deadlock: rows are locked in two orders")
        trial.failures += await self._compared(meeting, end, turns.units)
        return trial

    async def _compared(self, meeting: Meeting, end: End, units: Sequence[str]) -> list[str]:
        """Return the differences of an end from those without a meeting; none if it equals one.

        Args:
            meeting: of the trial.
            end: of the trial.
            units: the sides in the order in which their units ended, the likeliest one.
        """
        table = excused_table(meeting)
        if not units:
            return [f"no side has run a unit: {end.answers}"]
        # The order in which their last units ended comes first.
        last = {label: at for at, label in enumerate(units)}
        labels = sorted(_labels(meeting), key=lambda label: last.get(label, -1))
        serial: dict[str, End] = {}
        for order in permutations(labels):
            expected = await self._one_after_the_other(meeting, order)
            if end.without(table) == expected.without(table):
                return []
            serial[", then ".join(order)] = expected
        # A unit that waited for a lock commits late, and may have read before the others wrote.
        for each in islice(_distinct(units), UNIT_ORDERS_MAX):
            by_units = await self._meet(meeting, self._site.turns(UnitOrder(each)))
            if end.without(table) == by_units.without(table):
                return []
        return _unlike(end, serial)

    async def _meet(self, meeting: Meeting, turns: Turns) -> End:
        await self._site.restore()
        self._site.step(turns)
        try:
            ended = await turns.run(self._sides(meeting))
        finally:
            self._site.step(None)
        return await self._end(ended)

    async def _one_after_the_other(self, meeting: Meeting, order: tuple[str, ...]) -> End:
        if (meeting, order) not in self._serial:
            self._serial[meeting, order] = await self._in_order(meeting, order)
        return self._serial[meeting, order]

    async def _in_order(self, meeting: Meeting, order: tuple[str, ...]) -> End:
        await self._site.restore()
        sides, ended = self._sides(meeting), {}
        for label in order:
            try:
                ended[label] = await sides[label]()
            except Exception as error:
                ended[label] = error
        return await self._end(ended)

    def _sides(self, meeting: Meeting) -> Mapping[str, Any]:
        def side(label: str, action: Action) -> Any:
            made = Side(NODES[label], self._site.market(label), self._world)

            async def act() -> Any:
                try:
                    return await action(made)
                finally:
                    made.market.passwords.close()

            return act

        return {
            label: side(label, action)
            for label, action in zip(_labels(meeting), meeting.actions(), strict=True)
        }

    async def _end(self, ended: Mapping[str, Any]) -> End:
        answers = tuple(self._site.plain(_answer(ended[label])) for label in sorted(ended))
        return End(answers, await self._site.changes())


def _distinct(units: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield each order of the units once; of ten there are millions with the repeated ones."""
    seen = set()
    for each in permutations(units):
        if each not in seen:
            seen.add(each)
            yield each


def _labels(meeting: Meeting) -> tuple[str, ...]:
    return tuple(NODES)[: len(meeting.actions())]


def _answer(result: Any) -> str:
    if isinstance(result, TypeError | AttributeError | NameError):
        raise result  # a fault of the action itself
    if isinstance(result, MarketError):
        return f"refused: {result.code}"
    if isinstance(result, BaseException):
        return f"{type(result).__name__}: {result}"
    return repr(result)


def _unlike(end: End, serial: Mapping[str, End]) -> list[str]:
    """Return the differences from each serial order."""
    lines = []
    for order, expected in serial.items():
        lines.append(f"differs from {order}:")
        if end.answers != expected.answers:
            lines.append(f"  answers {end.answers}, not {expected.answers}")
        found = differences(end.changes, expected.changes)
        lines += [f"  {each}" for each in found[:SHOWN_MOST]]
        lines += [f"  and {len(found) - SHOWN_MOST} more"] * (len(found) > SHOWN_MOST)
    return lines

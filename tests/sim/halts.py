"""Halted sessions: people and rules halt them while clients use them, and let them go on.

Once every node has acknowledged the halt of a session, no byte of it is relayed, and no client of
it is admitted, until it may go on.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from market.accounts.suspensions import Part
from market.bandwidth import halts
from market.bandwidth.halts import ANSWER_SECONDS
from market.staff import rule_stops
from market.staff.abuse.rule_tickets import CATEGORIES, Found, Peak
from market.staff.base.roles import Machine
from market.staff.stopping import stopping, suspending
from market.staff.stopping.suspending import Ordered
from tests.sim.jobs import Actor
from tests.sim.store import EPOCH, Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

# The subject of the runs that have halts.
SUBJECT = "halts"
ROOT = Machine("root")
WHY = "a complaint"
ORDERS = ("suspend", "suspend", "halt", "halt", "rule", "rule", "end")
# Times of suspensions by the wall clock: short ones end by themselves.
LEAST_SECONDS, MOST_SECONDS = 1, 6
LATER_SECONDS = 86_400
LOOK_SECONDS = 1.0
# Within which a suspension ends by itself once nothing is broken: no answer is awaited then.
OVERDUE_SECONDS = 7.5
# The first cut comes before the acknowledgement, which takes two requests.
ASKED_SECONDS = ANSWER_SECONDS + 1.0
RULES = tuple(CATEGORIES)
_SESSIONS = "SELECT id, user_id FROM bandwidth_sessions WHERE status = 'active' ORDER BY id"
_SUSPENDED = """
    SELECT DISTINCT user_id FROM suspended_parts WHERE part IN ('keys', 'sessions') ORDER BY user_id
"""
_HALTED = """
    SELECT s.id, s.user_id, EXISTS (
        SELECT 1 FROM suspended_parts AS p WHERE p.user_id = s.user_id AND p.part = 'sessions'
    )
    FROM bandwidth_sessions AS s
    WHERE s.status = 'active' AND (
        s.halted_at IS NOT NULL OR EXISTS (
            SELECT 1 FROM suspended_parts AS p WHERE p.user_id = s.user_id AND p.part = 'sessions'
        )
    )
"""
_OVERDUE = """
    SELECT user_id FROM suspended_parts WHERE ends_at < :at
    UNION SELECT id FROM bandwidth_sessions WHERE status = 'active' AND halted_until < :at
"""
_ORDERS = "SELECT number, user_id, session_id FROM halts WHERE number > :last AND kind = 'halt'"


@dataclass(frozen=True, slots=True)
class HaltPlan:
    """An order about a session or its user.

    Attributes:
        at: when.
        what: one of `ORDERS`.
        session: the number of the session among the active ones.
        seconds: until it may go on.
        is_timed: whether it goes on by itself.
    """

    at: float
    what: str
    session: int
    seconds: float
    is_timed: bool


def halts_of(draw: Random, seconds: float) -> tuple[HaltPlan, ...]:
    """Return the orders of a run."""
    plans = []
    for _ in range(3 + int(draw.random() * 8)):
        plans.append(
            HaltPlan(
                round(1.0 + seconds * draw.random(), 3),
                ORDERS[int(draw.random() * len(ORDERS))],
                int(draw.random() * 12),
                round(0.3 + 5 * draw.random() ** 2, 3),
                draw.random() < 0.3,
            )
        )
    return tuple(sorted(plans, key=lambda each: each.at))


class HaltBooks:
    """Halted sessions, and the nodes that have acknowledged it.

    Args:
        network: has the database.
    """

    def __init__(self, network: "Network") -> None:
        self.network = network
        # Halted on all nodes: no byte of them may move.
        self.stopped: set[str] = set()
        # By session: the first order that can be about its present halt.
        self._since: dict[str, int] = {}
        # By order: its user, its session, and the nodes that have to acknowledge it.
        self._orders: dict[int, tuple[str, str | None, frozenset[str]]] = {}
        self._last = 0
        # By session: when it was last seen halted.
        self._halted_at: dict[str, float] = {}

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    def committed(self, _: Commit) -> None:
        """Find the sessions that are halted on all nodes now."""
        nodes = frozenset(each for (each,) in self._rows("SELECT id FROM nodes"))
        first = self._last + 1
        for number, user_id, session_id in self._rows(_ORDERS, last=self._last):
            self._last = number
            self._orders[number] = user_id, session_id, nodes or frozenset(("",))
        halted = {session_id: user_id for session_id, user_id, _ in self._rows(_HALTED)}
        self._since = {each: self._since.get(each, first) for each in halted}
        self._halted_at.update(dict.fromkeys(halted, self.network.world.now))
        self.stopped = {
            session_id
            for session_id, user_id in halted.items()
            if self._is_acknowledged(session_id, user_id, nodes)
        }

    def _is_acknowledged(self, session_id: str, user_id: str, nodes: frozenset[str]) -> bool:
        """Return whether every living node has carried out the halt of a session."""
        for number, (of_user, of_session, expected) in self._orders.items():
            is_about = of_session == session_id or (of_session is None and of_user == user_id)
            if number < self._since[session_id] or not is_about:
                continue
            acks = self._rows("SELECT node_id FROM halt_acks WHERE number = :number", number=number)
            if not (expected & (nodes | {""})) - {each for (each,) in acks}:
                return bool(acks)
        return False

    def excuses(self, session_id: str, seconds: float) -> bool:
        """Return whether a session was halted within the last seconds."""
        halted_at = self._halted_at.get(session_id)
        return halted_at is not None and self.network.world.now - halted_at < seconds

    def moves(self, process: str, session_id: str, what: str) -> None:
        """Fail if something moves in a session that every node has halted."""
        if session_id in self.stopped:
            self.network.world.fail(
                f"{process} {what} of {session_id[-6:]}, which all nodes have halted"
            )


class HaltPerson(Actor):
    """A support person beside the rules: both halt sessions, and let them go on.

    Args:
        network: leads to the daemons.
        plans: the orders.
        seconds: how long things go wrong.
        until: when everything goes on.
    """

    def __init__(
        self, network: "Network", plans: tuple[HaltPlan, ...], seconds: float, until: float
    ) -> None:
        super().__init__(network, "halter", 0, until)
        self._plans = plans
        self._seconds = seconds
        self._count = 0

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    async def run(self) -> None:
        """Carry out all orders; then let everything go on, until it does."""
        loop, world = asyncio.get_running_loop(), self.network.world
        begun = [loop.create_task(self._one(each)) for each in self._plans]
        await asyncio.sleep(max(0.0, self._seconds - world.now))
        for each in begun:
            each.cancel()
        await asyncio.sleep(OVERDUE_SECONDS)
        for (overdue,) in self._rows(_OVERDUE, at=EPOCH + int(world.now - OVERDUE_SECONDS)):
            world.fail(f"the time of the halt of {overdue[-6:]} is over, and it does not go on")
        while world.now < self.until - LOOK_SECONDS:
            for (user_id,) in self._rows(_SUSPENDED):
                await self.insist("resume", partial(self._resume, user_id))
            for session_id, _, _ in self._rows(_HALTED):
                await self.insist("go", partial(self._go, session_id))
            await asyncio.sleep(LOOK_SECONDS)

    async def _one(self, plan: HaltPlan) -> None:
        await asyncio.sleep(max(0.0, plan.at - self.network.world.now))
        active = self._rows(_SESSIONS)
        if not active:
            return
        session_id, user_id = active[plan.session % len(active)]
        began = self.network.world.now
        ordered = await self.insist(
            plan.what, partial(getattr(self, f"_{plan.what}"), plan, session_id, user_id)
        )
        self.network.world.say(f"{self.name} {plan.what} {session_id[-6:]}: {ordered!r}")
        if isinstance(ordered, Ordered):
            await self._look(ordered, began)
        if plan.what == "end":
            await self.insist(
                "finish", lambda market: stopping.finish_end(market.context, session_id)
            )
        elif not plan.is_timed:
            await asyncio.sleep(plan.seconds)
            make = partial(self._resume, user_id)
            if plan.what != "suspend":
                make = partial(self._go, session_id)
            await self.insist("go on", make)

    async def _look(self, ordered: Ordered, began: float) -> None:
        """Fail if a node is silent though nothing is broken."""
        answer = await self.insist(
            "answered",
            lambda market: halts.answered(
                market.context, ordered.number, ordered.nodes, seconds=ASKED_SECONDS
            ),
        )
        silent = getattr(answer, "silent", ())
        if silent and self.network.books.is_healthy(began):
            self.network.world.fail(f"{len(silent)} nodes do not halt, and nothing is broken")

    # --- orders ----------------------------------------------------------------------------------

    async def _suspend(self, plan: HaltPlan, _: str, user_id: str, market: Any) -> Ordered:
        now = market.context.now()
        ends_at = now + LATER_SECONDS
        if plan.is_timed:
            ends_at = now + LEAST_SECONDS + plan.session % MOST_SECONDS
        return await suspending.suspend(
            market.context,
            market.letters,
            ROOT,
            user_id,
            parts=[Part.SESSIONS],
            ends_at=ends_at,
            shown="a question",
            why=WHY,
        )

    async def _resume(self, user_id: str, market: Any) -> Ordered:
        return await suspending.resume(market.context, market.letters, ROOT, user_id, why=WHY)

    async def _halt(self, _: HaltPlan, session_id: str, __: str, market: Any) -> Ordered:
        await stopping.show_session(market.context, ROOT, session_id)
        return await stopping.halt_session(market.context, ROOT, session_id, WHY)

    async def _go(self, session_id: str, market: Any) -> Ordered:
        return await stopping.let_session_go(market.context, ROOT, session_id, WHY)

    async def _end(self, _: HaltPlan, session_id: str, __: str, market: Any) -> Ordered:
        return await stopping.begin_end(market.context, ROOT, session_id, WHY)

    async def _rule(self, plan: HaltPlan, session_id: str, _: str, market: Any) -> Any:
        """Let a rule find the session; a repeated finding is of another moment."""
        self._count += 1
        name = RULES[plan.session % len(RULES)]
        now = market.context.now()
        await rule_stops.raise_peaks(
            market.context, [Peak(name, session_id, now, 100 + self._count, 50)]
        )
        found = Found(name, session_id, now, {"count": 100 + self._count})
        if not rule_stops.is_fresh(market.context, found):
            return None
        return await rule_stops.stop(
            market.context, found, LEAST_SECONDS if plan.is_timed else LATER_SECONDS
        )

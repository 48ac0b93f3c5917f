"""Acts of the staff on one session, device, job or key, and the units that these stop."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from market.staff import rule_stops
from market.staff.abuse.rule_tickets import Found
from market.staff.base.roles import Machine
from market.staff.stopping import stopping
from market.staff.stopping.suspending import Ordered
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.accounts import KEYS
from tests.sim.stepped.topics.exits import EXITS
from tests.sim.stepped.topics.jobs import JOBS
from tests.sim.stepped.topics.sessions import SESSIONS

ROOT = Machine("root")
WHY = "a ticket"
OnSession = Callable[..., Awaitable[Ordered]]


async def _stops(act: OnSession, name: str, side: Side) -> Any:
    await act(side.market.context, ROOT, side.session(name), WHY)


async def _on_exit(act: OnSession, side: Side) -> Any:
    await act(side.market.context, ROOT, side.world.exits["first"].id, WHY)


async def _cancels(name: str, side: Side) -> Any:
    market, job_id = side.market, side.world.jobs[name]
    await stopping.cancel_job(market.context, market.jobs.outcomes, ROOT, job_id, WHY)


async def _revokes_key(side: Side) -> Any:
    market, key_id = side.market, side.world.people_have.key_id
    return await stopping.revoke_key(market.context, market.letters, ROOT, key_id, WHY)


async def _stops_by_rule(side: Side) -> Any:
    found = Found("scan", side.session("plain"), side.market.clock.now, {"dials": 1})
    return await rule_stops.stop(side.market.context, found, 60)


async def _follows_stops(side: Side) -> Any:
    return await side.market.rule_stops.follow()


STOPS: Mapping[str, Action] = {
    "stops a session by a rule": _stops_by_rule,
    "follows the stops of rules": _follows_stops,
    "releases sessions": lambda side: side.market.suspensions.release_due(),
    "halts a session": partial(_stops, stopping.halt_session, "plain"),
    "lets a session go on": partial(_stops, stopping.let_session_go, "plain"),
    "begins the end of a session": partial(_stops, stopping.begin_end, "plain"),
    "ends a session": SESSIONS["ends a session"],
    "asks for more": SESSIONS["asks for more"],
    "reaps a node": SESSIONS["reaps a node"],
    "bars an exit as the staff": partial(_on_exit, stopping.bar_device),
    "bars an exit": EXITS["bars an exit"],
    "pardons an exit as the staff": partial(_on_exit, stopping.pardon_device),
    "revokes a consent": EXITS["revokes a consent"],
    "cancels a running job as the staff": partial(_cancels, "running"),
    "completes a job": JOBS["completes a job"],
    "cancels a waiting job as the staff": partial(_cancels, "waiting"),
    "claims jobs": JOBS["claims jobs"],
    "revokes a key as the staff": _revokes_key,
    "revokes a key": KEYS["revokes a key"],
}

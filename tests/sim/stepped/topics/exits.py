"""Units on exits, their earnings, and the sessions that pay for these."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from support.market import cases
from support.market.exits import claw_back

from market.bandwidth.lease_book import Ask
from market.base.states import SessionStatus
from market.exits import canaries, payouts
from market.staff.cases.base import Decision, Kind
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.sessions import settles


async def _carries(side: Side) -> Any:
    through = (("first", 70_000), ("second", 90_000))
    usage = side.world.usage("exits", side.label, 200_000, *through)
    return await side.market.leases.exchange([Ask(usage)])


async def _bars(side: Side) -> Any:
    await side.market.exit_canaries.bar(side.world.exits["first"].id, "altered", "evidence")


async def _pardons(side: Side) -> Any:
    await canaries.pardon(side.market.context, side.world.exits["first"].id)


async def _voids_finding(side: Side) -> Any:
    case_id = side.world.people_have.finding
    return (await cases.decide(side.market, Kind.CANARY, case_id, Decision.VOIDED)).state


async def _claws_back(name: str, side: Side) -> Any:
    return await claw_back(side.market.context, side.world.exits[name].id, "a reason")


async def _revokes_consent(side: Side) -> Any:
    exit_ = side.world.exits["first"]
    await side.market.exits.revoke(exit_.owner, exit_.id)


async def _revokes_exit_device(side: Side) -> Any:
    exit_ = side.world.exits["first"]
    await side.market.devices.revoke(exit_.owner, exit_.id)


async def _pays_exits(side: Side) -> Any:
    later = payouts.ExitPayouts(side.market.context, 0)
    return await later.pay_due()


EXITS: Mapping[str, Action] = {
    "reports bytes through exits": _carries,
    "ends a session through exits": partial(settles, "exits", SessionStatus.ENDED),
    "ends another session through exits": partial(settles, "more exits", SessionStatus.ENDED),
    "advances earnings": lambda side: side.market.exit_advances.advance(),
    "pays earnings out": _pays_exits,
    "bars an exit": _bars,
    "pardons an exit": _pardons,
    "makes a finding void": _voids_finding,
    "claws earnings of an exit back": partial(_claws_back, "first"),
    "claws earnings of another exit back": partial(_claws_back, "second"),
    "revokes a consent": _revokes_consent,
    "revokes an exit's device": _revokes_exit_device,
    "leaves with bytes through exits": lambda side: side.market.leases.leave(),
}

"""Units of the staff; each one locks the head of their log."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from market.staff import accounts, users
from market.staff.roles import Machine, Role
from tests.sim.stepped.side import Action, Side

ROOT = Machine("root")


async def _locks(name: str, side: Side) -> Any:
    member = side.world.people_have.staff[name]
    await accounts.lock(side.market.context, ROOT, member, "left")


async def _gives_role(name: str, side: Side) -> Any:
    member = side.world.people_have.staff[name]
    await accounts.set_role(side.market.context, ROOT, member, Role.SUPPORT, "moved")


async def _notes(side: Side) -> Any:
    await users.note(side.market.context, ROOT, side.buyer, "asked for a refund")


STAFF: Mapping[str, Action] = {
    "locks the first operator": partial(_locks, "first"),
    "locks the second operator": partial(_locks, "second"),
    "makes the second operator support": partial(_gives_role, "second"),
    "writes a note": _notes,
}

"""A node in a trial, and the rows that it works on."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from support.market.market import SECRET, Market

from market.events.idempotency import KeyedRequest, Receipt, Seal
from tests.sim.stepped.world import World

SEAL = Seal(SECRET)


@dataclass(frozen=True)
class Side:
    """A node, and the rows that it works on."""

    label: str
    market: Market
    world: World

    @property
    def buyer(self) -> str:
        """The user that has bought all sessions, jobs and deploys."""
        return self.world.people["buyer"]

    def session(self, name: str) -> str:
        """Return the identifier of a session."""
        return self.world.sessions[name].session_id

    def receipt(self, user_id: str) -> Receipt[Any]:
        """Return the receipt of a user's request, which has the same key on both nodes."""
        request = KeyedRequest(user_id, "once", "hash", SEAL, self.market.clock.now)
        return Receipt(request, msgspec.json.encode)


Action = Callable[[Side], Awaitable[Any]]

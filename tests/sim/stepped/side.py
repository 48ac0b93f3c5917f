"""A node in a trial, and the rows that it works on."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from support.market.market import Market

from tests.sim.stepped.world import World


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


Action = Callable[[Side], Awaitable[Any]]

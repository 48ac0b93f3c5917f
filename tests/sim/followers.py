"""Followers of the feed of events, who come back after each break."""

import asyncio
from typing import TYPE_CHECKING, Any

from market.notify.feed import Bye, Wanted
from storage.events.events import EventRow
from tests.sim.jobs import Actor

if TYPE_CHECKING:
    from tests.sim.clients import Network

FOLLOW_SECONDS = 3.0
LAST_FOLLOW_SECONDS = 1.0
# Between two times, when events come that it must be sent later.
REST_MOST_SECONDS = 2.0
BEGINNING = "00000000-0000-7000-8000-000000000000"


class Follower(Actor):
    """Follows the events of a user, from the first one on, and comes back after each break.

    Args:
        network: leads to the daemons.
        user_id: whose events.
        number: of the follower.
        until: when it stops.
    """

    def __init__(self, network: "Network", user_id: str, number: int, until: float) -> None:
        super().__init__(network, f"follower{number}", number, until)
        self.user_id = user_id
        self.seen: dict[str, None] = {}
        self._last = BEGINNING
        self._draw = network.world.draw(self.name)

    async def run(self) -> None:
        """Follow until the time is over, and then once more, when all events are there."""
        while self.network.world.now < self.until:
            await self.insist("follow", self._follow)
            self._number += 1
            await asyncio.sleep(REST_MOST_SECONDS * self._draw.random())
        self.network.world.say(f"{self.name} has seen {len(self.seen)} events")

    async def last_look(self, market: Any) -> None:
        """Come back once more, and read pages too."""
        recorded = self._recorded()
        await self._follow(market, LAST_FOLLOW_SECONDS)
        rows, after = await market.event_feed.page(self.user_id, limit=3, order="newest")
        if after:
            await market.event_feed.page(self.user_id, after=after, limit=3, order="newest")
        await market.event_feed.page(self.user_id, types=["job.created"], limit=3, order="oldest")
        for event_id, kind in recorded.items():
            if event_id not in self.seen:
                self.network.world.fail(f"{self.name} was not sent the event {kind}")
        if len(rows) < min(3, len(recorded)):
            self.network.world.fail(f"{self.name} got a page of {len(rows)} events")

    async def _follow(self, market: Any, seconds: float = FOLLOW_SECONDS) -> bool:
        wanted = Wanted(has_usage=self._number % 2 == 0)
        items = market.event_feed.follow(self.user_id, self.name, wanted, since=self._last)
        try:
            async with asyncio.timeout(seconds):
                async for item in items:
                    if isinstance(item, EventRow):
                        self.seen[item.id] = None
                        self._last = max(self._last, item.id)
                    if isinstance(item, Bye):
                        await items.aclose()
                        return False
        except TimeoutError:
            pass
        return True

    def _recorded(self) -> dict[str, str]:
        """Return the types of all events of its user, by their identifiers."""
        return dict(
            self.network.books.database.rows(
                "SELECT id, type FROM events WHERE user_id = :id ORDER BY id", id=self.user_id
            )
        )

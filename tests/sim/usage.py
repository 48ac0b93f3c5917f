"""Usage: buyers who look at it while things go wrong, and a comparison at the end."""

import asyncio
from datetime import UTC
from typing import TYPE_CHECKING, Any

from market.bandwidth.usage import Series, Summary
from market.bandwidth.usage_range import Range, Step
from storage.bandwidth.usage import Bucket
from tests.sim.jobs import Actor

if TYPE_CHECKING:
    from tests.sim.clients import Network

# Of all runs.
SHARE = 0.3
REST_MOST_SECONDS = 4.0
# A clock that is set wrong is wrong by a day at most.
DAYS = 3 * 86_400


async def look(network: "Network", market: Any, user_id: str) -> tuple[Summary, Series]:
    """Return the usage of a user, in all and by session, after a look at the supply."""
    now = market.usage.now
    wanted = Range(Step.DAY, UTC, (Bucket(now - DAYS, now + DAYS),))
    summary = await market.usage.summary(user_id, UTC)
    series = await market.usage.series(user_id, wanted, by_session=True, fill=False)
    await network.supply.look(market)
    return summary, series


class UsageReader(Actor):
    """Looks at the usage of a user again and again.

    Args:
        network: leads to the daemons.
        user_id: the user.
        number: of the reader.
        until: when it stops.
    """

    def __init__(self, network: "Network", user_id: str, number: int, until: float) -> None:
        super().__init__(network, f"reader{number}", number, until)
        self.user_id = user_id
        self._draw = network.world.draw(self.name)

    async def run(self) -> None:
        """Look until the time is over."""
        while self.network.world.now < self.until:
            await asyncio.sleep(REST_MOST_SECONDS * self._draw.random())
            await self.insist("usage", lambda market: look(self.network, market, self.user_id))
            self._number += 1

    async def last_look(self, market: Any) -> None:
        """Compare the usage with the sessions, once all of them are over."""
        summary, series = await look(self.network, market, self.user_id)
        sold = dict(
            self.network.books.database.rows(
                "SELECT id, bytes_used FROM bandwidth_sessions WHERE user_id = :id AND bytes_used",
                id=self.user_id,
            )
        )
        shown = {each.session_id: each.sum.used_bytes for each in series.points}
        shown = {session_id: used for session_id, used in shown.items() if used}
        fail = self.network.world.fail
        if shown != sold:
            fail(f"{self.user_id} sees the usage {shown}, and the sessions have {sold}")
        if summary.ever.used_bytes != sum(sold.values()):
            fail(f"{self.user_id} sees {summary.ever.used_bytes} bytes in all, of {sold}")

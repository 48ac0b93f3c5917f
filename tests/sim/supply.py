"""The view of the supply: which devices ask a daemon for work, compared with their requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from market.dispatch.asks import USUAL_PACE
from market.dispatch.supply import KEPT_SECONDS, OTHER, PAID_BUYERS_MIN, PAID_JOBS_MIN, Snapshot

if TYPE_CHECKING:
    from tests.sim.clients import Network

_GIVEN = """
    SELECT COUNT(*), COUNT(DISTINCT j.user_id)
    FROM job_attempts AS a JOIN jobs AS j ON j.id = a.job_id
"""


@dataclass(slots=True)
class _Asked:
    """The requests of a device to a daemon, in seconds of the daemon's clock.

    Attributes:
        answered_at: the time of the first answer.
        last_at: the time of the last request or answer.
        is_broken: whether a request was broken off, or refused.
    """

    answered_at: float
    last_at: float
    is_broken: bool = False


class SupplyBooks:
    """Records the devices that ask each daemon for work; compares the view of the supply with them.

    Args:
        network: has the database.
    """

    def __init__(self, network: "Network") -> None:
        self._network = network
        # By marketplace of a daemon, and by identifier of a device.
        self._asked: dict[Any, dict[str, _Asked]] = {}

    @contextmanager
    def asking(self, market: Any, device_id: str) -> Iterator[None]:
        """Record the request for work within the block; runs in the daemon."""
        loop = asyncio.get_running_loop()
        of_market = self._asked.setdefault(market, {})
        asked = of_market.setdefault(device_id, _Asked(float("inf"), loop.time()))
        asked.last_at = loop.time()
        try:
            yield
        except BaseException:
            asked.is_broken = True
            raise
        asked.answered_at = min(asked.answered_at, loop.time())
        asked.last_at = loop.time()

    async def look(self, market: Any) -> Snapshot:
        """Return the supply of a daemon; fail if it counts other devices than have asked."""
        snapshot: Snapshot = await market.supply.find()
        now = asyncio.get_running_loop().time()
        all_asked = self._asked.get(market, {}).values()
        # A snapshot is kept for a while, and a device counts for a while after its last request.
        most = sum(
            now - each.last_at <= USUAL_PACE.away_seconds + KEPT_SECONDS for each in all_asked
        )
        least = sum(
            not each.is_broken
            and now - each.answered_at > KEPT_SECONDS + 1.0
            and now - each.last_at < USUAL_PACE.away_seconds - 1.0
            for each in all_asked
        )
        total = snapshot.total.devices
        if not least <= total <= most:
            self._fail(f"shows {total} devices, and from {least} to {most} have asked")
        self._compare(snapshot)
        return snapshot

    def _compare(self, snapshot: Snapshot) -> None:
        """Fail if the rows of a snapshot differ; all devices of a run are of one kind."""
        total = snapshot.total
        for name, rows in (
            ("gpus", snapshot.gpus),
            ("cores", snapshot.cores),
            ("memory", snapshot.memory),
            ("sandboxes", snapshot.sandboxes),
            ("countries", snapshot.countries),
        ):
            devices, free = sum(row.devices for row in rows), sum(row.free for row in rows)
            if (devices, free) != (total.devices, total.free) or len(rows) > 1:
                self._fail(f"shows {devices} devices by {name}, of {total.devices}")
        rows = (total, *snapshot.cores, *snapshot.countries)
        if any(row.least_price is not None or row.reputation is not None for row in rows):
            self._fail("shows figures of fewer than five owners")
        if any(row.name != OTHER for row in snapshot.countries):
            self._fail("shows the country of fewer than five owners")
        if snapshot.paid is not None:
            ((jobs, buyers),) = self._network.books.database.rows(_GIVEN)
            paid = snapshot.paid
            if paid.jobs > jobs or paid.jobs < PAID_JOBS_MIN or buyers < PAID_BUYERS_MIN:
                self._fail(f"shows prices of {paid.jobs} jobs; {buyers} buyers have {jobs}")
            if not paid.low <= paid.median <= paid.high:
                self._fail(f"shows the prices {paid}")

    def _fail(self, text: str) -> None:
        self._network.world.fail(f"the supply {text}")

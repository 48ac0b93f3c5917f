"""This daemon among others on one database: alive as long as it says so in time.

A node that could not say so hands out no byte any more before the others may take it for dead, so
that what it had leased is never handed out twice.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from market.ids import Identifiers
from market.leases import Leases
from proxyd.loop.clock import ObservedTime
from proxyd.metering.cluster_writer import ClusterWriter
from proxyd.metering.lease_slices import Fence
from storage.errors import StoreError
from storage.store import Link

if TYPE_CHECKING:
    from storage.nodes import SeenRow

RENEW_MOST_SECONDS = 2.0
RENEWALS_PER_TIMEOUT = 5
RETRIES_PER_TIMEOUT = 20

_logger = logging.getLogger("node")


class Node:
    """Keeps this daemon known to the others.

    `sweeps` says whether this node does what only one of them should.

    Args:
        link: the connection to the others.
        leases: the leases of this node.
        writer: what hands out bytes, and hears the others.
        fence: until when it may.
        identifiers: makes identifiers.
        boottime: a clock that goes on while the machine sleeps, in seconds.
        observed_time: for how long this node was there to notice things.
        timeout_seconds: a node that was not seen for so long is dead.
    """

    def __init__(
        self,
        link: Link,
        leases: Leases,
        writer: ClusterWriter,
        fence: Fence,
        identifiers: Identifiers,
        boottime: Callable[[], float],
        observed_time: ObservedTime,
        *,
        timeout_seconds: float,
    ) -> None:
        self._link = link
        self._leases = leases
        self._writer = writer
        self._fence = fence
        self._identifiers = identifiers
        self._boottime = boottime
        self._observed_time = observed_time
        self._timeout = timeout_seconds
        # Since when, by `observed_time`, a node was not seen again.
        self._unseen_since: dict[SeenRow, float] = {}
        self._is_linked = False
        self._is_failing = False
        self._lost = asyncio.Event()
        self.sweeps = False

    async def start(self) -> None:
        """Become known.

        Raises:
            UnavailableError: the database did not answer.
        """
        await self._connect()
        await self._register()
        self.sweeps = await self._link.try_to_sweep()

    async def run(self) -> None:
        """Stay known until cancelled; whoever declares this node dead cuts everything it serves."""
        while True:
            try:
                await self._renew()
            except StoreError as error:
                self.sweeps = False
                self._is_linked = False
                if not self._is_failing:
                    _logger.error("this node is cut off from the others: %s", error)
                self._is_failing = True
                await asyncio.sleep(self._timeout / RETRIES_PER_TIMEOUT)
            else:
                if self._is_failing:
                    _logger.info("this node is back among the others")
                self._is_failing = False
                await self._pause()

    async def reap(self) -> int:
        """Take back what nodes had leased that are silent for too long; return how many were.

        To be called again and again. No clock that somebody may set decides: a node is silent when
        what the database says of it stays the same for as long as this one looks.

        Raises:
            StoreError: they may not have been seen either, so that this time does not count.
        """
        seen = await self._leases.nodes()
        self._observed_time.tick()
        now = self._observed_time.seconds()
        self._unseen_since = {row: self._unseen_since.get(row, now) for row in seen}
        return await self._leases.reap(
            [row for row, since in self._unseen_since.items() if now - since >= self._timeout]
        )

    async def stop(self) -> None:
        """Leave.

        Raises:
            StoreError: the others find out when the time is over.
        """
        self.sweeps = False
        await self._leases.leave()

    async def close(self) -> None:
        """Let go of the connection to the others."""
        self.sweeps = False
        await self._link.close()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(
                min(RENEW_MOST_SECONDS, self._timeout / RENEWALS_PER_TIMEOUT)
            ):
                await self._lost.wait()
        except TimeoutError:
            pass

    async def _connect(self) -> None:
        self._lost.clear()
        await self._link.connect(self._writer.hear, self._on_lost)
        self._is_linked = True

    def _on_lost(self) -> None:
        self._is_linked = False
        self.sweeps = False
        self._lost.set()

    async def _renew(self) -> None:
        if not self._is_linked:
            await self._connect()
            self._writer.catch_up()
        asked_at = self._boottime()
        if not await self._link.renew(self._leases.node_id or ""):
            _logger.error("this node was declared dead; it cuts everything and starts anew")
            self._writer.forget_all()
            await self._register()
        else:
            self._seen(asked_at)
        self.sweeps = await self._link.try_to_sweep()

    async def _register(self) -> None:
        node_id, asked_at = self._identifiers.new(), self._boottime()
        await self._link.register(node_id)
        self._leases.node_id = node_id
        _logger.info("this is node %s", node_id)
        self._seen(asked_at)

    def _seen(self, asked_at: float) -> None:
        """Note that the others know this node alive since it asked, or later."""
        was_up = self._fence.is_up
        self._fence.until = asked_at + self._timeout * (1 - 1 / RENEWALS_PER_TIMEOUT)
        if was_up:
            self._writer.resume()

"""Node of a cluster on one database, which is alive as long as it renews its row in time.

A node that could not renew it stops handing out bytes before the others may take it for dead, so
that its leased bytes are never handed out twice: the fence goes up at four fifths of the timeout,
counted from before the renewal was sent, and the others wait for the whole of it.

Time is measured by a clock that goes on while the machine sleeps.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

from market.bandwidth.leases import Leases
from market.base.ids import Identifiers
from proxyd.loop.clock import ObservedTime
from proxyd.metering.cluster_writer import ClusterWriter
from proxyd.metering.fence import Fence
from storage.engines.errors import StoreError, level_of
from storage.engines.store import Link

if TYPE_CHECKING:
    from storage.bandwidth.nodes import SeenRow

# A renewal also finds out that the connection is gone: not later than this after it went.
RENEW_MOST_SECONDS = 2.0
# Four renewals may fail before the fence goes up.
RENEWALS_PER_TIMEOUT = 5
# A database that is back is noticed soon enough to renew before the fence goes up.
RETRIES_PER_TIMEOUT = 20
# Six renewals. A database without a commit for this time waits for a standby that is lost, even
# if it answers reads.
NO_COMMIT_SECONDS = 12.0

_logger = logging.getLogger("node")


class Hearer(Protocol):
    """Receiver of the notices of other nodes."""

    def hear(self, text: str) -> None:
        """Act on a notice of another node, or of this one; most are about something else."""

    def catch_up(self) -> None:
        """Check the store, because notices may have been missed."""


class Reaped(NamedTuple):
    """Findings about other nodes: hanging transactions, and dead nodes, ended or silent."""

    hanging: int
    ended: int
    silent: int


@final
class Reaper:
    """Takes back the leases of nodes that have ended, or are silent for too long.

    No clock that an operator may set decides: a node is silent when its row in the database stays
    the same for as long as this process looks.

    Args:
        link: knows of some nodes that they have ended.
        observed_time: the time in which this process was running and could notice events.
        timeout_seconds: a node is dead when it was not seen for this time.
    """

    def __init__(
        self, leases: Leases, link: Link, observed_time: ObservedTime, timeout_seconds: float
    ) -> None:
        self._leases = leases
        self._link = link
        self._observed_time = observed_time
        self._timeout = timeout_seconds
        # Since when, by `observed_time`, a node was not seen again.
        self._unseen_since: dict[SeenRow, float] = {}

    async def reap(self) -> Reaped:
        """Check every node; return the number of findings. Call it periodically.

        Hanging transactions end first, because one may lock the row of a dead node.

        Raises:
            StoreError: the nodes were not seen, so that this time does not count.
        """
        hanging = await self._link.end_hanging()
        rows = await self._leases.nodes()
        exited = await self._link.exited([row.id for row in rows])
        now = self._see(rows)
        ended = [row for row in rows if row.id in exited]
        silent = [
            row
            for row, since in self._unseen_since.items()
            if row.id not in exited and now - since >= self._timeout
        ]
        return Reaped(hanging, await self._leases.reap(ended), await self._leases.reap(silent))

    async def watch(self) -> None:
        """Look at every node, and reap none: the node that sweeps may be the next one to die.

        Raises:
            StoreError: as `reap`.
        """
        self._see(await self._leases.nodes())

    def _see(self, rows: "Sequence[SeenRow]") -> float:
        """Note which nodes were seen again; return the time, by `observed_time`."""
        self._observed_time.tick()
        now = self._observed_time.seconds()
        self._unseen_since = {row: self._unseen_since.get(row, now) for row in rows}
        return now


@final
class Duties:
    """The duties that this node has among the others.

    `sweeps` is whether this node does the work that only one node should do. `reaps` is whether it
    reaps: the node that sweeps reaps, and while no node sweeps, every node reaps.

    Args:
        may_sweep: whether it takes the sweepers' lock; a process that does not sweep must not.
    """

    def __init__(self, link: Link, *, may_sweep: bool) -> None:
        self._link = link
        self.may_sweep = may_sweep
        self.sweeps = False
        self.reaps = False

    async def take(self) -> None:
        """Take the duties that no other node has.

        Raises:
            StoreError: the duties are as they were.
        """
        if self.may_sweep:
            self.sweeps = self.reaps = await self._link.try_to_sweep()
        else:
            self.reaps = await self._link.is_unswept()

    def drop(self) -> None:
        """Drop all duties."""
        self.sweeps = self.reaps = False


class _Line:
    """Passes the notices of other nodes on while the link is connected.

    Args:
        lost: called when the connection is lost.
    """

    def __init__(self, link: Link, hearers: Sequence[Hearer], lost: Callable[[], None]) -> None:
        self._link = link
        self._hearers = hearers
        self._on_lost = lost
        self._lost = asyncio.Event()
        self.is_linked = False

    async def connect(self) -> None:
        """Connect, and pass notices on from now on."""
        self._lost.clear()
        await self._link.connect(self._hear, self._broken)
        self.is_linked = True

    def catch_up(self) -> None:
        """Notify the hearers to look for missed changes."""
        for hearer in self._hearers:
            hearer.catch_up()

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the connection is lost."""
        try:
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        except TimeoutError:
            pass

    def _hear(self, text: str) -> None:
        for hearer in self._hearers:
            hearer.hear(text)

    def _broken(self) -> None:
        self.is_linked = False
        self._on_lost()
        self._lost.set()


@final
class Node:
    """Keeps this daemon known to the others.

    Args:
        boottime: a clock that goes on while the machine sleeps, in seconds.
        observed_time: the time in which this node was running and could notice events.
        timeout_seconds: a node is dead when it was not seen for this time.
        may_sweep: whether it takes the sweepers' lock; a process that does not sweep must not.
        hearers: get the notices of other nodes, beside the writer.

    Attributes:
        duties: the duties of this node among the others.
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
        may_sweep: bool = True,
        hearers: Sequence[Hearer] = (),
    ) -> None:
        self._link = link
        self._leases = leases
        self._writer = writer
        self._fence = fence
        self._identifiers = identifiers
        self._boottime = boottime
        self._timeout = timeout_seconds
        self._reaper = Reaper(leases, link, observed_time, timeout_seconds)
        self.duties = Duties(link, may_sweep=may_sweep)
        self._line = _Line(link, (writer, *hearers), self.duties.drop)
        self._seen_at = boottime()

    async def start(self) -> None:
        """Register this node with the others.

        Raises:
            UnavailableError: the database did not answer.
        """
        await self._line.connect()
        await self._register()
        await self.duties.take()

    async def run(self) -> None:
        """Renew the row until cancelled; once declared dead, cut everything and register again."""
        is_failing = False
        while True:
            try:
                await self._renew()
            except StoreError as error:
                self.duties.drop()
                self._line.is_linked = False
                if not is_failing:
                    _logger.log(
                        level_of(error, logging.ERROR),
                        "this node is cut off from the others: %s",
                        error,
                    )
                is_failing = True
                await asyncio.sleep(self._timeout / RETRIES_PER_TIMEOUT)
            else:
                if is_failing:
                    _logger.info("this node is back among the others")
                is_failing = False
                await self._line.pause(
                    min(RENEW_MOST_SECONDS, self._timeout / RENEWALS_PER_TIMEOUT)
                )

    def trouble(self) -> str:
        """Return why this node may hand out no bytes, now or soon; "" when it may."""
        if self._fence.is_up:
            return "store: this node is fenced off, because it could not renew its row"
        silent_seconds = self._boottime() - self._seen_at
        if silent_seconds > NO_COMMIT_SECONDS:
            return f"store: no commit for {int(silent_seconds)} s"
        return ""

    async def reap(self) -> Reaped:
        """See `Reaper.reap`."""
        return await self._reaper.reap()

    async def watch(self) -> None:
        """See `Reaper.watch`; to be called again and again while another node reaps.

        A node that never sweeps is ready to reap only while no node sweeps, and does not watch.
        """
        if self.duties.may_sweep:
            await self._reaper.watch()

    async def stop(self) -> None:
        """Leave the other nodes, and release the leases.

        Raises:
            StoreError: the others reap this node after the timeout.
        """
        self.duties.drop()
        await self._leases.leave()

    async def close(self) -> None:
        """Close the connection to the others."""
        self.duties.drop()
        await self._link.close()

    async def _renew(self) -> None:
        if not self._line.is_linked:
            await self._line.connect()
            self._line.catch_up()
        sent_at = self._boottime()
        if not await self._link.renew(self._leases.node_id or ""):
            _logger.error("this node was declared dead; it cuts all connections and starts again")
            self._leases.declared_dead()
            self._writer.forget_all()
            await self._register()
            _logger.info("this is node %s", self._leases.node_id)
        else:
            self._seen(sent_at)
        await self.duties.take()

    async def _register(self) -> None:
        node_id, sent_at = self._identifiers.new(), self._boottime()
        await self._link.register(node_id)
        self._leases.node_id = node_id
        self._seen(sent_at)

    def _seen(self, sent_at: float) -> None:
        """Move the fence: the others saw this node alive at `sent_at` (boot time) or later."""
        was_up = self._fence.is_up
        self._seen_at = sent_at
        self._fence.until = sent_at + self._timeout * (1 - 1 / RENEWALS_PER_TIMEOUT)
        if was_up:
            self._writer.resume()

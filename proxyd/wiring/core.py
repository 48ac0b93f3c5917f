"""Core of a daemon: the parts that need a store but no sockets.

It counts the bytes of sessions, keeps this process known to the others, passes notices on, and does
the marketplace's own work if this process has the marketplace. `Daemon` puts sockets around it.
"""

import logging

from market.base.bus import Bus
from proxyd.loop import cancellation
from proxyd.metering.meter import Meter
from proxyd.wiring.halt_watch import HaltWatch
from proxyd.wiring.look_watch import LookWatch
from proxyd.wiring.market_work import MarketWork
from proxyd.wiring.membership import Membership
from proxyd.wiring.tasks import Tasks
from storage.engines.errors import StoreError
from storage.engines.store import Store

COUNTS_SECONDS = 15.0  # to write the last counts, with a store that may be away

_logger = logging.getLogger("daemon")


class Core:
    """Core of a daemon, which starts and stops its parts in order; its owner closes the store.

    Args:
        store: an open store, claimed for this daemon.
        membership: keeps this daemon known to others on its database.
        meter: counts the bytes of live sessions.
        bus: passes changes on, also to other processes.
        halt_watch: carries out the orders of the staff about sessions and devices.
        work: the marketplace's own work; None in a process that has only the proxy.
        look_watch: answers questions about the records of this machine; None without other nodes.
    """

    def __init__(
        self,
        store: Store,
        membership: Membership,
        meter: Meter,
        bus: Bus,
        halt_watch: HaltWatch,
        work: MarketWork | None,
        look_watch: LookWatch | None = None,
    ) -> None:
        self.store = store
        self.membership = membership
        self.meter = meter
        self.bus = bus
        self.halt_watch = halt_watch
        self.work = work
        self.look_watch = look_watch
        self.tasks = Tasks(lambda: membership.sweeps)

    async def start(self, level: int) -> None:
        """Register as a node or take back the leases of an earlier daemon; then begin to work.

        Args:
            level: the level of the line in the log that names the node.
        """
        await self.halt_watch.start()  # before others count on this node
        await self.membership.start(level)
        tasks = self.tasks
        tasks.spawn("meter", self.meter.run(), is_writer=True)
        tasks.spawn("notices", self.bus.run(self.store))
        tasks.spawn("halts", self.halt_watch.run(self.store))
        if self.look_watch is not None:
            tasks.spawn("looks", self.look_watch.run())
        self.membership.spawn_tasks(tasks)
        if self.work is not None:
            self.work.spawn_tasks(tasks)

    async def stop(self) -> None:
        """Write the last counts within a bound, leave the other nodes, and end every task.

        To be called when no connection takes bytes any more.
        """
        await self.tasks.end_writers()
        try:
            await cancellation.within(
                COUNTS_SECONDS, self._write_last_counts(), "writing the last counts"
            )
        except StoreError as error:
            _logger.error("the last counts could not be written: %s", error)
        finally:
            await self.tasks.end()
            await self.membership.close()

    async def _write_last_counts(self) -> None:
        await self.meter.stop()
        if self.work is not None:
            await self.work.flush()
        await self.membership.stop(self.tasks)

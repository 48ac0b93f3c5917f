"""The place of this daemon on its database: alone, or a node among others."""

import asyncio
import logging
from typing import Final

from market.bandwidth.leases import Leases
from proxyd.metering.node import Node
from proxyd.wiring.tasks import Tasks
from storage.engines.errors import StoreError, level_of

NODE_TASK: Final = "node"
REAP_CHECK_SECONDS = 1.0  # a fifteenth of the default node timeout: a dead node is noticed in time

_logger = logging.getLogger("daemon")


class Membership:
    """Keeps this daemon known to the others, and takes back the leases of dead ones.

    Args:
        node: this daemon among others; None where there can be no others.
        check_seconds: between two looks at the others.
    """

    def __init__(
        self, leases: Leases, node: Node | None, check_seconds: float = REAP_CHECK_SECONDS
    ) -> None:
        self.leases = leases
        self.node = node
        self._check_seconds = check_seconds

    @property
    def sweeps(self) -> bool:
        """Whether this daemon does the work which only one daemon on the database should do."""
        return self.node is None or self.node.duties.sweeps

    async def start(self, level: int) -> None:
        """Register as a node, or take back the leases that an earlier daemon left.

        Args:
            level: the level of the line in the log that names the node.

        Raises:
            UnavailableError: the database did not answer.
        """
        if self.node is not None:
            await self.node.start()
            _logger.log(level, "this is node %s", self.leases.node_id)
            return
        recovered = await self.leases.recover()
        if recovered:
            _logger.info("leases that a dead daemon had left open, taken back: %d", recovered)

    def spawn_tasks(self, tasks: Tasks) -> None:
        """Start the tasks that run while this daemon is a node."""
        if self.node is not None:
            tasks.spawn(NODE_TASK, self.node.run())
            tasks.spawn("dead nodes", self._reap(self.node))

    async def stop(self, tasks: Tasks) -> None:
        """Leave the others.

        Raises:
            StoreError: the others reap this node after the timeout.
        """
        if self.node is not None:
            # A renewal after the node has left would find no row, and register the node again.
            await tasks.end_named(NODE_TASK)
            await self.node.stop()

    async def close(self) -> None:
        """Close the connection to the others."""
        if self.node is not None:
            await self.node.close()

    async def _reap(self, node: Node) -> None:
        """Take back the leases of dead nodes, again and again, until cancelled.

        Only while this node reaps. Until then it watches the others, so that it need not begin to
        do so when the node that sweeps has died. The first time that it sweeps, it also takes back
        the leases of a daemon that ran as the only one, before there were several.
        """
        is_first = True
        while True:
            await asyncio.sleep(self._check_seconds)
            try:
                if is_first and node.duties.sweeps:
                    await self.leases.recover()
                    is_first = False
                if not node.duties.reaps:
                    await node.watch()
                    continue
                hanging, ended, silent = await node.reap()
                if hanging:
                    _logger.warning("transactions of hanging daemons, now ended: %d", hanging)
                if ended:
                    _logger.info(
                        "processes that have ended, whose leases are taken back: %d", ended
                    )
                if silent:
                    _logger.warning("nodes that were not seen and are now dead: %d", silent)
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "dead nodes wait for the store to return: %s",
                    error,
                )

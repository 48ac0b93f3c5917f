"""The task of each process that carries out the orders of the staff about sessions and devices.

On PostgreSQL a notice calls it, and without one it looks every two seconds. A command of the
operator is another process, and on SQLite it has no connection to the daemon. There the task looks
ten times a second whether any process has committed something, which costs no query.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import final

from market.accounts.levels import Limited
from market.bandwidth.halts import HaltKind, Halts, is_call
from proxyd.metering.halting import Halting
from storage.engines.errors import StoreError, level_of
from storage.engines.store import Store

LOOK_SECONDS = 2.0  # the pace of a node's renewals
POLL_SECONDS = 0.1
FAILED_SECONDS = 0.5

_logger = logging.getLogger("halts")


@final
class HaltWatch:
    """Carries out orders, and acknowledges them.

    Args:
        halts: the orders that are new here.
        halting: cuts and refuses sessions of this process.
        node_id: returns the name of this process among the nodes, "" if there are no others.
        limited: returns the limits of a user whose account is new.
    """

    def __init__(
        self,
        halts: Halts,
        halting: Halting,
        node_id: Callable[[], str],
        limited: Callable[[str], Awaitable[Limited | None]],
    ) -> None:
        self._limited = limited
        self._halts = halts
        self._halting = halting
        self._node_id = node_id
        self._look: Callable[[], Awaitable[object]] | None = None
        self._called = asyncio.Event()

    def join(self, look: Callable[[], Awaitable[object]]) -> None:
        """Also call `look` at each order: it looks at the attached devices again."""
        self._look = look

    def hear(self, text: str) -> None:
        """Look at the orders soon, if a notice calls for it."""
        if is_call(text):
            self._called.set()

    def catch_up(self) -> None:
        """Look at the orders soon, because notices may have been missed."""
        self._called.set()

    async def start(self) -> None:
        """Skip the orders of the past.

        Raises:
            StoreError: the store did not answer.
        """
        await self._halts.begin()

    async def run(self, store: Store) -> None:
        """Carry out orders until cancelled."""
        is_failing = False
        while True:
            version = store.version()
            try:
                await self.carry_out()
            except StoreError as error:
                if not is_failing:
                    _logger.log(
                        level_of(error, logging.WARNING),
                        "halted sessions wait for the store to return: %s",
                        error,
                    )
                is_failing = True
                await asyncio.sleep(FAILED_SECONDS)
                continue
            is_failing = False
            await self._pause(store, version)

    async def carry_out(self) -> None:
        """Carry out the orders that are new here; all connections are cut before the first wait.

        Raises:
            StoreError: the orders are carried out again, which is harmless.
        """
        self._called.clear()
        while orders := await self._halts.new():
            carried_out = [(each.number, self._halting.carry_out(each)) for each in orders]
            for user_id in {each.user_id for each in orders if each.kind == HaltKind.LOOK}:
                if self._halting.has_sessions(user_id):
                    self._halting.limits(user_id, await self._limited(user_id))
            if self._look is not None:
                await self._look()
            await self._halts.done(self._node_id(), carried_out)

    async def _pause(self, store: Store, version: bytes | None) -> None:
        """Wait for a notice, for a commit of any process where that is visible, or for a while."""
        seconds = LOOK_SECONDS if version is None else POLL_SECONDS
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._called.wait()
            except TimeoutError:
                pass
            if version is None or store.version() != version or self._called.is_set():
                return

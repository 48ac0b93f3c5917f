"""The task of each node that answers questions about the access log of its machine."""

import asyncio
import logging
from collections.abc import Callable
from typing import final

from market.events.context import Context
from market.staff.abuse import looks
from market.staff.abuse.exit_use import Found, Question
from storage.engines.errors import StoreError

_logger = logging.getLogger("looks")


@final
class LookWatch:
    """Answers questions, when a notice calls.

    Args:
        context: the open store.
        node_id: returns the name of this process among the nodes.
        find: searches the records of this machine, in any thread; None in a process that is not
            the first one of its daemon: all have the same folder.
    """

    def __init__(
        self,
        context: Context,
        node_id: Callable[[], str],
        find: Callable[[Question], Found] | None,
    ) -> None:
        self._context = context
        self._node_id = node_id
        self._find = find
        self._called = asyncio.Event()

    def hear(self, text: str) -> None:
        """Look for questions soon, if a notice calls for it."""
        if looks.is_call(text):
            self._called.set()

    def catch_up(self) -> None:
        """Look for questions soon, because notices may have been missed."""
        self._called.set()

    async def run(self) -> None:
        """Answer questions until cancelled."""
        while True:
            await self._called.wait()
            self._called.clear()
            try:
                await looks.answer_all(self._context, self._node_id(), self._search)
            except StoreError as error:  # the next notice, or the return of the store, tries again
                _logger.debug("questions about records wait: %s", error)

    async def _search(self, question: Question) -> Found:
        if self._find is None:
            return Found((), ())
        try:
            return await asyncio.to_thread(self._find, question)
        except OSError as error:
            return Found((), [f"The access log cannot be read: {error.strerror}."])

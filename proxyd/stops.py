"""Findings of the rules against abuse, from the thread that counts to the tickets."""

import asyncio
import logging
from collections import deque
from typing import Final

from market.base.errors import MarketError
from market.events.context import Context
from market.staff import rules
from proxyd.ops.abuse_watch import Finding
from storage.engines.errors import StoreError

WAITING_MAX: Final = 1_000  # findings of an outage of the store; the newest are kept
PAUSE_SECONDS: Final = 1.0

_logger = logging.getLogger("abuse")


class Stops:
    """Opens a ticket for each finding.

    Args:
        context: the open store.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[Finding] = deque(maxlen=WAITING_MAX)

    def add(self, finding: Finding) -> None:
        """Take a finding, from any thread."""
        self._waiting.append(finding)

    async def run(self) -> None:
        """Open tickets until this is cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            while self._waiting:
                await self._report(self._waiting.popleft())

    async def _report(self, finding: Finding) -> None:
        try:
            row = await rules.report(
                self._context, finding.rule, finding.session_id, finding.at, finding.figures
            )
        except (MarketError, StoreError) as error:
            _logger.warning(
                "rule %s found session %s, without a ticket: %s",
                finding.rule,
                finding.session_id,
                error,
            )
            return
        if row is not None:
            _logger.warning(
                "rule %s found session %s: ticket %d is open",
                finding.rule,
                finding.session_id,
                row.number,
            )

"""Findings of the rules against abuse, from the thread that counts to the tickets."""

import asyncio
import logging
from collections import deque
from typing import Final

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse import rules
from proxyd.ops.abuse_watch import Finding
from storage.engines.errors import StoreError, UnavailableError, level_of

WAITING_MAX: Final = 1_000  # findings of an outage of the store; the newest are kept
PAUSE_SECONDS: Final = 1.0

_logger = logging.getLogger("abuse")


class Stops:
    """Opens a ticket for each finding.

    Args:
        context: the open store.
        waiting_max: the most findings that wait for the store.
    """

    def __init__(self, context: Context, waiting_max: int = WAITING_MAX) -> None:
        self._context = context
        self._waiting_max = waiting_max
        self._waiting: deque[Finding] = deque(maxlen=waiting_max)
        self._is_failing = False

    def add(self, finding: Finding) -> None:
        """Take a finding, from any thread."""
        self._waiting.append(finding)

    async def run(self) -> None:
        """Open tickets until this is cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await self.report()

    async def report(self) -> None:
        """Open tickets for the findings that wait; without the store they wait for the next call.

        A rule reports a session once an hour, so no finding may be lost to a short outage.
        """
        while self._waiting:
            finding = self._waiting.popleft()
            if not await self._report(finding):
                if len(self._waiting) < self._waiting_max:
                    self._waiting.appendleft(finding)
                return

    async def _report(self, finding: Finding) -> bool:
        """Open a ticket; return False if another attempt may succeed."""
        try:
            row = await rules.report(
                self._context, finding.rule, finding.session_id, finding.at, finding.figures
            )
        except UnavailableError as error:
            if not self._is_failing:
                level = level_of(error, logging.WARNING)
                _logger.log(level, "findings of rules wait for the store to return: %s", error)
            self._is_failing = True
            return False
        except (MarketError, StoreError) as error:
            if isinstance(error, MarketError) and error.code is Code.TICKET_STATE:
                return False  # another ticket was opened at the same time
            _logger.warning(
                "rule %s found session %s, without a ticket: %s",
                finding.rule,
                finding.session_id,
                error,
            )
            return True
        self._is_failing = False
        if row is not None:
            _logger.warning(
                "rule %s found session %s: ticket %d is open",
                finding.rule,
                finding.session_id,
                row.number,
            )
        return True

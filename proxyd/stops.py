"""Findings of the rules against abuse, from the thread that counts to the tickets."""

import asyncio
import logging
from collections import deque
from typing import Final

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff import rules
from proxyd.ops.abuse_watch import Finding
from storage.engines.errors import StoreError, UnavailableError

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
                finding = self._waiting.popleft()
                if not await self._report(finding):
                    if len(self._waiting) < WAITING_MAX:
                        self._waiting.appendleft(finding)
                    break

    async def _report(self, finding: Finding) -> bool:
        """Open the ticket of a finding; return False if that can succeed later.

        The rule does not find the session again in the same hour.
        """
        try:
            row = await rules.report(
                self._context, finding.rule, finding.session_id, finding.at, finding.figures
            )
        except UnavailableError:
            return False
        except (MarketError, StoreError) as error:
            if isinstance(error, MarketError) and error.code is Code.TICKET_STATE:
                return False  # another daemon has taken the number of the ticket
            _logger.warning(
                "rule %s found session %s, without a ticket: %s",
                finding.rule,
                finding.session_id,
                error,
            )
            return True
        if row is not None:
            _logger.warning(
                "rule %s found session %s: ticket %d is open",
                finding.rule,
                finding.session_id,
                row.number,
            )
        return True

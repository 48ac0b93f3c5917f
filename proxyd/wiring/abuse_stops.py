"""Findings of the rules against abuse, from the thread that counts to the tickets and halts."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final

from market.base.errors import MarketError
from market.events.context import Context
from market.staff import rule_stops
from market.staff.abuse import rule_tickets
from market.staff.abuse.rule_tickets import Found, Peak
from proxyd.counters import RuleCounters
from proxyd.ops.access_log.abuse_watch import Finding
from storage.engines.errors import StoreError, UnavailableError, level_of

WAITING_MAX: Final = 1_000  # findings of an outage of the store; the newest are kept
PEAKS_WAITING_MAX: Final = 60  # minutes
PAUSE_SECONDS: Final = 1.0

_logger = logging.getLogger("abuse")


class Stops:
    """Opens a ticket for each finding, and halts the session where the rule acts.

    `halt_seconds` has the time of a halt for each rule that acts; it may be replaced. `counters`
    count findings and stops.

    Args:
        context: the open store.
        halt_seconds: see above.
        waiting_max: the most findings that wait for the store.
    """

    def __init__(
        self,
        context: Context,
        halt_seconds: Mapping[str, int] | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._context = context
        self.halt_seconds = halt_seconds or {}
        self._waiting_max = waiting_max
        self._waiting: deque[Finding] = deque(maxlen=waiting_max)
        self._peaks: deque[list[Peak]] = deque(maxlen=PEAKS_WAITING_MAX)
        self._is_failing = False
        self.counters = RuleCounters()

    def add(self, finding: Finding) -> None:
        """Take a finding, from any thread."""
        self._waiting.append(finding)

    def note(self, peaks: list[Peak]) -> None:
        """Take the peaks of a minute, from any thread."""
        self._peaks.append(peaks)

    async def run(self) -> None:
        """Open tickets and halt sessions until this is cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await self.report()

    async def report(self) -> None:
        """Act on the findings that wait; without the store they wait for the next call.

        A rule that observes reports a session once an hour, so no finding may be lost to a short
        outage.
        """
        while self._waiting:
            finding = self._waiting.popleft()
            if not await self._report(finding):
                if len(self._waiting) < self._waiting_max:
                    self._waiting.appendleft(finding)
                return
        while self._peaks:
            peaks = self._peaks.popleft()
            try:
                await rule_stops.raise_peaks(self._context, peaks)
            except StoreError as error:
                _logger.debug("peaks of a minute are not recorded: %s", error)

    async def _report(self, finding: Finding) -> bool:
        """Act on a finding; return False if another attempt may succeed."""
        found = Found(finding.rule, finding.session_id, finding.at, finding.figures)
        try:
            line = await self._act(found)
        except UnavailableError as error:
            if not self._is_failing:
                level = level_of(error, logging.WARNING)
                _logger.log(level, "findings of rules wait for the store to return: %s", error)
            self._is_failing = True
            return False
        except (MarketError, StoreError) as error:
            _logger.warning(
                "rule %s found session %s, without a ticket: %s",
                finding.rule,
                finding.session_id,
                error,
            )
            line = ""
        else:
            self._is_failing = False
        self.counters.found[finding.rule] += 1
        if line:
            _logger.warning("rule %s found session %s: %s", finding.rule, finding.session_id, line)
        return True

    async def _act(self, found: Found) -> str:
        """Stop the session or open a ticket; return the words for the log, "" for neither.

        Raises:
            MarketError: no ticket is opened.
            StoreError: perhaps it is done; a repetition is harmless.
        """
        seconds = self.halt_seconds.get(found.rule, 0)
        if not seconds or not rule_stops.is_fresh(self._context, found):
            row = await rule_tickets.report(self._context, found)
            return "" if row is None else f"ticket {row.number} is open"
        stopped = await rule_stops.stop(self._context, found, seconds)
        if stopped is None:
            return ""
        self.counters.stopped[found.rule] += 1
        ticket = "no ticket" if stopped.ticket is None else f"ticket {stopped.ticket}"
        return f"halted for {seconds} seconds, {ticket}"

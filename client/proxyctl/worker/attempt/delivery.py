"""Delivers the results of an attempt: the rest of its log, and its outputs."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from proxyctl.worker.attempt.interruption import Interruption
    from proxyctl.worker.attempt.log_sender import LogSender
    from proxyctl.worker.files.transfers import FileTransfers
    from proxyctl.worker.task.journal import Entry, Report

# For sending outputs, without the waits between tries. The marketplace takes an attempt back unpaid
# six hours after its time (`market.jobs.overdue`), so no buyer has more outputs than a line can
# send.
_DELIVERY_SECONDS: Final = 4 * 3_600.0

_logger = logging.getLogger("worker")


class Delivery:
    """Sends results, within a limit of time over all tries."""

    def __init__(self, folder: Path, transfers: FileTransfers, interruption: Interruption) -> None:
        self._folder = folder
        self._transfers = transfers
        self._interruption = interruption
        self._spent_s = 0.0  # on sending outputs

    def send_outputs(self, entry: Entry) -> dict[str, Any] | None:
        """Send the outputs in the time that is left; return the report of those not taken."""
        began = time.monotonic()
        try:
            return self._transfers.upload(
                entry,
                self._folder,
                lambda: self._interruption.ends_work,
                _DELIVERY_SECONDS - self._spent_s,
            )
        finally:
            self._spent_s += time.monotonic() - began

    def send_log(
        self, sender: LogSender, attempt_id: str, report: Report, seconds: float
    ) -> Report:
        """Send the rest of the log for a limited time; return a report of the sent part."""
        deadline = time.monotonic() + seconds
        while sender.send() and not self._interruption.is_leaving:
            if time.monotonic() > deadline:
                _logger.info("job %s: the rest of its log is not sent", attempt_id)
                return replace(report, fields={**report.fields, "log_bytes": sender.sent})
        return report

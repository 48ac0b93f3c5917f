"""Carries out the orders of the daemon: stops attempts, and takes jobs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from proxyctl import files
from proxyctl.words import plain_line
from proxyctl.worker.agent.orders import NotUnderstoodError, Order, work_of
from proxyctl.worker.task.journal import Stop

if TYPE_CHECKING:
    from proxyctl.worker.agent.attempts import Attempts
    from proxyctl.worker.agent.lifecycle import Lifecycle
    from proxyctl.worker.task.journal import Journal

# Jobs taken beyond the limit of the device; each is refused, but has a folder and a thread first.
_REFUSALS_MAX: Final = 16

_logger = logging.getLogger("worker")


class Intake:
    """Carries out orders.

    Args:
        lifecycle: of the agent; a job that arrives while the device rests is stopped.
        max_jobs: of the device at the same time.
    """

    def __init__(
        self, attempts: Attempts, journal: Journal, lifecycle: Lifecycle, max_jobs: int
    ) -> None:
        self._attempts = attempts
        self._journal = journal
        self._lifecycle = lifecycle
        self._most = max_jobs + _REFUSALS_MAX

    def carry_out(self, order: Order) -> None:
        """Stop the attempts and take the jobs that an order names."""
        for stop in order.stops:
            attempt = self._attempts.find(stop.attempt_id)
            if attempt is not None:
                attempt.stop(Stop(stop.reason, grace_s=attempt.cancelled_grace_s))
        for work in order.jobs:
            self._take(work)

    def _take(self, given: object) -> None:
        """Take a job.

        The daemon gives a job that this device does not report to another device soon.
        """
        try:
            work = work_of(given)
        except NotUnderstoodError as error:
            _logger.warning("a job is not taken: %s", error)
            return
        attempt_id = f"{work['job_id']}-{work['attempt']}"
        if self._attempts.find(attempt_id) is not None:
            return
        if len(self._attempts) >= self._most:
            _logger.warning(
                "job %s: not taken: the daemon gives far more than requested", attempt_id
            )
            return
        gpus = self._attempts.take_share(attempt_id, work)
        try:
            entry = self._journal.add(work, gpus or ())
        except files.FileError as error:
            self._attempts.give_share_back(attempt_id)
            _logger.warning("job %s: not taken: %s", attempt_id, error)
            return
        _logger.info("job %s: taken: %s", attempt_id, plain_line(str(work.get("title", ""))))
        rest = self._lifecycle.rest
        stop = Stop(rest, "host") if rest else None
        if stop is None and gpus is None:
            # A job gets an equal part of each amount that it does not name. The marketplace counts
            # no such part, so the room may be short although the device is not at fault.
            stop = Stop("as much is not free here", "refused")
        self._attempts.add(entry, is_adopted=False, stop=stop)

"""Ends that no device reports: silent devices, revoked tokens, and jobs that no device takes."""

import logging

from msgspec import Struct

from market.base.sweeping import Sweep
from market.events.context import Context
from market.jobs import copies
from market.jobs.outcomes import JobNotices, Outcomes
from market.jobs.overdue import Ended, Overdue
from storage.engines.errors import UnavailableError, level_of
from storage.jobs import copies as copy_queries
from storage.jobs import jobs as queries

REVOKED = "the token of the device was revoked"

_logger = logging.getLogger("jobs")


class JobSweeps(Struct, frozen=True):
    """Number of jobs that one sweep handles; the next sweep handles the others.

    Attributes:
        take_back: jobs of a device whose token was revoked.
        expire: jobs without a device for too long.
    """

    take_back: int = 100
    expire: int = 100


USUAL = JobSweeps()


class JobSweeper:
    """Takes jobs back from devices, and cancels the jobs that no device takes.

    Args:
        waiting_seconds: how long a job waits for a device.

    Attributes:
        notices: as given.
    """

    def __init__(
        self,
        context: Context,
        overdue: Overdue,
        outcomes: Outcomes,
        notices: JobNotices,
        waiting_seconds: int,
        sweeps: JobSweeps = USUAL,
    ) -> None:
        self._store = context.store
        self._now = context.now
        self._overdue = overdue
        self._outcomes = outcomes
        self.notices = notices
        self._waiting_seconds = waiting_seconds
        self._sweeps = sweeps
        self._taking_back = Sweep("job %s cannot be taken back", _logger)
        self._expiring = Sweep("job %s cannot be cancelled", _logger)

    async def take_back(self) -> int:
        """Take jobs back from silent or slow devices. Return the number taken back.

        To be called again and again. A job that cannot be taken back is logged, and tried again
        after a while: it delays no other.

        Raises:
            StoreError: reports of devices may be missing as well.
        """
        overdue, found, taken = self._overdue, dict[str, Ended](), 0
        most = overdue.most

        async def find(limit: int) -> list[str]:
            for each in await overdue.find(put_off=limit - most):
                found.setdefault(each.job_id, each)
            return list(found)

        async def end(job_id: str) -> None:
            nonlocal taken
            try:
                taken += await self._end(found[job_id])
            except UnavailableError as error:  # perhaps of this job only; it comes next time
                level = level_of(error, logging.WARNING)
                _logger.log(level, "job %s could not be taken back: %s", job_id, error)

        await self._taking_back.run(find, end, most=most, now=self._now())
        return taken

    async def take_back_attempt(self, job_id: str, attempt: int, reason: str) -> bool:
        """Take a job back from the device of an attempt; return False if the device has lost it."""
        return await self._end(Ended(job_id, attempt, reason))

    async def _end(self, ended: Ended) -> bool:
        moment = self._outcomes.moment()
        with self.notices.waiting_if_unknown([ended.job_id]):
            job = await self._store.write(self._outcomes.take_back, moment, ended)
        if job is None:
            return False
        if job.device_id is not None:
            self.notices.publish_device(job.device_id)
        # It may have failed for good instead: its reader finds that it does not wait.
        self.notices.publish_waiting([job.id])
        self.notices.publish_end(job, "failed" if ended.is_timeout else "lost")
        return True

    async def expire(self) -> int:
        """Cancel jobs that have waited too long for a worker. Return the number cancelled.

        A job that cannot be cancelled is logged, and tried again after a while: it delays no other.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()
        before, untaken = now - self._waiting_seconds, now - copies.UNTAKEN_SECONDS

        async def find(limit: int) -> list[str]:
            due = await self._store.read(queries.due_to_expire, created_before=before, limit=limit)
            late = await self._store.read(
                copy_queries.due_to_expire, result_before=untaken, limit=limit
            )
            return list(dict.fromkeys((*due, *late)))[:limit]

        async def cancel(job_id: str) -> None:
            await self._store.write(self._outcomes.expire, self._outcomes.moment(), job_id)
            self.notices.publish_gone(job_id)

        return await self._expiring.run(find, cancel, most=self._sweeps.expire, now=now)

    async def take_back_from(self, device_id: str) -> None:
        """Take every job back from a device with a revoked token, and end its request."""
        self.notices.publish_device(device_id)
        while True:
            jobs = await self._store.read(queries.held_by, device_id, limit=self._sweeps.take_back)
            if not jobs:
                return
            for job in jobs:
                await self.take_back_attempt(job.id, job.attempts, REVOKED)

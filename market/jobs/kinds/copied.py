"""Copies: jobs that several devices do, whose results are compared before they are paid."""

from collections.abc import Sequence
from typing import Self

from msgspec.structs import replace

from market.attempts.attempts import Ending
from market.base.states import CopiesStatus, JobStatus
from market.jobs import copies
from market.jobs.kinds.base import Frame, JobOutcome
from market.jobs.kinds.scripted import Scripted, spec_of
from market.jobs.pay import Moment, Pay
from storage.attempts.attempts import SpecRow
from storage.engines.store import Transaction
from storage.jobs import copies as copy_queries
from storage.jobs import jobs as queries
from storage.jobs.copies import GroupRow
from storage.jobs.jobs import JobRow

UNNEEDED = "The other copies agree already."


class Copy(Scripted):
    """A job that is one of several copies; `copies` is the row of their group."""

    def __init__(self, frame: Frame, job: JobRow, spec: SpecRow, copies: GroupRow) -> None:
        super().__init__(frame, job, spec)
        self.copies = copies

    @classmethod
    async def lock(cls, tx: Transaction, job_id: str) -> None:
        """Lock all copies in a fixed order: the end of one may end others, or their reviews."""
        await copies.lock_members(tx, job_id)

    @classmethod
    async def read(cls, frame: Frame, job: JobRow) -> Self:
        """Return a copy with its group."""
        group = await copy_queries.find(frame.tx, job.id)
        assert group is not None  # noqa: S101 - this kind has one
        return cls(frame, job, await spec_of(frame, job), group)

    async def group(self) -> list[str]:
        """Return all copies, the first one first."""
        return [row.job_id for row in await copy_queries.copies(self.tx, self.copies.id)]

    @property
    def _review_seconds(self) -> int:
        return copies.review_seconds(self.job, self.copies)

    async def _is_over(self, ending: Ending) -> bool:
        """Return whether the job has failed for good, or enough other copies have agreed."""
        return await super()._is_over(ending) or self.copies.state != CopiesStatus.OPEN

    async def _lock_for_result(self) -> None:
        """Lock the reputations of all devices whose results are compared."""
        await copies.lock_reputations(self.tx, self.copies)

    async def _settle(self, pay: Pay | None) -> Sequence[JobRow]:
        """Compare the results, then pay for this copy, and for the others by the verdict."""
        frame, group = self.frame, self.copies
        least, now = frame.least_price, frame.moment.now
        compared = await copies.compare(self.tx, group.id, least_price=least, now=now)
        await copies.lock_accounts(self.tx, group, self.job.user_id)
        await super()._settle(pay)
        await copies.pay(self.tx, compared, frame.context.identifiers.new, now)
        return [await self._drop(job_id) for job_id in compared.unneeded]

    async def _drop(self, job_id: str) -> JobRow:
        """Cancel a waiting copy that is no longer needed. Return its row before the change."""
        job = await queries.find(self.tx, job_id)
        assert job is not None  # noqa: S101 - it was just read, and is locked
        frame = replace(self.frame, moment=Moment.of(self.frame.context))
        # As a job without copies: the results are compared already.
        alone = await Scripted.read(frame, job)
        await alone.leave(JobOutcome(JobStatus.CANCELLED, failure_reason=UNNEEDED))
        return job

"""Samples: jobs of the operator whose right result is known."""

from typing import Self

from msgspec.structs import replace

from market.base.states import JobStatus
from market.jobs.kinds.base import Failure, Frame, JobOutcome, Report, Settled
from market.jobs.kinds.scripted import Scripted, spec_of
from market.trust import sample_checks
from storage.attempts.attempts import SpecRow
from storage.jobs.jobs import JobRow
from storage.trust.samples import SampleRow


class Sample(Scripted):
    """A job for one device only, paid only for a right result."""

    def __init__(self, frame: Frame, job: JobRow, spec: SpecRow, sample: SampleRow) -> None:
        super().__init__(frame, job, spec)
        self.sample = sample

    @classmethod
    async def read(cls, frame: Frame, job: JobRow) -> Self:
        """Return a sample with its answer."""
        sample = await sample_checks.find(frame.tx, job.id)
        assert sample is not None  # noqa: S101 - this kind has one
        return cls(frame, job, await spec_of(frame, job), sample)

    async def completed(self, report: Report) -> Settled:
        """Store a result: a wrong one is not paid."""
        self._require_success(report.ending)
        result, now = report.text, self.frame.moment.now
        if await sample_checks.judge(self.tx, self.sample, result, now=now):
            return await super().completed(report)
        reason = sample_checks.NOT_RIGHT
        wrong = JobOutcome(JobStatus.FAILED, result, reason, attempt="failed", ending=report.ending)
        return Settled(self.job, wrong.status, await self.leave(wrong))

    async def failed(self, report: Report) -> JobStatus:
        """End the sample as not done, for every reason that a device reports."""
        return await self.lost(Failure.of(report))

    async def lost(self, failure: Failure) -> JobStatus:
        """End the sample: no other device gets it, and it does not fail by itself."""
        await self._lock_reputation()
        await sample_checks.unproven(self.tx, self.sample)
        await self.leave(replace(failure, attempt="lost").outcome(JobStatus.FAILED))
        return JobStatus.FAILED

    def _has_result(self) -> bool:
        is_wrong = self.job.status == JobStatus.FAILED
        return super()._has_result() or (is_wrong and self.sample.outcome == sample_checks.WRONG)

    async def _count(self, owner_id: str) -> None:
        """Count nothing: samples come after other jobs."""

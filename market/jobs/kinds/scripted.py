"""Scripted jobs, with a payload: the buyer may look at a result before it is paid.

The same holds for an attempt whose own work has failed: its time is paid out of the price.
"""

import json
from typing import Self

from market.attempts.attempts import WORK_KINDS, Ending
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.jobs import draws
from market.jobs import pay as job_pay
from market.jobs.chances import has_failed
from market.jobs.draws import SECONDS_MIN, Drawing, Drawn
from market.jobs.kinds.base import Costs, Failure, Frame, Report, Settled
from market.jobs.kinds.plain import Plain
from market.jobs.pay import hold_of
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import SpecRow
from storage.jobs import job_specs as spec_queries
from storage.jobs.jobs import JobRow


async def spec_of(frame: Frame, job: JobRow) -> SpecRow:
    """Return the specification of a job with a payload."""
    spec = await attempt_queries.spec(frame.tx, job.id)
    assert spec is not None  # noqa: S101 - the kind has a payload
    return spec


class Scripted(Plain):
    """A job with a payload."""

    def __init__(self, frame: Frame, job: JobRow, spec: SpecRow) -> None:
        super().__init__(frame, job)
        self.spec = spec

    @classmethod
    async def read(cls, frame: Frame, job: JobRow) -> Self:
        """Return a job with its specification."""
        return cls(frame, job, await spec_of(frame, job))

    async def completed(self, report: Report) -> Settled:
        """Store a result, unless the process failed; earlier attempts were paid before."""
        self._require_success(report.ending)
        gross = job_pay.rest(self.job, await self._paid_seconds())
        return await self._accept(report, gross, self._review_seconds)

    async def failed(self, report: Report) -> JobStatus:
        """End an attempt that its device reports as failed. Return the job's new status.

        If the work itself has failed, its time is paid. Else a buyer had a result for nothing, by a
        script that prints it, ends with 1 and is to be run again. When its price is used up, the
        job has also failed for good.
        """
        failure, worker = Failure.of(report), report.device.user_id
        if failure.ending.kind not in WORK_KINDS:
            return await self.lost(failure)
        await self._lock_reputation()
        is_over = await self._is_over(failure.ending)
        how = self._drawing(self._review_seconds)
        drawn = await draws.draw_failed(self.tx, self.job, self.spec, worker, how)
        if is_over or (drawn is not None and drawn.left < SECONDS_MIN):
            # Paid like a cancelled job, but in review, because only the device reports that the
            # work failed.
            gross = await self._share()
            pay = self._pay(worker, gross, self._review_seconds) if gross else None
            await self.leave(failure.outcome(JobStatus.FAILED), pay)
            return JobStatus.FAILED
        await self._move(failure.outcome(JobStatus.WAITING))
        if drawn is not None:
            await self._pay_failed(drawn, how)
        return JobStatus.WAITING

    async def quote(self) -> Costs:
        """Return the payment of `cancelled` at this time, plus the pay of failed attempts."""
        costs = await super().quote()
        spent = job_pay.spent(self.job, await self._paid_seconds())
        before = job_pay.held_part(self.job, spent)
        return Costs(before + costs.pays, before + costs.held)

    @property
    def _review_seconds(self) -> int:
        """The seconds of review before a result is paid; 0 pays without a review."""
        return self.frame.terms.review_seconds(self.spec.review_hours)

    @property
    def _is_reviewed(self) -> bool:
        return bool(self.frame.terms.review_seconds(self.spec.review_hours))

    def _require_success(self, ending: Ending) -> None:
        """Refuse the result of a process that has failed.

        Raises:
            MarketError: `invalid_field`.
        """
        if ending.exit_code:
            message = f"A job whose process ended with {ending.exit_code} has failed."
            raise MarketError(Code.INVALID_FIELD, message, field="exit_code")

    async def _is_over(self, ending: Ending) -> bool:
        """Return whether the job has failed for good; work that runs once has, with one failure."""
        if ending.kind in WORK_KINDS and self._runs_once():
            return True
        return await has_failed(self.tx, self.job, ending)

    def _runs_once(self) -> bool:
        return bool(json.loads(self.spec.payload).get("restart", "never") == "never")

    async def _share(self) -> int:
        began, _, _ = await attempt_queries.begun(self.tx, self.job.id, self.job.attempts)
        paid_seconds, now = await self._paid_seconds(), self.frame.moment.now
        return job_pay.share(self.job, began, now, self.spec, paid_seconds=paid_seconds)

    async def _paid_seconds(self) -> int:
        """Return the seconds that attempts were paid for before the present one."""
        return await draws.drawn_seconds(self.tx, self.job.id)

    def _drawing(self, review_seconds: int) -> Drawing:
        frame = self.frame
        new_id = frame.context.identifiers.new
        return Drawing(frame.terms.fee, frame.moment.now, new_id, review_seconds)

    async def _pay_drawn(self, drawn: Drawn, how: Drawing) -> None:
        """Pay the amount that is due for the present attempt."""
        await draws.pay(self.tx, self.job, drawn, hold_of(self.job.id), how)
        if drawn.due is not None and not how.review_seconds:
            await self._notify_paid(drawn.due.user_id, drawn.due.earned)

    async def _pay_failed(self, drawn: Drawn, how: Drawing) -> None:
        """Pay an attempt whose own work has failed, while the job waits for the next one.

        The next attempt has the time that the rest of the price pays for.
        """
        await self._pay_drawn(drawn, how)
        least = min(self.spec.timeout_seconds or drawn.left, drawn.left)
        await spec_queries.set_timeout(self.tx, self.job.id, least)

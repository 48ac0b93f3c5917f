"""Replicas that a rollout replaces: paid for the time that they can be used, attempt by attempt."""

import json
from collections.abc import Sequence
from typing import Self

from msgspec.structs import replace

from market.attempts.attempts import WORK_KINDS, Ending, FailureKind
from market.base.states import JobStatus
from market.jobs import draws
from market.jobs.draws import SECONDS_MIN, Drawing, Drawn
from market.jobs.kinds.base import Costs, Failure, Frame, JobOutcome, Report, Settled
from market.jobs.kinds.scripted import Scripted, spec_of
from market.jobs.overdue import GRACE_SECONDS
from market.jobs.pay import Pay, hold_of
from market.money import ledger
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import SpecRow
from storage.deploys import rollouts as rollout_queries
from storage.deploys.rollouts import ReplicaRow
from storage.jobs import job_specs as spec_queries
from storage.jobs import jobs as queries
from storage.jobs.jobs import JobRow
from storage.money import ledger as ledger_queries

# A service that has ended goes to devices of other owners first. That time doubles with each end,
# so that a service which always ends early takes little time of any owner.
AGAIN_SECONDS = 10
AGAIN_DOUBLED_MAX = 5
AGAIN_SECONDS_MAX = 300
ENDED_EARLY = "the service ended by itself before its time"


class Replica(Scripted):
    """A job that is a replica, which is paid by time."""

    def __init__(self, frame: Frame, job: JobRow, spec: SpecRow, replica: ReplicaRow) -> None:
        super().__init__(frame, job, spec)
        self.replica = replica

    @classmethod
    async def read(cls, frame: Frame, job: JobRow) -> Self:
        """Return a replica with its time."""
        replica = await rollout_queries.replica(frame.tx, job.id)
        assert replica is not None  # noqa: S101 - this kind has one
        return cls(frame, job, await spec_of(frame, job), replica)

    async def completed(self, report: Report) -> Settled:
        """Process a result; a service has none, so it ended too early."""
        self._require_success(report.ending)
        if not self._serves():
            await self._lock_for_result()
            await self._count(report.device.user_id)
            done = JobOutcome(JobStatus.COMPLETED, report.text, ending=report.ending)
            return Settled(self.job, done.status, await self.leave(done))
        early = replace(report.ending, kind=FailureKind.JOB, exit_code=0)
        return Settled(self.job, await self.lost(Failure(ENDED_EARLY, early, "failed")))

    async def failed(self, report: Report) -> JobStatus:
        """End an attempt, which is paid like any other."""
        return await self.lost(Failure.of(report))

    async def lost(self, failure: Failure) -> JobStatus:
        """End an attempt and pay it. Return the replica's new status.

        It waits for another device, unless it is used up, or has failed for good.
        """
        ending = failure.ending
        await self._lock_reputation()
        is_devices_fault = failure.is_lost or ending.kind not in WORK_KINDS
        drawn = await self._draw(is_lost=failure.is_lost, is_devices_fault=is_devices_fault)
        if _is_used_up(drawn, ending):
            done = JobOutcome(
                JobStatus.COMPLETED, failure.reason, attempt=failure.attempt, ending=ending
            )
            return await self._end(done, drawn)
        if await self._is_over(ending):
            return await self._end(failure.outcome(JobStatus.FAILED), drawn)
        again_at = None
        if await self._may_run_again(drawn, ending):
            restarts = await queries.count_restarts(self.tx, self.job.id)
            again_at = self.frame.moment.now + _back_off(restarts)
        await self._move(failure.outcome(JobStatus.WAITING), again_at=again_at)
        await self._pay_drawn(drawn, self._how())
        await spec_queries.set_timeout(self.tx, self.job.id, drawn.left)
        return JobStatus.WAITING

    async def cancelled(self, reason: str | None = None) -> None:
        """Cancel the replica while it is open; the time that it could be used is paid."""
        await self.leave(JobOutcome(JobStatus.CANCELLED, failure_reason=reason))

    async def quote(self) -> Costs:
        """Return the payment of `cancelled` at this time; earlier attempts were paid separately."""
        pays = await draws.due_now(self.tx, self.job, self.replica, self._how())
        return Costs(pays, await ledger_queries.left_in_hold(self.tx, hold_of(self.job.id)))

    async def leave(self, outcome: JobOutcome, pay: Pay | None = None) -> Sequence[JobRow]:
        """End the replica; its last attempt is paid for its time, and not by a result."""
        assert pay is None  # noqa: S101 - attempts are paid
        await self._end(outcome, await self._draw())
        return ()

    async def _end(self, outcome: JobOutcome, drawn: Drawn) -> JobStatus:
        """End the replica, pay its last attempt, and release the rest of the hold."""
        await self._move(outcome)
        await spec_queries.forget_secrets(self.tx, self.job.id)
        await self._pay_drawn(drawn, self._how())
        hold_id, moment = hold_of(self.job.id), self.frame.moment
        await self.tx.lock("accounts", sorted(await draws.accounts_of(self.tx, self.job)))
        await ledger.capture(self.tx, hold_id, [], transfer_ids=moment.resolution, now=moment.now)
        return outcome.status

    async def _draw(self, *, is_lost: bool = False, is_devices_fault: bool = False) -> Drawn:
        """Return the pay of the ending attempt; `_pay_drawn` follows."""
        return await draws.draw(
            self.tx,
            self.job,
            self.replica,
            self._how(),
            is_lost=is_lost,
            is_devices_fault=is_devices_fault,
        )

    def _how(self) -> Drawing:
        return self._drawing(self.frame.terms.review_seconds(None))

    def _serves(self) -> bool:
        """Return whether the replica listens on ports, and so must run until its time is over."""
        payload = json.loads(self.spec.payload)
        return bool(payload.get("ports") or payload.get("ready"))

    async def _may_run_again(self, drawn: Drawn, ending: Ending) -> bool:
        """Return whether the same owner's devices may have the replica again, after a while.

        They may if the service had been ready there, or ended well but too early: this is no sign
        that they cannot run it.
        """
        if not self._serves() or ending.kind is FailureKind.REFUSED:
            return False
        _, ready, _ = await attempt_queries.begun(self.tx, self.job.id, self.job.attempts)
        return ready is not None or drawn.worked > 0 or ending.exit_code == 0


def _is_used_up(drawn: Drawn, ending: Ending) -> bool:
    """Return whether a replica has had all its time: a service ends then, and has not failed.

    One that became ready late has worked for all of it and was paid for less.
    """
    has_worked = drawn.worked >= drawn.had - GRACE_SECONDS
    return drawn.left < SECONDS_MIN or (ending.kind is FailureKind.TIMEOUT and has_worked)


def _back_off(restarts: int) -> int:
    """Return the seconds in which only other owners may get a service, by its restarts."""
    return min(AGAIN_SECONDS << min(restarts, AGAIN_DOUBLED_MAX), AGAIN_SECONDS_MAX)

"""Routes of attempts: reports of devices while they run jobs, and each attempt's result."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.devices.reputations import Reputation, shown
from api.devices.workers import HeartbeatRequest, report_of
from api.http.identifiers import AttemptNumber, in_body, in_path
from api.http.literals import ATTEMPT_OUTCOMES, FAILURE_KINDS, AttemptOutcome, FailureKind
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.attempts.attempts import NAMED_MAX, Action, LeftOut
from market.base.errors import Code
from market.jobs.attempt_reports import AttemptReports, Named, Past

# How far the device is, in its program's words; "preparing" is waited for longer.
Phase = Annotated[str, Meta(pattern="^[a-z_]{1,32}$")]
Bytes = Annotated[int, Meta(ge=0, le=2**60)]
LEFT_OUT_REASONS = 10  # enough to see the problem; the file has the others
LeftOutReason = Annotated[str, Meta(max_length=300)]


class Usage(Struct):
    """Resources that the work used: seconds of all processors together, and the peak of memory."""

    cpu_seconds: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    max_memory_bytes: Bytes | None = None


class OutputsLeftOut(Struct):
    """Outputs that a device did not send: how many files and bytes, and some of the reasons.

    `files` is 0 where an output names files, and there are none. `left-out.txt` has all reasons.
    """

    files: Annotated[int, Meta(ge=0, le=1_000_000)]
    bytes: Bytes
    reasons: Annotated[list[LeftOutReason], Meta(max_length=LEFT_OUT_REASONS)]


class StartedRequest(Struct):
    """In which attempt work has begun, and the digest of the image that runs, if one does."""

    attempt: AttemptNumber | None = None
    image_digest: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")] | None = None


class ReadyRequest(Struct):
    """In which attempt the job is ready to be used."""

    attempt: AttemptNumber | None = None


class HeldAttempt(Struct):
    """An attempt that a device holds, its phase, and the share of the work that is done."""

    job_id: str
    attempt: AttemptNumber
    state: Phase | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    log_bytes: Bytes | None = None
    usage: Usage | None = None


class SyncRequest(HeartbeatRequest):
    """A heartbeat that names every attempt which the device holds; others are taken back.

    Without `attempts` it is only a heartbeat.
    """

    attempts: Annotated[list[HeldAttempt], Meta(max_length=NAMED_MAX)] | None = None


class ActionItem(Struct):
    """Action that the device should take on an attempt, and the reason: to stop it."""

    job_id: str
    attempt: int
    action: str
    reason: str


class SyncReply(Reply, kw_only=True):
    """Longest silence of the device in seconds, and the attempts that it should stop."""

    lease_s: int
    actions: list[ActionItem]


class AttemptItem(Struct):
    """An attempt of a device at a job; `outcome` is there once it is over.

    `state`, of an attempt that is not over, and `progress` are from the last report of the device;
    `reputation` is its present reputation.
    """

    attempt: int
    accepted_at: Timestamp
    reputation: Reputation
    started_at: Timestamp | UnsetType = UNSET
    ready_at: Timestamp | UnsetType = UNSET
    ended_at: Timestamp | UnsetType = UNSET
    outcome: AttemptOutcome | UnsetType = UNSET
    state: str | UnsetType = UNSET
    progress: float | UnsetType = UNSET
    image_digest: str | UnsetType = UNSET
    kind: FailureKind | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    cpu_seconds: float | UnsetType = UNSET
    max_memory_bytes: int | UnsetType = UNSET
    outputs_left_out: OutputsLeftOut | UnsetType = UNSET


class AttemptsReply(Reply, kw_only=True):
    """The attempts at a job, the first one first."""

    attempts: list[AttemptItem]


class AttemptRoutes:
    """The routes of attempts.

    Args:
        lease_seconds: for how long a device may be silent about an attempt.
    """

    def __init__(self, reports: AttemptReports, lease_seconds: int) -> None:
        self._reports = reports
        self._lease_seconds = lease_seconds

    def table(self) -> list[Route]:
        """Return the declarations."""
        attempt_errors = (Code.JOB_NOT_FOUND, Code.ATTEMPT_NOT_CURRENT)
        return [
            Route(
                "POST",
                "/api/worker/sync",
                "Report that this device is alive, and what it runs",
                self.sync,
                SyncReply,
                auth=Auth.WORKER,
                body=SyncRequest,
                body_optional=True,
                example={"cpu_pct": 97.5, "attempts": []},
            ),
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/started",
                "Report that work on a job has begun",
                self.started,
                Reply,
                auth=Auth.WORKER,
                body=StartedRequest,
                body_optional=True,
                errors=attempt_errors,
            ),
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/ready",
                "Report that a job is ready to be used",
                self.ready,
                Reply,
                auth=Auth.WORKER,
                body=ReadyRequest,
                body_optional=True,
                errors=attempt_errors,
            ),
            Route(
                "GET",
                "/api/jobs/{job_id}/attempts",
                "See how the attempts at one of my jobs went",
                self.attempts,
                AttemptsReply,
                scope=Scope.JOBS_READ,
                errors=(Code.JOB_NOT_FOUND,),
            ),
        ]

    async def sync(self, call: Call[SyncRequest, Any]) -> SyncReply:
        """Take a heartbeat with attempts."""
        held = call.body.attempts
        named = None
        if held is not None:
            named = [
                Named(in_body(each.job_id, "attempts"), each.attempt, each.state, each.progress)
                for each in held
            ]
        actions = await self._reports.sync(call.device, report_of(call.body), named)
        return SyncReply(lease_s=self._lease_seconds, actions=[action_item(a) for a in actions])

    async def started(self, call: Call[StartedRequest, Any]) -> Reply:
        """Note that work has begun; a job that is cancelled pays from here on."""
        body = call.body
        await self._reports.started(call.device, _job_id(call), body.attempt, body.image_digest)
        return Reply()

    async def ready(self, call: Call[ReadyRequest, Any]) -> Reply:
        """Note that the job is ready."""
        await self._reports.ready(call.device, _job_id(call), call.body.attempt)
        return Reply()

    async def attempts(self, call: Call[Nothing, Any]) -> AttemptsReply:
        """List the attempts at one of the caller's jobs."""
        attempts = await self._reports.of_job(call.user_id, _job_id(call))
        return AttemptsReply(attempts=[_item(each) for each in attempts])


def action_item(action: Action) -> ActionItem:
    """Return an action in the form for devices."""
    return ActionItem(action.job_id, action.attempt, action.action, action.reason)


def _job_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["job_id"], Code.JOB_NOT_FOUND)


def _item(past: Past) -> AttemptItem:
    row = past.row
    return AttemptItem(
        attempt=row.attempt,
        accepted_at=timestamp(row.started_at),
        reputation=shown(past.reputation),
        started_at=_moment(row.work_started_at),
        ready_at=_moment(row.ready_at),
        ended_at=_moment(row.ended_at),
        outcome=UNSET if row.outcome is None else ATTEMPT_OUTCOMES[row.outcome],
        state=UNSET if row.phase is None or row.ended_at is not None else row.phase,
        progress=UNSET if row.progress is None else row.progress,
        image_digest=UNSET if row.image_digest is None else row.image_digest,
        kind=UNSET if row.failure_kind is None else FAILURE_KINDS[row.failure_kind],
        reason=UNSET if row.reason is None else row.reason,
        exit_code=UNSET if row.exit_code is None else row.exit_code,
        cpu_seconds=UNSET if row.cpu_seconds is None else row.cpu_seconds,
        max_memory_bytes=UNSET if row.max_memory_bytes is None else row.max_memory_bytes,
        outputs_left_out=_left_out(row.left_out),
    )


def left_out_of(body: OutputsLeftOut | None) -> LeftOut | None:
    """Return the outputs that the device could not send, from its report."""
    return None if body is None else LeftOut(body.files, body.bytes, body.reasons)


def _left_out(stored: str | None) -> OutputsLeftOut | UnsetType:
    return UNSET if stored is None else msgspec.json.decode(stored, type=OutputsLeftOut)


def _moment(seconds: int | None) -> Timestamp | UnsetType:
    return UNSET if seconds is None else timestamp(seconds)

"""Routes that judge disputes: evidence, log and files, and one decision with a reason for both."""

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from api.files.artifacts import sent
from api.routing.codec import money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Redirect, Reply, StaffRoute
from api.staff.money import STATES
from api.staff.words import PREFIX, Reason, ReasonRequest, author, items, moment
from market.base.errors import Code
from market.money.money import Currency
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.money import job_files, job_logs, judging
from market.staff.money.evidence import TABLES
from market.staff.money.judging import Decided, Evidence, Verdict
from storage.files.artifacts import ArtifactRow
from storage.jobs.reviews import DisputesRow, ReviewRow
from storage.logs.files import Attempt

ONE = f"{PREFIX}/jobs/{{job}}"
FILE = f"{ONE}/files/{{file}}"
DISPUTES_MAX = 200
SEARCH_MAX_CHARACTERS = 200


class JobLogRequest(Struct):
    """The lines of a log to show: those around a text, or the last ones; the newest attempt."""

    text: Annotated[str, Meta(max_length=SEARCH_MAX_CHARACTERS)] = ""
    stream: Literal["stdout", "stderr"] = "stdout"
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class SplitRequest(Struct):
    """The part of the price that the buyer gets back; buyer and workers read the reason."""

    percent: Annotated[int, Meta(ge=1, le=99)]
    reason: Reason


class DisputeItem(Struct):
    """A dispute that waits for a decision."""

    job_id: str
    price: float
    currency: Currency
    buyer: str
    worker: str
    disputed_at: Timestamp | None
    reason: str | None


class DisputesReply(Reply, kw_only=True):
    """The disputes that wait, the oldest first."""

    disputes: list[DisputeItem]


class JudgedJob(Struct):
    """The order of a job, and its result."""

    id: str
    title: str
    type: str
    status: str
    buyer: str
    price: float
    currency: str
    hours: float
    created_at: Timestamp
    finished_at: Timestamp | None
    description: str
    requirements: str
    payload: str | None
    result: str | None
    failure: str | None


class StatementItem(Struct):
    """The pay of an attempt, and the buyer's reason to dispute it."""

    attempt: int
    state: str
    price: float
    earned: float
    refunded: float
    worker: str
    disputed_at: Timestamp | None
    reason: str | None


class AnswerItem(Struct):
    """The statement of a worker about the dispute."""

    worker: str
    answered_at: Timestamp
    answer: str


class TriedItem(Struct):
    """An attempt at a job, and the report of its device."""

    attempt: int
    device: str
    began_at: Timestamp | None
    ended_at: Timestamp | None
    outcome: str | None
    exit_code: int | None
    failure: str | None
    cpu_seconds: float | None
    memory_bytes: int | None
    reason: str | None


class FileItem(Struct):
    """A file of a job; one without `whole_at` has not arrived."""

    id: str
    attempt: int | None
    kind: str
    name: str
    bytes: int
    sha256: str
    whole_at: Timestamp | None


class JudgedDevice(Struct):
    """The history of a device, and the disputes about its owner's jobs."""

    device: str
    owner: str | None
    attempts: int
    completed: int
    failed: int
    lost: int
    samples: int
    samples_right: int
    disputes: int
    reversed: int
    split: int


class DisputeCounts(Struct):
    """Numbers of a user's disputes."""

    disputes: int
    reversed: int
    split: int


class EvidenceReply(Reply, kw_only=True):
    """All that a decision is founded on, but for the log."""

    job: JudgedJob
    statements: list[StatementItem]
    answers: list[AnswerItem]
    attempts: list[TriedItem]
    files: list[FileItem]
    devices: list[JudgedDevice]
    buyer: DisputeCounts


class LogLineItem(Struct):
    """A line of a log; `is_hit`: it has the searched text."""

    number: int
    is_hit: bool
    text: str


class JobLogReply(Reply, kw_only=True):
    """Lines of the log of an attempt."""

    attempt: int
    stream: str
    lines: list[LogLineItem]


class FileAddressReply(Reply, kw_only=True):
    """The address of a file: a path of this API, or a temporary one of an S3 store."""

    url: str


class DecidedReply(Reply, kw_only=True):
    """A decision; one that waits for a second person has `approval`, and an end."""

    state: Literal["done", "done_before", "waits"]
    job_id: str
    decision: Literal["upheld", "reversed", "split"]
    buyer_percent: int
    price: float
    currency: str
    approval: str | None
    expires_at: Timestamp | None


class JudgingRoutes:
    """The routes of disputes."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._terms = desk.terms
        self._artifacts = desk.terms.artifacts

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        missing = (Code.JOB_NOT_FOUND,)
        return [
            *self._files(),
            StaffRoute(
                "GET",
                f"{PREFIX}/disputes",
                "Disputes that wait for a decision",
                self.disputes,
                DisputesReply,
                action=Action.JOB_VIEW,
            ),
            StaffRoute(
                "GET",
                ONE,
                "All evidence about a job; the log records the view",
                self.show,
                EvidenceReply,
                action=Action.JOB_VIEW,
                errors=missing,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/log",
                "Lines of the log of an attempt; the log of the staff records the view",
                self.log,
                JobLogReply,
                action=Action.JOB_VIEW,
                body=JobLogRequest,
                errors=(*missing, Code.ATTEMPT_NOT_FOUND),
                example={"text": "No space left"},
            ),
            *(
                StaffRoute(
                    "POST",
                    f"{ONE}/{word}",
                    summary,
                    handler,
                    DecidedReply,
                    action=Action.JOB_DECIDE,
                    body=body,
                    idempotent=True,
                    errors=(*missing, Code.NOT_REVIEWABLE),
                    example={"reason": "four of ten files are missing", **more},
                )
                for word, summary, handler, body, more in (
                    (
                        "uphold",
                        "Decide for the worker: the payment stands",
                        self.uphold,
                        ReasonRequest,
                        {},
                    ),
                    (
                        "reverse",
                        "Decide for the buyer: all of the price goes back",
                        self.reverse,
                        ReasonRequest,
                        {},
                    ),
                    (
                        "split",
                        "Decide for both: a part of the price goes back",
                        self.split,
                        SplitRequest,
                        {"percent": 40},
                    ),
                )
            ),
        ]

    def _files(self) -> list[StaffRoute]:
        missing = (Code.JOB_NOT_FOUND, Code.ARTIFACT_NOT_FOUND)
        return [
            StaffRoute(
                "GET",
                FILE,
                "Download a file of a disputed job; the log records it",
                self.download,
                Redirect,
                action=Action.JOB_FILE,
                errors=(*missing, Code.TOO_BUSY),
                has_file=True,
            ),
            StaffRoute(
                "GET",
                f"{FILE}/address",
                "Say where a file of a disputed job is downloaded; the log records it",
                self.address,
                FileAddressReply,
                action=Action.JOB_FILE,
                errors=missing,
            ),
        ]

    async def download(self, call: Call[Nothing, Any]) -> Reply:
        """Return a file, which browsers only save."""
        return await sent(self._artifacts, await self._opened(call))

    async def address(self, call: Call[Nothing, Any]) -> FileAddressReply:
        """Return the address of a file, for pages, which may not follow to another origin."""
        row = await self._opened(call)
        url = self._artifacts.address(row)
        return FileAddressReply(url=url or f"{PREFIX}/jobs/{row.job_id}/files/{row.id}")

    async def _opened(self, call: Call[Nothing, Any]) -> ArtifactRow:
        job, file = call.path["job"], call.path["file"]
        return await job_files.opened(self._context, author(call), job, file)

    async def disputes(self, call: Call[Nothing, Any]) -> DisputesReply:
        """List the disputes."""
        rows = await judging.disputes(self._context, author(call), limit=DISPUTES_MAX)
        return DisputesReply(disputes=[_dispute(row) for row in rows])

    async def show(self, call: Call[Nothing, Any]) -> EvidenceReply:
        """Return the evidence about a job."""
        return _evidence(await judging.evidence(self._context, author(call), call.path["job"]))

    async def log(self, call: Call[JobLogRequest, Any]) -> JobLogReply:
        """Return lines of a log."""
        body, logs = call.body, self._terms.logs
        found = await judging.evidence(self._context, author(call), call.path["job"])
        number, lines = job_logs.attempt_of(found.job, body.attempt), []
        if number:
            lines = await asyncio.to_thread(
                job_logs.shown,
                logs.folder,
                logs.keep_bytes,
                Attempt(found.job.id, number),
                body.stream,
                body.text,
            )
        return JobLogReply(
            attempt=number,
            stream=body.stream,
            lines=[LogLineItem(each.number, each.is_hit, each.text) for each in lines],
        )

    async def uphold(self, call: Call[ReasonRequest, Any]) -> DecidedReply:
        """Decide for the worker."""
        return await self._decide(call, 0)

    async def reverse(self, call: Call[ReasonRequest, Any]) -> DecidedReply:
        """Decide for the buyer."""
        return await self._decide(call, 100)

    async def split(self, call: Call[SplitRequest, Any]) -> DecidedReply:
        """Decide for both."""
        return await self._decide(call, call.body.percent)

    async def _decide(self, call: Call[Any, Any], percent: int) -> DecidedReply:
        verdict, job_id = Verdict(percent), call.path["job"].lower()
        reply = partial(_decided, job_id, verdict)
        return reply(
            await judging.decide(
                self._context,
                author(call, reply),
                job_id,
                verdict,
                self._terms.limits,
                call.body.reason,
            )
        )


def _dispute(row: ReviewRow) -> DisputeItem:
    return DisputeItem(
        job_id=row.job_id,
        price=money(row.price),
        currency=Currency(row.currency),
        buyer=row.buyer_id,
        worker=row.user_id,
        disputed_at=moment(row.disputed_at),
        reason=row.reason,
    )


def _evidence(found: Evidence) -> EvidenceReply:
    job = found.job
    return EvidenceReply(
        job=JudgedJob(
            id=job.id,
            title=job.title,
            type=job.job_type,
            status=job.status,
            buyer=job.user_id,
            price=money(job.price_held),
            currency=job.currency,
            hours=job.duration_hrs,
            created_at=timestamp(job.created_at),
            finished_at=moment(job.finished_at),
            description=job.description,
            requirements=job.requirements,
            payload=found.payload,
            result=job.result,
            failure=job.failure_reason,
        ),
        statements=items(found.reviews, TABLES["reviews"], StatementItem),
        answers=items(found.answers, TABLES["answers"], AnswerItem),
        attempts=items(found.attempts, TABLES["attempts"], TriedItem),
        files=items(found.artifacts, TABLES["artifacts"], FileItem),
        devices=items(found.devices, TABLES["devices"], JudgedDevice),
        buyer=_counts(found.buyer_disputes),
    )


def _counts(row: DisputesRow) -> DisputeCounts:
    return DisputeCounts(row.disputed, row.reversed, row.split)


def _decided(job_id: str, verdict: Verdict, decided: Decided) -> DecidedReply:
    outcome, rows = decided.outcome, decided.rows
    state = STATES[outcome.state]
    return DecidedReply(
        state=state,
        job_id=job_id,
        decision=verdict.word,
        buyer_percent=verdict.buyer_percent,
        price=money(sum(row.price for row in rows)),
        currency=outcome.currency,
        approval=outcome.id if state == "waits" else None,
        expires_at=moment(outcome.expires_at),
    )

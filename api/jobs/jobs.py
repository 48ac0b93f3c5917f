"""Routes of jobs: the marketplace, a buyer's own, a worker's (specification 4.7 to 4.9)."""

from collections.abc import Container
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.devices.reputations import in_millionths
from api.http import literals
from api.http.identifiers import AttemptNumber, in_path
from api.http.literals import (
    COPIES_STATUSES,
    CURRENCIES,
    JOB_STATUSES,
    JOB_TYPES,
    REVIEW_STATUSES,
    Currency,
    JobType,
)
from api.jobs.attempts import Bytes, OutputsLeftOut, Usage, left_out_of
from api.jobs.shortages import Shortages
from api.routing.codec import Money, money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.response_cache import Answers
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.accounts.suspensions import MAY_NOT_BUY
from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code
from market.base.networks import site
from market.base.states import JobStatus
from market.dispatch.dispatch import Dispatch
from market.jobs.copies import COPIES_MAX, Group, copying_of
from market.jobs.jobs import Jobs
from market.jobs.matching import Needs
from market.jobs.postings import (
    DURATION_MAX_HOURS,
    PRICE_MAX,
    TEXT_MAX_CHARACTERS,
    TITLE_MAX_CHARACTERS,
    NewJob,
)
from market.jobs.specs import REVIEW_MAX_HOURS, NewSpec, Spec, understand
from market.money.money import MICRO
from market.trust.reputation import WHOLE
from proxyctl.protocol.jobspec import Payload, Resources
from storage.jobs.jobs import JobRow, OpenJobRow, OwnJobRow

LongText = Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS)]
ExitCode = Annotated[int, Meta(ge=-255, le=255)]  # below zero it is a signal


class Trust(Struct):
    """Requirements of the buyer on the device that does the job, and on the result.

    `review_hours` is the time in which the buyer may review a result before its worker is paid, and
    `min_reputation` the score that a device must have: an unknown device has 0.5, and after forty
    good attempts it has 0.96. With `copies`, that number of devices of different owners do the
    work, each for the price. Their results are compared by `compare`: `bytes`, `json`, or
    `numbers:1e-6` for numbers that may differ by such a part. Once most agree, only the agreeing
    ones are paid for; if they never do, each may be disputed. So the work must be deterministic. In
    any case the owner of the device can read everything that the job receives, computes and
    returns.
    """

    review_hours: Annotated[int, Meta(ge=0, le=REVIEW_MAX_HOURS)] | None = None
    min_reputation: Annotated[float, Meta(ge=0, le=1)] = 0.0
    copies: Annotated[int, Meta(ge=1, le=COPIES_MAX)] | None = None
    compare: Annotated[str, Meta(min_length=1, max_length=32)] | None = None


class CreateRequest(Struct):
    """Work to do, its price in credits, and the hours that it may take.

    Every worker device may read the texts before it accepts: keep secrets out of them. The owner of
    the device that runs the job can read everything in it, and nothing prevents that. A job with a
    payload is given to a device that meets its needs: `resources`, or without these the words of
    its requirements.
    """

    title: Annotated[str, Meta(min_length=1, max_length=TITLE_MAX_CHARACTERS)]
    job_type: JobType
    price_credit: Annotated[Money, Meta(extra_json_schema={"maximum": PRICE_MAX // MICRO})]
    duration_hrs: Annotated[int, Meta(ge=1, le=DURATION_MAX_HOURS)]
    description: LongText | None = None
    requirements: LongText | None = None
    payload: Payload | None = None
    resources: Resources | None = None
    trust: Trust | None = None


FEW_OWNERS = (
    "{copies} copies wait, and each goes to a device of another owner, in another network: of the"
    " {asked} that asked last {owners} can take one."
)
ONE_COPY = (
    "This copy goes to a device of an owner, in a network, that had no other copy: of the {asked}"
    " that asked last none can take it."
)


class CreateReply(Reply, kw_only=True):
    """A job that was put up, with its understood needs if it describes a program or needs.

    `warnings` are the words that were not understood, and the reasons why no device runs it. A
    manual job is not given to devices: it waits for one that accepts it. `copies` are all jobs that
    do the same work, the first one first.
    """

    job_id: str
    copies: list[str] | UnsetType = UNSET
    resources: Resources | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    is_manual: bool | UnsetType = UNSET


class JobItem(Struct):
    """A job in the marketplace; `cost` is its highest price, in `payment_type`.

    `price_credit` is the same price in credits, in which a device counts it.
    """

    id: str
    title: str
    job_type: JobType
    price_credit: float
    duration_hrs: int
    status: literals.JobStatus
    buyer_id: str
    payment_type: Currency
    cost: float


class MarketplaceQuery(Page):
    """Open jobs to list."""

    status: Literal["waiting", "running"] | None = None
    job_type: JobType | None = None


class MarketplaceReply(Listed[JobItem], kw_only=True):
    """Open jobs, newest first; `next_cursor` is there when there are more."""

    items: list[JobItem] = field(name="jobs")


class OpenJob(JobItem, kw_only=True):
    """An open job; its texts are for its buyer, and for worker devices, who may want to do it.

    They also see its understood needs, the hours of review before payment if these are not the
    default, and the reputation that a device must have. With `copies` other jobs do the same work,
    and only results that agree with most of them are paid.
    """

    description: str | UnsetType = UNSET
    requirements: str | UnsetType = UNSET
    resources: Resources | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    is_manual: bool | UnsetType = UNSET
    review_hours: int | UnsetType = UNSET
    min_reputation: float | UnsetType = UNSET
    copies: int | UnsetType = UNSET
    compare: str | UnsetType = UNSET


class OpenJobReply(Reply, kw_only=True):
    """One open job."""

    job: OpenJob


class OwnJobItem(JobItem, kw_only=True):
    """A job in its buyer's list.

    `paid` is in the currency of `cost`, and is there once the job is over, or an attempt of it was
    paid. `left` is the part of `cost` that is held still, while the job is open. `warnings` are
    there while it waits and no device runs such a job.
    """

    attempts: int
    created_at: Timestamp
    accepted_at: Timestamp | UnsetType = UNSET
    finished_at: Timestamp | UnsetType = UNSET
    deploy_id: str | UnsetType = UNSET
    paid: float | UnsetType = UNSET
    left: float | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class Review(Struct):
    """Payment of a finished job; `until` is its time, if the buyer does not dispute the result.

    `refunded` is the part of the price that went back in a dispute that was decided in part.
    """

    state: literals.ReviewStatus
    until: Timestamp
    reason: str | UnsetType = UNSET
    refunded: float | UnsetType = UNSET


class CopyItem(Struct):
    """One of several copies; `agrees` is true if its result is the one that most agree on."""

    job_id: str
    status: literals.JobStatus
    agrees: bool | UnsetType = UNSET


class Copies(Struct):
    """The copies of a job, the first one first, and the comparison of their results.

    `canonical` is the one with the result that most agree on; without one the state is `undecided`.
    """

    compare: str
    state: literals.CopiesStatus
    jobs: list[CopyItem]
    canonical: str | UnsetType = UNSET


class OwnJob(OwnJobItem, kw_only=True):
    """A job as its buyer sees it; `failure_reason` is why the last attempt failed.

    The secrets in its payload are shown by name only.
    """

    description: str
    requirements: str
    result: str | UnsetType = UNSET
    failure_reason: str | UnsetType = UNSET
    payload: Payload | UnsetType = UNSET
    resources: Resources | UnsetType = UNSET
    is_manual: bool | UnsetType = UNSET
    review_hours: int | UnsetType = UNSET
    min_reputation: float | UnsetType = UNSET
    review: Review | UnsetType = UNSET
    copies: Copies | UnsetType = UNSET


class OwnQuery(Page):
    """The caller's jobs to list."""

    status: literals.JobStatus | None = None


class OwnReply(Listed[OwnJobItem], kw_only=True):
    """The caller's jobs, newest first; `next_cursor` is there when there are more."""

    items: list[OwnJobItem] = field(name="jobs")


class JobReply(Reply, kw_only=True):
    """One of the caller's jobs."""

    job: OwnJob


class CancelCostReply(Reply, kw_only=True):
    """Effect of cancelling now: the number of jobs that end, their pay, and the sum returned.

    More than one ends if a job is one of several copies. A job that runs costs more later. `pays`
    includes the pay of earlier attempts whose own work has failed.
    """

    jobs: int
    pays: float
    returns: float
    payment_type: Currency


class AcceptedJob(Struct):
    """A job that a device runs now."""

    id: str
    title: str
    status: literals.JobStatus
    attempt: int


class AcceptReply(Reply, kw_only=True):
    """The job that was accepted."""

    job: AcceptedJob


class Work(Struct):
    """Job for a device to run, and the time until which it is worth its price.

    `image` and `command` are those of the deploy that the job is a replica of, if it names them.
    `payload` has the values of secrets; after `timeout_s` seconds the work is stopped.
    """

    id: str
    title: str
    job_type: JobType
    status: literals.JobStatus
    duration_hrs: int
    price_credit: float
    description: str
    requirements: str
    attempt: int
    image: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    payload: Payload | UnsetType = UNSET
    resources: Resources | UnsetType = UNSET
    timeout_s: int | UnsetType = UNSET


class WorkReply(Reply, kw_only=True):
    """The job that the device runs."""

    job: Work


class HeldJob(Struct):
    """A job in the list of the device that runs it."""

    id: str
    title: str
    job_type: JobType
    status: literals.JobStatus
    duration_hrs: int
    price_credit: float
    attempt: int
    accepted_at: Timestamp | UnsetType = UNSET


class HeldReply(Listed[HeldJob], kw_only=True):
    """The jobs that the device runs, newest first; `next_cursor` is there when there are more."""

    items: list[HeldJob] = field(name="jobs")


class LogBytes(Struct):
    """The bytes that a job has written to each of its two streams."""

    out: Bytes = 0
    err: Bytes = 0


class CompleteRequest(Struct):
    """Result of the work, and its attempt, by default the running one.

    `exit_code` is the exit code of the process, and `log_bytes` the length of the log: while less
    of it has arrived, the report is refused. `outputs_left_out` has the outputs that the device
    could not send.
    """

    result: LongText | None = None
    attempt: AttemptNumber | None = None
    exit_code: ExitCode | None = None
    usage: Usage | None = None
    log_bytes: LogBytes | None = None
    outputs_left_out: OutputsLeftOut | None = None


class FailRequest(Struct):
    """Reason of a failure, and its attempt, by default the running one.

    `kind` attributes the fault: to the device (`host`, or `refused` where it would not run the
    job), and then the job may come back to its owner once, or to the job. A job has failed,
    regardless of the cause, once machines of three owners with ten done jobs each, or of ten owners
    in all, have not done it; refusals do not count. An attempt whose own work has failed is paid
    for its time, except for a copy of work if most other copies agree on a result.
    """

    reason: Annotated[str, Meta(min_length=1, max_length=2_000)]
    attempt: AttemptNumber | None = None
    kind: literals.FailureKind | None = None
    exit_code: ExitCode | None = None
    usage: Usage | None = None
    log_bytes: LogBytes | None = None


class JobRoutes:
    """The routes of jobs."""

    def __init__(self, jobs: Jobs, dispatch: Dispatch, answers: Answers) -> None:
        self._jobs = jobs
        self._dispatch = dispatch
        self._shortages = Shortages(jobs, dispatch)
        self._answers = answers

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [*self._buyers(), *self._workers()]

    def _buyers(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/api/marketplace/jobs",
                "List open jobs",
                self.marketplace,
                MarketplaceReply,
                query=MarketplaceQuery,
            ),
            Route(
                "GET",
                "/api/marketplace/jobs/{job_id}",
                "Look at an open job",
                self.open_job,
                OpenJobReply,
                auth=Auth.OPTIONAL_EITHER,
                scope=Scope.JOBS_READ,
                errors=(Code.JOB_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/jobs",
                "Put a job up",
                self.create,
                CreateReply,
                scope=Scope.JOBS_WRITE,
                body=CreateRequest,
                example={
                    "title": "Fine-tune a small model",
                    "job_type": "training",
                    "price_credit": 120.5,
                    "duration_hrs": 6,
                    "requirements": "GPU with 24 GB",
                    "payload": {
                        "image": "pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime",
                        "command": ["python3", "train.py"],
                    },
                },
                idempotent=True,
                errors=(
                    *MAY_NOT_BUY,
                    Code.INSUFFICIENT_FUNDS,
                    Code.SPEND_LIMIT_REACHED,
                    Code.PAYLOAD_INVALID,
                    Code.TOO_MANY_JOBS,
                    Code.TOO_MANY_FREE_JOBS,
                    Code.TOO_MUCH_JOB_TEXT,
                    Code.TOO_MANY_ATTEMPTS,
                ),
            ),
            Route(
                "GET",
                "/api/jobs",
                "List my jobs",
                self.own,
                OwnReply,
                scope=Scope.JOBS_READ,
                query=OwnQuery,
            ),
            Route(
                "GET",
                "/api/jobs/{job_id}",
                "Look at one of my jobs",
                self.one,
                JobReply,
                scope=Scope.JOBS_READ,
                errors=(Code.JOB_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/jobs/{job_id}/cancel",
                "Cancel one of my jobs",
                self.cancel,
                Reply,
                scope=Scope.JOBS_WRITE,
                errors=(Code.JOB_NOT_FOUND, Code.JOB_OVER),
            ),
            Route(
                "GET",
                "/api/jobs/{job_id}/cancel",
                "See what cancelling one of my jobs would cost now",
                self.cancelling_costs,
                CancelCostReply,
                scope=Scope.JOBS_READ,
                errors=(Code.JOB_NOT_FOUND, Code.JOB_OVER),
            ),
        ]

    def _workers(self) -> list[Route]:
        attempt_errors = (Code.JOB_NOT_FOUND, Code.ATTEMPT_NOT_CURRENT)
        return [
            Route(
                "POST",
                "/api/jobs/{job_id}/accept",
                "Accept a job on this device",
                self.accept,
                AcceptReply,
                auth=Auth.WORKER,
                errors=(
                    Code.JOB_NOT_FOUND,
                    Code.JOB_NOT_WAITING,
                    Code.JOB_FAILED_HERE,
                    Code.COPY_TAKEN_HERE,
                    Code.DEVICE_FULL,
                    Code.DEVICE_UNSUITABLE,
                    Code.REPUTATION_TOO_LOW,
                ),
            ),
            Route(
                "GET",
                "/api/worker/jobs",
                "List the jobs that this device runs",
                self.running,
                HeldReply,
                auth=Auth.WORKER,
                query=Page,
            ),
            Route(
                "GET",
                "/api/worker/jobs/{job_id}",
                "Look at what this device is to run",
                self.work,
                WorkReply,
                auth=Auth.WORKER,
                errors=(*attempt_errors, Code.PAYLOAD_INVALID),
            ),
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/complete",
                "Report that a job is done",
                self.complete,
                Reply,
                auth=Auth.WORKER,
                body=CompleteRequest,
                body_optional=True,
                errors=(*attempt_errors, Code.LOG_INCOMPLETE),
            ),
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/fail",
                "Report that a job cannot be done here",
                self.fail,
                Reply,
                auth=Auth.WORKER,
                body=FailRequest,
                errors=attempt_errors,
            ),
        ]

    async def marketplace(self, call: Call[Nothing, MarketplaceQuery]) -> Reply:
        """List the open jobs of all buyers."""
        query = call.query
        key = (query.status, query.job_type, query.cursor, query.limit)
        return await self._answers.get(key, lambda: self._open_jobs(query))

    async def _open_jobs(self, query: MarketplaceQuery) -> MarketplaceReply:
        rows = await self._jobs.page_open(
            status=JobStatus(query.status) if query.status else None,
            job_type=query.job_type or "",
            before=query.before,
            limit=query.fetch_limit,
        )
        return MarketplaceReply.of(query, rows, _item)

    async def open_job(self, call: Call[Nothing, Any]) -> OpenJobReply:
        """Return any open job; its texts are for its buyer and for worker devices."""
        found = await self._jobs.find_open(_job_id(call))
        job, spec = found.job, found.spec
        open_job = OpenJob(**msgspec.structs.asdict(_item(job)))
        is_buyer = call.login is not None and call.user_id == job.user_id
        if is_buyer or call.worker is not None:
            open_job.description, open_job.requirements = job.description, job.requirements
            if spec is not None:
                open_job.resources, open_job.is_manual = spec.resources, spec.is_manual
                open_job.warnings = list(spec.warnings)
                open_job.review_hours = UNSET if spec.review_hours is None else spec.review_hours
                if spec.min_reputation:
                    open_job.min_reputation = spec.min_reputation / WHOLE
            if found.group is not None:
                open_job.copies = len(found.group.copies)
                open_job.compare = found.group.compare
        return OpenJobReply(job=open_job)

    async def create(self, call: Call[CreateRequest, Any]) -> CreateReply:
        """Put a job up."""
        body, spec = call.body, _understood(call.body)
        new = NewJob(
            title=body.title,
            job_type=body.job_type,
            price=body.price_credit,
            duration_hrs=body.duration_hrs,
            description=body.description or "",
            requirements=body.requirements or "",
            spec=spec,
        )
        trust = body.trust or Trust()
        copying = copying_of(trust.copies, trust.compare, body.payload)
        price = self._dispatch.price(body.price_credit, body.duration_hrs)
        warnings = self._warnings(spec, body.job_type, price)
        if copying is not None and spec is not None:
            warnings += self._few_owners(spec, body.job_type, copying.copies, {call.user_id})
        if spec is None or spec.payload is None:
            warnings.append(self._shortages.manual())

        def reply(job_id: str) -> CreateReply:
            return _created(job_id, spec, warnings)

        def reply_to_all(job_ids: list[str]) -> CreateReply:
            made = _created(job_ids[0], spec, warnings)
            made.copies = job_ids
            return made

        if copying is None:
            once = call.receipt(reply)
            return reply(await self._jobs.create(call.user_id, new, once, call.spender))
        receipt = call.receipt(reply_to_all)
        job_ids = await self._jobs.create_copies(call.user_id, new, copying, receipt, call.spender)
        return reply_to_all(job_ids)

    def _warnings(
        self,
        spec: Spec | None,
        job_type: str,
        price: int,
        failed: frozenset[str] = frozenset(),
    ) -> list[str]:
        """Return the warnings for the buyer of a job that waits, as far as they are known now."""
        if spec is None:
            return []
        needs = _needs(spec, job_type)
        return [*spec.warnings, *self._shortages.of(needs, price, failed)]

    def _few_owners(
        self,
        spec: Spec,
        job_type: str,
        copies: int,
        owners: Container[str],
        networks: Container[str] = (),
    ) -> list[str]:
        """Return the warning that not all waiting copies can be taken, as `Dispatch.takers`.

        None if no device can take any, since that is another warning.
        """
        needs = _needs(spec, job_type)
        if needs is None or self._dispatch.devices.lacks(needs):
            return []
        takers = self._dispatch.devices.takers(needs, copies, owners, networks)
        if not takers.asked or takers.owners >= copies:
            return []
        few = {0: "none", 1: "only those of 1 owner"}
        words = few.get(takers.owners, f"only those of {takers.owners} owners")
        if copies == 1:
            return [ONE_COPY.format(asked=takers.asked)]
        return [FEW_OWNERS.format(copies=copies, asked=takers.asked, owners=words)]

    async def own(self, call: Call[Nothing, OwnQuery]) -> OwnReply:
        """List the caller's jobs."""
        query = call.query
        rows = await self._jobs.page_of_user(
            call.user_id,
            status=JobStatus(query.status) if query.status else None,
            before=query.before,
            limit=query.fetch_limit,
        )
        part, cursor = query.cut(rows)
        items = [_own_item(job, job.paid, job.left) for job in part]
        waiting = [job.id for job in part if job.status == JobStatus.WAITING]
        warnings = await self._shortages.of_waiting(waiting)
        for item in items:
            item.warnings = warnings.get(item.id, UNSET)
        return OwnReply(items=items, next_cursor=cursor)

    async def one(self, call: Call[Nothing, Any]) -> JobReply:
        """Return one of the caller's jobs."""
        owned = await self._jobs.find(call.user_id, _job_id(call))
        job, spec = owned.job, owned.spec
        shown = OwnJob(
            **msgspec.structs.asdict(_own_item(job, owned.paid, owned.left)),
            description=job.description,
            requirements=job.requirements,
            result=UNSET if job.result is None else job.result,
            failure_reason=UNSET if job.failure_reason is None else job.failure_reason,
        )
        warnings: list[str] = []
        if spec is not None:
            shown.payload = UNSET if spec.payload is None else spec.payload
            shown.resources, shown.is_manual = spec.resources, spec.is_manual
            waits = job.status == JobStatus.WAITING
            price = self._dispatch.price(job.price_credit, job.duration_hrs)
            warnings = list(spec.warnings)
            if waits:
                failed = (await self._jobs.failed_owners([job.id])).get(job.id, frozenset())
                warnings = self._warnings(spec, job.job_type, price, failed)
            shown.warnings = warnings
            shown.review_hours = UNSET if spec.review_hours is None else spec.review_hours
            if spec.min_reputation:
                shown.min_reputation = spec.min_reputation / WHOLE
        review = owned.review
        if review is not None:
            state = REVIEW_STATUSES[review.state]
            reason = UNSET if review.reason is None else review.reason
            refunded = money(review.refunded) if review.refunded else UNSET
            shown.review = Review(state, timestamp(review.review_until), reason, refunded)
        if owned.group is not None:
            shown.copies = _copies(owned.group)
            if spec is not None and job.status == JobStatus.WAITING:
                waiting = sum(each.status == JobStatus.WAITING for each in owned.group.copies)
                owners = {job.user_id, *(each.owner_id for each in owned.group.taken)}
                networks = {each.network for each in owned.group.taken}
                warnings += self._few_owners(spec, job.job_type, waiting, owners, networks)
        return JobReply(job=shown)

    async def cancel(self, call: Call[Nothing, Any]) -> Reply:
        """Cancel one of the caller's jobs."""
        await self._jobs.cancel(call.user_id, _job_id(call))
        return Reply()

    async def cancelling_costs(self, call: Call[Nothing, Any]) -> CancelCostReply:
        """Return the cost of cancelling at this moment."""
        quote = await self._jobs.cancelling_costs(call.user_id, _job_id(call))
        return CancelCostReply(
            jobs=quote.stopped,
            pays=money(quote.pays),
            returns=money(quote.returns),
            payment_type=CURRENCIES[quote.currency],
        )

    async def accept(self, call: Call[Nothing, Any]) -> AcceptReply:
        """Assign a job to the requesting device."""
        offer = self._dispatch.devices.offer_of(call.device)
        job = await self._jobs.accept(call.device, _job_id(call), site(call.address), offer)
        status = JOB_STATUSES[job.status]
        return AcceptReply(job=AcceptedJob(job.id, job.title, status, job.attempts))

    async def running(self, call: Call[Nothing, Page]) -> HeldReply:
        """List the jobs that the device runs."""
        query = call.query
        rows = await self._jobs.page_of_device(
            call.device, before=query.before, limit=query.fetch_limit
        )
        return HeldReply.of(query, rows, _running_item)

    async def work(self, call: Call[Nothing, Any]) -> WorkReply:
        """Return the job that the device should run."""
        work = await self._jobs.work(call.device, _job_id(call))
        job, item, spec = work.job, _item(work.job), work.spec
        told = Work(
            id=item.id,
            title=item.title,
            job_type=item.job_type,
            status=item.status,
            duration_hrs=item.duration_hrs,
            price_credit=item.price_credit,
            description=job.description,
            requirements=job.requirements,
            attempt=job.attempts,
            image=UNSET if work.image is None else work.image,
            command=UNSET if work.command is None else work.command,
        )
        if spec is not None:
            told.payload = UNSET if spec.payload is None else spec.payload
            told.resources = spec.resources
            told.timeout_s = UNSET if spec.timeout_seconds is None else spec.timeout_seconds
        return WorkReply(job=told)

    async def complete(self, call: Call[CompleteRequest, Any]) -> Reply:
        """Take a result."""
        body = call.body
        await self._jobs.complete(
            call.device,
            _job_id(call),
            body.result or "",
            attempt=body.attempt,
            ending=_ending(body),
        )
        return Reply()

    async def fail(self, call: Call[FailRequest, Any]) -> Reply:
        """Take a job back."""
        body = call.body
        await self._jobs.fail(
            call.device, _job_id(call), body.reason, attempt=body.attempt, ending=_ending(body)
        )
        return Reply()


def _understood(body: CreateRequest) -> Spec | None:
    """Return the program and needs of a job; None if it has only the fields of the specification.

    Raises:
        MarketError: `payload_invalid`.
    """
    trust = body.trust or Trust()
    least = in_millionths(trust.min_reputation)
    new = NewSpec(body.payload, body.resources, trust.review_hours, least)
    if new == NewSpec():
        return None
    return understand(
        new,
        job_type=body.job_type,
        duration_hrs=body.duration_hrs,
        text=body.requirements or "",
    )


def _needs(spec: Spec, job_type: str) -> Needs | None:
    """Return the needs of a job; None for a job that is not given out automatically."""
    payload = spec.payload
    if payload is None or spec.is_manual:
        return None
    return Needs.of(
        payload,
        spec.resources,
        job_type,
        min_reputation=spec.min_reputation,
        has_archives=payload.has_archives,
    )


def _ending(body: CompleteRequest | FailRequest) -> Ending:
    kind = body.kind if isinstance(body, FailRequest) else None
    usage, log = body.usage or Usage(), body.log_bytes
    return Ending(
        kind=None if kind is None else FailureKind(kind),
        exit_code=body.exit_code,
        cpu_seconds=usage.cpu_seconds,
        max_memory_bytes=usage.max_memory_bytes,
        log_bytes=None if log is None else {"out": log.out, "err": log.err},
        left_out=left_out_of(body.outputs_left_out) if isinstance(body, CompleteRequest) else None,
    )


def _created(job_id: str, spec: Spec | None, warnings: list[str]) -> CreateReply:
    if spec is None:
        return CreateReply(job_id=job_id, warnings=warnings, is_manual=True)
    return CreateReply(
        job_id=job_id,
        resources=spec.resources,
        warnings=warnings,
        is_manual=spec.is_manual or spec.payload is None,
    )


def _copies(group: Group) -> Copies:
    return Copies(
        group.compare,
        COPIES_STATUSES[group.state],
        [
            CopyItem(
                each.job_id,
                JOB_STATUSES[each.status],
                UNSET if each.agrees is None else each.agrees,
            )
            for each in group.copies
        ],
        UNSET if group.canonical is None else group.canonical,
    )


def _job_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["job_id"], Code.JOB_NOT_FOUND)


def _item(job: JobRow | OpenJobRow | OwnJobRow) -> JobItem:
    return JobItem(
        id=job.id,
        title=job.title,
        job_type=JOB_TYPES[job.job_type],
        price_credit=money(job.price_credit),
        duration_hrs=job.duration_hrs,
        status=JOB_STATUSES[job.status],
        buyer_id=job.user_id,
        payment_type=CURRENCIES[job.currency],
        cost=money(job.price_held),
    )


def _own_item(job: JobRow | OwnJobRow, paid: int | None, left: int | None) -> OwnJobItem:
    return OwnJobItem(
        id=job.id,
        title=job.title,
        job_type=JOB_TYPES[job.job_type],
        price_credit=money(job.price_credit),
        duration_hrs=job.duration_hrs,
        status=JOB_STATUSES[job.status],
        buyer_id=job.user_id,
        attempts=job.attempts,
        payment_type=CURRENCIES[job.currency],
        cost=money(job.price_held),
        created_at=timestamp(job.created_at),
        accepted_at=UNSET if job.accepted_at is None else timestamp(job.accepted_at),
        finished_at=UNSET if job.finished_at is None else timestamp(job.finished_at),
        deploy_id=UNSET if job.deploy_id is None else job.deploy_id,
        paid=UNSET if paid is None else money(paid),
        left=UNSET if left is None else money(left),
    )


def _running_item(job: OwnJobRow) -> HeldJob:
    item = _item(job)
    return HeldJob(
        id=item.id,
        title=item.title,
        job_type=item.job_type,
        status=item.status,
        duration_hrs=item.duration_hrs,
        price_credit=item.price_credit,
        attempt=job.attempts,
        accepted_at=UNSET if job.accepted_at is None else timestamp(job.accepted_at),
    )

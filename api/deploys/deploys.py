"""Routes of deploys (specification 4.17)."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.accounts.accounts import RequiredText
from api.devices.reputations import in_millionths
from api.http import literals
from api.http.identifiers import in_path
from api.http.literals import (
    CURRENCIES,
    DEPLOY_STATUSES,
    DEPLOY_TYPES,
    DeployStatus,
    DeployType,
    Network,
)
from api.jobs.shortages import Shortages
from api.routing.codec import money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import PURCHASE_REFUSALS, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.accounts.suspensions import MAY_NOT_BUY
from market.base.errors import Code
from market.deploys.deploys import (
    COMMAND_MAX_CHARACTERS,
    GPU_COUNT_MAX,
    IMAGE_MAX_CHARACTERS,
    REPLICAS_MAX,
    Deploy,
    Deploys,
    NewDeploy,
)
from market.deploys.rollouts import Rollouts
from market.deploys.steps import Strategy
from market.deploys.templates import Change, Interpreter, Template, template_of
from market.jobs.postings import DURATION_MAX_HOURS
from market.money.money import Currency
from market.trust.reputation import WHOLE
from proxyctl.protocol.jobspec import Port, Ready, Resources
from storage.deploys.deploys import DeployRow
from storage.deploys.rollouts import RevisionRow

Size = Annotated[float, Meta(ge=0)]
ONE = "/api/deploy/job/{deploy_id}"
CHANGE_ERRORS = (Code.DEPLOY_NOT_FOUND, Code.DEPLOY_HAS_NO_REVISIONS, Code.DEPLOY_OVER)
FIXED = {
    name: f"{name} is chosen when a deploy is created, and cannot be changed."
    for name in (
        "job_name",
        "job_type",
        "gpu_model",
        "gpu_count",
        "duration_hrs",
        "payment_type",
        "strategy",
    )
}
COST_ERRORS = (
    *PURCHASE_REFUSALS,
    Code.TOO_MANY_JOBS,
    Code.TOO_MANY_FREE_JOBS,
    Code.TOO_MUCH_JOB_TEXT,
    Code.TOO_MANY_ATTEMPTS,
)


class ReplicaResources(Struct):
    """Least resources of a replica beside its GPUs; 0 and "" set no requirement."""

    vram_gb: Size = 0.0
    cores: Size = 0.0
    ram_gb: Size = 0.0
    disk_gb: Size = 0.0
    arch: str = ""
    cuda: str = ""
    # The deploy's own values: shown with a revision, and refused if they differ.
    gpus: Annotated[int, Meta(ge=0)] = 0
    gpu_model: str = ""

    def as_resources(self) -> Resources:
        """Return it as jobs have it."""
        return Resources(**msgspec.structs.asdict(self))


class DeployStrategy(Struct):
    """How replicas are replaced: see `Strategy`."""

    max_surge: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 0
    max_unavailable: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 1
    min_ready_s: Annotated[int, Meta(ge=0, le=86_400)] = 0
    progress_s: Annotated[int, Meta(ge=1, le=86_400)] = 600
    auto_revert: bool = False


class DeployTrust(Struct):
    """Requirement on the devices that run replicas: the least score, as of a job."""

    min_reputation: Annotated[float, Meta(ge=0, le=1)] = 0.0


class ReplicaFields(Struct, kw_only=True):
    """Program and needs of each replica; fields left out stay as they are.

    `ready` may also be null: then a replica is ready when it runs, even if `ready` was set before.
    Each worker that looks at a replica sees all of it but `secrets`, and each worker that runs one
    sees `secrets`. Anybody may be a worker: the secrets should not be worth more than the work.
    """

    image: Annotated[str, Meta(max_length=IMAGE_MAX_CHARACTERS)] | None = None
    command: Annotated[str, Meta(max_length=COMMAND_MAX_CHARACTERS)] | None = None
    script: str | None = None
    interpreter: Interpreter | None = None
    env: dict[str, str] | None = None
    secrets: dict[str, str] | None = None
    ports: list[Port] | None = None
    ready: Ready | UnsetType | None = UNSET
    network: Network | None = None
    resources: ReplicaResources | None = None
    trust: DeployTrust | None = None

    def change(self) -> Change:
        """Return the fields as a change of the running revision."""
        return Change(
            image=self.image,
            command=self.command,
            script=self.script,
            interpreter=self.interpreter,
            env=self.env,
            secrets=self.secrets,
            ports=None if self.ports is None else tuple(self.ports),
            ready=self.ready,
            network=self.network,
            resources=None if self.resources is None else self.resources.as_resources(),
            min_reputation=None if self.trust is None else in_millionths(self.trust.min_reputation),
        )


class DeployRequest(ReplicaFields, kw_only=True):
    """Program to run, its GPUs, its number of hours, and the means of payment.

    A deploy that describes the program of its replicas is given to devices that have the needed
    resources, and its replicas are replaced by `strategy`.
    """

    job_name: RequiredText
    job_type: DeployType
    gpu_model: RequiredText
    gpu_count: Annotated[int, Meta(ge=1, le=GPU_COUNT_MAX)] | None = None
    duration_hrs: Annotated[int, Meta(ge=1, le=DURATION_MAX_HOURS)] | None = None
    replicas: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None = None
    payment_type: literals.Currency | None = None
    strategy: DeployStrategy | None = None


class RevisionRequest(ReplicaFields, kw_only=True):
    """Fields to change. `replicas` also scales the deploy."""

    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] | None = None


class ScaleRequest(Struct):
    """The wanted number of replicas."""

    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]


class RollbackRequest(Struct):
    """Revision to go back to; by default the last one that was available."""

    revision: Annotated[int, Meta(ge=1)] | None = None


class RevisionReply(Reply, kw_only=True):
    """The number of the new revision of the replicas."""

    revision: int


class Revision(Struct):
    """Configuration from some time on, and its progress; `secrets` has only the names."""

    revision: int
    cause: str
    state: literals.RevisionState
    created_at: Timestamp
    image: str
    command: str
    env: dict[str, str]
    ports: list[Port]
    network: Network
    resources: Resources
    secrets: list[str]
    script: str | UnsetType = UNSET
    interpreter: Interpreter | UnsetType = UNSET
    ready: Ready | UnsetType = UNSET
    trust: DeployTrust | UnsetType = UNSET


class RevisionsReply(Reply, kw_only=True):
    """The last revisions of a deploy, the newest first."""

    revisions: list[Revision]


class DeployReply(Reply, kw_only=True):
    """A deploy that was queued; its `cost` is held in the currency of `payment_type`.

    `warnings` are those of a job.
    """

    job_id: str
    message: str
    cost: float
    payment_type: literals.Currency
    warnings: list[str] | UnsetType = UNSET


class Rate(Struct):
    """Price of an hour of a GPU of some model, in USD."""

    gpu_model: str
    usd_per_hour: float


class RatesReply(Reply, kw_only=True):
    """Price of an hour of a GPU, in USD: by model, in any case, and of every other model."""

    rates: list[Rate]
    default_usd_per_hour: float
    credit_usd: float


class DeployItem(Struct):
    """A deploy; `cost`, and `paid` once it is over, are in the currency of `payment_type`.

    `ready_replicas` is the number of running replicas, or, if the deploy describes their program,
    of usable ones; how far such a deploy is with its `revision` is there as well. `warnings` are
    there while a replica waits that no device runs.
    """

    # One field for each of the documented reply.
    id: str
    job_name: str
    job_type: DeployType
    gpu_model: str
    gpu_count: int
    duration_hrs: int
    replicas: int
    ready_replicas: int
    status: DeployStatus
    payment_type: literals.Currency
    cost: float
    created_at: Timestamp
    paid: float | UnsetType = UNSET
    updated_replicas: int | UnsetType = UNSET
    available_replicas: int | UnsetType = UNSET
    revision: int | UnsetType = UNSET
    state: literals.RolloutState | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class OneDeploy(DeployItem, kw_only=True):
    """A deploy, whole: `job_ids` are its replicas in the marketplace."""

    job_ids: list[str]
    image: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class OneReply(Reply, kw_only=True):
    """One of the caller's deploys."""

    deploy: OneDeploy


class ListReply(Listed[DeployItem], kw_only=True):
    """Deploys, newest first; `next_cursor` is there when there are more.

    A part has fewer than `limit` when they have 2,000 replicas together.
    """

    items: list[DeployItem] = field(name="deploys")


class DeployRoutes:
    """The routes of deploys."""

    def __init__(self, deploys: Deploys, rollouts: Rollouts, shortages: Shortages) -> None:
        self._deploys = deploys
        self._shortages = shortages
        self._rollouts = rollouts

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [*self._whole(), *self._revisions(), *self._changes()]

    def _whole(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/api/deploy/job",
                "Queue a deploy",
                self.create,
                DeployReply,
                scope=Scope.JOBS_WRITE,
                body=DeployRequest,
                example={
                    "job_name": "notebook",
                    "job_type": "Jupyter",
                    "gpu_model": "RTX 4090",
                    "duration_hrs": 4,
                    "image": "jupyter/scipy-notebook",
                },
                idempotent=True,
                errors=(
                    *PURCHASE_REFUSALS,
                    Code.PAYLOAD_INVALID,
                    Code.TOO_MANY_JOBS,
                    Code.TOO_MANY_FREE_JOBS,
                    Code.TOO_MUCH_JOB_TEXT,
                    Code.TOO_MANY_ATTEMPTS,
                ),
            ),
            Route("GET", "/api/deploy/rates", "What GPUs cost", self.rates, RatesReply),
            Route(
                "GET",
                "/api/deploy/jobs",
                "List my deploys",
                self.own,
                ListReply,
                scope=Scope.JOBS_READ,
                query=Page,
            ),
            Route(
                "GET",
                "/api/deploy/job/{deploy_id}",
                "Look at one of my deploys",
                self.one,
                OneReply,
                scope=Scope.JOBS_READ,
                errors=(Code.DEPLOY_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/deploy/job/{deploy_id}/cancel",
                "Cancel what is left of a deploy",
                self.cancel,
                Reply,
                scope=Scope.JOBS_WRITE,
                errors=(Code.DEPLOY_NOT_FOUND,),
            ),
        ]

    def _revisions(self) -> list[Route]:
        return [
            Route(
                "POST",
                f"{ONE}/revision",
                "Have the replicas of a deploy run something else",
                self.revise,
                RevisionReply,
                scope=Scope.JOBS_WRITE,
                body=RevisionRequest,
                fixed=FIXED,
                example={"image": "jupyter/scipy-notebook:2026-11-01"},
                idempotent=True,
                errors=(*CHANGE_ERRORS, Code.PAYLOAD_INVALID, *COST_ERRORS),
            ),
            Route(
                "POST",
                f"{ONE}/rollback",
                "Have the replicas run what they ran before",
                self.rollback,
                RevisionReply,
                scope=Scope.JOBS_WRITE,
                body=RollbackRequest,
                body_optional=True,
                idempotent=True,
                errors=(
                    *CHANGE_ERRORS,
                    *MAY_NOT_BUY,
                    Code.SPEND_LIMIT_REACHED,
                    Code.REVISION_NOT_FOUND,
                    Code.PAYLOAD_INVALID,
                    Code.TOO_MUCH_JOB_TEXT,
                ),
            ),
            Route(
                "POST",
                f"{ONE}/restart",
                "Replace every replica by one that runs the same",
                self.restart,
                RevisionReply,
                scope=Scope.JOBS_WRITE,
                idempotent=True,
                errors=(
                    *CHANGE_ERRORS,
                    *MAY_NOT_BUY,
                    Code.SPEND_LIMIT_REACHED,
                    Code.PAYLOAD_INVALID,
                    Code.TOO_MUCH_JOB_TEXT,
                ),
            ),
            Route(
                "GET",
                f"{ONE}/revisions",
                "List the last revisions of a deploy",
                self.revisions,
                RevisionsReply,
                scope=Scope.JOBS_READ,
                errors=(Code.DEPLOY_NOT_FOUND, Code.DEPLOY_HAS_NO_REVISIONS),
            ),
        ]

    def _changes(self) -> list[Route]:
        return [
            Route(
                "POST",
                f"{ONE}/scale",
                "Have more or fewer replicas",
                self.scale,
                Reply,
                scope=Scope.JOBS_WRITE,
                body=ScaleRequest,
                example={"replicas": 3},
                errors=(*CHANGE_ERRORS, *COST_ERRORS),
            ),
            Route(
                "POST",
                f"{ONE}/pause",
                "Start and stop no replica for now",
                self.pause,
                Reply,
                scope=Scope.JOBS_WRITE,
                errors=CHANGE_ERRORS,
            ),
            Route(
                "POST",
                f"{ONE}/resume",
                "Go on with a deploy that was paused",
                self.resume,
                Reply,
                scope=Scope.JOBS_WRITE,
                errors=CHANGE_ERRORS,
            ),
        ]

    async def create(self, call: Call[DeployRequest, Any]) -> DeployReply:
        """Queue a deploy."""
        body, change = call.body, call.body.change()
        # The specification has these two; and null is the same as absent.
        plain = Change(image=body.image, command=body.command)
        is_plain = msgspec.structs.replace(change, ready=change.ready or UNSET) == plain
        new = NewDeploy(
            job_name=body.job_name,
            job_type=body.job_type,
            gpu_model=body.gpu_model,
            gpu_count=1 if body.gpu_count is None else body.gpu_count,
            duration_hrs=1 if body.duration_hrs is None else body.duration_hrs,
            replicas=1 if body.replicas is None else body.replicas,
            currency=Currency(body.payment_type or "usd"),
            image=body.image or "",
            command=body.command or "",
            template=None if is_plain else change.of(Template()),
            strategy=Strategy(**msgspec.structs.asdict(body.strategy or DeployStrategy())),
        )

        # The reply is made in the transaction, by a thread that may not look at the devices.
        needs = self._deploys.needs_of(new)
        warnings = [self._shortages.manual()]
        if needs is not None:
            warnings = self._shortages.of(needs, self._deploys.price_of(new))
        # The specification's fields alone are answered with those of its reply, but for a warning.
        says_more = new.template is not None or bool(new.image or new.command)

        def reply(deploy: DeployRow) -> DeployReply:
            queued = _queued(deploy)
            if warnings or says_more:
                queued.warnings = warnings
            return queued

        receipt = call.receipt(reply)
        return reply(await self._deploys.create(call.user_id, new, receipt, call.spender))

    async def rates(self, _: Call[Any, Any]) -> RatesReply:
        """Return the prices of GPUs."""
        rates = self._deploys.rates
        return RatesReply(
            rates=[Rate(model, money(usd)) for model, usd in sorted(rates.by_model.items())],
            default_usd_per_hour=money(rates.default),
            credit_usd=money(rates.credit),
        )

    async def own(self, call: Call[Nothing, Page]) -> ListReply:
        """List the caller's deploys."""
        query = call.query
        part, has_more = await self._deploys.page(
            call.user_id, before=query.before, limit=query.limit
        )
        cursor = part[-1].id if has_more else UNSET
        warnings = await self._shortages.of_deploys(part)
        items = [_item(deploy) for deploy in part]
        for item in items:
            item.warnings = warnings.get(item.id, UNSET)
        return ListReply(items=items, next_cursor=cursor)

    async def one(self, call: Call[Nothing, Any]) -> OneReply:
        """Return one of the caller's deploys."""
        deploy = await self._deploys.find(call.user_id, _deploy_id(call))
        row, item = deploy.row, _item(deploy)
        item.warnings = (await self._shortages.of_deploys([deploy])).get(deploy.id, UNSET)
        return OneReply(
            deploy=OneDeploy(
                **msgspec.structs.asdict(item),
                job_ids=deploy.job_ids,
                image=UNSET if row.image is None else row.image,
                command=UNSET if row.command is None else row.command,
                problem=(deploy.rollout.problem or UNSET) if deploy.rollout else UNSET,
            )
        )

    async def cancel(self, call: Call[Nothing, Any]) -> Reply:
        """Cancel the unfinished part of a deploy."""
        await self._deploys.cancel(call.user_id, _deploy_id(call))
        return Reply()

    async def revise(self, call: Call[RevisionRequest, Any]) -> RevisionReply:
        """Run another revision, perhaps with another number of replicas."""
        deploy_id, body = _deploy_id(call), call.body
        revision = await self._rollouts.revise(
            call.user_id,
            deploy_id,
            body.change(),
            call.receipt(_revised),
            replicas=body.replicas,
            spender=call.spender,
        )
        return _revised(revision)

    async def scale(self, call: Call[ScaleRequest, Any]) -> Reply:
        """Change the number of replicas."""
        await self._rollouts.scale(call.user_id, _deploy_id(call), call.body.replicas, call.spender)
        return Reply()

    async def rollback(self, call: Call[RollbackRequest, Any]) -> RevisionReply:
        """Return to an earlier revision."""
        deploy_id, wanted = _deploy_id(call), call.body.revision
        revision = await self._rollouts.rollback(
            call.user_id, deploy_id, wanted, call.receipt(_revised), call.spender
        )
        return _revised(revision)

    async def restart(self, call: Call[Nothing, Any]) -> RevisionReply:
        """Replace every replica."""
        revision = await self._rollouts.restart(
            call.user_id, _deploy_id(call), call.receipt(_revised), call.spender
        )
        return _revised(revision)

    async def pause(self, call: Call[Nothing, Any]) -> Reply:
        """Start and stop nothing for now."""
        await self._rollouts.pause(call.user_id, _deploy_id(call), is_paused=True)
        return Reply()

    async def resume(self, call: Call[Nothing, Any]) -> Reply:
        """Resume a rollout."""
        await self._rollouts.pause(call.user_id, _deploy_id(call), is_paused=False)
        return Reply()

    async def revisions(self, call: Call[Nothing, Any]) -> RevisionsReply:
        """List the last revisions."""
        rows = await self._rollouts.revisions(call.user_id, _deploy_id(call))
        return RevisionsReply(revisions=[_revision(row) for row in rows])


def _revision(row: RevisionRow) -> Revision:
    template = template_of(row.template)
    return Revision(
        revision=row.revision,
        cause=row.cause,
        state=literals.REVISION_STATES[row.state],
        created_at=timestamp(row.created_at),
        image=template.image,
        command=template.command,
        env=template.env,
        ports=list(template.ports),
        network=literals.NETWORKS[template.network],
        resources=template.resources,
        secrets=sorted(template.secrets),
        script=template.script or UNSET,
        interpreter=template.interpreter if template.script else UNSET,
        ready=UNSET if template.ready is None else template.ready,
        trust=DeployTrust(template.min_reputation / WHOLE) if template.min_reputation else UNSET,
    )


def _revised(revision: int) -> RevisionReply:
    return RevisionReply(revision=revision)


def _deploy_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["deploy_id"], Code.DEPLOY_NOT_FOUND)


def _queued(deploy: DeployRow) -> DeployReply:
    replicas = "1 replica" if deploy.replicas == 1 else f"{deploy.replicas} replicas"
    return DeployReply(
        job_id=deploy.id,
        message=f"The deploy {deploy.job_name} is queued: {replicas}.",
        cost=money(deploy.price),
        payment_type=CURRENCIES[deploy.currency],
    )


def _item(deploy: Deploy) -> DeployItem:
    row, rollout = deploy.row, deploy.rollout
    item = DeployItem(
        id=row.id,
        job_name=row.job_name,
        job_type=DEPLOY_TYPES[row.job_type],
        gpu_model=row.gpu_model,
        gpu_count=row.gpu_count,
        duration_hrs=row.duration_hrs,
        replicas=deploy.desired,
        ready_replicas=deploy.ready_replicas,
        status=DEPLOY_STATUSES[deploy.status],
        payment_type=CURRENCIES[row.currency],
        cost=money(row.price),
        created_at=timestamp(row.created_at),
        paid=UNSET if deploy.paid is None else money(deploy.paid),
    )
    if rollout is not None:
        item.updated_replicas = deploy.updated_replicas
        item.available_replicas = deploy.available_replicas
        item.revision, item.state = rollout.revision, literals.ROLLOUT_STATES[rollout.state]
    return item

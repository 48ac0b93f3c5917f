"""Routes of deploys (specification 4.17)."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api import literals
from api.accounts import RequiredText
from api.codec import money
from api.identifiers import in_path
from api.listing import Page, Timestamp, timestamp
from api.literals import (
    CURRENCIES,
    DEPLOY_STATUSES,
    DEPLOY_TYPES,
    DeployStatus,
    DeployType,
)
from api.routes import Auth, Call, Nothing, Reply, Route
from market.deploys import (
    COMMAND_MAX_CHARACTERS,
    GPU_COUNT_MAX,
    IMAGE_MAX_CHARACTERS,
    REPLICAS_MAX,
    Deploy,
    Deploys,
    NewDeploy,
)
from market.errors import Code
from market.jobs import DURATION_MAX_HOURS
from market.money import Currency
from storage.deploys import DeployRow


class DeployRequest(Struct):
    """What to run, on which GPUs, for how many hours, and what to pay with.

    `image` and `command` are told to each worker that has accepted a replica, and anybody may be
    one: keep secrets out of them.
    """

    job_name: RequiredText
    job_type: DeployType
    gpu_model: RequiredText
    gpu_count: Annotated[int, Meta(ge=1, le=GPU_COUNT_MAX)] | None = None
    duration_hrs: Annotated[int, Meta(ge=1, le=DURATION_MAX_HOURS)] | None = None
    replicas: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None = None
    payment_type: literals.Currency | None = None
    image: Annotated[str, Meta(max_length=IMAGE_MAX_CHARACTERS)] | None = None
    command: Annotated[str, Meta(max_length=COMMAND_MAX_CHARACTERS)] | None = None


class DeployReply(Reply, kw_only=True):
    """A deploy that was queued; its `cost` is held in the currency of `payment_type`."""

    job_id: str
    message: str
    cost: float
    payment_type: literals.Currency


class Rate(Struct):
    """What an hour of a GPU of some model costs, in USD."""

    gpu_model: str
    usd_per_hour: float


class RatesReply(Reply, kw_only=True):
    """What an hour of a GPU costs, in USD: by model, whatever its case, and of every other."""

    rates: list[Rate]
    default_usd_per_hour: float
    credit_usd: float


class DeployItem(Struct):
    """A deploy; `cost`, and `paid` once it is over, are in the currency of `payment_type`."""

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


class OneDeploy(DeployItem, kw_only=True):
    """A deploy, whole: `job_ids` are its replicas in the marketplace."""

    job_ids: list[str]
    image: str | UnsetType = UNSET
    command: str | UnsetType = UNSET


class OneReply(Reply, kw_only=True):
    """One of the caller's deploys."""

    deploy: OneDeploy


class ListReply(Reply, kw_only=True):
    """Deploys, newest first; `next_cursor` is there when there are more."""

    deploys: list[DeployItem]
    next_cursor: str | UnsetType = UNSET


class DeployRoutes:
    """The routes of deploys."""

    def __init__(self, deploys: Deploys) -> None:
        self._deploys = deploys

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/deploy/job",
                "Queue a deploy",
                self.create,
                DeployReply,
                auth=Auth.JWT,
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
                    Code.INSUFFICIENT_FUNDS,
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
                auth=Auth.JWT,
                query=Page,
            ),
            Route(
                "GET",
                "/api/deploy/job/{deploy_id}",
                "Look at one of my deploys",
                self.one,
                OneReply,
                auth=Auth.JWT,
                errors=(Code.DEPLOY_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/deploy/job/{deploy_id}/cancel",
                "Cancel what is left of a deploy",
                self.cancel,
                Reply,
                auth=Auth.JWT,
                errors=(Code.DEPLOY_NOT_FOUND,),
            ),
        ]

    async def create(self, call: Call[DeployRequest, Any]) -> DeployReply:
        """Queue a deploy."""
        body = call.body
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
        )
        deploy = await self._deploys.create(call.user_id, new, call.receipt(_queued))
        return _queued(deploy)

    async def rates(self, _: Call[Any, Any]) -> RatesReply:
        """Return what GPUs cost."""
        rates = self._deploys.rates
        return RatesReply(
            rates=[Rate(model, money(usd)) for model, usd in sorted(rates.by_model.items())],
            default_usd_per_hour=money(rates.default),
            credit_usd=money(rates.credit),
        )

    async def own(self, call: Call[Nothing, Page]) -> ListReply:
        """List the caller's deploys."""
        query = call.query
        rows = await self._deploys.page(call.user_id, before=query.before, limit=query.fetch_limit)
        part, cursor = query.cut(rows)
        return ListReply(deploys=[_item(deploy) for deploy in part], next_cursor=cursor)

    async def one(self, call: Call[Nothing, Any]) -> OneReply:
        """Return one of the caller's deploys."""
        deploy = await self._deploys.find(call.user_id, _deploy_id(call))
        row = deploy.row
        return OneReply(
            deploy=OneDeploy(
                **msgspec.structs.asdict(_item(deploy)),
                job_ids=[replica.job_id for replica in deploy.replicas],
                image=UNSET if row.image is None else row.image,
                command=UNSET if row.command is None else row.command,
            )
        )

    async def cancel(self, call: Call[Nothing, Any]) -> Reply:
        """Cancel what is left of a deploy."""
        await self._deploys.cancel(call.user_id, _deploy_id(call))
        return Reply()


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
    row = deploy.row
    return DeployItem(
        id=row.id,
        job_name=row.job_name,
        job_type=DEPLOY_TYPES[row.job_type],
        gpu_model=row.gpu_model,
        gpu_count=row.gpu_count,
        duration_hrs=row.duration_hrs,
        replicas=row.replicas,
        ready_replicas=deploy.ready_replicas,
        status=DEPLOY_STATUSES[deploy.status],
        payment_type=CURRENCIES[row.currency],
        cost=money(row.price),
        created_at=timestamp(row.created_at),
        paid=UNSET if deploy.paid is None else money(deploy.paid),
    )

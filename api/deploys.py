"""Routes of deploys (specification 4.17)."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from api.accounts import RequiredText
from api.codec import money
from api.identifiers import in_path
from api.listing import Page, timestamp
from api.routes import Auth, Call, Nothing, Reply, Route
from market.deploys import Deploy, Deploys, NewDeploy
from market.errors import Code
from market.money import Currency


class DeployRequest(Struct):
    """What to run, on which GPUs, for how many hours, and what to pay with."""

    job_name: RequiredText
    job_type: Literal["Docker", "Jupyter", "Inference", "Training", "Script"]
    gpu_model: RequiredText
    gpu_count: int | None = None
    duration_hrs: int | None = None
    replicas: int | None = None
    payment_type: Literal["usd", "credit"] | None = None


class DeployReply(Reply, kw_only=True):
    """A deploy that was queued."""

    job_id: str
    message: str


class DeployItem(Struct):
    """A deploy; `cost` is in the currency of `payment_type`."""

    id: str
    job_name: str
    job_type: str
    gpu_model: str
    gpu_count: int
    duration_hrs: int
    replicas: int
    ready_replicas: int
    status: str
    payment_type: str
    cost: float
    created_at: str


class OneReply(Reply, kw_only=True):
    """One of the caller's deploys."""

    deploy: DeployItem


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
                },
                idempotent=True,
                errors=(Code.INSUFFICIENT_FUNDS,),
            ),
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
        )
        replicas = "1 replica" if new.replicas == 1 else f"{new.replicas} replicas"
        message = f"The deploy {new.job_name} is queued: {replicas}."
        deploy_id = await self._deploys.create(
            call.user_id,
            new,
            lambda made: call.remember(DeployReply(job_id=made, message=message)),
        )
        return DeployReply(job_id=deploy_id, message=message)

    async def own(self, call: Call[Nothing, Page]) -> ListReply:
        """List the caller's deploys."""
        query = call.query
        found = await self._deploys.page(call.user_id, before=query.before, limit=query.asked)
        shown, cursor = query.cut(found)
        return ListReply(deploys=[_item(deploy) for deploy in shown], next_cursor=cursor)

    async def one(self, call: Call[Nothing, Any]) -> OneReply:
        """Return one of the caller's deploys."""
        return OneReply(deploy=_item(await self._deploys.find(call.user_id, _deploy_id(call))))

    async def cancel(self, call: Call[Nothing, Any]) -> Reply:
        """Cancel what is left of a deploy."""
        await self._deploys.cancel(call.user_id, _deploy_id(call))
        return Reply()


def _deploy_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["deploy_id"], Code.DEPLOY_NOT_FOUND)


def _item(deploy: Deploy) -> DeployItem:
    row = deploy.row
    return DeployItem(
        id=row.id,
        job_name=row.job_name,
        job_type=row.job_type,
        gpu_model=row.gpu_model,
        gpu_count=row.gpu_count,
        duration_hrs=row.duration_hrs,
        replicas=row.replicas,
        ready_replicas=deploy.ready_replicas,
        status=deploy.status,
        payment_type=row.currency,
        cost=money(row.price),
        created_at=timestamp(row.created_at),
    )

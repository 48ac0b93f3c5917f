"""Routes of webhooks: the endpoints of a user, and the deliveries to them."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.http.identifiers import in_path
from api.routing.listing import Limit, Listing, Page, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.notify.webhooks import DESCRIPTION_MAX_CHARACTERS, URL_MAX_CHARACTERS, Secret, Webhooks
from storage.notify.webhooks import AttemptRow, DeliveryRow, EndpointRow

ALL = "/api/webhooks"
ONE = f"{ALL}/{{webhook_id}}"
DELIVERY = f"{ALL}/deliveries/{{delivery_id}}"
Url = Annotated[str, Meta(min_length=1, max_length=URL_MAX_CHARACTERS)]
Types = Annotated[list[str], Meta(min_length=1, max_length=100)]
Description = Annotated[str, Meta(max_length=DESCRIPTION_MAX_CHARACTERS)]
Status = Literal["enabled", "disabled"]
DeliveryStatus = Literal["pending", "delivered", "failed"]
ENDPOINT_ERRORS = (Code.WEBHOOK_NOT_FOUND,)
BY_HAND_ERRORS = (Code.WEBHOOK_DISABLED, Code.TOO_MANY_ATTEMPTS)


class NewWebhook(Struct):
    """Endpoint for events of these types; `*` is every type."""

    url: Url
    types: Types
    description: Description = ""


class WebhookChange(Struct):
    """Fields to change; fields left out stay as they are.

    `enabled` forgets that the endpoint has failed. `recover` sends the events that it has missed.
    """

    url: Url | None = None
    types: Types | None = None
    description: Description | None = None
    status: Status | None = None


class Webhook(Struct):
    """An endpoint. `failing_since` is the first failure at this URL after the last success."""

    id: str
    url: str
    types: list[str]
    description: str
    status: Status
    disabled_reason: Literal["gone", "failing", "user", "reset", "key", "closed"] | None
    failing_since: Timestamp | None
    created_at: Timestamp


class WebhookReply(Reply, kw_only=True):
    """An endpoint as it is now."""

    webhook: Webhook


class NewWebhookReply(WebhookReply, kw_only=True):
    """A new endpoint; its secret is shown this once."""

    secret: str


class WebhooksReply(Reply, kw_only=True):
    """The caller's endpoints, oldest first."""

    webhooks: list[Webhook]


class SecretReply(Reply, kw_only=True):
    """The new secret for signatures, shown only once; the one before also signs for a day."""

    secret: str


class TestReply(Reply, kw_only=True):
    """Delivery that tests the endpoint."""

    delivery_id: str


class RecoverRequest(Struct):
    """Time since which failed deliveries are sent again: the time of an event, as in RFC 3339."""

    since: Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})]


class RecoverReply(Reply, kw_only=True):
    """The number of events that are sent again."""

    deliveries: int


class DeliveriesQuery(Listing, Struct, kw_only=True):
    """Deliveries to list: of one status, or all; `after` is the `next` of the part before."""

    status: Literal["", "pending", "delivered", "failed"] = ""
    after: str = ""
    limit: Limit = 100


class Delivery(Struct):
    """Delivery of an event to an endpoint.

    `last_error` is a class of errors; `next_at` is there while there is another attempt.
    """

    id: str
    event_id: str
    type: str
    status: DeliveryStatus
    attempts: int
    next_at: Timestamp | None
    last_status: int | None
    last_error: str | None
    last_ms: int | None
    created_at: Timestamp


class DeliveriesReply(Reply, kw_only=True):
    """Deliveries, newest first; `next` is there when there are more."""

    deliveries: list[Delivery]
    next: str | UnsetType = UNSET


class Attempted(Struct):
    """One attempt; `error` is null of a success, and `answer` is how the answer began."""

    number: int
    started_at: Timestamp
    status: int | None
    error: str | None
    ms: int
    answer: str


class DeliveryDetail(Delivery, kw_only=True):
    """A delivery with its last attempts, and its body; null when that is not kept any more."""

    webhook_id: str
    body: str | None
    tries: list[Attempted]


class DeliveryReply(Reply, kw_only=True):
    """One delivery."""

    delivery: Delivery


class DeliveryDetailReply(Reply, kw_only=True):
    """One delivery in full."""

    delivery: DeliveryDetail


class WebhookRoutes:
    """The routes of webhooks."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [*self._of_endpoints(), *self._of_deliveries()]

    def _of_endpoints(self) -> list[Route]:
        return [
            Route(
                "POST",
                ALL,
                "Be told of events at a URL, signed with a secret that is shown once",
                self.create,
                NewWebhookReply,
                scope=Scope.WEBHOOKS_WRITE,
                body=NewWebhook,
                errors=(Code.TOO_MANY_WEBHOOKS,),
                example={"url": "https://example.com/hooks", "types": ["job.completed"]},
            ),
            Route(
                "GET",
                ALL,
                "My endpoints",
                self.all,
                WebhooksReply,
                scope=Scope.WEBHOOKS_WRITE,
            ),
            Route(
                "PATCH",
                ONE,
                "Change an endpoint, or enable it again",
                self.change,
                WebhookReply,
                scope=Scope.WEBHOOKS_WRITE,
                body=WebhookChange,
                errors=ENDPOINT_ERRORS,
                example={"types": ["*"]},
            ),
            Route(
                "DELETE",
                ONE,
                "Delete an endpoint, and what waits for it",
                self.delete,
                Reply,
                scope=Scope.WEBHOOKS_WRITE,
                errors=ENDPOINT_ERRORS,
            ),
            Route(
                "POST",
                f"{ONE}/roll",
                "Give an endpoint another secret",
                self.roll,
                SecretReply,
                scope=Scope.WEBHOOKS_WRITE,
                body_optional=True,
                errors=ENDPOINT_ERRORS,
            ),
            Route(
                "POST",
                f"{ONE}/test",
                "Send an endpoint an event that says that nothing has happened",
                self.test,
                TestReply,
                scope=Scope.WEBHOOKS_WRITE,
                body_optional=True,
                errors=ENDPOINT_ERRORS + BY_HAND_ERRORS,
            ),
        ]

    def _of_deliveries(self) -> list[Route]:
        return [
            Route(
                "POST",
                f"{ONE}/recover",
                "Send what has failed since a time again",
                self.recover,
                RecoverReply,
                scope=Scope.WEBHOOKS_WRITE,
                body=RecoverRequest,
                errors=ENDPOINT_ERRORS + BY_HAND_ERRORS,
                example={"since": "2026-01-31T00:00:00Z"},
            ),
            Route(
                "GET",
                f"{ONE}/deliveries",
                "What was sent to an endpoint, or is to be, newest first",
                self.deliveries,
                DeliveriesReply,
                scope=Scope.WEBHOOKS_WRITE,
                query=DeliveriesQuery,
                errors=ENDPOINT_ERRORS,
            ),
            Route(
                "GET",
                DELIVERY,
                "One delivery, with each attempt at it",
                self.delivery,
                DeliveryDetailReply,
                scope=Scope.WEBHOOKS_WRITE,
                errors=(Code.DELIVERY_NOT_FOUND,),
            ),
            Route(
                "POST",
                f"{DELIVERY}/retry",
                "Send something again now",
                self.retry,
                DeliveryReply,
                scope=Scope.WEBHOOKS_WRITE,
                body_optional=True,
                errors=(Code.DELIVERY_NOT_FOUND, *BY_HAND_ERRORS),
            ),
        ]

    async def create(self, call: Call[NewWebhook, Nothing]) -> Reply:
        """Add an endpoint."""
        body = call.body
        made = await self._webhooks.create(
            call.user_id,
            url=body.url,
            types=body.types,
            description=body.description,
            maker=call.caller.maker,
        )
        return _with_secret(made)

    async def all(self, call: Call[Nothing, Nothing]) -> Reply:
        """List the caller's endpoints."""
        rows = await self._webhooks.all_of(call.user_id)
        return WebhooksReply(webhooks=[_webhook(row) for row in rows])

    async def change(self, call: Call[WebhookChange, Nothing]) -> Reply:
        """Change an endpoint."""
        body = call.body
        row = await self._webhooks.change(
            call.user_id,
            _place(call.path),
            url=body.url,
            types=body.types,
            description=body.description,
            is_enabled=None if body.status is None else body.status == "enabled",
            maker=call.caller.maker,
        )
        return WebhookReply(webhook=_webhook(row))

    async def delete(self, call: Call[Nothing, Nothing]) -> Reply:
        """Delete an endpoint."""
        await self._webhooks.delete(call.user_id, _place(call.path))
        return Reply()

    async def roll(self, call: Call[Nothing, Nothing]) -> Reply:
        """Replace a secret."""
        place = _place(call.path)
        rolled = await self._webhooks.roll(call.user_id, place, maker=call.caller.maker)
        return SecretReply(secret=rolled.secret)

    async def test(self, call: Call[Nothing, Nothing]) -> Reply:
        """Try an endpoint."""
        return TestReply(delivery_id=await self._webhooks.test(call.user_id, _place(call.path)))

    async def recover(self, call: Call[RecoverRequest, Nothing]) -> Reply:
        """Send the failed deliveries again."""
        count = await self._webhooks.recover(
            call.user_id, _place(call.path), _seconds(call.body.since)
        )
        return RecoverReply(deliveries=count)

    async def deliveries(self, call: Call[Nothing, DeliveriesQuery]) -> Reply:
        """List deliveries."""
        page = Page(limit=call.query.limit, cursor=call.query.after)
        rows = await self._webhooks.deliveries(
            call.user_id,
            _place(call.path),
            status=call.query.status,
            before=page.before,
            limit=page.fetch_limit,
        )
        part, after = page.cut(rows)
        return DeliveriesReply(deliveries=[_delivery(row) for row in part], next=after)

    async def delivery(self, call: Call[Nothing, Nothing]) -> Reply:
        """Show a delivery."""
        shown = await self._webhooks.delivery(call.user_id, _delivery_id(call.path))
        detail = DeliveryDetail(
            **_facts(shown.row),
            webhook_id=shown.row.endpoint_id,
            body=shown.body,
            tries=[_attempted(each) for each in shown.attempts],
        )
        return DeliveryDetailReply(delivery=detail)

    async def retry(self, call: Call[Nothing, Nothing]) -> Reply:
        """Send something again."""
        row = await self._webhooks.retry(call.user_id, _delivery_id(call.path))
        return DeliveryReply(delivery=_delivery(row))


def _place(path: dict[str, str]) -> str:
    return in_path(path["webhook_id"], Code.WEBHOOK_NOT_FOUND)


def _delivery_id(path: dict[str, str]) -> str:
    return in_path(path["delivery_id"], Code.DELIVERY_NOT_FOUND)


def _seconds(since: str) -> int:
    try:
        moment = datetime.fromisoformat(since)
    except ValueError as error:
        message = "since is not a time as RFC 3339 writes it."
        raise MarketError(Code.INVALID_FIELD, message, field="since") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp())


def _with_secret(made: Secret) -> NewWebhookReply:
    return NewWebhookReply(webhook=_webhook(made.endpoint), secret=made.secret)


def _webhook(row: EndpointRow) -> Webhook:
    return Webhook(
        id=row.id,
        url=row.url,
        types=row.types.split(","),
        description=row.description,
        status="enabled" if row.disabled_at is None else "disabled",
        disabled_reason=row.disabled_reason,  # type: ignore[arg-type]  # one of market.notify.webhooks'
        failing_since=_time(row.failing_since),
        created_at=timestamp(row.created_at),
    )


def _delivery(row: DeliveryRow) -> Delivery:
    return Delivery(**_facts(row))


def _facts(row: DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "event_id": row.event_id,
        "type": row.type,
        "status": row.status,
        "attempts": row.attempts,
        "next_at": timestamp(row.next_at) if row.status == "pending" else None,
        "last_status": row.last_status,
        "last_error": row.last_error,
        "last_ms": row.last_ms,
        "created_at": timestamp(row.created_at),
    }


def _attempted(row: AttemptRow) -> Attempted:
    return Attempted(
        number=row.number,
        started_at=timestamp(row.started_at),
        status=row.status,
        error=row.error or None,
        ms=row.ms,
        answer=row.answer,
    )


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else timestamp(seconds)

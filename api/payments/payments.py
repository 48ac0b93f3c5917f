"""Routes of payments by a provider: begin one, see it arrive, have unspent money back."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.http.identifiers import in_path
from api.routing.codec import Money, money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from api.serving.bodies import RawBody
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.payments import returning
from market.payments.payments import Payments, PaymentView
from market.payments.terms import DAY_SECONDS
from market.payouts.payouts import Payouts
from storage.payments.returns import ReturnRow

HOOK_MAX_BYTES = 64 * 1024  # the notices of both providers have a few KB

PaymentStatus = Literal[
    "open",
    "paid",
    "refunding",
    "refunded",
    "disputed",
    "charged_back",
    "expired",
    "failed",
    "doubtful",
]
ReturnKind = Literal["refund", "dispute"]
RefundStatus = Literal["pending", "done", "failed", "won", "lost"]
_STATUSES: dict[str, PaymentStatus] = {
    "open": "open",
    "paid": "paid",
    "refunding": "refunding",
    "refunded": "refunded",
    "disputed": "disputed",
    "charged_back": "charged_back",
    "expired": "expired",
    "failed": "failed",
    "doubtful": "doubtful",
}
_REFUND_STATUSES: dict[str, RefundStatus] = {"pending": "pending", "done": "done", "void": "failed"}
_DISPUTE_STATUSES: dict[str, RefundStatus] = {"pending": "pending", "done": "lost", "void": "won"}


class OfferReply(Reply, kw_only=True):
    """The payments that the caller may make; without `providers` the service takes none.

    `day_left_usd` is the rest of the ceiling of a new account for 24 hours. While a payment is
    disputed (`is_disputed`), or a debt is open (`debt_usd`), the account buys nothing. The next
    payment pays the debt first.
    """

    providers: list[str]
    min_usd: float
    max_usd: float
    refund_days: int
    debt_usd: float
    is_disputed: bool
    day_left_usd: float | UnsetType = UNSET


class ReturnItem(Struct):
    """A refund of a payment, or a dispute of its payer's bank.

    A refund is `pending`, `done` or `failed`; a dispute is `pending`, `won` or `lost`.
    """

    id: str
    created_at: Timestamp
    kind: ReturnKind
    status: RefundStatus
    amount_usd: float


class PaymentItem(Struct):
    """A payment; `doubtful` is one that the operator has to look at, and that is not credited.

    `url` is the page of the provider, while the payment is `open`. `refunded_usd` went back. An
    automatic one (`is_automatic`) was taken from the saved card.
    """

    id: str
    created_at: Timestamp
    provider: str
    status: PaymentStatus
    amount_usd: float
    refunded_usd: float
    returns: list[ReturnItem]
    is_automatic: bool
    paid_at: Timestamp | UnsetType = UNSET
    url: str | UnsetType = UNSET


class PaymentReply(Reply, kw_only=True):
    """A payment of the caller; `refundable_usd` of it can go back to the payer now."""

    payment: PaymentItem
    refundable_usd: float


class PaymentsReply(Listed[PaymentItem], kw_only=True):
    """Payments, newest first; `next_cursor` is there when there are more."""

    items: list[PaymentItem] = field(name="payments")


class NewPaymentRequest(Struct):
    """A payment to begin: whole cents. Without a `provider` it is the first of the offer."""

    amount_usd: Money
    provider: Annotated[str, Meta(max_length=20)] = ""


class PaymentRefundRequest(Struct):
    """A part of a payment that goes back to its payer: whole cents, unspent."""

    amount_usd: Money


class PaymentRoutes:
    """The routes of payments."""

    def __init__(self, payments: Payments, payouts: Payouts) -> None:
        self._payments = payments
        self._payouts = payouts

    def table(self) -> list[Route]:
        """Return the declarations."""
        missing = (Code.PAYMENT_NOT_FOUND,)
        limits = (Code.ACCOUNT_SUSPENDED, Code.ACCOUNT_RESTRICTED)
        return [
            Route(
                "GET",
                "/api/payments/offer",
                "What may I pay in, and how",
                self.offer,
                OfferReply,
                scope=Scope.WALLET_READ,
            ),
            Route(
                "POST",
                "/api/payments",
                "Pay money in",
                self.create,
                PaymentReply,
                auth=Auth.JWT,
                body=NewPaymentRequest,
                errors=(
                    Code.PAYMENTS_NOT_OFFERED,
                    Code.PAYMENT_CEILING,
                    Code.TOO_MANY_PAYMENTS,
                    Code.PAYMENT_PROVIDER_AWAY,
                    *limits,
                ),
                idempotent=True,
                example={"amount_usd": 20},
            ),
            Route(
                "GET",
                "/api/payments",
                "List my payments",
                self.page,
                PaymentsReply,
                scope=Scope.WALLET_READ,
                query=Page,
            ),
            Route(
                "GET",
                "/api/payments/{payment_id}",
                "Has my payment arrived",
                self.find,
                PaymentReply,
                scope=Scope.WALLET_READ,
                errors=missing,
            ),
            Route(
                "POST",
                "/api/payments/{payment_id}/refund",
                "Have unspent money of a payment back",
                self.refund,
                PaymentReply,
                auth=Auth.JWT,
                body=PaymentRefundRequest,
                errors=(
                    *missing,
                    Code.PAYMENTS_NOT_OFFERED,
                    Code.PAYMENT_NOT_REFUNDABLE,
                    Code.REFUND_TOO_LARGE,
                    *limits,
                ),
                idempotent=True,
                example={"amount_usd": 7.42},
            ),
            Route(
                "POST",
                "/hooks/{provider}",
                "Take a signed notice of a payment provider",
                self.hook,
                Reply,
                raw_max_bytes=HOOK_MAX_BYTES,
                errors=(
                    Code.PAYMENTS_NOT_OFFERED,
                    Code.HOOK_INVALID,
                    Code.PAYMENT_PROVIDER_AWAY,
                ),
            ),
        ]

    async def offer(self, call: Call[Nothing, Any]) -> OfferReply:
        """Return the payments that the caller may make."""
        offer = await self._payments.offer(call.user_id)
        return OfferReply(
            providers=list(offer.providers),
            min_usd=money(offer.least),
            max_usd=money(offer.most),
            refund_days=offer.refund_seconds // DAY_SECONDS,
            debt_usd=money(offer.debt),
            is_disputed=offer.is_disputed,
            day_left_usd=UNSET if offer.day_left is None else money(offer.day_left),
        )

    async def create(self, call: Call[NewPaymentRequest, Any]) -> PaymentReply:
        """Begin a payment of the caller."""
        view = await self._payments.create(
            call.user_id, call.body.amount_usd, call.body.provider, call.receipt(_reply)
        )
        return _reply(view)

    async def page(self, call: Call[Nothing, Page]) -> PaymentsReply:
        """List the caller's payments."""
        query = call.query
        views = await self._payments.page(
            call.user_id, before=query.before, limit=query.fetch_limit
        )
        return PaymentsReply.of(query, views, _item)

    async def find(self, call: Call[Nothing, Any]) -> PaymentReply:
        """Return a payment of the caller, after a look at the provider if it is open."""
        payment_id = in_path(call.path["payment_id"], Code.PAYMENT_NOT_FOUND)
        return _reply(await self._payments.find(call.user_id, payment_id))

    async def refund(self, call: Call[PaymentRefundRequest, Any]) -> PaymentReply:
        """Send unspent money of a payment back to its payer."""
        view = await self._payments.refund(
            call.user_id,
            in_path(call.path["payment_id"], Code.PAYMENT_NOT_FOUND),
            call.body.amount_usd,
            call.receipt(_reply),
        )
        return _reply(view)

    async def hook(self, call: Call[RawBody, Any]) -> Reply:
        """Take a notice of a provider."""
        body = b"".join([piece async for piece in call.body.pieces()])
        notice = await self._payments.receive(call.path["provider"], call.body.headers, body)
        if notice.transfer_id:
            await self._payouts.look_at_transfer(notice.transfer_id)
        return Reply()


def _reply(view: PaymentView) -> PaymentReply:
    return PaymentReply(payment=_item(view), refundable_usd=money(view.refundable))


def _item(view: PaymentView) -> PaymentItem:
    row = view.row
    is_paid = row.deposit_id is not None and row.closed_at is not None
    return PaymentItem(
        id=row.id,
        created_at=timestamp(row.created_at),
        provider=row.provider,
        status=_STATUSES[view.status],
        amount_usd=money(row.amount),
        refunded_usd=money(view.refunded),
        returns=[_return(each) for each in view.returns],
        is_automatic=row.is_automatic,
        paid_at=timestamp(row.closed_at or 0) if is_paid else UNSET,
        url=row.url if row.url and row.status == "open" else UNSET,
    )


def _return(row: ReturnRow) -> ReturnItem:
    is_dispute = row.kind == returning.DISPUTE
    return ReturnItem(
        id=row.id,
        created_at=timestamp(row.created_at),
        kind="dispute" if is_dispute else "refund",
        status=(_DISPUTE_STATUSES if is_dispute else _REFUND_STATUSES)[row.status],
        amount_usd=money(row.amount),
    )

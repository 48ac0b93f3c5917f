"""Routes about payments by a provider: found, looked at, decided; and debts that are forgiven."""

from typing import Any, Literal

from msgspec import Struct

from api.routing.codec import Money, money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.money import OutcomeReply, Reference, outcome_reply
from api.staff.users import FINDING, ONE
from api.staff.words import PREFIX, Name, Reason, ReasonRequest, StaffPage, author
from market.base.errors import Code
from market.money.money import Currency
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.money import doubts, forgiving, payments
from storage.payments.payments import PaymentRow

ALL = f"{PREFIX}/payments"
PAYMENT = f"{ALL}/{{payment}}"
Status = Literal["", "open", "paid", "expired", "failed", "doubtful"]


class PaymentQuery(StaffPage, kw_only=True):
    """Payments older than one, of one user or of all, in one state or in all."""

    status: Status = ""
    user: Name = ""


class CreditRequest(Struct):
    """The amount of a doubtful payment to credit; null for the amount of the payment."""

    reason: Reason
    amount: Money | None = None


class ForgiveRequest(Struct):
    """A part of a user's debts to forgive, in a currency. The reference names it."""

    amount: Money
    reference: Reference
    reason: Reason
    currency: Currency = Currency.USD


class StaffPaymentItem(Struct):
    """A payment; `doubt` is the difference between it and the facts at the provider.

    `accepted_usd` is what the staff has accepted of a doubtful one.
    """

    id: str
    user_id: str
    created_at: Timestamp
    provider: str
    status: str
    amount_usd: float
    doubt: str
    accepted_usd: float | None
    is_automatic: bool


class StaffReturnItem(Struct):
    """A refund or a dispute of a payment; `held_usd` of it was taken from the wallet."""

    id: str
    kind: str
    status: str
    amount_usd: float
    held_usd: float
    created_at: Timestamp


class StaffPaymentsReply(Reply, kw_only=True):
    """Payments, the newest first; `next_cursor` continues them."""

    payments: list[StaffPaymentItem]
    next_cursor: str | None


class StaffPaymentReply(Reply, kw_only=True):
    """A payment with its refunds and disputes, and the number of its receipt."""

    payment: StaffPaymentItem
    username: str
    provider_id: str | None
    returns: list[StaffReturnItem]
    receipt: int | None


class StaffPaymentState(Reply, kw_only=True):
    """A payment after an act."""

    payment: StaffPaymentItem


class StaffPaymentRoutes:
    """The routes about payments."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._limits = desk.terms.limits

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        why, missing = {"reason": "the bank has written"}, (Code.PAYMENT_NOT_FOUND,)
        return [
            StaffRoute(
                "GET",
                ALL,
                "Payments, the newest first",
                self.listed,
                StaffPaymentsReply,
                action=Action.PAYMENT_VIEW,
                query=PaymentQuery,
                errors=FINDING,
            ),
            StaffRoute(
                "GET",
                PAYMENT,
                "A payment with its refunds and disputes",
                self.show,
                StaffPaymentReply,
                action=Action.PAYMENT_VIEW,
                errors=missing,
            ),
            StaffRoute(
                "POST",
                f"{PAYMENT}/look",
                "Have the daemon ask the provider about a payment",
                self.look,
                StaffPaymentState,
                action=Action.PAYMENT_LOOK,
                body=ReasonRequest,
                idempotent=True,
                errors=missing,
                example=why,
            ),
            StaffRoute(
                "POST",
                f"{PAYMENT}/credit",
                "Credit a doubtful payment",
                self.credit,
                OutcomeReply,
                action=Action.PAYMENT_CREDIT,
                body=CreditRequest,
                idempotent=True,
                errors=(*missing, Code.PAYMENT_NOT_DOUBTFUL, Code.REFERENCE_REUSED),
                example={"amount": 21, **why},
            ),
            StaffRoute(
                "POST",
                f"{PAYMENT}/give-up",
                "Give a doubtful payment up",
                self.give_up,
                StaffPaymentState,
                action=Action.PAYMENT_GIVE_UP,
                body=ReasonRequest,
                idempotent=True,
                errors=(*missing, Code.PAYMENT_NOT_DOUBTFUL),
                example=why,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/forgive",
                "Forgive a part of a user's debts",
                self.forgive,
                OutcomeReply,
                action=Action.DEBT_FORGIVE,
                body=ForgiveRequest,
                idempotent=True,
                errors=(*FINDING, Code.DEBT_TOO_SMALL, Code.REFERENCE_REUSED),
                example={"amount": 8, "reference": "letter-12", **why},
            ),
        ]

    async def listed(self, call: Call[Nothing, PaymentQuery]) -> StaffPaymentsReply:
        """List payments."""
        query = call.query
        rows = await payments.listed(
            self._context,
            author(call),
            query.user,
            status=query.status,
            before=query.before,
            limit=query.fetch_limit,
        )
        part = rows[: query.limit]
        return StaffPaymentsReply(
            payments=[_item(row) for row in part],
            next_cursor=part[-1].id if len(rows) > query.limit else None,
        )

    async def show(self, call: Call[Nothing, Any]) -> StaffPaymentReply:
        """Return a payment."""
        found = await payments.shown(self._context, author(call), call.path["payment"])
        return StaffPaymentReply(
            payment=_item(found.row),
            username=found.username,
            provider_id=found.row.provider_id,
            returns=[
                StaffReturnItem(
                    each.id,
                    each.kind,
                    each.status,
                    money(each.amount),
                    money(each.held),
                    timestamp(each.created_at),
                )
                for each in found.returns
            ],
            receipt=None if found.receipt is None else found.receipt.number,
        )

    async def look(self, call: Call[ReasonRequest, Any]) -> StaffPaymentState:
        """Plan a look at a payment."""
        by, payment = author(call, _state), call.path["payment"]
        return _state(await payments.look(self._context, by, payment, call.body.reason))

    async def credit(self, call: Call[CreditRequest, Any]) -> OutcomeReply:
        """Accept a doubtful payment."""
        outcome = await doubts.credit(
            self._context,
            author(call, outcome_reply),
            call.path["payment"],
            self._limits,
            amount=call.body.amount,
            why=call.body.reason,
        )
        return outcome_reply(outcome)

    async def give_up(self, call: Call[ReasonRequest, Any]) -> StaffPaymentState:
        """Give a doubtful payment up."""
        by, payment = author(call, _state), call.path["payment"]
        return _state(await doubts.give_up(self._context, by, payment, call.body.reason))

    async def forgive(self, call: Call[ForgiveRequest, Any]) -> OutcomeReply:
        """Forgive debts."""
        body = call.body
        outcome = await forgiving.forgive(
            self._context,
            author(call, outcome_reply),
            call.path["user"],
            self._limits,
            amount=body.amount,
            reference=body.reference,
            why=body.reason,
            currency=body.currency,
        )
        return outcome_reply(outcome)


def _state(row: PaymentRow) -> StaffPaymentState:
    return StaffPaymentState(payment=_item(row))


def _item(row: PaymentRow) -> StaffPaymentItem:
    return StaffPaymentItem(
        id=row.id,
        user_id=row.user_id,
        created_at=timestamp(row.created_at),
        provider=row.provider,
        status=row.status,
        amount_usd=money(row.amount),
        doubt=row.doubt,
        accepted_usd=None if row.accepted is None else money(row.accepted),
        is_automatic=row.is_automatic,
    )

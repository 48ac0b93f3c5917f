"""Routes about payouts: listed, looked at and decided; and the checked identity of a user."""

from typing import Any

from msgspec import Struct

from api.http.identifiers import in_path
from api.http.literals import (
    PAYOUT_METHODS,
    PAYOUT_STATES,
    PayoutMethodKind,
    PayoutState,
)
from api.routing.codec import money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.money import OutcomeReply, outcome_reply
from api.staff.users import FINDING, ONE
from api.staff.words import PREFIX, Reason, ReasonRequest, StaffPage, author, moment
from market.base.errors import Code
from market.base.states import PayoutStatus
from market.payouts.terms import RejectReason
from market.staff.base.acts import reason
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.money import paying
from storage.payouts.payouts import PayoutRow

ALL = f"{PREFIX}/payouts"
PAYOUT = f"{ALL}/{{payout}}"
NO_PAYOUT = "There is no such payout."


class StaffPayoutQuery(StaffPage, kw_only=True):
    """Payouts in a state, behind one of an earlier part."""

    state: PayoutState = "requested"


class RejectRequest(Struct):
    """The code of the reason, which the user reads, and the reason of the act for the log."""

    code: RejectReason
    reason: Reason


class VerifyRequest(Struct):
    """Whether the operator has checked the identity of a user, and how."""

    reason: Reason
    is_checked: bool = True


class StaffPayoutItem(Struct):
    """A payout: `net_usd` is sent. `reason` is the code of one that was rejected or has failed."""

    id: str
    user_id: str
    state: PayoutState
    amount: float
    currency: str
    net_usd: float
    reason: str | None
    requested_at: Timestamp
    decide_by: Timestamp
    ended_at: Timestamp | None


class StaffPayoutsReply(Reply, kw_only=True):
    """Payouts in a state, the oldest first; `next_cursor` continues them."""

    payouts: list[StaffPayoutItem]
    next_cursor: str | None


class EarningsItem(Struct):
    """Earnings of a user in a currency: their sum, and the part that can be paid out now."""

    currency: str
    earned: float
    available: float
    in_payout: float
    paid: float


class SourceItem(Struct):
    """A buyer of the user's newest work, with the signs that both are one person."""

    buyer_id: str
    payments: int
    earned: float
    has_deposited: bool
    has_bonus: bool
    signs: list[str]
    is_circular: bool


class StaffPayoutReply(Reply, kw_only=True):
    """All that a decision about a payout is founded on.

    `method_shown` is a mask; `holder` is the name of a bank account. `sources` are the buyers who
    paid for the user's newest work, the largest sum first.
    """

    payout: StaffPayoutItem
    method_kind: PayoutMethodKind
    method_shown: str
    method_added_at: Timestamp
    holder: str | None
    identity_checked: bool
    earnings: list[EarningsItem]
    sources: list[SourceItem]


class RejectedReply(Reply, kw_only=True):
    """A payout after its rejection."""

    payout: StaffPayoutItem


class VerifiedReply(Reply, kw_only=True):
    """Whether the record of the checked identity has changed."""

    has_changed: bool


class StaffPayoutRoutes:
    """The routes about payouts."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._limits = desk.terms.limits
        self._sealing = desk.methods

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        why, missing = {"reason": "the name is that of the account"}, (Code.PAYOUT_NOT_FOUND,)
        return [
            StaffRoute(
                "GET",
                ALL,
                "Payouts in a state, the oldest first",
                self.listed,
                StaffPayoutsReply,
                action=Action.PAYOUT_LIST,
                query=StaffPayoutQuery,
            ),
            StaffRoute(
                "GET",
                PAYOUT,
                "A payout with the sources of the earnings; the log records the view",
                self.show,
                StaffPayoutReply,
                action=Action.PAYOUT_VIEW,
                errors=missing,
            ),
            StaffRoute(
                "POST",
                f"{PAYOUT}/approve",
                "Approve a payout",
                self.approve,
                OutcomeReply,
                action=Action.PAYOUT_APPROVE,
                body=ReasonRequest,
                idempotent=True,
                errors=(*missing, Code.PAYOUT_STATE, Code.PAYOUT_NOT_PERMITTED),
                example=why,
            ),
            StaffRoute(
                "POST",
                f"{PAYOUT}/reject",
                "Reject a payout that was not sent; its money returns to the user's earnings",
                self.reject,
                RejectedReply,
                action=Action.PAYOUT_REJECT,
                body=RejectRequest,
                idempotent=True,
                errors=(*missing, Code.PAYOUT_STATE),
                example={"code": "name_mismatch", "reason": "another name at the bank"},
            ),
            StaffRoute(
                "POST",
                f"{ONE}/verify",
                "Record that a user's identity was checked, or remove the record",
                self.verify,
                VerifiedReply,
                action=Action.USER_VERIFY,
                body=VerifyRequest,
                idempotent=True,
                errors=(*FINDING, Code.ACCOUNT_CLOSED),
                example={"reason": "passport seen, file 12"},
            ),
        ]

    async def listed(self, call: Call[Nothing, StaffPayoutQuery]) -> StaffPayoutsReply:
        """List payouts."""
        query = call.query
        rows = await paying.listed(
            self._context,
            author(call),
            PayoutStatus(query.state),
            after=query.before,
            limit=query.fetch_limit,
        )
        part = rows[: query.limit]
        return StaffPayoutsReply(
            payouts=[_item(row) for row in part],
            next_cursor=part[-1].id if len(rows) > query.limit else None,
        )

    async def show(self, call: Call[Nothing, Any]) -> StaffPayoutReply:
        """Return a payout."""
        found = await paying.show(self._context, author(call), _named(call), self._sealing)
        return StaffPayoutReply(
            payout=_item(found.row),
            method_kind=PAYOUT_METHODS[found.method.kind],
            method_shown=found.method.shown,
            method_added_at=timestamp(found.method.created_at),
            holder=found.details.holder or None,
            identity_checked=found.is_verified,
            earnings=[
                EarningsItem(
                    currency,
                    money(each.earned),
                    money(each.available),
                    money(each.in_payout),
                    money(each.paid),
                )
                for currency, each in found.earnings.items()
            ],
            sources=[_source(each) for each in found.sources],
        )

    async def approve(self, call: Call[ReasonRequest, Any]) -> OutcomeReply:
        """Approve a payout."""
        by, payout, why = author(call, outcome_reply), _named(call), reason(call.body.reason).body
        outcome = await paying.approve(self._context, by, payout, self._limits, why)
        return outcome_reply(outcome)

    async def reject(self, call: Call[RejectRequest, Any]) -> RejectedReply:
        """Reject a payout."""
        by, body, why = author(call, _rejected), call.body, reason(call.body.reason).body
        row = await paying.reject(self._context, by, _named(call), body.code, why)
        return _rejected(row)

    async def verify(self, call: Call[VerifyRequest, Any]) -> VerifiedReply:
        """Record a checked identity."""
        by, body, user = author(call, _verified), call.body, call.path["user"]
        has_changed = await paying.verify(
            self._context, by, user, body.reason, is_checked=body.is_checked
        )
        return _verified(has_changed)


def _named(call: Call[Any, Any]) -> str:
    return in_path(call.path["payout"], Code.PAYOUT_NOT_FOUND, NO_PAYOUT)


def _rejected(row: PayoutRow) -> RejectedReply:
    return RejectedReply(payout=_item(row))


def _verified(has_changed: bool) -> VerifiedReply:
    return VerifiedReply(has_changed=has_changed)


def _source(source: paying.Source) -> SourceItem:
    return SourceItem(
        buyer_id=source.buyer.buyer_id,
        payments=source.buyer.payments,
        earned=money(source.buyer.earned),
        has_deposited=source.has_deposited,
        has_bonus=bool(source.signs.has_bonus),
        signs=list(source.signs.names),
        is_circular=source.signs.is_circular,
    )


def _item(row: PayoutRow) -> StaffPayoutItem:
    return StaffPayoutItem(
        id=row.id,
        user_id=row.user_id,
        state=PAYOUT_STATES[row.state],
        amount=money(row.amount),
        currency=row.currency,
        net_usd=money(row.net),
        reason=row.reason,
        requested_at=timestamp(row.requested_at),
        decide_by=timestamp(row.decide_by),
        ended_at=moment(row.ended_at),
    )

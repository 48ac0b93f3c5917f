"""Routes about money of users: deposits, refunds, corrections, prices, and approvals."""

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.routing.codec import Directed, Money, money
from api.routing.listing import Page, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.users import CHANGING, FINDING, ONE, Balance, TransactionItem
from api.staff.words import PREFIX, Reason, ReasonRequest, StaffPage, author, items, moment
from market.base.errors import Code
from market.money.money import Currency
from market.staff.base.roles import Action
from market.staff.cases.cases import Cases
from market.staff.desk import StaffDesk
from market.staff.finding.tables import TABLES
from market.staff.leaving import closing
from market.staff.leaving.posters import leaving_posters
from market.staff.money import approvals, deposits, second_person, user_limits
from market.staff.money import money as money_services
from market.staff.money.approvals import Outcome, RequestState, State
from market.staff.money.second_person import Refused
from market.staff.money.user_limits import KEPT, LIMIT_MAX, PRICE_PERCENT_MAX, NewLimits, Value
from storage.accounts.user_limits import UserLimitsRow
from storage.staff.money.approvals import ShownApprovalRow

APPROVAL = f"{PREFIX}/approvals/{{approval}}"
Reference = Annotated[str, Meta(max_length=64)]
Bound = Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | UnsetType | None
Percent = Annotated[int, Meta(ge=1, le=PRICE_PERCENT_MAX)] | None


class MoveRequest(Struct):
    """An amount in a currency. The reference names it: a repetition moves nothing."""

    amount: Money
    currency: Currency
    reference: Reference
    reason: Reason


class RefundRequest(MoveRequest):
    """A part of a deposit to return; `deposit` is the reference of the deposit."""

    deposit: Reference


class CorrectionRequest(MoveRequest):
    """An amount to add to a balance, or to take from it.

    With `leaves_debt` it takes earnings back: the part that is not there any more becomes a debt.
    """

    amount: Directed
    direction: Literal["add", "take"]
    leaves_debt: bool = False


class LimitsRequest(Struct):
    """Limits of one user: 0 for none, null for the service's; absent ones stay.

    `until` is their end, null for no end.
    """

    reason: Reason
    sessions: Bound = UNSET
    jobs: Bound = UNSET
    devices: Bound = UNSET
    until: Annotated[datetime, Meta(tz=True)] | UnsetType | None = UNSET


class PriceRequest(Struct):
    """The part of the service's prices that one user pays, in percent; null for all of it.

    The settings have narrower bounds: 50 to 200 by default.
    """

    price_percent: Percent
    reason: Reason


class ApproveRequest(Struct):
    """The reason of an approval; it may be left out."""

    reason: Reason = ""


class ApprovalQuery(StaffPage, kw_only=True):
    """Requests older than one: those that wait, or all."""

    state: Literal["waits", "all"] = "waits"


class OutcomeReply(Reply, kw_only=True):
    """An act that moves money: done, done before, or waiting for a second person.

    `id` is its transfer or job, or the request that waits until `expires_at`.
    """

    state: Literal["done", "done_before", "waits"]
    id: str
    user_id: str
    amount: float
    currency: Currency
    expires_at: Timestamp | None


class MoneyBalance(Balance):
    """The money of a user in one currency, and their debt in it."""

    owed: float


class MoneyReply(Reply, kw_only=True):
    """A user's balances, and the transactions; `next_cursor` continues them."""

    user_id: str
    username: str
    balances: list[MoneyBalance]
    transactions: list[TransactionItem]
    next_cursor: str | None


class LimitsReply(Reply, kw_only=True):
    """A user's own values from now on; null is the service's value."""

    user_id: str
    sessions: int | None
    jobs: int | None
    devices: int | None
    price_percent: int | None
    until: Timestamp | None


class WaivedItem(Struct):
    """Money that goes to the house with an account."""

    amount: float
    currency: Currency


class ApprovalItem(Struct):
    """A request for an act; `payload` is frozen. The end of an account has no amount.

    `waived` is the money that is given up with the account, and no more of it is.
    `asked_by` and `decided_by` are `staff:` and a member, or `unix:` and a user of the machine.
    """

    id: str
    state: RequestState
    action: Action
    user_id: str
    username: str
    amount: float | None
    currency: Currency | None
    waived: list[WaivedItem]
    payload: dict[str, str | int | None]
    reason: str | None
    asked_by: str
    asked_email: str | None
    asked_at: Timestamp
    expires_at: Timestamp
    decided_by: str | None


class ApprovalsReply(Reply, kw_only=True):
    """Requests, the newest first; `next_cursor` continues them."""

    approvals: list[ApprovalItem]
    next_cursor: str | None


class RefusedReply(Reply, kw_only=True):
    """A refused request; its author has withdrawn it."""

    id: str
    is_withdrawn: bool


STATES: dict[State, Literal["done", "done_before", "waits"]] = {
    State.DONE: "done",
    State.DONE_BEFORE: "done_before",
    State.WAITS: "waits",
}


class MoneyRoutes:
    """The routes about money; `posters` carry out what a second person approves."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context
        self._limits = desk.terms.limits
        self._prices = desk.terms.prices
        self._letters = desk.letters
        cases = Cases(desk.context, desk.letters)
        self.posters = {**cases.posters, **leaving_posters(desk.tools)}

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        why = {"reason": "asked by letter 12"}
        moved = {"amount": 7.42, "currency": "usd", "reference": "letter-12", **why}
        return [
            StaffRoute(
                "GET",
                f"{ONE}/money",
                "Balances and transactions of a user",
                self.history,
                MoneyReply,
                action=Action.MONEY_HISTORY,
                query=Page,
                errors=FINDING,
            ),
            *(
                StaffRoute(
                    "POST",
                    f"{ONE}/{word}",
                    summary,
                    handler,
                    OutcomeReply,
                    action=action,
                    body=body,
                    idempotent=True,
                    errors=(*CHANGING, Code.REFERENCE_REUSED, Code.AMOUNT_TOO_LARGE, *errors),
                    example={**moved, **more},
                )
                for word, summary, handler, action, body, errors, more in (
                    (
                        "deposits",
                        "Pay money in that has reached the operator",
                        self.deposit,
                        Action.MONEY_DEPOSIT,
                        MoveRequest,
                        (),
                        {},
                    ),
                    (
                        "refunds",
                        "Book a part of a deposit out of the service; pay it back by hand",
                        self.refund,
                        Action.MONEY_REFUND,
                        RefundRequest,
                        (Code.DEPOSIT_NOT_FOUND, Code.REFUND_TOO_LARGE),
                        {"deposit": "invoice-1"},
                    ),
                    (
                        "corrections",
                        "Add money to a balance, or take some",
                        self.correct,
                        Action.MONEY_CORRECT,
                        CorrectionRequest,
                        (Code.INSUFFICIENT_FUNDS,),
                        {"direction": "take"},
                    ),
                )
            ),
            *self._terms(why),
            *self._approvals(why),
        ]

    def _terms(self, why: dict[str, str]) -> list[StaffRoute]:
        return [
            StaffRoute(
                "POST",
                f"{ONE}/limits",
                "Change limits of a user, from the next purchase on",
                self.limit,
                LimitsReply,
                action=Action.USER_LIMIT,
                body=LimitsRequest,
                idempotent=True,
                errors=CHANGING,
                example={"sessions": 5, "jobs": 0, **why},
            ),
            StaffRoute(
                "POST",
                f"{ONE}/price",
                "Change the price of a user, from the next purchase on",
                self.price,
                LimitsReply,
                action=Action.USER_PRICE,
                body=PriceRequest,
                idempotent=True,
                errors=CHANGING,
                example={"price_percent": 80, **why},
            ),
        ]

    def _approvals(self, why: dict[str, str]) -> list[StaffRoute]:
        return [
            StaffRoute(
                "GET",
                f"{PREFIX}/approvals",
                "Acts that wait for a second person",
                self.approvals,
                ApprovalsReply,
                action=Action.APPROVAL_LIST,
                query=ApprovalQuery,
            ),
            StaffRoute(
                "POST",
                f"{APPROVAL}/approve",
                "Carry out an act that another person asked for",
                self.approve,
                OutcomeReply,
                action=Action.APPROVAL_APPROVE,
                body=ApproveRequest,
                idempotent=True,
                errors=(
                    Code.APPROVAL_NOT_FOUND,
                    Code.APPROVAL_OVER,
                    Code.ACCOUNT_CLOSED,
                    Code.REFERENCE_REUSED,
                    Code.AMOUNT_TOO_LARGE,
                    Code.DEPOSIT_NOT_FOUND,
                    Code.REFUND_TOO_LARGE,
                    Code.INSUFFICIENT_FUNDS,
                    Code.NOT_REVIEWABLE,
                    Code.PAYMENT_NOT_DOUBTFUL,
                    Code.DEBT_TOO_SMALL,
                    Code.PAYOUT_STATE,
                    Code.PAYOUT_NOT_PERMITTED,
                    Code.CASE_DECIDED,
                    Code.ACCOUNT_NOT_EMPTY,
                ),
                example=why,
            ),
            StaffRoute(
                "POST",
                f"{APPROVAL}/refuse",
                "Refuse an act that waits, or withdraw your own",
                self.refuse,
                RefusedReply,
                action=Action.APPROVAL_REFUSE,
                body=ReasonRequest,
                idempotent=True,
                errors=(Code.APPROVAL_NOT_FOUND, Code.APPROVAL_OVER),
                example=why,
            ),
        ]

    async def history(self, call: Call[Nothing, Page]) -> MoneyReply:
        """Return balances and transactions."""
        page = call.query
        found = await money_services.history(
            self._context,
            author(call),
            call.path["user"],
            before=page.before,
            limit=page.fetch_limit,
        )
        part, cursor = page.cut(found.changes)
        return MoneyReply(
            user_id=found.user.id,
            username=found.user.username,
            balances=[
                MoneyBalance(
                    each,
                    money(found.available[each]),
                    money(found.held[each]),
                    money(found.owed[each]),
                )
                for each in Currency
            ],
            transactions=items(part, TABLES["transactions"], TransactionItem),
            next_cursor=cursor if isinstance(cursor, str) else None,
        )

    async def deposit(self, call: Call[MoveRequest, Any]) -> OutcomeReply:
        """Pay money in."""
        body = call.body
        [outcome] = await deposits.deposit(
            self._context,
            author(call, outcome_reply),
            call.path["user"],
            self._limits,
            amounts={body.currency: body.amount},
            reference=body.reference,
            why=body.reason,
        )
        return outcome_reply(outcome)

    async def refund(self, call: Call[RefundRequest, Any]) -> OutcomeReply:
        """Return a part of a deposit."""
        body = call.body
        outcome = await money_services.refund(
            self._context,
            author(call, outcome_reply),
            call.path["user"],
            self._limits,
            amount=body.amount,
            currency=body.currency,
            deposit=body.deposit,
            reference=body.reference,
            why=body.reason,
        )
        return outcome_reply(outcome)

    async def correct(self, call: Call[CorrectionRequest, Any]) -> OutcomeReply:
        """Correct a balance."""
        body = call.body
        sign = 1 if body.direction == "add" else -1
        outcome = await money_services.correct(
            self._context,
            author(call, outcome_reply),
            call.path["user"],
            self._limits,
            amount=sign * body.amount,
            currency=body.currency,
            reference=body.reference,
            why=body.reason,
            leaves_debt=body.leaves_debt,
        )
        return outcome_reply(outcome)

    async def limit(self, call: Call[LimitsRequest, Any]) -> LimitsReply:
        """Change limits of a user."""
        body, until = call.body, call.body.until
        end = int(until.timestamp()) if isinstance(until, datetime) else _kept(until)
        new = NewLimits(_kept(body.sessions), _kept(body.jobs), _kept(body.devices), until=end)
        return await self._change(call, new, body.reason)

    async def price(self, call: Call[PriceRequest, Any]) -> LimitsReply:
        """Change the price of a user."""
        body = call.body
        return await self._change(call, NewLimits(price_percent=body.price_percent), body.reason)

    async def _change(self, call: Call[Any, Any], new: NewLimits, why: str) -> LimitsReply:
        by, name = author(call, _limits), call.path["user"]
        return _limits(
            await user_limits.change(self._context, by, name, new, why, prices=self._prices)
        )

    async def approvals(self, call: Call[Nothing, ApprovalQuery]) -> ApprovalsReply:
        """List requests."""
        query = call.query
        rows = await approvals.listed(
            self._context,
            author(call),
            is_open=query.state == "waits",
            before=query.before,
            limit=query.fetch_limit,
        )
        part, now = rows[: query.limit], self._context.now()
        return ApprovalsReply(
            approvals=[_approval(row, now) for row in part],
            next_cursor=part[-1].approval.id if len(rows) > query.limit else None,
        )

    async def approve(self, call: Call[ApproveRequest, Any]) -> OutcomeReply:
        """Approve a request."""
        by, request, why = author(call, outcome_reply), call.path["approval"], call.body.reason
        await closing.end_sessions_of_request(self._context, by, request, why)
        outcome = await second_person.approve(self._context, by, request, why, posters=self.posters)
        self._letters.wake()
        return outcome_reply(outcome)

    async def refuse(self, call: Call[ReasonRequest, Any]) -> RefusedReply:
        """Refuse a request."""
        by, request = author(call, _refused), call.path["approval"]
        return _refused(await second_person.refuse(self._context, by, request, call.body.reason))


def outcome_reply(outcome: Outcome) -> OutcomeReply:
    """Return the answer to an act that moves money."""
    return OutcomeReply(
        state=STATES[outcome.state],
        id=outcome.id,
        user_id=outcome.user_id,
        amount=money(outcome.amount),
        currency=outcome.currency,
        expires_at=moment(outcome.expires_at),
    )


def _kept(value: int | UnsetType | None) -> Value:
    return KEPT if isinstance(value, UnsetType) else value


def _limits(row: UserLimitsRow) -> LimitsReply:
    return LimitsReply(
        user_id=row.user_id,
        sessions=row.sessions,
        jobs=row.jobs,
        devices=row.devices,
        price_percent=row.price_percent,
        until=moment(row.until),
    )


def _refused(refused: Refused) -> RefusedReply:
    return RefusedReply(id=refused.id, is_withdrawn=refused.is_withdrawn)


def _approval(shown: ShownApprovalRow, now: int) -> ApprovalItem:
    row, payload = shown.approval, json.loads(shown.approval.payload)
    waived = approvals.waived_by(payload)
    has_amount = Action(row.action) not in approvals.WITHOUT_MONEY
    return ApprovalItem(
        id=row.id,
        state=approvals.state_of(row, now),
        action=Action(row.action),
        user_id=row.user_id,
        username=shown.username,
        amount=money(row.amount) if has_amount else None,
        currency=Currency(row.currency) if has_amount else None,
        waived=[WaivedItem(money(amount), each) for each, amount in waived.items()],
        payload=payload,
        reason=shown.reason,
        asked_by=row.asked_by,
        asked_email=shown.asked_email,
        asked_at=timestamp(row.asked_at),
        expires_at=timestamp(row.expires_at),
        decided_by=row.decided_by,
    )

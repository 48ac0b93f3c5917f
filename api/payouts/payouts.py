"""Routes of payouts: terms and rules, methods, requests, and where the earnings are.

An API key reads what the scope of wallets permits. Only a person with a login asks for money.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from api.http.identifiers import in_path
from api.http.literals import (
    CURRENCIES,
    EARNING_LINE_KINDS,
    EARNING_TERMS,
    PAYOUT_METHODS,
    PAYOUT_RULES,
    PAYOUT_STATES,
    EarningLineKind,
    EarningTerm,
    PayoutMethodKind,
    PayoutRule,
    PayoutState,
)
from api.http.literals import Currency as CurrencyWord
from api.routing.codec import Money, money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.accounts.wallet import Change
from market.base.errors import Code
from market.money.money import Currency
from market.payouts.details import Details
from market.payouts.lines import Lines, Term
from market.payouts.payouts import Payouts, Request
from market.payouts.rules import Earnings, Tick, worth_of
from market.payouts.terms import MethodKind
from storage.payouts.methods import MethodRow
from storage.payouts.payouts import PayoutRow

ALL = "/api/payouts"
ONE = f"{ALL}/{{payout_id}}"
METHODS = f"{ALL}/methods"
METHOD = f"{METHODS}/{{method_id}}"
LINES = "/api/earnings/lines"
Short = Annotated[str, Meta(max_length=100)]


class NewMethod(Struct):
    """A place for payouts.

    A `bank` account has its `holder`, `iban` and perhaps `bic`; `paypal` has an `email`; `manual` a
    `text` for a payment by hand.
    """

    kind: Literal["bank", "paypal", "manual"]
    holder: Short = ""
    iban: Short = ""
    bic: Short = ""
    email: Annotated[str, Meta(max_length=254)] = ""
    text: Annotated[str, Meta(max_length=500)] = ""


class Method(Struct):
    """A payout method, masked; payouts can go there from `usable_at` on."""

    id: str
    kind: PayoutMethodKind
    shown: str
    created_at: Timestamp
    usable_at: Timestamp


class MethodReply(Reply, kw_only=True):
    """One payout method."""

    method: Method


class MethodsReply(Reply, kw_only=True):
    """The caller's payout methods, oldest first."""

    methods: list[Method]


class ConnectReply(Reply, kw_only=True):
    """The caller's account at Stripe as a payout method, and the page of Stripe to fill it in.

    The page can be opened once, within minutes.
    """

    method: Method
    url: str


class RuleTick(Struct):
    """A rule for payouts, and whether the caller meets it.

    With `met_at` it will be met then, by time alone.
    """

    rule: PayoutRule
    is_met: bool
    met_at: Timestamp | None


class Withdrawable(Struct):
    """Earnings that can be paid out: the amount in its currency, and its worth in USD."""

    amount: float
    usd: float


class PayoutLimits(Struct):
    """Limits of payouts, and the caller's payouts of the last year.

    Above `verified_above_usd` a year the operator has to check the caller's identity.
    """

    payouts_a_day: int
    verified_above_usd: float
    year_usd: float


class PayoutTermsReply(Reply, kw_only=True):
    """The terms of payouts, the rules with the caller's ticks, and the caller's earnings.

    A payout is decided within `decides_within_s`; a payout up to `automatic_usd` is approved
    immediately, unless a person has to look at the earnings first. `credit_usd` is the price of a
    credit now.
    """

    is_offered: bool
    methods: list[PayoutMethodKind]
    minimum_usd: float
    fee_usd: float
    credit_usd: float
    automatic_usd: float
    decides_within_s: int
    method_wait_s: int
    first_wait_s: int
    limits: PayoutLimits
    withdrawable: dict[CurrencyWord, Withdrawable]
    rules: list[RuleTick]


class NewPayout(Struct):
    """A payout of at most `amount` of the caller's earnings in a currency, to a method.

    It is whole cents, so its amount may be a little less.
    """

    amount: Money
    method_id: str
    currency: CurrencyWord = "credit"


class Payout(Struct):
    """A payout: `amount` of the wallet is worth `usd`; `net_usd` of it is sent, the rest is a fee.

    `reason` is a code, of one that was rejected or has failed. `decide_by` is the promised time of
    the decision. One that `was_returned` was paid before it failed.
    """

    id: str
    state: PayoutState
    currency: CurrencyWord
    amount: float
    usd: float
    fee_usd: float
    net_usd: float
    method_id: str
    reason: str | None
    requested_at: Timestamp
    decide_by: Timestamp
    decided_at: Timestamp | None
    sent_at: Timestamp | None
    ended_at: Timestamp | None
    was_returned: bool


class PayoutReply(Reply, kw_only=True):
    """One payout."""

    payout: Payout


class PayoutsReply(Listed[Payout], kw_only=True):
    """The caller's payouts, newest first; `next_cursor` is there when there are more."""

    items: list[Payout] = field(name="payouts")


class TermItem(Struct):
    """A term of the earnings, in its currency; `lines` is the path of the list with its lines.

    The lines add up to the amount.
    """

    amount: float
    lines: str


class EarningTerms(Struct):
    """Where the earnings in a currency are: `earned` is the sum of all other terms.

    `available` can be paid out or spent, `held` is in open purchases, `in_payout` in open payouts.
    `paid` and `fees` left by payouts; `spent` left by purchases, or was corrected.
    """

    earned: TermItem
    available: TermItem
    held: TermItem
    in_payout: TermItem
    paid: TermItem
    fees: TermItem
    spent: TermItem


class EarningsReply(Reply, kw_only=True):
    """The caller's earnings in each currency.

    `owed_usd` and `owed_credit` are no terms: the operator took earnings back after their payout,
    and later ones pay for them first.
    """

    usd: EarningTerms
    credit: EarningTerms
    owed_usd: float
    owed_credit: float


class LinesOf(Page, kw_only=True):
    """A part of the lines of a term of the earnings, in a currency."""

    currency: CurrencyWord
    term: EarningTerm


class EarningLine(Struct):
    """A line of a term of the earnings; `reference` names its cause.

    `amount` is earned money in the currency of the term. A line of `held` is the hold of an open
    purchase, and one of `in_payout`, `paid` or `fees` a `payout` with this `id`. The others are
    transactions of the wallet. In `spent` the part of a purchase that came back is below zero.
    """

    id: str
    created_at: Timestamp
    kind: EarningLineKind
    amount: float
    reference: str


class EarningLinesReply(Listed[EarningLine], kw_only=True):
    """Lines of a term, newest first; `next_cursor` is there when there are more."""

    items: list[EarningLine] = field(name="lines")


class PayoutRoutes:
    """The routes of payouts."""

    def __init__(self, payouts: Payouts) -> None:
        self._payouts = payouts

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                f"{ALL}/terms",
                "Which rules payouts have, and what I can be paid",
                self.terms,
                PayoutTermsReply,
                scope=Scope.WALLET_READ,
            ),
            Route(
                "GET",
                "/api/earnings",
                "Where my earnings are",
                self.earnings,
                EarningsReply,
                scope=Scope.WALLET_READ,
            ),
            Route(
                "GET",
                LINES,
                "Which lines a term of my earnings has",
                self.lines,
                EarningLinesReply,
                scope=Scope.WALLET_READ,
                query=LinesOf,
            ),
            *self._of_methods(),
            *self._of_payouts(),
        ]

    def _of_methods(self) -> list[Route]:
        return [
            Route(
                "GET",
                METHODS,
                "My payout methods",
                self.methods,
                MethodsReply,
                scope=Scope.WALLET_READ,
            ),
            Route(
                "POST",
                METHODS,
                "Add a payout method",
                self.add_method,
                MethodReply,
                auth=Auth.JWT,
                body=NewMethod,
                errors=(
                    Code.PAYOUTS_NOT_OFFERED,
                    Code.TOO_MANY_PAYOUT_METHODS,
                    Code.FRESH_LOGIN_NEEDED,
                ),
                example={
                    "kind": "bank",
                    "holder": "Ada Lovelace",
                    "iban": "DE89370400440532013000",
                },
            ),
            Route(
                "POST",
                f"{ALL}/connect",
                "Connect my account at Stripe",
                self.connect,
                ConnectReply,
                auth=Auth.JWT,
                body_optional=True,
                errors=(
                    Code.PAYOUTS_NOT_OFFERED,
                    Code.TOO_MANY_PAYOUT_METHODS,
                    Code.FRESH_LOGIN_NEEDED,
                    Code.PAYMENT_PROVIDER_AWAY,
                ),
            ),
            Route(
                "DELETE",
                METHOD,
                "Remove a payout method",
                self.remove_method,
                Reply,
                auth=Auth.JWT,
                errors=(Code.PAYOUT_METHOD_NOT_FOUND, Code.PAYOUT_METHOD_IN_USE),
            ),
        ]

    def _of_payouts(self) -> list[Route]:
        return [
            Route(
                "POST",
                ALL,
                "Ask for a payout of my earnings",
                self.request,
                PayoutReply,
                auth=Auth.JWT,
                body=NewPayout,
                idempotent=True,
                errors=(
                    Code.PAYOUTS_NOT_OFFERED,
                    Code.PAYOUT_TOO_SMALL,
                    Code.PAYOUT_TOO_LARGE,
                    Code.PAYOUT_NOT_PERMITTED,
                    Code.PAYOUT_METHOD_NOT_FOUND,
                    Code.PAYMENT_PROVIDER_AWAY,
                ),
                example={"amount": 1000, "currency": "credit", "method_id": "a payout method"},
            ),
            Route(
                "GET",
                ALL,
                "My payouts",
                self.all,
                PayoutsReply,
                scope=Scope.WALLET_READ,
                query=Page,
            ),
            Route(
                "GET",
                ONE,
                "One of my payouts",
                self.one,
                PayoutReply,
                scope=Scope.WALLET_READ,
                errors=(Code.PAYOUT_NOT_FOUND,),
            ),
            Route(
                "POST",
                f"{ONE}/cancel",
                "Cancel a payout that is not decided",
                self.cancel,
                PayoutReply,
                auth=Auth.JWT,
                body_optional=True,
                errors=(Code.PAYOUT_NOT_FOUND, Code.PAYOUT_STATE),
            ),
        ]

    async def terms(self, call: Call[Nothing, Any]) -> PayoutTermsReply:
        """Return the terms, the rules, and the caller's earnings."""
        terms, standing = self._payouts.terms, await self._payouts.standing(call.user_id)
        parts = {each: standing.earnings[each].available for each in Currency}
        return PayoutTermsReply(
            is_offered=terms.are_offered,
            methods=[PAYOUT_METHODS[each] for each in sorted(terms.methods)],
            minimum_usd=money(terms.minimum),
            fee_usd=money(terms.fee),
            credit_usd=money(terms.credit_rate),
            automatic_usd=money(terms.automatic),
            decides_within_s=terms.review_seconds,
            method_wait_s=terms.method_wait_seconds,
            first_wait_s=terms.first_wait_seconds,
            limits=PayoutLimits(
                payouts_a_day=terms.a_day,
                verified_above_usd=money(terms.verified_above),
                year_usd=money(standing.year_usd),
            ),
            withdrawable={
                CURRENCIES[each]: Withdrawable(money(part), money(worth_of(terms, each, part)))
                for each, part in parts.items()
            },
            rules=[_tick(each) for each in standing.ticks],
        )

    async def earnings(self, call: Call[Nothing, Any]) -> EarningsReply:
        """Return where the caller's earnings are."""
        standing = await self._payouts.standing(call.user_id)
        return EarningsReply(
            usd=_terms_of(Currency.USD, standing.earnings[Currency.USD]),
            credit=_terms_of(Currency.CREDIT, standing.earnings[Currency.CREDIT]),
            owed_usd=money(standing.earnings[Currency.USD].owed),
            owed_credit=money(standing.earnings[Currency.CREDIT].owed),
        )

    async def lines(self, call: Call[Nothing, LinesOf]) -> EarningLinesReply:
        """List the lines of a term of the caller's earnings."""
        query = call.query
        which = Lines(Currency(query.currency), Term(query.term), query.before, query.fetch_limit)
        rows = await self._payouts.lines(call.user_id, which)
        return EarningLinesReply.of(query, rows, _line)

    async def methods(self, call: Call[Nothing, Any]) -> MethodsReply:
        """List the caller's payout methods."""
        rows = await self._payouts.methods(call.user_id)
        return MethodsReply(methods=[_method(row) for row in rows])

    async def add_method(self, call: Call[NewMethod, Nothing]) -> MethodReply:
        """Add a payout method."""
        body = call.body
        details = Details(
            holder=body.holder, iban=body.iban, bic=body.bic, email=body.email, text=body.text
        )
        row = await self._payouts.add_method(
            call.user_id, MethodKind(body.kind), details, maker=call.caller.maker
        )
        return MethodReply(method=_method(row))

    async def connect(self, call: Call[Nothing, Any]) -> ConnectReply:
        """Open the caller's account at Stripe, and return the page to fill it in."""
        found = await self._payouts.connect(call.user_id, maker=call.caller.maker)
        return ConnectReply(method=_method(found.method), url=found.url)

    async def remove_method(self, call: Call[Nothing, Any]) -> Reply:
        """Remove a payout method."""
        method_id = in_path(call.path["method_id"], Code.PAYOUT_METHOD_NOT_FOUND)
        await self._payouts.remove_method(call.user_id, method_id)
        return Reply()

    async def request(self, call: Call[NewPayout, Nothing]) -> PayoutReply:
        """Ask for a payout."""
        body = call.body
        new = Request(Currency(body.currency), body.amount, body.method_id)
        row = await self._payouts.request(
            call.user_id, new, maker=call.caller.maker, receipt=call.receipt(_reply)
        )
        return _reply(row)

    async def all(self, call: Call[Nothing, Page]) -> PayoutsReply:
        """List the caller's payouts."""
        query = call.query
        rows = await self._payouts.page(call.user_id, before=query.before, limit=query.fetch_limit)
        return PayoutsReply.of(query, rows, _payout)

    async def one(self, call: Call[Nothing, Any]) -> PayoutReply:
        """Return one payout."""
        return _reply(await self._payouts.find(call.user_id, _id(call)))

    async def cancel(self, call: Call[Nothing, Any]) -> PayoutReply:
        """Cancel a payout."""
        return _reply(await self._payouts.cancel(call.user_id, _id(call)))


def _id(call: Call[Nothing, Any]) -> str:
    return in_path(call.path["payout_id"], Code.PAYOUT_NOT_FOUND)


def _reply(row: PayoutRow) -> PayoutReply:
    return PayoutReply(payout=_payout(row))


def _payout(row: PayoutRow) -> Payout:
    return Payout(
        id=row.id,
        state=PAYOUT_STATES[row.state],
        currency=CURRENCIES[row.currency],
        amount=money(row.amount),
        usd=money(row.usd),
        fee_usd=money(row.fee),
        net_usd=money(row.net),
        method_id=row.method_id,
        reason=row.reason,
        requested_at=timestamp(row.requested_at),
        decide_by=timestamp(row.decide_by),
        decided_at=_time(row.decided_at),
        sent_at=_time(row.sent_at),
        ended_at=_time(row.ended_at),
        was_returned=bool(row.is_returned),
    )


def _method(row: MethodRow) -> Method:
    return Method(
        id=row.id,
        kind=PAYOUT_METHODS[row.kind],
        shown=row.shown,
        created_at=timestamp(row.created_at),
        usable_at=timestamp(row.usable_at),
    )


def _tick(tick: Tick) -> RuleTick:
    return RuleTick(PAYOUT_RULES[tick.rule], tick.is_met, _time(tick.met_at))


def _terms_of(currency: Currency, found: Earnings) -> EarningTerms:
    return EarningTerms(
        **{
            name: TermItem(money(getattr(found, name)), f"{LINES}?currency={currency}&term={name}")
            for name in EARNING_TERMS
        }
    )


def _line(change: Change) -> EarningLine:
    return EarningLine(
        id=change.id,
        created_at=timestamp(change.created_at),
        kind=EARNING_LINE_KINDS[change.kind],
        amount=money(change.amount),
        reference=change.reference,
    )


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else timestamp(seconds)

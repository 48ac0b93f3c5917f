"""The earnings and payouts of one user beside payments: acts, and the model of every balance."""

from collections.abc import Awaitable, Callable
from typing import Any

from market.accounts.restrictions import is_restricted
from market.money import ledger
from market.money.money import MICRO, Currency
from market.payouts.files import Format, Line, Outcome
from market.payouts.payouts import Request
from market.payouts.terms import FailReason, PayoutTerms, RejectReason
from market.staff.money import paying
from storage.payouts.payouts import PayoutRow
from support.market.books import available, balance, held
from support.market.market import PAYOUT_METHODS, Market
from support.market.payouts import add_method, check_lines, confirm, earn, earned_part, reward
from support.market.staff import ROOT

CREDIT = Currency.CREDIT
LIMITS = dict.fromkeys(Currency, 10**15)
TERMS = PayoutTerms(
    methods=frozenset(("bank",)),
    minimum=MICRO // 10,
    fee=MICRO // 100,
    first_wait_seconds=0,
    method_wait_seconds=0,
    a_day=1_000,
    verified_above=10**15,
)
OPEN = ("requested", "approved", "sent")
ENDS = ("cancelled", "rejected", "failed")
# Acts about a payout, which come at the same time or in turn.
TURNS = (
    ("approve",),
    ("approve", "cancel"),
    ("approve", "cancel", "reject", "approve"),
    ("approve", "export"),
    ("approve", "export", "pay", "fail"),
    ("cancel", "approve", "export"),
    ("export", "reject"),
    ("export", "pay", "pay", "fail", "fail"),
    ("pay", "fail"),
)


class Earner:
    """A user who earns, is rewarded, and is paid out.

    Attributes:
        earned: all earned micro-credits.
        other: the micro-credits of rewards, which never leave.
    """

    def __init__(self, market: Market, user: str, buyer: str) -> None:
        self._market = market
        self._user = user
        self._buyer = buyer
        self._houses: dict[str, int] = {}
        self._ended: dict[str, str] = {}
        self._won: dict[str, str] = {}
        self.earned = 0
        self.other = 0
        self.rows: list[PayoutRow] = []

    async def begin(self) -> None:
        """Let the user meet all rules of payouts."""
        self._market.payouts.terms = TERMS
        await confirm(self._market, self._user)
        self._method = await add_method(self._market, self._user)
        self._houses = await self._of_house()

    async def work(self, credits_: int) -> None:
        """Do a job of the buyer."""
        await earn(self._market, self._user, credits_, self._buyer)
        self.earned += credits_ * MICRO * 9 // 10

    async def reward(self, credits_: int) -> None:
        """Get credits for a photo."""
        await reward(self._market, self._user, credits_)
        self.other += credits_ * MICRO

    def request(self, credits_: int) -> Awaitable[Any]:
        """Ask for a payout."""
        asked = Request(CREDIT, credits_ * MICRO, self._method.id)
        return self._market.payouts.request(self._user, asked)

    def act(self, name: str, row: PayoutRow) -> Awaitable[Any]:
        """Do an act of `TURNS` about a payout, as its user or the staff does."""
        context = self._market.context
        paid = Line(2, row.id, row.net, Outcome.PAID, None)
        failed = Line(2, row.id, row.net, Outcome.FAILED, FailReason.RETURNED)
        acts: dict[str, Callable[[], Awaitable[Any]]] = {
            "approve": lambda: self._decide("approve", row),
            "cancel": lambda: self._decide("cancel", row),
            "reject": lambda: paying.reject(context, ROOT, row.id, RejectReason.TERMS_BROKEN),
            "export": lambda: paying.export(context, ROOT, PAYOUT_METHODS, Format.CSV),
            "pay": lambda: paying.book(context, ROOT, [paid], LIMITS),
            "fail": lambda: paying.book(context, ROOT, [failed], LIMITS),
        }
        return acts[name]()

    async def _decide(self, name: str, row: PayoutRow) -> None:
        """Approve or cancel a payout; of both, one wins."""
        if name == "approve":
            await paying.approve(self._market.context, ROOT, row.id, LIMITS)
        else:
            await self._market.payouts.cancel(self._user, row.id)
        assert self._won.setdefault(row.id, name) == name

    async def is_restricted(self) -> bool:
        """Return whether a dispute or a debt stops the payouts of the user."""
        return await self._market.store.read(is_restricted, self._user)

    async def look(self) -> None:
        """Learn all payouts."""
        self.rows = await self._market.payouts.page(self._user, before="", limit=1_000)

    async def check(self) -> None:
        """Compare every balance with the model, and each end with the one that was seen."""
        await self.look()
        for row in self.rows:
            if row.state in ENDS:
                assert self._ended.setdefault(row.id, row.state) == row.state
            assert row.id not in self._ended or row.state in ENDS
        await check_lines(self._market, self._user)
        gone = [row for row in self.rows if row.state in (*OPEN, "paid")]
        left = self.earned - sum(row.amount for row in gone)
        assert left >= 0
        assert await earned_part(self._market, self._user) == left
        assert await available(self._market, self._user, CREDIT) == left + self.other
        is_open = sum(row.amount for row in gone if row.state in OPEN)
        assert await held(self._market, self._user, CREDIT) == is_open
        paid = [row for row in gone if row.state == "paid"]
        usd = sum(row.usd for row in paid)
        expected = {
            ledger.payouts(): sum(row.net for row in paid),
            ledger.fees(): sum(row.fee for row in paid),
            ledger.exchange(CREDIT): sum(row.amount for row in paid),
            ledger.exchange(Currency.USD): -usd,
        }
        now = await self._of_house()
        assert {name: now[name] - self._houses[name] for name in expected} == expected

    async def _of_house(self) -> dict[str, int]:
        names = (
            ledger.payouts(),
            ledger.fees(),
            ledger.exchange(CREDIT),
            ledger.exchange(Currency.USD),
        )
        return {name: await balance(self._market, name) for name in names}

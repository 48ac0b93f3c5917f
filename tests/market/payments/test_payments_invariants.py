"""For any order, loss and repetition of events, and crashes between them, no cent moves wrongly.

The events are those of payments, refunds, disputes, automatic top-ups, earnings and payouts of one
user.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from support.base.brief import brief
from support.base.clock import Clock
from support.market.market import Market
from support.payments.bank import Bank
from support.payments.earner import TURNS, Earner
from support.payments.kept import by_month, gone, kept

from market.accounts.scopes import Maker
from market.base.errors import MarketError
from market.base.states import PaymentStatus
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO, Currency
from market.payments.provider import ProviderError
from market.payments.terms import CENT
from market.payments.top_ups import NewTopUp
from storage.engines.open import open_store
from storage.engines.store import Store, Transaction
from storage.money import ledger as ledger_queries
from storage.payments import cards as card_queries

HEADERS = {"signature": "right"}
CEILING = 60 * MICRO
PARTS, PART_EXAMPLES = 6, 8
STATEMENT_SECONDS = 600.0  # no answer of a busy machine is late
# The calls of the provider, and the moments after their effects.
MOMENTS = (
    *("create", "created", "look", "looked", "refund", "refunded"),
    *("prepare", "prepared", "charge", "charged", "forget", "forgotten"),
)
Result = TypeVar("Result")
number = st.integers(0, 4)
turns = st.sampled_from(TURNS)


class CrashError(Exception):
    """The process ends here."""


class Crashing:
    """A store whose process ends after some more commits; everything else is that of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.commits_left: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, unit: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = await self._store.write(unit, *args, **kwargs)
        if self.commits_left is not None:
            self.commits_left -= 1
            if self.commits_left < 0:
                self.commits_left = None
                raise CrashError
        return result


class Payers(RuleBasedStateMachine):
    """One user, a bank with the truth, and everything that brings news of it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.clock, self.bank = Clock(), Bank()
        opening = open_store(url, statement_seconds=STATEMENT_SECONDS)
        self.store = Crashing(self.run(opening))
        self.market = Market(self.store, self.clock, providers={"bank": self.bank})
        self.payments: list[str] = []
        self.spent = 0
        self.provider_fails = ""

    def run(self, coroutine: Awaitable[Result]) -> Result:
        async def awaited() -> Result:
            return await coroutine

        return self.runner.run(awaited())

    def attempt(self, *coroutines: Awaitable[Any]) -> list[Any]:
        """Await some things at once; refusals, failures of the provider and crashes may happen."""

        async def all_of() -> list[Any]:
            return await asyncio.gather(*coroutines, return_exceptions=True)

        outcomes = self.run(all_of())
        for each in outcomes:
            if isinstance(each, BaseException):
                assert isinstance(each, MarketError | ProviderError | CrashError), each
        return outcomes

    @initialize()
    def begin(self) -> None:
        name = f"p{self.market.identifiers.new()[-12:]}"
        login, _ = self.run(
            self.market.accounts.register(
                username=name, email=f"{name}@example.com", password="long enough"
            )
        )
        self.user, self.email = login.profile.user_id, f"{name}@example.com"
        buyer, _ = self.run(
            self.market.accounts.register(
                username=f"b{name}", email=f"b{name}@example.com", password="long enough"
            )
        )
        credits_ = 10_000 * MICRO
        self.run(self.market.deposit(f"b{name}@example.com", credits_, currency=Currency.CREDIT))
        self.earner = Earner(self.market, self.user, buyer.profile.user_id)
        self.run(self.earner.begin())
        self.before = self.balance(ledger.deposits(Currency.USD))
        self.losses_before = self.balance(ledger.losses())
        self.clock.now += 40 * 86_400  # no new account
        self.run(self.store.write(_forget_others))
        self.bank.fail = self.fail
        # A payment and a payout, so that few steps reach every state.
        self.create(2_000)
        self.bank.pay(self.payments[0])
        self.run(self.market.payments.find(self.user, self.payments[0]))
        self.earn(20, False)
        self.request_payouts([50, 60])
        self.run(self.earner.look())

    def fail(self, moment: str) -> None:
        if moment == self.provider_fails:
            self.provider_fails = ""
            raise ProviderError("no answer")

    @rule(cents=st.integers(500, 3_000))
    def create(self, cents: int) -> None:
        self.attempt(self.market.payments.create(self.user, cents * CENT))
        self.look_at_list()

    def look_at_list(self) -> None:
        """Learn which payments the bank has."""
        rows = self.run(self.market.payments.page(self.user, before="", limit=50))
        self.payments = [row.id for row in reversed(rows) if f"bank-{row.id}" in self.bank.payments]

    @rule(at=number)
    def pay(self, at: int) -> None:
        rows = self.run(self.market.payments.page(self.user, before="", limit=50))
        seen = [row.id for row in rows if row.row.url]  # the page of the others is not known
        if seen:
            self.bank.pay(seen[at % len(seen)])

    @rule(at=number, hooks=st.integers(0, 3), finds=st.integers(0, 2), sweeps=st.integers(0, 2))
    def news(self, at: int, hooks: int, finds: int, sweeps: int) -> None:
        """Have any number of notices, returning users and sweepers come at the same moment."""
        if not self.payments:
            return
        payment_id = self.payments[at % len(self.payments)]
        notice = self.bank.notice(payment_id)
        self.attempt(
            *(self.market.payments.receive("bank", HEADERS, notice) for _ in range(hooks)),
            *(self.market.payments.find(self.user, payment_id) for _ in range(finds)),
            *(self.market.payments.sweep() for _ in range(sweeps)),
        )

    @rule(seconds=st.sampled_from([1, 3, 200, 4_000, 90_000]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(threshold=st.integers(1, 40), amount=st.integers(5, 20), is_lost=st.booleans())
    def save_card(self, threshold: int, amount: int, is_lost: bool) -> None:
        """Save a card, whose notice may be lost, and switch the automatic top-up on."""
        self.attempt(self.market.payments.cards.save(self.user))
        row = self.run(self.store.read(card_queries.find, self.user))
        if row is not None and row.setup_id is not None and row.setup_url:
            self.bank.cards.fill_in(row.setup_id, f"card-{row.setup_id}")
        if not is_lost and row is not None:
            self.clock.now += 3
            self.attempt(self.market.payments.cards.receive("bank", row.setup_ref or ""))
        new = NewTopUp(threshold * MICRO, amount * MICRO, CEILING)
        self.attempt(self.market.top_ups.set_on(self.user, new, Maker()))

    @rule(sweepers=st.integers(1, 4), hooks=st.integers(0, 2), pages=st.integers(0, 1))
    def top_up(self, sweepers: int, hooks: int, pages: int) -> None:
        """Have sweepers of several nodes come at once, beside the news of one payment."""
        notice = self.bank.notice(self.payments[-1] if self.payments else "x")
        self.attempt(
            *(self.market.top_ups.sweep() for _ in range(sweepers)),
            *(self.market.payments.receive("bank", HEADERS, notice) for _ in range(hooks)),
            *(self.market.payments.cards.sweep() for _ in range(pages)),
            self.market.payments.sweep(),
        )
        self.look_at_list()

    @rule(failure=st.sampled_from(["", "", "refused", "authentication"]))
    def change_cards(self, failure: str) -> None:
        self.bank.cards.failure = failure

    @rule(is_removed=st.booleans())
    def end_top_up(self, is_removed: bool) -> None:
        end = self.market.payments.cards.remove if is_removed else self.market.top_ups.end
        self.attempt(end(self.user))

    @rule(at=number, part=st.integers(1, 4), twice=st.booleans())
    def refund(self, at: int, part: int, twice: bool) -> None:
        if not self.payments:
            return
        payment_id = self.payments[at % len(self.payments)]
        amount = self.bank.of(payment_id).amount // part // CENT * CENT
        again = [self.market.payments.refund(self.user, payment_id, amount)] if twice else []
        self.attempt(self.market.payments.refund(self.user, payment_id, amount), *again)

    @rule(cents=st.integers(1, 2_000))
    def spend(self, cents: int) -> None:
        size = cents * GB // 100
        (bought,) = self.attempt(
            self.market.bandwidth.buy(self.user, quota_bytes=size, price_per_gb=MICRO)
        )
        if not isinstance(bought, MarketError):
            self.spent += cents * CENT

    @rule(at=number, part=st.integers(1, 2), is_dispute=st.booleans())
    def take_back(self, at: int, part: int, is_dispute: bool) -> None:
        """Dispute a payment, or refund it at the provider, as far as its money is there."""
        if not self.payments:
            return
        payment_id = self.payments[at % len(self.payments)]
        seen = self.bank.of(payment_id)
        left = seen.amount - sum(each.amount for each in seen.returns if each.state != "void")
        rows = self.run(self.market.payments.page(self.user, before="", limit=50))
        waiting = any(row.id == payment_id and row.status == "refunding" for row in rows)
        amount = left // part // CENT * CENT
        if seen.state != "paid" or amount <= 0 or waiting:
            return
        take = self.bank.dispute if is_dispute else self.bank.refund_outside
        take(payment_id, amount)

    @rule(at=number, which=number, state=st.sampled_from(["done", "void"]))
    def decide(self, at: int, which: int, state: str) -> None:
        """Have a bank decide about a dispute, or a card refuse a refund later."""
        if not self.payments:
            return
        payment_id = self.payments[at % len(self.payments)]
        returns = self.bank.of(payment_id).returns
        if not returns:
            return
        chosen = returns[which % len(returns)]
        if chosen.state == "pending" or (chosen.state == "done" and state == "void"):
            self.bank.decide(payment_id, chosen.ref, state)

    @rule(credits_=st.integers(1, 20), is_reward=st.booleans())
    def earn(self, credits_: int, is_reward: bool) -> None:
        """Work, or have a photo rewarded; no process ends meanwhile."""
        commits, self.store.commits_left = self.store.commits_left, None
        self.run((self.earner.reward if is_reward else self.earner.work)(credits_ * 10))
        self.store.commits_left = commits

    @rule(credits_=st.lists(st.integers(10, 200), min_size=1, max_size=3))
    def request_payouts(self, credits_: list[int]) -> None:
        self.attempt(*(self.earner.request(each) for each in credits_))

    @rule(at=number, acts=turns, in_turn=st.booleans(), disputes=st.booleans())
    def decide_payout(self, at: int, acts: tuple[str, ...], in_turn: bool, disputes: bool) -> None:
        """Have the user, the staff and the bank act on a payout, perhaps after a dispute."""
        if not self.earner.rows:
            return
        if disputes and self.payments:
            self.take_back(at, 1, True)
            self.clock.now += 3
            notice = self.bank.notice(self.payments[at % len(self.payments)])
            self.attempt(self.market.payments.receive("bank", HEADERS, notice))
        self.run(self.earner.look())
        row = self.earner.rows[at % len(self.earner.rows)]
        is_restricted = self.run(self.earner.is_restricted())
        for turn in [(name,) for name in acts] if in_turn else [acts]:
            self.attempt(*(self.earner.act(name, row) for name in turn))
        self.run(self.earner.look())
        after = next(each for each in self.earner.rows if each.id == row.id)
        if is_restricted and row.state in ("requested", "approved"):
            assert after.state in (row.state, "cancelled", "rejected")

    @rule(at=number, acts=turns)
    def decide_payout_beside_news(self, at: int, acts: tuple[str, ...]) -> None:
        """Have a payment change, with its notice and a sweep, while a payout is decided."""
        if not self.earner.rows or not self.payments:
            return
        row = self.earner.rows[at % len(self.earner.rows)]
        notice = self.bank.notice(self.payments[at % len(self.payments)])
        self.attempt(
            *(self.earner.act(name, row) for name in acts),
            self.market.payments.receive("bank", HEADERS, notice),
            self.market.payments.sweep(),
        )

    @rule(state=st.sampled_from(["done", "pending"]), refused=st.booleans())
    def change_bank(self, state: str, refused: bool) -> None:
        self.bank.refund_state, self.bank.refused = state, refused

    @rule(moment=st.sampled_from(MOMENTS))
    def fail_once(self, moment: str) -> None:
        self.provider_fails = moment

    @rule(commits=st.integers(0, 3))
    def crash_soon(self, commits: int) -> None:
        self.store.commits_left = commits

    @invariant()
    def the_earnings_agree(self) -> None:
        if hasattr(self, "earner"):
            self.run(self.earner.check())

    @invariant()
    def the_books_agree(self) -> None:
        report = self.run(audit_ledger(self.store))
        assert report.passed, [each for each in report.checks if each.differences]

    def teardown(self) -> None:
        try:
            if hasattr(self, "user"):
                self.settle()
        finally:
            self.market.passwords.close()
            self.run(self.store.close())
            self.runner.close()

    def settle(self) -> None:
        """Let the sweeper alone find out the truth, and compare everything with it."""
        self.store.commits_left, self.provider_fails = None, ""
        self.run(self.market.top_ups.end(self.user))
        for _ in range(12):
            self.clock.now += 86_400
            self.run(self.market.payments.sweep())
            self.run(self.market.payments.cards.sweep())
        self.look_at_list()
        self.cards_agree()
        net = 0
        for payment_id in self.payments:
            seen = self.bank.of(payment_id)
            view = self.run(self.market.payments.find(self.user, payment_id))
            assert (view.row.status == PaymentStatus.PAID) == (seen.state == "paid")
            if seen.state != "paid":
                continue
            assert view.refunded == gone(seen)
            assert kept(seen) >= 0
            net += kept(seen)
        debt = self.losses_before - self.balance(ledger.losses())
        assert self.balance(ledger.deposits(Currency.USD)) == self.before - net
        spendable = self.balance(ledger.available(self.user, Currency.USD))
        held = self.balance(ledger.held(self.user, Currency.USD))
        assert spendable + held == net + debt
        assert held >= self.spent
        self.the_books_agree()

    def cards_agree(self) -> None:
        """Compare the automatic payments and the card with those of the bank."""
        rows = self.run(self.market.payments.page(self.user, before="", limit=50))
        automatic = [row.row for row in rows if row.row.is_automatic]
        assert all(row.status != PaymentStatus.OPEN for row in automatic)
        months = by_month(
            (row.created_at, self.bank.of(row.id))
            for row in automatic
            if f"bank-{row.id}" in self.bank.payments
        )
        assert max(months.values(), default=0) <= CEILING
        card = self.run(self.store.read(card_queries.find, self.user))
        saved = set() if card is None or card.card_id is None else {card.card_id}
        assert self.bank.cards.attached == saved

    def balance(self, account: str) -> int:
        return self.run(self.store.read(ledger_queries.balance, account)) or 0


async def _forget_others(tx: Transaction) -> None:
    """Have the sweeper leave out the payments of other examples, which another bank knows."""
    await tx.run("UPDATE payments SET next_look_at = NULL")
    await tx.run("UPDATE top_ups SET state = 'off'")
    await tx.run("UPDATE saved_cards SET next_look_at = NULL")
    await tx.run("DELETE FROM forgotten_at_provider")


@pytest.mark.both_engines
@pytest.mark.early
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize("part", brief(range(PARTS)))
def test_any_order_of_events_leaves_the_truth_of_the_bank(store_url: str, part: int) -> None:
    run_machine(
        seed(part)(lambda: Payers(store_url)),
        settings=settings(
            max_examples=PART_EXAMPLES,
            stateful_step_count=20,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )

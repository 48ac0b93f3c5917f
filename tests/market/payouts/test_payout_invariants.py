"""For any steps in any order, no more leaves than was earned, and every balance is the model's."""

import contextlib
import random
from dataclasses import dataclass, field

import pytest
from support.market.books import available, balance
from support.market.jobs import on, wanted
from support.market.market import PAYOUT_METHODS, Market
from support.market.payout_bank import Bank
from support.market.payouts import add_method, approved, confirm, earned_part, send, state_of
from support.market.staff import ROOT
from support.market.staff_money import corrected

from market.base.errors import Code, MarketError
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.payments.provider import ProviderError
from market.payouts import steps
from market.payouts.details import Details
from market.payouts.files import Line, Outcome
from market.payouts.payouts import Request
from market.payouts.providers import CLAIM_SECONDS, Order, Progress, ProviderRounds
from market.payouts.terms import FailReason, MethodKind, PayoutTerms, RejectReason
from market.staff.money import paying
from storage.engines.store import Transaction
from storage.payouts.methods import MethodRow
from storage.payouts.payouts import PayoutRow

STEPS = 80
AUDIT_STEPS = 4
CREDIT = Currency.CREDIT
LIMITS = dict.fromkeys(Currency, 10**15)


class _CrashError(Exception):
    """The process ends before the commit."""


@dataclass
class Wallet:
    """The expected money of a user, in whole credits."""

    user: str
    email: str
    method: MethodRow
    other: int = 0
    earned: int = 0
    all_earned: int = 0
    paid: int = 0
    holds: dict[str, tuple[int, int]] = field(default_factory=dict)
    payouts: dict[str, tuple[PayoutRow, str]] = field(default_factory=dict)

    def take(self, amount: int) -> int:
        """Take money, other money first; return the earned part of it."""
        part = max(0, amount - self.other)
        self.other -= amount - part
        self.earned -= part
        return part


class Story:
    """Two users, and random steps of them, of the staff and of a bank."""

    def __init__(self, market: Market, seed: int) -> None:
        self.market = market
        self.draw = random.Random(seed)
        self.wallets: list[Wallet] = []
        self.most_paid = 0

    async def begin(self) -> None:
        terms = PayoutTerms(
            methods=frozenset(("bank",)),
            minimum=MICRO // 10,
            first_wait_seconds=0,
            method_wait_seconds=0,
            a_day=1_000,
            verified_above=10**15,
        )
        self.market.payouts.terms = terms
        for number in (1, 2):
            user = await self.market.person()
            await confirm(self.market, user)
            method = await add_method(self.market, user)
            self.wallets.append(Wallet(user, f"person{number}@example.com", method))
            await self.deposit(self.wallets[-1])

    async def step(self) -> None:
        wallet = self.draw.choice(self.wallets)
        often = (self.buy, self.work, self.request, self.decide, self.settle)
        await self.draw.choice((*often, *often, self.deposit, self.cancel, self.correct))(wallet)

    async def deposit(self, wallet: Wallet) -> None:
        amount = self.draw.randint(100, 500)
        await self.market.deposit(wallet.email, amount * MICRO, currency=CREDIT)
        wallet.other += amount

    async def buy(self, wallet: Wallet) -> None:
        amount = 10 * self.draw.randint(1, 20)
        new = wanted(price=amount * MICRO)
        if amount > wallet.other + wallet.earned:
            with pytest.raises(MarketError):
                await self.market.jobs.create(wallet.user, new)
            return
        job_id = await self.market.jobs.create(wallet.user, new)
        wallet.holds[job_id] = (amount, wallet.take(amount))

    async def cancel(self, wallet: Wallet) -> None:
        if wallet.holds:
            job_id = self.draw.choice(sorted(wallet.holds))
            amount, part = wallet.holds.pop(job_id)
            await self.market.jobs.cancel(wallet.user, job_id)
            wallet.earned += part
            wallet.other += amount - part

    async def work(self, wallet: Wallet) -> None:
        """Let a user do a job of the other user, or of the same."""
        buyers = [each for each in self.wallets if each.holds]
        if buyers:
            buyer = self.draw.choice(buyers)
            job_id = self.draw.choice(sorted(buyer.holds))
            amount, _ = buyer.holds.pop(job_id)
            device = await on(self.market, job_id, wallet.user)
            await self.market.jobs.complete(device, job_id, "done")
            pay = amount * 9 // 10
            if buyer is wallet:
                wallet.other += pay
            else:
                wallet.earned += pay
                wallet.all_earned += pay

    async def correct(self, wallet: Wallet) -> None:
        amount = self.draw.randint(-100, 100) or 1
        if amount < 0:
            amount = -min(-amount, wallet.other + wallet.earned)
        if amount:
            reference = self.market.identifiers.new()
            await corrected(
                self.market,
                ROOT,
                wallet.user,
                amount,
                currency=CREDIT,
                reference=reference,
                limits=LIMITS,
            )
        if amount > 0:
            wallet.other += amount
        else:
            part = min(-amount, wallet.earned)
            wallet.earned -= part
            wallet.other -= -amount - part

    async def request(self, wallet: Wallet) -> None:
        amount = self.draw.randint(10, 120)
        new = Request(CREDIT, amount * MICRO, wallet.method.id)
        if amount > wallet.earned:
            with pytest.raises(MarketError) as caught:
                await self.market.payouts.request(wallet.user, new)
            assert caught.value.code in (Code.PAYOUT_TOO_LARGE, Code.PAYOUT_NOT_PERMITTED)
            return
        row = await self.market.payouts.request(wallet.user, new)
        wallet.earned -= amount
        wallet.payouts[row.id] = (row, "requested")

    async def decide(self, wallet: Wallet) -> None:
        for name, (row, state) in list(wallet.payouts.items()):
            if state == "requested":
                word = self.draw.choice(("approve", "approve", "reject", "cancel", "crash"))
                if word == "approve":
                    await self.market.store.write(steps.approve, self.market.context, name)
                    wallet.payouts[name] = (row, "approved")
                elif word == "crash":
                    await self.crash(steps.cancel, name)
                else:
                    if word == "reject":
                        reason = RejectReason.TERMS_BROKEN
                        write = self.market.store.write
                        await write(steps.reject, self.market.context, name, reason)
                    else:
                        await self.market.payouts.cancel(wallet.user, name)
                    del wallet.payouts[name]
                    wallet.earned += row.amount // MICRO
                return

    async def settle(self, wallet: Wallet) -> None:
        for name, (row, state) in list(wallet.payouts.items()):
            amount = row.amount // MICRO
            if state == "approved":
                await send(self.market, row)
                wallet.payouts[name] = (row, "sent")
                return
            if state in ("sent", "paid") and self.draw.random() < 0.8:
                word = self.draw.choice(("pay", "pay", "fail", "crash"))
                context = self.market.context
                if word == "crash":
                    await self.crash(steps.pay, name)
                elif word == "pay":
                    await self.market.store.write(steps.pay, context, name)
                    wallet.paid += amount * (state == "sent")
                    wallet.payouts[name] = (row, "paid")
                else:
                    await self.market.store.write(steps.fail, context, name, FailReason.RETURNED)
                    wallet.earned += amount
                    wallet.paid -= amount * (state == "paid")
                    del wallet.payouts[name]
                return

    async def crash(self, step: object, payout_id: str) -> None:
        """Carry a step out, and end before its commit."""

        async def unit(tx: Transaction) -> None:
            await step(tx, self.market.context, payout_id)  # type: ignore[operator]
            raise _CrashError

        with pytest.raises(_CrashError):
            await self.market.store.write(unit)

    async def check(self) -> None:
        """Compare every balance with the model."""
        for wallet in self.wallets:
            assert await earned_part(self.market, wallet.user) == wallet.earned * MICRO
            found = await available(self.market, wallet.user, CREDIT)
            assert found == (wallet.earned + wallet.other) * MICRO
            assert wallet.paid <= wallet.all_earned
            self.most_paid = max(self.most_paid, wallet.paid)
        paid = sum(wallet.paid for wallet in self.wallets) * MICRO // 100
        assert await balance(self.market, ledger.payouts()) == paid


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_more_leaves_than_was_earned(market: Market, seed: int) -> None:
    story = Story(market, seed)
    await story.begin()
    for number in range(STEPS):
        await story.step()
        await story.check()
        if number % AUDIT_STEPS == 0:
            report = await audit_ledger(market.store)
            assert report.passed, report
    assert story.most_paid > 0


class _Service:
    """Payouts by a payment service, with its faults, and the truth that only the service has."""

    def __init__(self, market: Market, seed: int) -> None:
        self.market = market
        self.draw = random.Random(seed)
        self.bank = Bank()
        self.bank.batch_max = (1, 3)[seed % 2]
        self.rounds = ProviderRounds(market.context, PAYOUT_METHODS, self.bank)
        self.rows: list[PayoutRow] = []
        self.doubts = 0

    async def step(self) -> None:
        """Change the world, and run a round."""
        bank, draw = self.bank, self.draw
        word = draw.choice(("new", "new", "wrong", "lost", "crash", "poor", "down", "well", "end"))
        if word in ("new", "wrong"):
            self.rows.append(await approved(self.market, self.user))
            bank.refused |= {self.rows[-1].id} if word == "wrong" else set()
            bank.names_refused = draw.random() < 0.5
        elif word == "end":
            for order in self.sent():
                failed = FailReason.RETURNED if draw.random() < 0.3 else None
                bank.progress.setdefault(order.payout_id, Progress(failed is None, failed))
        else:
            bank.forgets_answers, bank.after_send, bank.error = word == "lost", _well, None
            if word == "crash":
                bank.after_send = _crash
            elif word in ("poor", "down"):
                bank.error = ProviderError(word, is_final=word == "poor")
        await self.round()

    async def begin(self) -> None:
        self.user = await self.market.person()
        details = Details(email="ada@example.com")
        await self.market.payouts.add_method(self.user, MethodKind.PAYPAL, details)

    async def round(self) -> None:
        self.market.clock.now += CLAIM_SECONDS
        with contextlib.suppress(_CrashError):
            await self.rounds.run()

    def sent(self) -> list[Order]:
        return [order for orders in self.bank.batches.values() for order in orders]

    async def check(self) -> None:
        """No payout is sent twice, and none whose money is back was sent for good."""
        sent = [order.payout_id for order in self.sent()]
        assert len(sent) == len(set(sent))
        for row in self.rows:
            progress = self.bank.progress.get(row.id, Progress())
            state = await state_of(self.market, row.id)
            if state == "failed":
                assert row.id not in sent or progress.failed is not None
            if state == "paid":
                assert row.id in sent
                assert progress.is_paid

    async def finish(self) -> None:
        """Let all end: the service works again, and the staff decides doubtful batches by it."""
        bank, context = self.bank, self.market.context
        bank.forgets_answers, bank.after_send, bank.error = False, _well, None
        bank.refused.clear()
        for _ in range(6):
            for order in self.sent():
                bank.progress.setdefault(order.payout_id, Progress(is_paid=True))
            await self.round()
        for doubt in await paying.doubtful(context, ROOT, limit=99):
            self.doubts += 1
            lines = [
                Line(2, row.id, row.net, Outcome.PAID, None)
                if bank.progress.get(row.id, Progress()).is_paid
                else Line(2, row.id, row.net, Outcome.FAILED, FailReason.NOT_SENT)
                for row in doubt.rows
                if row.state == "sent"
            ]
            await paying.book(context, ROOT, lines, LIMITS)
        assert await paying.doubtful(context, ROOT, limit=99) == []


def _well() -> None:
    pass


def _crash() -> None:
    raise _CrashError


async def test_no_fault_of_a_payment_service_pays_a_payout_twice(market: Market) -> None:
    ends, doubts = set(), 0
    for seed in range(4):
        service = _Service(market, seed)
        await service.begin()
        for _ in range(30):
            await service.step()
            await service.check()
        await service.finish()
        await service.check()
        ends |= {await state_of(market, row.id) for row in service.rows}
        doubts += service.doubts
    assert ends == {"paid", "failed"}
    assert doubts
    report = await audit_ledger(market.store)
    assert report.passed, report

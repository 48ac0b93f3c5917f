"""Accounts at a payment service as payout methods: opened once, used when they are complete."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from support.base.clock import Clock
from support.market.market import PAYOUT_METHODS, Market
from support.market.payouts import confirm, earn, earned_part, request, state_of

from market.base.errors import Code, MarketError
from market.money.audit import audit_ledger
from market.money.money import MICRO
from market.payments.provider import ProviderError
from market.payouts.providers import Order, Progress, ProviderRounds, Refusal
from market.payouts.steps import approve
from market.payouts.terms import FailReason, MethodKind, PayoutTerms
from storage.engines.store import Store

WEEK = 7 * 86_400
pytestmark = pytest.mark.both_engines


class Service:
    """A payment service with accounts, in memory."""

    name = "stripe"
    kind = MethodKind.STRIPE
    batch_max = 1
    remembers_seconds = 29 * 86_400

    def __init__(self) -> None:
        self.accounts: dict[str, bool] = {}
        self.transfers: dict[str, Order] = {}
        self.reversed: set[str] = set()
        self.is_away = False

    async def open_account(self, key: str) -> str:
        self._require()
        self.accounts.setdefault(f"acct_{key}", False)
        return f"acct_{key}"

    async def link(self, account_id: str, return_url: str) -> str:
        self._require()
        return f"https://pay.example/{account_id}?to={return_url}"

    async def is_ready(self, account_id: str) -> bool:
        self._require()
        return self.accounts[account_id]

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        [order] = orders
        self.transfers[f"tr_{batch_id}"] = order
        return f"tr_{batch_id}"

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        payout_id, progress = await self.payout_of(outside_id)
        return {payout_id: progress}

    async def payout_of(self, transfer_id: str) -> tuple[str, Progress]:
        self._require()
        if transfer_id not in self.transfers:
            raise ProviderError("no such transfer", is_final=True)
        failed = FailReason.RETURNED if transfer_id in self.reversed else None
        return self.transfers[transfer_id].payout_id, Progress(failed is None, failed)

    async def close(self) -> None:
        pass

    def _require(self) -> None:
        if self.is_away:
            raise ProviderError("no answer in time")


def with_accounts(store: Store) -> tuple[Market, Service]:
    """Return a marketplace that pays to accounts at a service."""
    service = Service()
    market = Market(store, Clock(), connect=service)
    market.payouts.terms = PayoutTerms(methods=frozenset((MethodKind.STRIPE,)))
    return market, service


async def code_of(work: object) -> Code:
    with pytest.raises(MarketError) as caught:
        await work  # type: ignore[misc]
    return caught.value.code


async def test_an_account_is_opened_completed_paid_and_a_transfer_comes_back(store: Store) -> None:
    market, service = with_accounts(store)
    user = await market.person()
    await confirm(market, user)
    await earn(market, user, 2_000)
    both = await asyncio.gather(*(market.payouts.connect(user) for _ in range(2)))
    assert len({each.url for each in both}) == len(service.accounts) == 1
    method = (await market.payouts.connect(user)).method
    assert method.kind == MethodKind.STRIPE
    assert user[:8] not in method.shown
    market.clock.now += WEEK
    assert await code_of(request(market, user, method)) is Code.PAYOUT_NOT_PERMITTED
    [account_id] = service.accounts
    service.accounts[account_id], service.is_away = True, True
    assert await code_of(request(market, user, method)) is Code.PAYMENT_PROVIDER_AWAY
    assert await code_of(market.payouts.connect(user)) is Code.PAYMENT_PROVIDER_AWAY
    service.is_away = False
    row = await request(market, user, method)
    await market.store.write(approve, market.context, row.id)
    rounds = ProviderRounds(market.context, PAYOUT_METHODS, service)
    assert await rounds.run() == 1
    assert await state_of(market, row.id) == "paid"
    [transfer_id] = service.transfers
    # A notice is no proof: the service knows better, and other names change nothing.
    for name in (transfer_id, "tr_none"):
        await market.payouts.look_at_transfer(name)
    assert await state_of(market, row.id) == "paid"
    service.transfers["tr_other"] = service.transfers[transfer_id]
    service.reversed.update((transfer_id, "tr_other"))
    await market.payouts.look_at_transfer("tr_other")
    assert await state_of(market, row.id) == "paid"
    for _ in range(2):
        await market.payouts.look_at_transfer(transfer_id)
    assert await state_of(market, row.id) == "failed"
    assert await earned_part(market, user) == 1_800 * MICRO
    report = await audit_ledger(store)
    assert report.passed, report
    market.passwords.close()


async def test_an_account_that_is_added_again_is_the_same_and_waits_again(store: Store) -> None:
    market, service = with_accounts(store)
    user = await market.person()
    first = (await market.payouts.connect(user)).method
    await market.payouts.remove_method(user, first.id)
    market.clock.now += WEEK
    again = (await market.payouts.connect(user)).method
    assert again.id != first.id
    assert again.usable_at == market.clock.now + market.payouts.terms.method_wait_seconds
    assert len(service.accounts) == 1
    market.payouts.terms = PayoutTerms(methods=frozenset((MethodKind.BANK,)))
    assert await code_of(market.payouts.connect(user)) is Code.PAYOUTS_NOT_OFFERED
    market.passwords.close()

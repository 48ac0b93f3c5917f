"""The statement of a wallet sums to its balance, page by page, on both engines."""

from typing import get_args, get_type_hints

import pytest
from msgspec.structs import replace
from support.market.market import Market
from support.market.payouts import earn_usd, earner, send

from api.money.wallet import TransactionItem
from market.accounts.accounts import spendable
from market.accounts.wallet import UNSEEN, WORDS, Change
from market.deploys.deploys import NewDeploy
from market.jobs.postings import NewJob
from market.money.ledger import TransferKind
from market.money.money import GB, MICRO, Currency
from market.payouts import steps
from market.payouts.payouts import Request
from market.payouts.terms import FailReason
from storage.engines.store import Transaction


async def in_pages(market: Market, user: str, limit: int) -> list[Change]:
    """Return the whole statement of a user, read in pages."""
    changes: list[Change] = []
    before = ""
    while page := await market.wallet.page(user, before=before, limit=limit):
        changes += page
        before = page[-1].id
    return changes


async def test_a_wallet_in_pages_sums_to_its_balance(market: Market) -> None:
    user = await market.person(usd="3", credit="100")
    await market.person(usd="5", credit="5")
    jobs = [
        await market.jobs.create(user, NewJob("x", "script", number * MICRO, 1, "", ""))
        for number in range(1, 8)
    ]
    for job_id in jobs[::2]:
        await market.jobs.cancel(user, job_id)
    changes = await in_pages(market, user, 3)
    assert len(changes) == 2 + 7 + 4
    assert [change.id for change in changes] == sorted((c.id for c in changes), reverse=True)
    _, balance = await market.store.read(spendable, user)
    for currency in Currency:
        total = sum(change.amount for change in changes if change.currency is currency)
        assert total == balance[currency]


@pytest.mark.both_engines
async def test_no_page_cuts_a_transfer_that_has_two_entries_of_the_wallet(market: Market) -> None:
    """A payout that a bank sends back returns its amount and its fee."""
    terms = replace(
        market.payouts.terms, minimum=MICRO // 2, fee=MICRO // 10, a_day=10, automatic=0
    )
    market.payouts.terms = terms
    user, method = await earner(market, 10)
    for _ in range(4):
        await earn_usd(market, user)
    sent = [
        await market.payouts.request(user, Request(Currency.USD, 600_000, method.id))
        for _ in range(4)
    ]
    for row in sent:
        await market.store.write(steps.approve, market.context, row.id)
        await send(market, row)
        await market.store.write(steps.pay, market.context, row.id)
    market.clock.now += 1
    for row in sent:
        await market.store.write(steps.fail, market.context, row.id, FailReason.RETURNED)
        market.clock.now += 1
    whole = await market.wallet.page(user, before="", limit=1_000)
    _, balance = await market.store.read(spendable, user)
    for limit in range(1, 8):
        changes = await in_pages(market, user, limit)
        assert changes == whole, limit
        usd = sum(change.amount for change in changes if change.currency is Currency.USD)
        assert usd == balance[Currency.USD], limit


async def kinds(tx: Transaction) -> set[str]:
    return set(await tx.all(str, "SELECT DISTINCT kind FROM transfers"))


@pytest.mark.both_engines
async def test_everything_that_the_product_posts_is_told_apart(market: Market) -> None:
    """But rewards, refunds, debts and acts of the staff: other tests have them."""
    buyer, worker = await market.person(usd="20", credit="20"), await market.person()
    await market.referrals.apply(worker, (await market.referrals.standing(buyer)).code)
    bought = await market.bandwidth.buy(buyer, quota_bytes=GB, price_per_gb=None)
    await market.bandwidth.end(buyer, bought.session_id)
    deploy = await market.deploys.create(
        buyer, NewDeploy("x", "Script", "T4", 1, 1, 1, Currency.USD)
    )
    [job] = (await market.deploys.find(buyer, deploy.id)).replicas
    token = await market.devices.create(
        worker, name="rig", device_type="server", min_price_usd=None
    )
    device = await market.devices.authenticate(token.token)
    await market.jobs.accept(device, job.job_id)
    await market.jobs.complete(device, job.job_id, "done")
    posted = await market.store.read(kinds)
    assert posted == {str(kind) for kind in TransferKind} - {
        TransferKind.AWARD,
        TransferKind.REWARD,
        TransferKind.REFUND,
        TransferKind.DEPOSIT_REFUND,
        TransferKind.CORRECTION,
        TransferKind.DEBT,
        *UNSEEN,
    }


def test_every_kind_of_transfer_has_a_word_of_its_own_in_the_interface() -> None:
    words = get_args(get_type_hints(TransactionItem)["kind"])
    assert {WORDS.get(kind, kind) for kind in {*TransferKind} - UNSEEN} == {*words} - {"other"}

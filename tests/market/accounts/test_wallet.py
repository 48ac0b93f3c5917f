"""The statement of a wallet sums to its balance, page by page, on both engines."""

from typing import get_args, get_type_hints

import pytest
from support.market.market import Market

from api.money.wallet import TransactionItem
from market.accounts.accounts import spendable
from market.accounts.wallet import UNSEEN, WORDS
from market.deploys.deploys import NewDeploy
from market.jobs.postings import NewJob
from market.money.ledger import TransferKind
from market.money.money import GB, MICRO, Currency
from storage.engines.store import Transaction


async def test_a_wallet_in_pages_sums_to_its_balance(market: Market) -> None:
    user, wallet = await market.person(usd="3", credit="100"), market.wallet
    await market.person(usd="5", credit="5")
    jobs = [
        await market.jobs.create(user, NewJob("x", "script", number * MICRO, 1, "", ""))
        for number in range(1, 8)
    ]
    for job_id in jobs[::2]:
        await market.jobs.cancel(user, job_id)
    changes, before = [], ""
    while page := await wallet.page(user, before=before, limit=3):
        changes += page
        before = page[-1].id
    assert len(changes) == 2 + 7 + 4
    assert [change.id for change in changes] == sorted((c.id for c in changes), reverse=True)
    _, balance = await market.store.read(spendable, user)
    for currency in Currency:
        total = sum(change.amount for change in changes if change.currency is currency)
        assert total == balance[currency]


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

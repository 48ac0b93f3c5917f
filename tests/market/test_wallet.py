"""The statement of a wallet sums to its balance, page by page, on both engines."""

from support.market import Market

from market.accounts import spendable
from market.jobs import NewJob
from market.money import MICRO, Currency
from market.wallet import Wallet


async def test_a_wallet_in_pages_sums_to_its_balance(market: Market) -> None:
    user, wallet = await market.person(usd="3", credit="100"), Wallet(market.store)
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
    balance = await market.store.read(spendable, "person1@example.com")
    for currency in Currency:
        total = sum(change.amount for change in changes if change.currency is currency)
        assert total == balance[currency]

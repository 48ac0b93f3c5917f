"""One report has the checks of the ledger, of the staff's money, and of the staff's log."""

import pytest
from support.market.market import Market
from support.market.staff import ROOT

from market.money.audit import audit_ledger
from market.staff.audit import audit_all
from market.staff.base.chain import audit_log
from market.staff.finding import users
from market.staff.money.money_audit import audit_money
from storage.engines.store import Transaction


async def test_the_report_has_the_checks_of_all(market: Market) -> None:
    await users.view(market.context, ROOT, await market.person())
    ledger, log = await audit_ledger(market.store), await audit_log(market.store)
    report = await audit_all(market.store)
    assert report.checks == ledger.checks + await audit_money(market.store) + log.checks
    assert report.accounts == ledger.accounts


@pytest.mark.both_engines
async def test_a_difference_in_the_log_fails_the_report(market: Market) -> None:
    async def advance_the_head(tx: Transaction) -> None:
        await tx.run("UPDATE staff_log_head SET number = number + 1, hash = 'x'")

    await market.store.write(advance_the_head)
    assert (await audit_ledger(market.store)).passed
    assert not (await audit_all(market.store)).passed

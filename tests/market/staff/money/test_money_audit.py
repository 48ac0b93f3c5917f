"""The audit finds an amount of the staff that the ledger does not have, and the reverse."""

import pytest
from support.market.market import Market
from support.market.staff_money import ASKER, SECOND, corrected, deposited, refunded

from market.staff.money import money_audit
from market.staff.money.money_audit import audit_money
from market.staff.money.second_person import approve
from storage.engines.store import Transaction


@pytest.mark.parametrize("engine", ["sqlite"])
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE staff_money SET amount = 2 WHERE action = 'money.correct'", "expected 0.000002"),
        ("DELETE FROM staff_money WHERE action = 'money.correct'", "expected 0.00, found 5.00"),
        ("UPDATE staff_money SET user_id = 'other'", "the money of another user"),
        ("UPDATE entries SET amount = 30 WHERE debit_account LIKE 'user:%'", "found -0.00003"),
        (
            "UPDATE entries SET amount = 1 WHERE debit_account = 'house:deposits:usd'",
            "expected 0.000001, found 3.00",
        ),
        ("UPDATE approvals SET payload = '{}'", "its payload was changed"),
        ("UPDATE approvals SET amount = 61", "expected 0.000061, found 60.00"),
        ("UPDATE approvals SET asked_by = 'unix:second2'", "expected 60.00, found 0.00"),
        ("UPDATE approvals SET decision = 'refused'", "its approval is missing"),
        (
            "UPDATE accounts SET balance = 0 WHERE id = 'house:corrections:usd'",
            "house:corrections:usd: expected -65.00, found 0.00",
        ),
    ],
)
async def test_each_difference_is_found(market: Market, statement: str, words: str) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 10)
    await corrected(market, ASKER, user, 5)
    await refunded(market, ASKER, user, 3, deposit=deposit)
    asked = await corrected(market, ASKER, user, 60)
    await approve(market.context, SECOND, asked.id)
    assert not any(check.differences for check in await audit_money(market.store))
    undo: list[str] = []

    async def tamper(tx: Transaction) -> None:
        await tx.run("PRAGMA defer_foreign_keys = ON")
        triggers = await tx.all(
            lambda *row: row, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        )
        for name, _ in triggers:
            await tx.run(f"DROP TRIGGER {name}")
        await tx.run(statement)
        found = await money_audit._audit(tx)
        assert words in "\n".join(line for check in found for line in check.differences)
        undo.append("found")
        raise UndoneError

    with pytest.raises(UndoneError):
        await market.store.write(tamper)
    assert undo == ["found"]


class UndoneError(Exception):
    """Rolls the change back, so that the audit at the end of the test passes."""

"""Queries on the money that acts of the staff have moved."""

from typing import NamedTuple

from storage.engines.store import Transaction
from storage.money.ledger import DifferenceRow, differences


class MoneyRow(NamedTuple):  # as wide as its table
    """An amount that an act moved: micro-units that the user got, negative for money taken."""

    business_key: str
    id: str
    action: str
    user_id: str
    currency: str
    amount: int
    payload_hash: str
    author: str
    approval_id: str | None
    deposit_id: str | None
    created_at: int


_COLUMNS = ", ".join(MoneyRow._fields)


async def find(tx: Transaction, business_key: str) -> MoneyRow | None:
    """Return the amount with a business key."""
    return await tx.one(
        MoneyRow, f"SELECT {_COLUMNS} FROM staff_money WHERE business_key = :key", key=business_key
    )


async def unapproved_of_author(tx: Transaction, author: str, currency: str, since: int) -> int:
    """Return the sum that an author has moved alone after a time; both directions add up."""
    return await _unapproved(tx, "author", author, currency, since)


async def unapproved_of_user(tx: Transaction, user_id: str, currency: str, since: int) -> int:
    """Return the sum that single members of the staff have moved for a user after a time."""
    return await _unapproved(tx, "user_id", user_id, currency, since)


async def _unapproved(tx: Transaction, column: str, value: str, currency: str, since: int) -> int:
    found = await tx.one(
        int,
        f"""
        SELECT CAST(COALESCE(SUM(ABS(amount)), 0) AS BIGINT) FROM staff_money
        WHERE {column} = :value AND currency = :currency AND created_at > :since
            AND approval_id IS NULL AND author NOT LIKE 'rule:%'
        """,
        value=value,
        currency=currency,
        since=since,
    )
    return found or 0


# Each transfer of these kinds is an act, and each such act is a transfer of its amount. Deposits
# before the first act of this kind were none.
_POSTED = """
    SELECT t.business_key AS reference,
        CASE WHEN e.debit_account LIKE 'user:%' OR e.debit_account LIKE 'house:losses:%'
            THEN -e.amount ELSE e.amount END AS amount
    FROM transfers AS t JOIN entries AS e ON e.transfer_id = t.id
    WHERE t.kind IN ('deposit_refund', 'correction', 'award')
        OR (t.kind = 'deposit' AND t.business_key LIKE 'deposit:%'
            AND t.business_key NOT LIKE 'deposit:payment:%'
            AND t.id >= (SELECT MIN(id) FROM staff_money WHERE action = 'money.deposit'))
"""


async def acts_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each deposit, refund or correction that differs from its transfer, or has none."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT business_key AS reference, amount FROM staff_money
            WHERE action IN ('money.deposit', 'money.refund', 'money.correct', 'case.decide')
            """,
            _POSTED,
        ),
    )


async def acts_of_others(tx: Transaction) -> list[DifferenceRow]:
    """Return each deposit, refund or correction whose transfer moved the money of another user."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT m.business_key, 1, 0 FROM staff_money AS m
        JOIN transfers AS t ON t.business_key = m.business_key
        WHERE m.action IN ('money.deposit', 'money.refund', 'money.correct', 'case.decide')
            AND NOT EXISTS (
            SELECT 1 FROM entries AS e WHERE e.transfer_id = t.id
                AND 'user:' || m.user_id || ':available:' || m.currency
                    IN (e.debit_account, e.credit_account)
        ) AND NOT EXISTS (
            SELECT 1 FROM earning_debts AS d WHERE d.id = t.id AND d.user_id = m.user_id
        )
        ORDER BY m.business_key
        """,
    )


async def corrections_against_house(tx: Transaction) -> list[DifferenceRow]:
    """Return each account for corrections that is not minus the sum of all corrections."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'house:corrections:' || currency AS reference, -amount AS amount
            FROM staff_money WHERE action IN ('money.correct', 'case.decide')
            """,
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'corrections'",
        ),
    )


async def refunded_too_much(tx: Transaction) -> list[DifferenceRow]:
    """Return each deposit whose refunds exceed the amount that was paid in."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT t.business_key, e.amount, r.amount
        FROM (
            SELECT deposit_id, CAST(SUM(amount) AS BIGINT) AS amount FROM (
                SELECT deposit_id, -amount AS amount FROM staff_money
                WHERE deposit_id IS NOT NULL
                UNION ALL SELECT deposit_id, taken FROM payment_returns
            ) AS returned
            GROUP BY deposit_id
        ) AS r
        JOIN transfers AS t ON t.id = r.deposit_id
        JOIN entries AS e ON e.transfer_id = t.id
        WHERE r.amount > e.amount OR t.kind <> 'deposit'
        ORDER BY t.business_key
        """,
    )


async def approvals_against_acts(tx: Transaction) -> list[DifferenceRow]:
    """Return each approved request whose act has another amount or user, or does not exist.

    The act of a closing or an erasure is the account that was closed or erased by then.
    """
    return await tx.all(
        DifferenceRow,
        """
        SELECT a.id, a.amount, COALESCE(m.amount, 0) FROM approvals AS a
        LEFT JOIN staff_money AS m ON m.approval_id = a.id
            AND m.business_key = a.business_key AND m.user_id = a.user_id
            AND m.currency = a.currency AND m.action = a.action AND m.author = a.asked_by
            AND m.payload_hash = a.payload_hash
        LEFT JOIN closures AS c ON c.user_id = a.user_id
        WHERE a.decision = 'approved' AND CASE a.action
            WHEN 'user.erase' THEN c.user_id IS NULL OR c.state <> 'erased'
            WHEN 'user.close' THEN c.user_id IS NULL OR c.closed_at < a.decided_at
            ELSE m.amount IS NULL OR m.amount <> a.amount END
        ORDER BY a.id
        """,
    )


async def acts_without_approval(tx: Transaction) -> list[DifferenceRow]:
    """Return each act that names a request which was not approved."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT m.business_key, 1, 0 FROM staff_money AS m
        JOIN approvals AS a ON a.id = m.approval_id
        WHERE a.decision IS NULL OR a.decision <> 'approved' OR a.decided_by = a.asked_by
        ORDER BY m.business_key
        """,
    )

"""Queries on the double-entry ledger: accounts, transfers, entries, holds."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row


class EntryRow(NamedTuple):
    """One debit and its credit: `amount` micro-units leave one account and reach the other.

    `earned` is the change of earned money: above 0 in the credited account, else in the debited.
    """

    currency: str
    debit_account: str
    credit_account: str
    amount: int
    earned: int = 0


class HoldRow(NamedTuple):
    """Money set aside for unfinished work; `captured` is null while the hold is open.

    `earned` is the part of the amount that its user has earned.
    """

    id: str
    user_id: str
    currency: str
    amount: int
    captured: int | None
    earned: int = 0


class BalanceRow(NamedTuple):
    """The balance of an account, and the part of it that was earned, in micro-units."""

    balance: int
    earned: int


class DifferenceRow(NamedTuple):
    """Difference that an audit found: the expected sum, and the stored one."""

    reference: str
    expected: int
    actual: int


class MovedRow(NamedTuple):
    """Change of a user's account by a transfer: micro-units, negative for money that left it.

    `earned` is the part of `amount` that is earned money, with the same sign.
    """

    id: str
    created_at: int
    kind: str
    reference: str
    currency: str
    amount: int
    earned: int


class TotalRow(NamedTuple):
    """The sum of the balances of all accounts of a kind and currency, in micro-units."""

    kind: str
    currency: str
    amount: int


async def insert_accounts(tx: Transaction, accounts: list[tuple[str, str, str, str]]) -> None:
    """Open accounts, each `(id, user_id, kind, currency)`, at zero."""
    for account, user_id, kind, currency in accounts:
        await insert_row(tx, "accounts", id=account, user_id=user_id, kind=kind, currency=currency)


async def insert_transfer(
    tx: Transaction,
    *,
    transfer_id: str,
    business_key: str,
    kind: str,
    reference: str,
    created_at: int,
) -> bool:
    """Begin a transfer; False when one with this business key was posted before."""
    row_count = await tx.run(
        """
        INSERT INTO transfers (id, business_key, kind, reference, created_at)
        VALUES (:id, :business_key, :kind, :reference, :created_at)
        ON CONFLICT (business_key) DO NOTHING
        """,
        id=transfer_id,
        business_key=business_key,
        kind=kind,
        reference=reference,
        created_at=created_at,
    )
    return row_count == 1


async def insert_entry(tx: Transaction, transfer_id: str, line: int, entry: EntryRow) -> None:
    """Move money between two accounts.

    Raises:
        ConstraintError: `accounts_never_negative`, when the debited user has less.
    """
    await insert_row(tx, "entries", transfer_id=transfer_id, line=line, **entry._asdict())


async def insert_entries(tx: Transaction, transfer_id: str, entries: Sequence[EntryRow]) -> None:
    """Move money between several accounts, in one statement; raises as `insert_entry`."""
    columns = {
        "line": "BIGINT",
        "currency": "TEXT",
        "debit_account": "TEXT",
        "credit_account": "TEXT",
        "amount": "BIGINT",
        "earned": "BIGINT",
    }
    await tx.run(
        f"""
        INSERT INTO entries (
            transfer_id, line, currency, debit_account, credit_account, amount, earned
        )
        SELECT CAST(:transfer_id AS TEXT), line, currency, debit_account, credit_account, amount,
            earned
        FROM {tx.table("moved", **columns)}
        """,
        transfer_id=transfer_id,
        moved=json.dumps([{"line": at, **entry._asdict()} for at, entry in enumerate(entries)]),
    )


async def find_entries(tx: Transaction, business_key: str) -> list[EntryRow]:
    """Return the entries of a transfer, in order."""
    return await tx.all(
        EntryRow,
        """
        SELECT e.currency, e.debit_account, e.credit_account, e.amount, e.earned
        FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
        WHERE t.business_key = :business_key
        ORDER BY e.line
        """,
        business_key=business_key,
    )


async def insert_hold(tx: Transaction, hold: HoldRow, created_at: int) -> None:
    """Record an open hold."""
    await insert_row(
        tx,
        "holds",
        id=hold.id,
        user_id=hold.user_id,
        currency=hold.currency,
        amount=hold.amount,
        earned=hold.earned,
        created_at=created_at,
    )


async def resolve_hold(
    tx: Transaction, hold_id: str, *, captured: int, resolved_at: int
) -> HoldRow | None:
    """Resolve an open hold and return it; None when it is not open.

    Args:
        tx: the transaction.
        hold_id: the hold.
        captured: the part that is paid now, beside earlier draws.
        resolved_at: UTC seconds.
    """
    return await tx.one(
        HoldRow,
        """
        UPDATE holds SET captured = drawn + CAST(:captured AS BIGINT), resolved_at = :resolved_at
        WHERE id = :id AND resolved_at IS NULL
        RETURNING id, user_id, currency, amount, captured, earned
        """,
        id=hold_id,
        captured=captured,
        resolved_at=resolved_at,
    )


async def draw_from_hold(tx: Transaction, hold_id: str, amount: int) -> HoldRow | None:
    """Record that some of an open hold is paid now, and return it; None when it is not open.

    Raises:
        ConstraintError: `holds_drawn_within`, when it has less left.
    """
    return await tx.one(
        HoldRow,
        """
        UPDATE holds SET drawn = drawn + :amount WHERE id = :id AND resolved_at IS NULL
        RETURNING id, user_id, currency, amount, captured, earned
        """,
        id=hold_id,
        amount=amount,
    )


async def find_hold(tx: Transaction, hold_id: str) -> HoldRow | None:
    """Return a hold."""
    return await tx.one(
        HoldRow,
        "SELECT id, user_id, currency, amount, captured, earned FROM holds WHERE id = :id",
        id=hold_id,
    )


async def left_in_hold(tx: Transaction, hold_id: str) -> int:
    """Return the rest of an open hold, in micro-units of its currency; 0 when it is not open."""
    left = await tx.one(
        int,
        "SELECT amount - drawn FROM holds WHERE id = :id AND resolved_at IS NULL",
        id=hold_id,
    )
    return left or 0


async def balance(tx: Transaction, account: str) -> int | None:
    """Return the balance of an account, in micro-units."""
    return await tx.one(int, "SELECT balance FROM accounts WHERE id = :account", account=account)


async def balances(tx: Transaction, account: str) -> BalanceRow:
    """Return the balance of an account, and the earned part of it; zeros if it does not exist."""
    row = await tx.one(
        BalanceRow, "SELECT balance, earned FROM accounts WHERE id = :account", account=account
    )
    return row or BalanceRow(0, 0)


async def add_earned(
    tx: Transaction, user_id: str, currency: str, amount: int, *, now: int
) -> None:
    """Add micro-units to the total that a user has earned in a currency.

    The caller has locked the account that receives them.
    """
    await tx.run(
        """
        INSERT INTO earned_totals (user_id, currency, total, first_at)
        VALUES (:user_id, :currency, :amount, :now)
        ON CONFLICT (user_id, currency) DO UPDATE SET total = earned_totals.total + excluded.total
        """,
        user_id=user_id,
        currency=currency,
        amount=amount,
        now=now,
    )


# Both sides of both accounts. Each part is a range of an index that has all its columns; the
# currency is the account's, so the row itself need not be read for it. A transfer can have several
# entries at one side of an account, so the limit counts their sums.
_MOVED = " UNION ALL ".join(
    f"""
    SELECT * FROM (
        SELECT transfer_id, '{account}' AS currency, {sign}SUM(amount) AS amount FROM entries
        WHERE {side}_account = :{account} AND transfer_id < :before
        GROUP BY transfer_id
        ORDER BY transfer_id {NEWEST_FIRST}
        LIMIT :limit
    ) AS {side}_{account}
    """
    for account in ("usd", "credit")
    for side, sign in (("debit", "-"), ("credit", ""))
)

# The earned part of the entries of a transfer `t` at one side of an account; few entries have one,
# and an index has only these.
_EARNED = """(
    SELECT COALESCE(SUM(e.earned), 0) FROM entries AS e
    WHERE e.transfer_id = t.id AND e.earned {sign} 0
        AND e.{side}_account = CASE m.currency WHEN 'usd' THEN :usd ELSE :credit END
)"""


async def moved(
    tx: Transaction, *, usd: str, credit: str, before: str, limit: int
) -> list[MovedRow]:
    """Return the changes that transfers made to a user's two accounts, the latest first.

    Args:
        tx: the transaction.
        usd: the account in USD.
        credit: the account in credits.
        before: only transfers older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        MovedRow,
        f"""
        SELECT t.id, t.created_at, t.kind, t.reference, m.currency, m.amount,
            CAST({_EARNED.format(side="credit", sign=">")} AS BIGINT)
            + CAST({_EARNED.format(side="debit", sign="<")} AS BIGINT)
        FROM (
            SELECT transfer_id, currency, CAST(SUM(amount) AS BIGINT) AS amount
            FROM ({_MOVED}) AS sides
            GROUP BY transfer_id, currency
            ORDER BY transfer_id DESC, currency DESC
            LIMIT :limit
        ) AS m
        JOIN transfers AS t ON t.id = m.transfer_id
        ORDER BY t.id {NEWEST_FIRST}
        """,
        usd=usd,
        credit=credit,
        before=behind(before),
        limit=limit,
    )


async def count_accounts(tx: Transaction) -> int:
    """Return how many accounts there are."""
    return await tx.one(int, "SELECT COUNT(*) FROM accounts") or 0


async def count_transfers(tx: Transaction) -> int:
    """Return the number of all posted transfers."""
    return await tx.one(int, "SELECT COUNT(*) FROM transfers") or 0


def differences(expected: str, actual: str) -> str:
    """Return SQL for the references whose amounts differ between two lists.

    Both lists are read once and summed together, so the time grows with their length. A join could
    take their product: its planner may read all of one list for each row of the other.

    Args:
        expected: a query for `reference, amount`; rows of one reference add up.
        actual: another such query.
    """
    return f"""
        SELECT reference, CAST(SUM(expected) AS BIGINT), CAST(SUM(actual) AS BIGINT)
        FROM (
            SELECT reference, amount AS expected, 0 AS actual FROM ({expected}) AS expected_list
            UNION ALL
            SELECT reference, 0, amount FROM ({actual}) AS actual_list
        ) AS both_lists
        GROUP BY reference
        HAVING SUM(expected) <> SUM(actual)
        ORDER BY reference
    """


async def misstated_balances(tx: Transaction) -> list[DifferenceRow]:
    """Return each account whose stored balance is not the sum of its entries."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT credit_account AS reference, SUM(amount) AS amount
            FROM entries GROUP BY credit_account
            UNION ALL
            SELECT debit_account, -SUM(amount) FROM entries GROUP BY debit_account
            """,
            "SELECT id AS reference, balance AS amount FROM accounts",
        ),
    )


async def overdrawn(tx: Transaction) -> list[DifferenceRow]:
    """Return each user's account with a negative balance."""
    return await tx.all(
        DifferenceRow,
        "SELECT id, 0, balance FROM accounts WHERE user_id IS NOT NULL AND balance < 0 ORDER BY id",
    )


async def held_against_holds(tx: Transaction) -> list[DifferenceRow]:
    """Return each `held` account whose balance is not the sum of its user's open holds."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'user:' || user_id || ':held:' || currency AS reference, amount - drawn AS amount
            FROM holds WHERE resolved_at IS NULL
            """,
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'held'",
        ),
    )


def _postings(of: str, amount: str, only: str = "TRUE") -> str:
    """Return SQL for the holds whose transfer differs from an amount.

    Holds are read in their order, and each one's transfer by its unique key: nothing is sorted, and
    memory does not grow with their number.

    Args:
        of: the transfer of a hold: "hold", "capture" or "release".
        amount: SQL for the amount that the transfer should have moved.
        only: the holds to look at.
    """
    return f"""
        SELECT h.id, {amount}, CAST(COALESCE(SUM(e.amount), 0) AS BIGINT)
        FROM holds AS h
        LEFT JOIN transfers AS t ON t.business_key = h.id || ':{of}'
        LEFT JOIN entries AS e ON e.transfer_id = t.id
        WHERE {only}
        GROUP BY h.id
        HAVING {amount} <> COALESCE(SUM(e.amount), 0)
    """


async def holds_without_posting(tx: Transaction) -> list[DifferenceRow]:
    """Return each hold whose amount the ledger did not move to the user's held account."""
    return await tx.all(DifferenceRow, _postings("hold", "h.amount"))


async def resolutions_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each resolved hold whose capture, or whose release of the rest, is not in the ledger.

    A hold with both differences is listed twice.
    """
    is_resolved = "h.resolved_at IS NOT NULL"
    return [
        *await tx.all(DifferenceRow, _postings("capture", "h.captured - h.drawn", is_resolved)),
        *await tx.all(DifferenceRow, _postings("release", "h.amount - h.captured", is_resolved)),
    ]


async def holds_against_work(tx: Transaction) -> list[DifferenceRow]:
    """Return each open hold without open work (0 expected, 1 actual), and the reverse."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'bandwidth:' || id AS reference, 1 AS amount
            FROM bandwidth_sessions WHERE status = 'active'
            UNION ALL
            SELECT 'job:' || id, 1 FROM jobs WHERE status IN ('waiting', 'running')
            UNION ALL
            SELECT 'review:job:' || job_id
                || CASE WHEN is_draw = 1 THEN ':attempt:' || attempt ELSE '' END, 1
            FROM job_reviews WHERE state IN ('held', 'disputed')
            UNION ALL
            SELECT kind || ':' || id, 1 FROM payment_returns
            WHERE status = 'pending' AND held > 0
            UNION ALL
            SELECT 'payout:' || id, 1 FROM payouts
            WHERE state IN ('requested', 'approved', 'sent')
            """,
            "SELECT id AS reference, 1 AS amount FROM holds WHERE resolved_at IS NULL",
        ),
    )


async def totals(tx: Transaction) -> list[TotalRow]:
    """Sum the balances by kind and currency."""
    return await tx.all(
        TotalRow,
        """
        SELECT kind, currency, CAST(SUM(balance) AS BIGINT) FROM accounts
        GROUP BY kind, currency
        """,
    )

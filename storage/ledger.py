"""Queries on the double-entry ledger: accounts, transfers, entries, holds."""

from typing import NamedTuple

from storage.store import Transaction


class EntryRow(NamedTuple):
    """One debit and its credit: `amount` micro-units leave one account and reach the other."""

    currency: str
    debit_account: str
    credit_account: str
    amount: int


class HoldRow(NamedTuple):
    """Money set aside for work that is not done yet; `captured` is None while it is open."""

    id: str
    user_id: str
    currency: str
    amount: int
    captured: int | None


class BalanceRow(NamedTuple):
    """What an account says it holds, and what its entries add up to, in micro-units."""

    account: str
    stored: int
    recomputed: int


class DifferenceRow(NamedTuple):
    """A reference, with what it should be and what it is."""

    reference: str
    expected: int
    found: int


class MovedRow(NamedTuple):
    """What a transfer changed of a user's accounts: micro-units, below zero what left them."""

    id: str
    created_at: int
    business_key: str
    currency: str
    amount: int


class TotalRow(NamedTuple):
    """What all accounts of a kind and currency hold together, in micro-units."""

    kind: str
    currency: str
    amount: int


class CountRow(NamedTuple):
    """A single number."""

    number: int


async def insert_accounts(tx: Transaction, accounts: list[tuple[str, str, str, str]]) -> None:
    """Open accounts, each `(id, user_id, kind, currency)`, at zero."""
    for account, user_id, kind, currency in accounts:
        await tx.run(
            """
            INSERT INTO accounts (id, user_id, kind, currency)
            VALUES (:id, :user_id, :kind, :currency)
            """,
            id=account,
            user_id=user_id,
            kind=kind,
            currency=currency,
        )


async def insert_transfer(
    tx: Transaction, *, transfer_id: str, business_key: str, created_at: int
) -> bool:
    """Begin a transfer; False when one with this business key was posted before."""
    added = await tx.run(
        """
        INSERT INTO transfers (id, business_key, created_at)
        VALUES (:id, :business_key, :created_at)
        ON CONFLICT (business_key) DO NOTHING
        """,
        id=transfer_id,
        business_key=business_key,
        created_at=created_at,
    )
    return added == 1


async def insert_entry(tx: Transaction, transfer_id: str, line: int, entry: EntryRow) -> None:
    """Move money between two accounts.

    Raises:
        ConstraintError: `accounts_never_negative`, when the debited user has less.
    """
    await tx.run(
        """
        INSERT INTO entries (transfer_id, line, currency, debit_account, credit_account, amount)
        VALUES (:transfer_id, :line, :currency, :debit_account, :credit_account, :amount)
        """,
        transfer_id=transfer_id,
        line=line,
        **entry._asdict(),
    )


async def find_entries(tx: Transaction, business_key: str) -> list[EntryRow]:
    """Return the entries of a transfer, in order."""
    return await tx.all(
        EntryRow,
        """
        SELECT e.currency, e.debit_account, e.credit_account, e.amount
        FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
        WHERE t.business_key = :business_key
        ORDER BY e.line
        """,
        business_key=business_key,
    )


async def insert_hold(tx: Transaction, hold: HoldRow, created_at: int) -> None:
    """Record an open hold."""
    await tx.run(
        """
        INSERT INTO holds (id, user_id, currency, amount, created_at)
        VALUES (:id, :user_id, :currency, :amount, :created_at)
        """,
        id=hold.id,
        user_id=hold.user_id,
        currency=hold.currency,
        amount=hold.amount,
        created_at=created_at,
    )


async def resolve_hold(
    tx: Transaction, hold_id: str, *, captured: int, resolved_at: int
) -> HoldRow | None:
    """Resolve an open hold and return it; None when it is not open."""
    return await tx.one(
        HoldRow,
        """
        UPDATE holds SET captured = :captured, resolved_at = :resolved_at
        WHERE id = :id AND resolved_at IS NULL
        RETURNING id, user_id, currency, amount, captured
        """,
        id=hold_id,
        captured=captured,
        resolved_at=resolved_at,
    )


async def find_hold(tx: Transaction, hold_id: str) -> HoldRow | None:
    """Return a hold."""
    return await tx.one(
        HoldRow,
        "SELECT id, user_id, currency, amount, captured FROM holds WHERE id = :id",
        id=hold_id,
    )


async def balance(tx: Transaction, account: str) -> int | None:
    """Return what an account holds, in micro-units."""
    found = await tx.one(
        CountRow, "SELECT balance FROM accounts WHERE id = :account", account=account
    )
    return found.number if found is not None else None


_MOVED = " UNION ALL ".join(
    f"""
    SELECT * FROM (
        SELECT transfer_id, currency, {sign}amount AS amount FROM entries
        WHERE {side}_account = :{account} AND (:before = '' OR transfer_id < :before)
        ORDER BY transfer_id DESC
        LIMIT :limit
    ) AS {side}_{account}
    """
    for account in ("usd", "credit")
    for side, sign in (("debit", "-"), ("credit", ""))
)


async def moved(
    tx: Transaction, *, usd: str, credit: str, before: str, limit: int
) -> list[MovedRow]:
    """Return what transfers changed of two accounts, the latest transfer first.

    Args:
        tx: the transaction.
        usd: one account.
        credit: the other.
        before: only transfers older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        MovedRow,
        f"""
        SELECT t.id, t.created_at, t.business_key, m.currency, CAST(SUM(m.amount) AS BIGINT)
        FROM ({_MOVED}) AS m JOIN transfers AS t ON t.id = m.transfer_id
        GROUP BY t.id, t.created_at, t.business_key, m.currency
        ORDER BY t.id DESC
        LIMIT :limit
        """,
        usd=usd,
        credit=credit,
        before=before,
        limit=limit,
    )


async def count_transfers(tx: Transaction) -> int:
    """Return how many transfers were ever posted."""
    found = await tx.one(CountRow, "SELECT COUNT(*) FROM transfers")
    return found.number if found is not None else 0


async def recomputed_balances(tx: Transaction) -> list[BalanceRow]:
    """Return every account with the sum of its entries beside its stored balance."""
    return await tx.all(
        BalanceRow,
        """
        SELECT a.id, a.balance, CAST(COALESCE(SUM(moved.amount), 0) AS BIGINT)
        FROM accounts AS a
        LEFT JOIN (
            SELECT credit_account AS account, amount FROM entries
            UNION ALL
            SELECT debit_account, -amount FROM entries
        ) AS moved ON moved.account = a.id
        GROUP BY a.id, a.balance
        ORDER BY a.id
        """,
    )


async def held_against_holds(tx: Transaction) -> list[DifferenceRow]:
    """Return each `held` account whose balance is not the sum of its user's open holds."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT a.id, CAST(COALESCE(SUM(h.amount), 0) AS BIGINT) AS expected, a.balance
        FROM accounts AS a
        LEFT JOIN holds AS h
            ON h.user_id = a.user_id AND h.currency = a.currency AND h.resolved_at IS NULL
        WHERE a.kind = 'held'
        GROUP BY a.id, a.balance
        HAVING a.balance <> COALESCE(SUM(h.amount), 0)
        ORDER BY a.id
        """,
    )


async def holds_without_posting(tx: Transaction) -> list[DifferenceRow]:
    """Return each hold for which the ledger did not set aside its amount."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT h.id, h.amount, CAST(COALESCE(SUM(e.amount), 0) AS BIGINT) AS found
        FROM holds AS h
        LEFT JOIN transfers AS t ON t.business_key = h.id || ':hold'
        LEFT JOIN entries AS e ON e.transfer_id = t.id
        GROUP BY h.id, h.amount
        HAVING h.amount <> COALESCE(SUM(e.amount), 0)
        ORDER BY h.id
        """,
    )


async def resolutions_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each resolved hold that did not pay out what it captured, or not release the rest."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT w.id, w.amount, CAST(COALESCE(SUM(e.amount), 0) AS BIGINT) AS found
        FROM (
            SELECT id, id || ':capture' AS business_key, captured AS amount
            FROM holds WHERE resolved_at IS NOT NULL
            UNION ALL
            SELECT id, id || ':release', amount - captured
            FROM holds WHERE resolved_at IS NOT NULL
        ) AS w
        LEFT JOIN transfers AS t ON t.business_key = w.business_key
        LEFT JOIN entries AS e ON e.transfer_id = t.id
        GROUP BY w.id, w.business_key, w.amount
        HAVING w.amount <> COALESCE(SUM(e.amount), 0)
        ORDER BY w.id
        """,
    )


async def holds_against_work(tx: Transaction) -> list[DifferenceRow]:
    """Return each open hold without open work (1 expected, 0 found), and the reverse."""
    return await tx.all(
        DifferenceRow,
        """
        WITH work AS (
            SELECT 'bandwidth:' || id AS hold_id FROM bandwidth_sessions WHERE status = 'active'
            UNION ALL
            SELECT 'job:' || id FROM jobs WHERE status IN ('waiting', 'running')
        )
        SELECT h.id, 0, 1 FROM holds AS h
        LEFT JOIN work AS w ON w.hold_id = h.id
        WHERE h.resolved_at IS NULL AND w.hold_id IS NULL
        UNION ALL
        SELECT w.hold_id, 1, 0 FROM work AS w
        LEFT JOIN holds AS h ON h.id = w.hold_id AND h.resolved_at IS NULL
        WHERE h.id IS NULL
        """,
    )


async def totals(tx: Transaction) -> list[TotalRow]:
    """Add up what accounts hold, by kind and currency."""
    return await tx.all(
        TotalRow,
        """
        SELECT kind, currency, CAST(SUM(balance) AS BIGINT) FROM accounts
        GROUP BY kind, currency
        """,
    )

"""Queries on payouts: their rows, their states, and the sums of them."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row
from storage.money.earned import STILL_HELD

# States in which a payout's money is held.
OPEN = "('requested', 'approved', 'sent')"


class PayoutRow(NamedTuple):  # as wide as its table
    """A payout: `amount` micro-units of a wallet, worth `usd`; the house keeps `fee` of it.

    `fee_amount` is the fee's part of `amount`. `rate` is the price of a credit in micro-USD, 0 of
    USD. Times are UTC seconds.
    """

    id: str
    user_id: str
    method_id: str
    currency: str
    amount: int
    rate: int
    usd: int
    fee: int
    fee_amount: int
    state: str
    reason: str | None
    requested_at: int
    decide_by: int
    decided_at: int | None = None
    sent_at: int | None = None
    ended_at: int | None = None
    batch_id: str | None = None
    is_returned: int = 0

    @property
    def net(self) -> int:
        """The sent amount, in micro-USD."""
        return self.usd - self.fee


class SumsRow(NamedTuple):
    """Sums of a user's payouts in one currency, in micro-units of it.

    `fees` is the part of the paid payouts that the house kept.
    """

    in_payout: int
    paid: int
    fees: int


class EarnedRow(NamedTuple):
    """The total that a user has earned in a currency, and the time of the first earning."""

    total: int
    first_at: int


_COLUMNS = ", ".join(PayoutRow._fields)


async def insert(tx: Transaction, row: PayoutRow) -> None:
    """Add a payout."""
    await insert_row(tx, "payouts", **row._asdict())


async def find(tx: Transaction, payout_id: str) -> PayoutRow | None:
    """Return a payout."""
    return await tx.one(PayoutRow, f"SELECT {_COLUMNS} FROM payouts WHERE id = :id", id=payout_id)


async def move(
    tx: Transaction,
    payout_id: str,
    *,
    before: str,
    after: str,
    reason: str | None = None,
    decided_at: int | None = None,
    sent_at: int | None = None,
    ended_at: int | None = None,
    batch_id: str | None = None,
    is_returned: bool = False,
) -> PayoutRow | None:
    """Change the state of a payout and return it; None, and no change, in another state.

    Args:
        tx: the transaction.
        payout_id: the payout.
        before: the state that it must have.
        after: its new state.
        reason: the code of a reason.
        decided_at: the time of the decision, if it is one; UTC seconds, as the others.
        sent_at: the time at which it is sent.
        ended_at: the time of its end.
        batch_id: the batch that sends it.
        is_returned: whether it was paid before, and came back.
    """
    return await tx.one(
        PayoutRow,
        f"""
        UPDATE payouts SET state = :after, reason = :reason,
            decided_at = COALESCE(CAST(:decided_at AS BIGINT), decided_at),
            sent_at = COALESCE(CAST(:sent_at AS BIGINT), sent_at),
            ended_at = COALESCE(CAST(:ended_at AS BIGINT), ended_at),
            batch_id = COALESCE(CAST(:batch_id AS TEXT), batch_id),
            is_returned = :is_returned
        WHERE id = :id AND state = :before
        RETURNING {_COLUMNS}
        """,
        id=payout_id,
        before=before,
        after=after,
        reason=reason,
        decided_at=decided_at,
        sent_at=sent_at,
        ended_at=ended_at,
        batch_id=batch_id,
        is_returned=int(is_returned),
    )


async def page(tx: Transaction, user_id: str, *, before: str, limit: int) -> list[PayoutRow]:
    """Return a user's payouts, newest first.

    Args:
        tx: the transaction.
        user_id: the user.
        before: only payouts older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        PayoutRow,
        f"""
        SELECT {_COLUMNS} FROM payouts WHERE user_id = :user_id AND id < :before
        ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
    )


async def in_state(tx: Transaction, state: str, *, after: str, limit: int) -> list[PayoutRow]:
    """Return payouts in a state, oldest first, behind an identifier."""
    return await tx.all(
        PayoutRow,
        f"""
        SELECT {_COLUMNS} FROM payouts WHERE state = :state AND id > :after
        ORDER BY id LIMIT :limit
        """,
        state=state,
        after=after,
        limit=limit,
    )


async def to_send(tx: Transaction, kinds: Sequence[str], *, limit: int) -> list[PayoutRow]:
    """Return approved payouts that go to places of some kinds, oldest first.

    A payout of a user with a disputed payment, a debt or a suspended part waits.
    """
    names = {f"kind_{kind}": kind for kind in kinds}
    columns = ", ".join(f"p.{each}" for each in PayoutRow._fields)
    return await tx.all(
        PayoutRow,
        f"""
        SELECT {columns} FROM payouts AS p JOIN payout_methods AS m ON m.id = p.method_id
        WHERE p.state = 'approved' AND m.kind IN ({", ".join(f":{name}" for name in names)})
            AND NOT EXISTS (
                SELECT 1 FROM payment_returns AS r
                WHERE r.user_id = p.user_id AND r.kind = 'dispute' AND r.status = 'pending'
            )
            AND NOT EXISTS (
                SELECT 1 FROM debts AS d WHERE d.user_id = p.user_id AND d.paid < d.amount
            )
            AND NOT EXISTS (
                SELECT 1 FROM earning_debts AS e WHERE e.user_id = p.user_id AND e.paid < e.amount
            )
            AND NOT EXISTS (SELECT 1 FROM suspended_parts AS s WHERE s.user_id = p.user_id)
        ORDER BY p.id LIMIT :limit
        """,
        limit=limit,
        **names,
    )


async def of_batch(tx: Transaction, batch_id: str) -> list[PayoutRow]:
    """Return the payouts of a batch, in order."""
    return await tx.all(
        PayoutRow,
        f"SELECT {_COLUMNS} FROM payouts WHERE batch_id = :batch_id ORDER BY id",
        batch_id=batch_id,
    )


async def move_to_part(tx: Transaction, payout_id: str, *, batch_id: str, part_id: str) -> None:
    """Move a payout from a refused batch to a part of it."""
    await tx.run(
        """
        UPDATE payouts SET batch_id = :part_id
        WHERE id = :id AND batch_id = :batch_id AND state = 'sent'
        """,
        id=payout_id,
        batch_id=batch_id,
        part_id=part_id,
    )


async def sums(tx: Transaction, user_id: str, currency: str) -> SumsRow:
    """Return the sums of a user's payouts. All of the user's payouts are read."""
    row = await tx.one(
        SumsRow,
        f"""
        SELECT
            CAST(COALESCE(SUM(CASE WHEN state IN {OPEN} THEN amount ELSE 0 END), 0) AS BIGINT),
            CAST(COALESCE(SUM(
                CASE WHEN state = 'paid' THEN amount - fee_amount ELSE 0 END
            ), 0) AS BIGINT),
            CAST(COALESCE(SUM(CASE WHEN state = 'paid' THEN fee_amount ELSE 0 END), 0) AS BIGINT)
        FROM payouts WHERE user_id = :user_id AND currency = :currency
        """,
        user_id=user_id,
        currency=currency,
    )
    return row or SumsRow(0, 0, 0)


async def count_since(tx: Transaction, user_id: str, since: int) -> int:
    """Return the number of payouts that a user has requested since a time, and not cancelled."""
    found = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM payouts
        WHERE user_id = :user_id AND requested_at >= :since AND state <> 'cancelled'
        """,
        user_id=user_id,
        since=since,
    )
    return found or 0


async def usd_since(tx: Transaction, user_id: str, since: int) -> int:
    """Return the micro-USD of a user's payouts since a time that are open or were paid."""
    found = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(usd), 0) AS BIGINT) FROM payouts
        WHERE user_id = :user_id AND requested_at >= :since
            AND state IN ('requested', 'approved', 'sent', 'paid')
        """,
        user_id=user_id,
        since=since,
    )
    return found or 0


async def earned(tx: Transaction, user_id: str, currency: str) -> EarnedRow | None:
    """Return the total that a user has earned in a currency; None if nothing yet."""
    return await tx.one(
        EarnedRow,
        """
        SELECT total, first_at FROM earned_totals
        WHERE user_id = :user_id AND currency = :currency
        """,
        user_id=user_id,
        currency=currency,
    )


async def first_earned_at(tx: Transaction, user_id: str) -> int | None:
    """Return the time of a user's first earning in any currency, in UTC seconds."""
    return await tx.one(
        int,
        "SELECT first_at FROM earned_totals WHERE user_id = :user_id ORDER BY first_at LIMIT 1",
        user_id=user_id,
    )


async def earned_in_holds(tx: Transaction, user_id: str, currency: str) -> int:
    """Return the earned money that is still in a user's open purchases, in micro-units."""
    found = await tx.one(
        int,
        f"""
        SELECT CAST(COALESCE(SUM({STILL_HELD}), 0) AS BIGINT) FROM holds
        WHERE user_id = :user_id AND currency = :currency AND resolved_at IS NULL
            AND earned > 0 AND id NOT LIKE 'review:%' AND id NOT LIKE 'payout:%'
        """,
        user_id=user_id,
        currency=currency,
    )
    return found or 0


async def is_verified(tx: Transaction, user_id: str) -> bool:
    """Return whether the operator has checked a user's identity."""
    found = await tx.one(
        int, "SELECT COUNT(*) FROM verified_users WHERE user_id = :user_id", user_id=user_id
    )
    return bool(found)


async def set_verified(tx: Transaction, user_id: str, *, now: int) -> bool:
    """Record that a user's identity was checked; False if it was recorded before."""
    changed = await tx.run(
        """
        INSERT INTO verified_users (user_id, verified_at) VALUES (:user_id, :now)
        ON CONFLICT (user_id) DO NOTHING
        """,
        user_id=user_id,
        now=now,
    )
    return changed == 1


async def clear_verified(tx: Transaction, user_id: str) -> bool:
    """Remove the record of a check; False if there was none."""
    changed = await tx.run("DELETE FROM verified_users WHERE user_id = :user_id", user_id=user_id)
    return changed == 1

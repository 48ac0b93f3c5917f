"""Queries on automatic top-ups."""

from typing import NamedTuple

from storage.engines.store import Transaction


class TopUpRow(NamedTuple):
    """The automatic top-up of a user, in micro-USD; times in UTC seconds.

    `refusals` counts the refused payments since the last one that was paid.
    """

    user_id: str
    state: str
    threshold: int
    amount: int
    month_ceiling: int
    refusals: int
    next_at: int
    changed_at: int


class PageRow(NamedTuple):
    """A page of top-ups: their number, and the user of the last one; None without any."""

    top_ups: int
    last: str | None


class AutomaticRow(NamedTuple):
    """The automatic payments of a user since a time: their number, and their micro-USD.

    Refused ones count for the number only.
    """

    payments: int
    amount: int


_COLUMNS = ", ".join(TopUpRow._fields)


async def find(tx: Transaction, user_id: str) -> TopUpRow | None:
    """Return the automatic top-up of a user."""
    return await tx.one(
        TopUpRow, f"SELECT {_COLUMNS} FROM top_ups WHERE user_id = :user_id", user_id=user_id
    )


async def set_on(tx: Transaction, row: TopUpRow) -> None:
    """Switch an automatic top-up on with its amounts, which replace those of before."""
    await tx.run(
        """
        INSERT INTO top_ups
            (user_id, state, threshold, amount, month_ceiling, refusals, next_at, changed_at)
        VALUES
            (:user_id, :state, :threshold, :amount, :month_ceiling, :refusals, :next_at,
             :changed_at)
        ON CONFLICT (user_id) DO UPDATE SET
            state = excluded.state, threshold = excluded.threshold, amount = excluded.amount,
            month_ceiling = excluded.month_ceiling, refusals = excluded.refusals,
            next_at = excluded.next_at, changed_at = excluded.changed_at
        """,
        **row._asdict(),
    )


async def move(tx: Transaction, user_id: str, *, before: str, after: str, now: int) -> bool:
    """Move a top-up from one state to another; False if it was in another state."""
    count = await tx.run(
        """
        UPDATE top_ups SET state = :after, changed_at = :now
        WHERE user_id = :user_id AND state = :before
        """,
        user_id=user_id,
        before=before,
        after=after,
        now=now,
    )
    return count == 1


async def plan(tx: Transaction, user_id: str, next_at: int) -> None:
    """Plan the earliest time of the next attempt."""
    await tx.run(
        "UPDATE top_ups SET next_at = :at WHERE user_id = :user_id", user_id=user_id, at=next_at
    )


async def set_refusals(tx: Transaction, user_id: str, refusals: int) -> None:
    """Record the number of refused payments since the last one that was paid."""
    await tx.run(
        "UPDATE top_ups SET refusals = :refusals WHERE user_id = :user_id",
        user_id=user_id,
        refusals=refusals,
    )


async def page(tx: Transaction, *, after: str, limit: int) -> PageRow:
    """Return the page of top-ups behind a user, in any state; "" for the first page."""
    row = await tx.one(
        PageRow,
        """
        SELECT COUNT(*), MAX(user_id) FROM (
            SELECT user_id FROM top_ups WHERE user_id > :after ORDER BY user_id LIMIT :limit
        ) AS page
        """,
        after=after,
        limit=limit,
    )
    return row or PageRow(0, None)


async def due(tx: Transaction, now: int, *, after: str, last: str, limit: int) -> list[str]:
    """Return the users of a page with less than their threshold, whose next attempt may begin.

    All top-ups of the page are read: the balances change without them.

    Args:
        tx: the transaction.
        now: UTC seconds.
        after: the page begins behind this user.
        last: the last user of the page.
        limit: how many at most.
    """
    return await tx.all(
        str,
        """
        SELECT t.user_id FROM top_ups AS t
        LEFT JOIN accounts AS a ON a.id = 'user:' || t.user_id || ':available:usd'
        WHERE t.user_id > :after AND t.user_id <= :last
            AND t.state = 'on' AND t.next_at <= :now AND COALESCE(a.balance, 0) < t.threshold
        ORDER BY t.user_id LIMIT :limit
        """,
        now=now,
        after=after,
        last=last,
        limit=limit,
    )


async def automatic(tx: Transaction, user_id: str, since: int) -> AutomaticRow:
    """Return the automatic payments of a user that began at a time or later."""
    row = await tx.one(
        AutomaticRow,
        """
        SELECT COUNT(*), CAST(COALESCE(SUM(
            CASE WHEN status IN ('open', 'paid', 'doubtful') THEN amount ELSE 0 END
        ), 0) AS BIGINT)
        FROM payments
        WHERE user_id = :user_id AND card_id IS NOT NULL AND created_at >= :since
        """,
        user_id=user_id,
        since=since,
    )
    return row or AutomaticRow(0, 0)


async def has_open(tx: Transaction, user_id: str) -> bool:
    """Return whether an automatic payment of a user is open."""
    found = await tx.one(
        int,
        """
        SELECT 1 FROM payments
        WHERE user_id = :user_id AND card_id IS NOT NULL AND status = 'open' LIMIT 1
        """,
        user_id=user_id,
    )
    return found is not None

"""Queries on the lines of each term of a user's earnings: they add up to the term."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, Value
from storage.money.earned import OWN_HOLDS, STILL_HELD
from storage.payouts.payouts import OPEN


class LineRow(NamedTuple):
    """A line: micro-units of earned money. `id` is a transfer's identifier, or a payout's."""

    id: str
    created_at: int
    kind: str
    reference: str
    amount: int


# Transfers of payouts, and those into open holds, are lines of other terms. The drawn part of an
# open hold is spent (`_DRAWN`).
_IN_OTHER_TERMS = f"""(
    t.reference IN (
        SELECT 'payout:' || id FROM payouts WHERE user_id = :user_id AND currency = :currency
    )
    OR t.kind = 'hold' AND t.reference IN (
        SELECT id FROM holds
        WHERE user_id = :user_id AND currency = :currency AND resolved_at IS NULL AND earned > 0
            AND {OWN_HOLDS}
    )
)"""


# A line is the transfer into the hold. A user has a bounded number of open holds.
_OPEN_HOLDS = f"""
    holds AS h JOIN transfers AS t ON t.business_key = h.id || ':hold'
    WHERE h.user_id = :user_id AND h.currency = :currency AND h.resolved_at IS NULL
        AND h.earned > 0 AND h.{OWN_HOLDS} AND h.id NOT LIKE 'payout:%' AND t.id < :before
"""
_DRAWN = f"""
    SELECT t.id AS transfer_id, {STILL_HELD} - earned AS amount FROM {_OPEN_HOLDS}
        AND h.earned > h.amount - h.drawn
"""


def _came(is_back: int, only: str = "TRUE") -> str:
    """Return SQL for the transfers that brought earned money: new earnings, or returned ones.

    The condition is a scalar: of a join PostgreSQL may read all transfers in the wanted order.
    """
    return f"""
        SELECT * FROM (
            SELECT l.transfer_id, (
                SELECT SUM(e.earned) FROM entries AS e
                WHERE e.transfer_id = l.transfer_id AND e.credit_account = :account AND e.earned > 0
            ) AS amount
            FROM earned_lines AS l
            WHERE l.account = :account AND l.is_back = {is_back} AND l.transfer_id < :before
                AND (SELECT {only} FROM transfers AS t WHERE t.id = l.transfer_id)
            ORDER BY l.transfer_id DESC LIMIT :limit
        ) AS came_{is_back}
    """


def _left(only: str = "TRUE") -> str:
    """Return SQL for the transfers that took earned money."""
    return f"""
        SELECT * FROM (
            SELECT e.transfer_id, SUM(e.earned) AS amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.debit_account = :account AND e.earned < 0 AND e.transfer_id < :before
                AND {only}
            GROUP BY e.transfer_id ORDER BY e.transfer_id {NEWEST_FIRST} LIMIT :limit
        ) AS left_account
    """


def _of_transfers(*sides: str, sign: str = "") -> str:
    """Return the query for a term whose lines are transfers.

    Args:
        sides: SQL for lists of transfers, each the newest first.
        sign: "" or "-", of the lines.
    """
    return f"""
        SELECT t.id, t.created_at, t.kind, t.reference, CAST({sign}m.amount AS BIGINT)
        FROM (
            SELECT transfer_id, SUM(amount) AS amount
            FROM ({" UNION ALL ".join(sides)}) AS sides
            GROUP BY transfer_id ORDER BY transfer_id DESC LIMIT :limit
        ) AS m
        JOIN transfers AS t ON t.id = m.transfer_id
        ORDER BY t.id DESC
    """


def _of_payouts(states: str, amount: str) -> str:
    """Return the query for a term whose lines are payouts."""
    return f"""
        SELECT id, requested_at, 'payout', 'payout:' || id, {amount} FROM payouts
        WHERE user_id = :user_id AND id < :before AND currency = :currency
            AND state IN {states} AND {amount} > 0
        ORDER BY id {NEWEST_FIRST} LIMIT :limit
    """


_QUERIES = {
    "earned": _of_transfers(_came(0)),
    "available": _of_transfers(_came(0), _came(1), _left()),
    "held": f"""
        SELECT t.id, t.created_at, t.kind, t.reference, {STILL_HELD}
        FROM {_OPEN_HOLDS} AND h.amount > h.drawn
        ORDER BY t.id DESC LIMIT :limit
    """,
    "in_payout": _of_payouts(OPEN, "amount"),
    "paid": _of_payouts("('paid')", "amount - fee_amount"),
    "fees": _of_payouts("('paid')", "fee_amount"),
    "spent": _of_transfers(
        _came(1, f"NOT {_IN_OTHER_TERMS}"), _left(f"NOT {_IN_OTHER_TERMS}"), _DRAWN, sign="-"
    ),
}


async def page(
    tx: Transaction, user_id: str, currency: str, term: str, *, before: str, limit: int
) -> list[LineRow]:
    """Return the lines of a term of a user's earnings, the newest first.

    Args:
        tx: the transaction.
        user_id: the user.
        currency: of the earnings.
        term: one of `earned`, `available`, `held`, `in_payout`, `paid`, `fees`, `spent`.
        before: only lines older than this identifier; "" for the newest.
        limit: how many at most.
    """
    sql = _QUERIES[term]
    values: dict[str, Value] = {
        "user_id": user_id,
        "currency": currency,
        "account": f"user:{user_id}:available:{currency}",
        "before": behind(before),
        "limit": limit,
    }
    return await tx.all(
        LineRow, sql, **{name: each for name, each in values.items() if f":{name}" in sql}
    )

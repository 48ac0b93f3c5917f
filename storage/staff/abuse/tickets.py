"""Queries that read tickets, and the owners of sessions that records name."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction

COUNTED_MAX = 10_000  # of the newest tickets


class TicketRow(NamedTuple):  # as wide as its table
    """A complaint. `facts` is JSON."""

    number: int
    category: str
    state: str
    opened_at: int
    due_at: int
    user_id: str | None
    facts: str
    closed_at: int | None
    outcome: str | None


class CountRow(NamedTuple):
    """The number of tickets that rules have opened, by category."""

    category: str
    opened: int


class OwnerRow(NamedTuple):
    """A session, and its user."""

    session_id: str
    user_id: str
    username: str
    email: str


_TICKET = f"SELECT {', '.join(TicketRow._fields)} FROM tickets"


async def find(tx: Transaction, number: int) -> TicketRow | None:
    """Return a ticket by its number."""
    return await tx.one(TicketRow, f"{_TICKET} WHERE number = :number", number=number)


async def last_number(tx: Transaction) -> int:
    """Return the number of the newest ticket, 0 without one."""
    return (
        await tx.one(
            int, "SELECT number FROM tickets WHERE number > 0 ORDER BY number DESC LIMIT 1"
        )
        or 0
    )


async def count_open(tx: Transaction, *, most: int) -> int:
    """Count the open tickets, up to a bound."""
    count = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM (
            SELECT 1 FROM tickets WHERE closed_at IS NULL AND due_at > 0 LIMIT :most
        ) AS counted
        """,
        most=most,
    )
    return count or 0


async def open_tickets(tx: Transaction, *, limit: int) -> list[TicketRow]:
    """Return the open tickets, the one that is due first before the others."""
    return await tx.all(
        TicketRow,
        f"{_TICKET} WHERE closed_at IS NULL AND due_at > 0 ORDER BY due_at, number LIMIT :limit",
        limit=limit,
    )


async def in_state(tx: Transaction, state: str, *, limit: int) -> list[TicketRow]:
    """Return the newest tickets in a state."""
    return await tx.all(
        TicketRow,
        f"{_TICKET} WHERE state = :state ORDER BY number {NEWEST_FIRST} LIMIT :limit",
        state=state,
        limit=limit,
    )


async def open_of(tx: Transaction, user_id: str, category: str) -> TicketRow | None:
    """Return the open ticket of a user with a category."""
    return await tx.one(
        TicketRow,
        f"""
        {_TICKET} WHERE user_id = :user_id AND category = :category AND closed_at IS NULL
        ORDER BY number LIMIT 1
        """,
        user_id=user_id,
        category=category,
    )


async def opened_by_rules(tx: Transaction, *, since: int) -> list[CountRow]:
    """Return the number of tickets that rules have opened since a time, by category."""
    return await tx.all(
        CountRow,
        f"""
        SELECT t.category, COUNT(*) FROM (
            SELECT subject_id, at, via FROM staff_log WHERE action = 'ticket.open'
            ORDER BY number {NEWEST_FIRST} LIMIT :most
        ) AS l JOIN tickets AS t ON t.number = CAST(l.subject_id AS BIGINT)
        WHERE l.via = 'rule' AND l.at >= :since
        GROUP BY t.category ORDER BY t.category
        """,
        since=since,
        most=COUNTED_MAX,
    )


async def owners(tx: Transaction, session_ids: Sequence[str]) -> list[OwnerRow]:
    """Return the users of the sessions that exist."""
    return await tx.all(
        OwnerRow,
        f"""
        SELECT s.id, u.id, u.username, u.email FROM {tx.table("asked", id="TEXT")}
        JOIN bandwidth_sessions AS s ON s.id = asked.id JOIN users AS u ON u.id = s.user_id
        """,
        asked=json.dumps([{"id": session_id} for session_id in session_ids]),
    )

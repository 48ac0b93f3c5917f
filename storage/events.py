"""Queries on events: what happened to whom."""

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from storage.paging import NEWEST_FIRST, behind
from storage.store import Transaction


class EventRow(NamedTuple):
    """An event of a user: `data` is JSON, `created_at` in UTC seconds."""

    id: str
    user_id: str
    type: str
    subject_id: str | None
    data: str
    created_at: int


_TYPES = {
    "id": "TEXT",
    "user_id": "TEXT",
    "type": "TEXT",
    "subject_id": "TEXT",
    "data": "TEXT",
    "created_at": "BIGINT",
}
_COLUMNS = ", ".join(_TYPES)


async def insert(tx: Transaction, rows: Sequence[EventRow]) -> None:
    """Add events, in one statement however many they are."""
    await tx.run(
        f"""
        INSERT INTO events ({_COLUMNS})
        SELECT {_COLUMNS} FROM {tx.table("recorded", **_TYPES)}
        """,
        recorded=json.dumps([row._asdict() for row in rows]),
    )


async def page_back(
    tx: Transaction, user_id: str, *, types: Collection[str], before: str, limit: int
) -> list[EventRow]:
    """Return a user's events, newest first.

    Args:
        tx: the transaction.
        user_id: whose.
        types: only these; all of them if it is empty.
        before: only those that are older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        EventRow,
        f"""
        SELECT {_COLUMNS} FROM events
        WHERE user_id = :user_id AND id < :before {_only(tx, types)}
        ORDER BY id {NEWEST_FIRST}
        LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
        **_wanted(types),
    )


async def page_on(
    tx: Transaction, user_id: str, *, types: Collection[str], after: str, limit: int
) -> list[EventRow]:
    """Return a user's events behind an identifier, oldest first; otherwise as `page_back`."""
    return await tx.all(
        EventRow,
        f"""
        SELECT {_COLUMNS} FROM events
        WHERE user_id = :user_id AND id > :after {_only(tx, types)}
        ORDER BY user_id, id
        LIMIT :limit
        """,
        user_id=user_id,
        after=after,
        limit=limit,
        **_wanted(types),
    )


async def find(tx: Transaction, event_ids: Sequence[str]) -> list[EventRow]:
    """Return those of these events that there are."""
    return await tx.all(
        EventRow,
        f"""
        SELECT {", ".join(f"e.{name}" for name in _TYPES)}
        FROM {tx.table("asked", id="TEXT")} JOIN events AS e ON e.id = asked.id
        ORDER BY e.id
        """,
        asked=json.dumps([{"id": each} for each in event_ids]),
    )


async def delete_before(tx: Transaction, event_id: str, *, limit: int) -> int:
    """Delete the oldest events, of everybody, before an identifier; return how many they were."""
    return await tx.run(
        """
        DELETE FROM events WHERE id IN (
            SELECT id FROM events WHERE id < :event_id ORDER BY id LIMIT :limit
        )
        """,
        event_id=event_id,
        limit=limit,
    )


def _only(tx: Transaction, types: Collection[str]) -> str:
    if not types:
        return ""
    return f"AND type IN (SELECT type FROM {tx.table('wanted', type='TEXT')})"


def _wanted(types: Collection[str]) -> dict[str, str]:
    """Return the values that `_only` needs."""
    return {"wanted": json.dumps([{"type": each} for each in types])} if types else {}

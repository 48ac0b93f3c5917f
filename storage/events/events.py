"""Queries on events of users."""

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction


class EventRow(NamedTuple):
    """An event of a user: `data` is JSON, `created_at` in UTC seconds."""

    id: str
    user_id: str
    type: str
    subject_id: str | None
    data: str
    created_at: int


# Of one page: the index of a user's events has no types in it.
LOOKED_AT_MAX = 5_000

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
    tx: Transaction,
    user_id: str,
    *,
    types: Collection[str],
    before: str,
    limit: int,
    looked_at: int = LOOKED_AT_MAX,
) -> tuple[list[EventRow], str]:
    """Return a page of a user's events, newest first, and the `before` of the next page.

    That is "" when there are none. Of `looked_at` events those that are wanted are returned,
    so that a type that is rare costs no more than one that is frequent.

    Args:
        tx: the transaction.
        user_id: whose.
        types: only these; all of them if it is empty.
        before: only those that are older than this identifier; "" for the newest.
        limit: how many at most.
        looked_at: among how many events those of some types are looked for.
    """
    order = f"id {NEWEST_FIRST}"
    return await _page(
        tx,
        user_id,
        "<",
        behind(before),
        types=types,
        order=order,
        limit=limit,
        looked_at=looked_at,
    )


async def page_on(
    tx: Transaction,
    user_id: str,
    *,
    types: Collection[str],
    after: str,
    limit: int,
    looked_at: int = LOOKED_AT_MAX,
) -> tuple[list[EventRow], str]:
    """Return a user's events behind an identifier, oldest first; otherwise as `page_back`."""
    order = "user_id, id"
    return await _page(
        tx, user_id, ">", after, types=types, order=order, limit=limit, looked_at=looked_at
    )


async def _page(
    tx: Transaction,
    user_id: str,
    beyond: str,
    place: str,
    *,
    types: Collection[str],
    order: str,
    limit: int,
    looked_at: int,
) -> tuple[list[EventRow], str]:
    """Return the events beyond a place, in an order; see `page_back`."""
    theirs = f"FROM events WHERE user_id = :user_id AND id {beyond} :place ORDER BY {order}"
    values = {"user_id": user_id, "place": place}
    if not types:
        rows = await tx.all(
            EventRow, f"SELECT {_COLUMNS} {theirs} LIMIT :most", most=limit + 1, **values
        )
    else:
        rows = await tx.all(
            EventRow,
            f"""
            SELECT {_COLUMNS}
            FROM (SELECT {_COLUMNS} {theirs} LIMIT {looked_at}) AS looked_at
            WHERE type IN (SELECT type FROM {tx.table("wanted", type="TEXT")})
            ORDER BY {order}
            LIMIT :most
            """,
            most=limit + 1,
            wanted=json.dumps([{"type": each} for each in types]),
            **values,
        )
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].id
    if not types:
        return rows, ""
    edge = await tx.all(str, f"SELECT id {theirs} LIMIT 2 OFFSET {looked_at - 1}", **values)
    return rows, edge[0] if len(edge) > 1 else ""


async def later_of(
    tx: Transaction, user_ids: Collection[str], *, after: str, limit: int
) -> list[EventRow]:
    """Return events of some users behind an identifier, in no order, up to a limit."""
    return await tx.all(
        EventRow,
        f"""
        SELECT {", ".join(f"e.{name}" for name in _TYPES)}
        FROM {tx.table("followed", id="TEXT")} JOIN events AS e
            ON e.user_id = followed.id AND e.id > :after
        LIMIT :limit
        """,
        followed=json.dumps([{"id": each} for each in sorted(user_ids)]),
        after=after,
        limit=limit,
    )


async def find(tx: Transaction, event_ids: Sequence[str]) -> list[EventRow]:
    """Return those of these events that exist."""
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
    """Delete the oldest events of all users before an identifier. Return the number deleted."""
    return await tx.run(
        """
        DELETE FROM events WHERE id IN (
            SELECT id FROM events WHERE id < :event_id ORDER BY id LIMIT :limit
        )
        """,
        event_id=event_id,
        limit=limit,
    )

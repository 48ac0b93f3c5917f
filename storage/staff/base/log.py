"""Queries that read the log of all acts of staff, and its free texts."""

import json
from collections.abc import Collection
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, NEWEST_NUMBER
from storage.engines.store import Transaction, Value

HEAD = "head"


class LogRow(NamedTuple):  # as wide as its table
    """One act. `changes` is JSON; `hash` covers the row and the hash of the row before it."""

    number: int
    at: int
    via: str
    staff_id: str | None
    unix_user: str | None
    role: str | None
    action: str
    subject_kind: str
    subject_id: str | None
    user_id: str | None
    text_id: str | None
    text_hash: str | None
    changes: str
    hash: str


class HeadRow(NamedTuple):
    """The number and the hash of the newest row."""

    number: int
    hash: str


class ShownLogRow(NamedTuple):
    """One act as a list shows it, with the address of its author, and its text ("" if erased)."""

    number: int
    at: int
    via: str
    staff_email: str | None
    unix_user: str | None
    action: str
    subject_kind: str
    subject_id: str | None
    user_id: str | None
    changes: str
    text: str | None


class CheckedLogRow(NamedTuple):
    """A row with its text, for the audit: the text's columns are None where it is missing."""

    row: LogRow
    body: str | None
    salt: str | None
    erased_at: int | None


class DecisionRow(NamedTuple):
    """A text that the subject of an act reads, and the changes of the act, which have its hash."""

    id: str
    number: int
    body: str
    salt: str
    erased_at: int | None
    changes: str


class NoteRow(NamedTuple):
    """A note about a user, and its author."""

    number: int
    created_at: int
    staff_email: str | None
    unix_user: str | None
    body: str


class ActOnUserRow(NamedTuple):
    """The time of an act about a user."""

    user_id: str
    at: int


# The address of the author; as a join, a small table of the staff is read for each row of the log.
_EMAIL = "(SELECT s.email FROM staff AS s WHERE s.id = l.staff_id)"
_COLUMNS = ", ".join(f"l.{name}" for name in LogRow._fields)


async def find_head(tx: Transaction) -> HeadRow | None:
    """Return the head of the log; None if the owner of the database has deleted it."""
    return await tx.one(HeadRow, "SELECT number, hash FROM staff_log_head WHERE id = :id", id=HEAD)


async def head(tx: Transaction) -> HeadRow:
    """Return the head of the log."""
    found = await find_head(tx)
    assert found is not None  # noqa: S101 - a migration inserts it, and a trigger keeps it
    return found


async def unix_user_of(tx: Transaction, number: int) -> str | None:
    """Return the Unix user of an act; None for an act without one."""
    return await tx.one(
        str,
        "SELECT unix_user FROM staff_log WHERE number = :number AND unix_user IS NOT NULL",
        number=number,
    )


async def newest_acts(
    tx: Transaction,
    users: Collection[str],
    *,
    action: str,
    staff_id: str | None,
    unix_user: str | None,
    changes: str,
    since: int,
) -> list[ActOnUserRow]:
    """Return the newest act with these changes about each user that an author did after a time.

    The author is a member, or without a `staff_id` the Unix user of a command.
    """
    return await tx.all(
        ActOnUserRow,
        f"""
        SELECT l.user_id, MAX(l.at)
        FROM {tx.table("asked", id="TEXT")} JOIN staff_log AS l ON l.user_id = asked.id
        WHERE l.action = :action AND l.at > :since AND l.changes = :changes
            AND {"l.staff_id IS NULL AND l.unix_user" if staff_id is None else "l.staff_id"}
                = :author
        GROUP BY l.user_id
        """,
        asked=json.dumps([{"id": user_id} for user_id in users]),
        action=action,
        changes=changes,
        since=since,
        author=unix_user if staff_id is None else staff_id,
    )


_SHOWN = f"""
    SELECT l.number, l.at, l.via, {_EMAIL}, l.unix_user, l.action, l.subject_kind,
        l.subject_id, l.user_id, l.changes, t.body
    FROM staff_log AS l LEFT JOIN texts AS t ON t.id = l.text_id
"""


async def of_subject(
    tx: Transaction, kind: str, subject_id: str, *, action: str = "", limit: int
) -> list[ShownLogRow]:
    """Return the newest acts about a subject, the latest first: of an action, or of all ("")."""
    of_action = "AND l.action = :action" if action else ""
    return await tx.all(
        ShownLogRow,
        f"""
        {_SHOWN} WHERE l.subject_kind = :kind AND l.subject_id = :subject_id {of_action}
        ORDER BY l.number {NEWEST_FIRST} LIMIT :limit
        """,
        kind=kind,
        subject_id=subject_id,
        limit=limit,
        **({"action": action} if action else {}),
    )


async def shown(
    tx: Transaction,
    *,
    user_id: str | None = None,
    staff_id: str | None = None,
    action: str | None = None,
    before: int = NEWEST_NUMBER,
    limit: int,
) -> list[ShownLogRow]:
    """Return the newest acts before a number: about a user, of an author, of an action.

    Without a filter the acts of all users, authors and actions are returned.
    """
    filters: dict[str, Value] = {
        name: value
        for name, value in (("user_id", user_id), ("staff_id", staff_id), ("action", action))
        if value is not None
    }
    where = " AND ".join(["l.number < :before", *(f"l.{name} = :{name}" for name in filters)])
    order = NEWEST_FIRST if filters else "DESC"  # without a filter the primary key has the order
    return await tx.all(
        ShownLogRow,
        f"{_SHOWN} WHERE {where} ORDER BY l.number {order} LIMIT :limit",
        before=before,
        limit=limit,
        **filters,
    )


async def notes(tx: Transaction, user_id: str, *, limit: int) -> list[NoteRow]:
    """Return the newest notes about a user that are not erased."""
    return await tx.all(
        NoteRow,
        f"""
        SELECT l.number, t.created_at, {_EMAIL}, l.unix_user, t.body
        FROM texts AS t
        JOIN staff_log AS l ON l.number = t.log_number
        WHERE t.user_id = :user_id AND t.kind = 'note' AND t.erased_at IS NULL
        ORDER BY t.id {NEWEST_FIRST} LIMIT :limit
        """,
        user_id=user_id,
        limit=limit,
    )


async def after(tx: Transaction, number: int, *, limit: int) -> list[CheckedLogRow]:
    """Return the acts behind a number with their texts, in order, for the audit."""
    width = len(LogRow._fields)
    return await tx.all(
        lambda *row: CheckedLogRow(LogRow(*row[:width]), *row[width:]),
        f"""
        SELECT {_COLUMNS}, t.body, t.salt, t.erased_at
        FROM staff_log AS l LEFT JOIN texts AS t ON t.id = l.text_id
        WHERE l.number > :number ORDER BY l.number LIMIT :limit
        """,
        number=number,
        limit=limit,
    )


async def texts_without_act(tx: Transaction, *, limit: int) -> list[str]:
    """Return texts that no act of the log has, for the audit."""
    return await tx.all(
        str,
        """
        SELECT t.id FROM texts AS t
        LEFT JOIN staff_log AS l ON l.number = t.log_number
            AND (l.text_id = t.id OR t.kind = 'decision')
        WHERE l.number IS NULL ORDER BY t.id LIMIT :limit
        """,
        limit=limit,
    )


async def decisions(tx: Transaction, after: str, *, limit: int) -> list[DecisionRow]:
    """Return the texts that subjects of acts read, behind an identifier, for the audit."""
    return await tx.all(
        DecisionRow,
        """
        SELECT t.id, t.log_number, t.body, t.salt, t.erased_at, l.changes
        FROM texts AS t JOIN staff_log AS l ON l.number = t.log_number
        WHERE t.kind = 'decision' AND t.id > :after AND (l.text_id IS NULL OR l.text_id <> t.id)
        ORDER BY t.id LIMIT :limit
        """,
        after=after,
        limit=limit,
    )

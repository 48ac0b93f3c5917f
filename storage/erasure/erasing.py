"""The statements of an erasure, made from the table of treatment."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, Value
from storage.erasure.column import How, Rows
from storage.erasure.treatment import TREATMENT
from storage.files import artifacts as artifact_queries

# Fields of events of other users that may have words of an erased user: the title of their job, the
# reason that they or their device gave, the name of their device.
WORDS = ("title", "reason")
_CHANGING = (How.ERASED, How.DELETED)


class EventRow(NamedTuple):
    """An event of another user, and its fields as JSON."""

    id: str
    data: str


# The rows that an erasure changes, and that other units lock before accounts, in their order.
_LOCKED_FIRST = {
    "deploys": "SELECT id FROM deploys WHERE user_id = :user",
    "jobs": """
        SELECT id FROM jobs WHERE user_id = :user
        UNION
        SELECT a.job_id FROM devices AS d JOIN job_attempts AS a ON a.device_id = d.id
        WHERE d.user_id = :user AND a.reason IS NOT NULL
    """,
    "reputations": """
        SELECT r.id FROM reputations AS r WHERE r.id = :user
        UNION
        SELECT r.id FROM devices AS d JOIN reputations AS r ON r.id = d.id WHERE d.user_id = :user
    """,
}


def statements() -> list[str]:
    """Return the statements that erase one user, in their order."""
    found = []
    for table, rows in TREATMENT.items():
        if rows.is_deleted:
            found.append(f"DELETE FROM {table} WHERE {rows.of}")
            continue
        changes = [
            f"{name} = {column.note}"
            for name, column in rows.columns.items()
            if column.how is How.ERASED
        ]
        if changes:
            found.append(f"UPDATE {table} SET {', '.join(changes)} WHERE {rows.of}")
    return found


def touched() -> tuple[str, ...]:
    """Return the tables that an erasure changes."""
    return tuple(table for table, rows in TREATMENT.items() if _is_touched(rows))


def _is_touched(rows: Rows) -> bool:
    return any(column.how in _CHANGING for column in rows.columns.values())


async def lock_works(tx: Transaction, user_id: str) -> None:
    """Lock the deploys, jobs and reputations that an erasure changes, before it locks accounts."""
    for table, sql in _LOCKED_FIRST.items():
        await tx.lock(table, await tx.all(str, sql, user=user_id))


async def erase(tx: Transaction, user_id: str, *, mail_hash: str, now: int) -> None:
    """Erase a user: delete or empty every text that may be about them, in all tables.

    Args:
        tx: the transaction; the caller has locked the works (`lock_works`) and the user.
        user_id: the user.
        mail_hash: the key of the user's requests for a new password in the outbox.
        now: UTC seconds.
    """
    await _blank_events_of_others(tx, user_id)
    await _blank_jobs_of_others(tx, user_id)
    await _drop_contents(tx, user_id, now)
    values: dict[str, Value] = {"user": user_id, "mail_hash": mail_hash, "now": now}
    for sql in statements():
        await tx.run(sql, **_used(sql, values))


def _used(sql: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that a statement names."""
    return {name: value for name, value in values.items() if f":{name}" in sql}


async def _blank_events_of_others(tx: Transaction, user_id: str) -> None:
    """Empty words of a user in the events of other users: buyers and owners of devices."""
    rows = await tx.all(
        EventRow,
        """
        SELECT e.id, e.data FROM events AS e
        JOIN (
            SELECT a.job_id, d.user_id FROM jobs AS j
            JOIN job_attempts AS a ON a.job_id = j.id
            JOIN devices AS d ON d.id = a.device_id
            WHERE j.user_id = :user AND d.user_id <> :user
            UNION
            SELECT a.job_id, j.user_id FROM devices AS d
            JOIN job_attempts AS a ON a.device_id = d.id
            JOIN jobs AS j ON j.id = a.job_id
            WHERE d.user_id = :user AND j.user_id <> :user
        ) AS shared ON shared.user_id = e.user_id AND shared.job_id = e.subject_id
        """,
        user=user_id,
    )
    blank = [(row, _blank(row.data)) for row in rows]
    for row, data in blank:
        if data != row.data:
            await tx.run("UPDATE events SET data = :data WHERE id = :id", id=row.id, data=data)


def _blank(data: str) -> str:
    fields = json.loads(data)
    if not any(fields.get(name) for name in WORDS):
        return data
    return json.dumps(
        {name: "" if name in WORDS and value else value for name, value in fields.items()}
    )


async def _blank_jobs_of_others(tx: Transaction, user_id: str) -> None:
    """Empty the reasons that devices of a user gave for the failure of jobs of other users."""
    await tx.run(
        """
        UPDATE jobs SET failure_reason = ''
        WHERE user_id <> :user
            AND id IN (
                SELECT a.job_id FROM devices AS d JOIN job_attempts AS a ON a.device_id = d.id
                WHERE d.user_id = :user AND a.reason IS NOT NULL
            )
            AND failure_reason IN (
                SELECT a.reason FROM devices AS d JOIN job_attempts AS a ON a.device_id = d.id
                WHERE d.user_id = :user AND a.reason IS NOT NULL
            )
        """,
        user=user_id,
    )


async def _drop_contents(tx: Transaction, user_id: str, now: int) -> None:
    """Drop the contents of files that no other user has; a sweep removes their bytes.

    The sweep also removes the bytes of unfinished uploads.
    """
    files = await tx.all(str, "SELECT id FROM artifacts WHERE user_id = :user", user=user_id)
    await tx.lock("artifacts", files)  # no upload ends between this and the deletion of its row
    for row in await artifact_queries.unfinished(tx, user_id):
        await artifact_queries.drop_upload(tx, row, now)
    ids = await tx.all(
        str,
        """
        SELECT DISTINCT content_id FROM artifacts
        WHERE user_id = :user AND content_id IS NOT NULL
        """,
        user=user_id,
    )
    await tx.lock("artifact_contents", ids)
    await tx.run(
        """
        UPDATE artifact_contents SET dropped_at = :now
        WHERE dropped_at IS NULL
            AND id IN (SELECT content_id FROM artifacts WHERE user_id = :user)
            AND NOT EXISTS (
                SELECT 1 FROM artifacts AS other
                WHERE other.content_id = artifact_contents.id AND other.user_id <> :user
            )
        """,
        user=user_id,
        now=now,
    )


async def bar_email(tx: Transaction, email_hash: str, *, until: int, now: int) -> None:
    """Refuse new accounts of an address until a time, and forget addresses whose time is over."""
    await tx.run("DELETE FROM barred_emails WHERE until <= :now", now=now)
    await tx.run(
        """
        INSERT INTO barred_emails (email_hash, until) VALUES (:email_hash, :until)
        ON CONFLICT (email_hash) DO UPDATE SET until = excluded.until
        """,
        email_hash=email_hash,
        until=until,
    )


def exported_tables() -> Sequence[str]:
    """Return the tables of an export, in the order of their names."""
    return sorted(table for table, rows in TREATMENT.items() if rows.exported is not None)


def exported_columns(table: str) -> list[str]:
    """Return the columns of a table that an export has."""
    return [name for name, column in TREATMENT[table].columns.items() if not column.is_secret]


def _exported_values(table: str) -> str:
    """Return SQL for the values of `exported_columns`, with their names."""
    columns = TREATMENT[table].columns
    return ", ".join(
        f"{shown} AS {name}" if (shown := columns[name].shown) else name
        for name in exported_columns(table)
    )


def exported_rows(table: str) -> str:
    """Return SQL for the condition of the rows of `:user` in a table that an export has."""
    rows = TREATMENT[table]
    conditions = [rows.of, *([rows.exported] if rows.exported else [])]
    return " AND ".join(f"({each})" for each in conditions)


def exported_part(table: str) -> str:
    """Return SQL for all that an export has of `:user` in a table, and nothing else of it."""
    return f"SELECT {_exported_values(table)} FROM {table} WHERE {exported_rows(table)}"


async def exported(
    tx: Transaction, table: str, user_id: str, *, after: Sequence[Value], limit: int
) -> tuple[list[dict[str, Value]], Sequence[Value]]:
    """Return rows of a user in a table, in the order of its key, and the key of the last row.

    Args:
        tx: the transaction.
        table: one of `exported_tables`.
        user_id: the user.
        after: the key of the row before; empty for the beginning.
        limit: how many at most.
    """
    rows = TREATMENT[table]
    names = exported_columns(table)
    conditions = [exported_rows(table)]
    values: dict[str, Value] = {"user": user_id, "limit": limit}
    if after:
        values |= {f"after_{name}": value for name, value in zip(rows.key, after, strict=True)}
        bound = ", ".join(f":after_{name}" for name in rows.key)
        conditions.append(f"({', '.join(rows.key)}) > ({bound})")
    found = await tx.all(
        _all,
        f"""
        SELECT {", ".join(rows.key)}, {_exported_values(table)} FROM {table}
        WHERE {" AND ".join(conditions)}
        ORDER BY {", ".join(rows.key)} LIMIT :limit
        """,
        **values,
    )
    length = len(rows.key)
    last = found[-1][:length] if found else ()
    return [dict(zip(names, row[length:], strict=True)) for row in found], last


def _all(*columns: Value) -> tuple[Value, ...]:
    return columns

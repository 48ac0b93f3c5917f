"""Queries on the status of the service, and the operator's notices about it."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction

HOUR_SECONDS = 3_600


class NowRow(NamedTuple):
    """The newest look at the components; `components` is JSON."""

    at: int
    components: str


class WorkedRow(NamedTuple):
    """The first hour of a component in a period, and its seconds of work in the later hours."""

    component: str
    first_hour: int
    seconds: int


class NoticeRow(NamedTuple):
    """A notice of the operator; times in UTC seconds."""

    id: str
    severity: str
    title: str
    body: str
    began_at: int
    ended_at: int | None


async def now(tx: Transaction) -> NowRow:
    """Return the newest look."""
    row = await tx.one(NowRow, "SELECT at, components FROM status_now WHERE id = 'now'")
    return row or NowRow(0, "{}")


async def record(
    tx: Transaction, at: int, components: Mapping[str, str], worked: Mapping[str, int]
) -> None:
    """Replace the newest look, and add seconds of work to the present hour."""
    await tx.run(
        "UPDATE status_now SET at = :at, components = :components WHERE id = 'now'",
        at=at,
        components=json.dumps(components, sort_keys=True),
    )
    rows = [{"component": name, "seconds": seconds} for name, seconds in sorted(worked.items())]
    await tx.run(
        f"""
        INSERT INTO status_hours (hour, component, seconds)
        SELECT :hour, component, seconds
        FROM {tx.table("worked", component="TEXT", seconds="BIGINT")} WHERE seconds >= 0
        ON CONFLICT (hour, component)
        DO UPDATE SET seconds = status_hours.seconds + excluded.seconds
        """,
        hour=at // HOUR_SECONDS,
        worked=json.dumps(rows),
    )


async def forget(tx: Transaction, before_hour: int) -> None:
    """Delete the hours before one."""
    await tx.run("DELETE FROM status_hours WHERE hour < :hour", hour=before_hour)


async def worked(tx: Transaction, since_hour: int) -> list[WorkedRow]:
    """Return the work of each component from an hour on."""
    return await tx.all(
        WorkedRow,
        """
        SELECT f.component, f.first_hour, CAST(SUM(h.seconds) AS BIGINT)
        FROM (
            SELECT component, MIN(hour) AS first_hour FROM status_hours
            WHERE hour >= :hour GROUP BY component
        ) AS f
        JOIN status_hours AS h ON h.component = f.component AND h.hour > f.first_hour
        GROUP BY f.component, f.first_hour
        """,
        hour=since_hour,
    )


async def notices(tx: Transaction, *, limit: int) -> list[NoticeRow]:
    """Return the newest notices, also those that have ended."""
    return await tx.all(
        NoticeRow,
        f"""
        SELECT id, severity, title, body, began_at, ended_at FROM status_notices
        ORDER BY began_at {NEWEST_FIRST}, id {NEWEST_FIRST} LIMIT :limit
        """,
        limit=limit,
    )

"""Queries on how much of each session was used when, and on connections that got nothing."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from storage.engines.store import Transaction

HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400


class CountsRow(NamedTuple):
    """Bytes used by a session, and connections begun in it, since the last report."""

    session_id: str
    used_bytes: int
    connections: int


class RefusalRow(NamedTuple):
    """How many connections of a session were refused for one reason, since the last report."""

    session_id: str
    reason: str
    refusals: int


class Bucket(NamedTuple):
    """A part of a series: from a time until before another one, in UTC seconds."""

    begins_at: int
    ends_at: int


class UsedRow(NamedTuple):
    """Use in a bucket of sessions with one price, or of one session.

    `session_id` is "" where sessions are added up; the price is in micro-USD per GB.
    """

    begins_at: int
    session_id: str
    price_per_gb: int
    used_bytes: int
    connections: int


class RefusedRow(NamedTuple):
    """How many connections were refused for one reason in a bucket; otherwise as `UsedRow`."""

    begins_at: int
    session_id: str
    reason: str
    refusals: int


class PriceRow(NamedTuple):
    """The used bytes of sessions with one price, in micro-USD per GB."""

    price_per_gb: int
    used_bytes: int


class DifferenceRow(NamedTuple):
    """Session whose usage rows do not add up to its used bytes."""

    session_id: str
    expected: int
    actual: int


class HourRow(NamedTuple):
    """Hourly record of the bytes and connections of a session."""

    user_id: str
    begins_at: int
    session_id: str
    used_bytes: int
    connections: int


class HourRefusalRow(NamedTuple):
    """Hourly record of the refusals of a session."""

    user_id: str
    begins_at: int
    session_id: str
    reason: str
    refusals: int


# --- written with the reports --------------------------------------------------------------------


async def add(tx: Transaction, rows: Collection[CountsRow], *, now: int) -> None:
    """Add the use of sessions to the hour of `now`, in one statement.

    The caller has locked the sessions, so two transactions never wait for each other.
    """
    await tx.run(
        f"""
        INSERT INTO session_usage
            (user_id, begins_at, session_id, span_seconds, used_bytes, connections)
        SELECT s.user_id, :hour, s.id, {HOUR_SECONDS}, counted.used, counted.connections
        FROM {tx.table("counted", id="TEXT", used="BIGINT", connections="BIGINT")}
        JOIN bandwidth_sessions AS s ON s.id = counted.id
        WHERE TRUE
        ON CONFLICT (user_id, begins_at, session_id, span_seconds) DO UPDATE SET
            used_bytes = session_usage.used_bytes + excluded.used_bytes,
            connections = session_usage.connections + excluded.connections
        """,
        hour=now - now % HOUR_SECONDS,
        counted=json.dumps(
            [
                {"id": row.session_id, "used": row.used_bytes, "connections": row.connections}
                for row in rows
            ]
        ),
    )


async def add_refusals(tx: Transaction, rows: Collection[RefusalRow], *, now: int) -> None:
    """Add to the hour of `now` how many connections were refused; as `add`."""
    await tx.run(
        f"""
        INSERT INTO session_refusals
            (user_id, begins_at, session_id, span_seconds, reason, refusals)
        SELECT s.user_id, :hour, s.id, {HOUR_SECONDS}, counted.reason, counted.refusals
        FROM {tx.table("counted", id="TEXT", reason="TEXT", refusals="BIGINT")}
        JOIN bandwidth_sessions AS s ON s.id = counted.id
        WHERE TRUE
        ON CONFLICT (user_id, begins_at, session_id, span_seconds, reason) DO UPDATE SET
            refusals = session_refusals.refusals + excluded.refusals
        """,
        hour=now - now % HOUR_SECONDS,
        counted=json.dumps(
            [{"id": row.session_id, "reason": row.reason, "refusals": row.refusals} for row in rows]
        ),
    )


async def mismatches(tx: Transaction) -> list[DifferenceRow]:
    """Return the sessions whose usage rows do not add up to their used bytes."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT s.id, s.bytes_used, CAST(COALESCE(u.used_bytes, 0) AS BIGINT)
        FROM bandwidth_sessions AS s
        LEFT JOIN (
            SELECT session_id, SUM(used_bytes) AS used_bytes FROM session_usage GROUP BY session_id
        ) AS u ON u.session_id = s.id
        WHERE s.bytes_used <> COALESCE(u.used_bytes, 0)
        """,
    )


# --- read by buyers ------------------------------------------------------------------------------


async def used(
    tx: Transaction,
    user_id: str,
    buckets: Sequence[Bucket],
    *,
    session_id: str | None,
    by_session: bool,
    limit: int,
) -> list[UsedRow]:
    """Return the use of a user's sessions in each of some buckets, in their order.

    Use that was counted before use had dates is in no bucket. A row counts where it begins.

    Args:
        tx: the transaction.
        user_id: whose sessions.
        buckets: they may overlap; no two begin at one time.
        session_id: only this one's; None for all.
        by_session: one row for each session, instead of one for each price.
        limit: how many rows at most.
    """
    return await tx.all(
        UsedRow,
        f"""
        SELECT bucket.begins, {"u.session_id" if by_session else "''"}, s.price_per_gb,
            CAST(SUM(u.used_bytes) AS BIGINT), CAST(SUM(u.connections) AS BIGINT)
        FROM {tx.table("bucket", begins="BIGINT", ends="BIGINT")}
        JOIN session_usage AS u ON u.user_id = :user_id
            AND u.begins_at >= bucket.begins AND u.begins_at < bucket.ends
        JOIN bandwidth_sessions AS s ON s.id = u.session_id
        WHERE u.span_seconds > 0 {_only(session_id)}
        GROUP BY bucket.begins, {"u.session_id," if by_session else ""} s.price_per_gb
        ORDER BY 1, 2, 3
        LIMIT :limit
        """,
        user_id=user_id,
        bucket=_table_of(buckets),
        limit=limit,
        **_session(session_id),
    )


async def refused(
    tx: Transaction,
    user_id: str,
    buckets: Sequence[Bucket],
    *,
    session_id: str | None,
    by_session: bool,
    limit: int,
) -> list[RefusedRow]:
    """Return how many connections were refused in each of some buckets; as `used`."""
    return await tx.all(
        RefusedRow,
        f"""
        SELECT bucket.begins, {"u.session_id" if by_session else "''"}, u.reason,
            CAST(SUM(u.refusals) AS BIGINT)
        FROM {tx.table("bucket", begins="BIGINT", ends="BIGINT")}
        JOIN session_refusals AS u ON u.user_id = :user_id
            AND u.begins_at >= bucket.begins AND u.begins_at < bucket.ends
        WHERE TRUE {_only(session_id)}
        GROUP BY bucket.begins, {"u.session_id," if by_session else ""} u.reason
        ORDER BY 1, 2, 3
        LIMIT :limit
        """,
        user_id=user_id,
        bucket=_table_of(buckets),
        limit=limit,
        **_session(session_id),
    )


async def undated(
    tx: Transaction, user_id: str, bought: Bucket, *, session_id: str | None
) -> list[PriceRow]:
    """Return the use that was counted before use had dates, of sessions bought in a period."""
    return await tx.all(
        PriceRow,
        f"""
        SELECT s.price_per_gb, CAST(SUM(u.used_bytes) AS BIGINT)
        FROM session_usage AS u JOIN bandwidth_sessions AS s ON s.id = u.session_id
        WHERE u.span_seconds = 0 AND u.user_id = :user_id
            AND u.begins_at >= :begins_at AND u.begins_at < :ends_at {_only(session_id)}
        GROUP BY s.price_per_gb
        """,
        user_id=user_id,
        begins_at=bought.begins_at,
        ends_at=bought.ends_at,
        **_session(session_id),
    )


async def used_ever(tx: Transaction, user_id: str) -> list[PriceRow]:
    """Return the total use of a user's sessions, for each price."""
    return await tx.all(
        PriceRow,
        """
        SELECT price_per_gb, CAST(SUM(bytes_used) AS BIGINT) FROM bandwidth_sessions
        WHERE user_id = :user_id GROUP BY price_per_gb
        """,
        user_id=user_id,
    )


def _only(session_id: str | None) -> str:
    return "" if session_id is None else "AND u.session_id = :session_id"


def _session(session_id: str | None) -> Mapping[str, str]:
    return {} if session_id is None else {"session_id": session_id}


def _table_of(buckets: Sequence[Bucket]) -> str:
    return json.dumps([{"begins": each.begins_at, "ends": each.ends_at} for each in buckets])


# --- hours become days ---------------------------------------------------------------------------


async def make_days(tx: Transaction, *, before: int, limit: int) -> int:
    """Add hours that begin before a time to their days (UTC), the oldest first.

    Args:
        tx: the transaction.
        before: UTC seconds.
        limit: how many hours of sessions at most.

    Returns:
        How many there were.
    """
    hours = await tx.all(
        HourRow, _taken("session_usage", "used_bytes, connections"), **_bounds(before, limit)
    )
    if not hours:
        return 0
    added: dict[tuple[str, int, str], HourRow] = {}
    for hour in hours:
        key = hour.user_id, hour.begins_at - hour.begins_at % DAY_SECONDS, hour.session_id
        day = added.get(key, HourRow(*key, 0, 0))
        added[key] = day._replace(
            used_bytes=day.used_bytes + hour.used_bytes,
            connections=day.connections + hour.connections,
        )
    columns = {"user_id": "TEXT", "begins_at": "BIGINT", "session_id": "TEXT"}
    await tx.run(
        f"""
        INSERT INTO session_usage
            (user_id, begins_at, session_id, span_seconds, used_bytes, connections)
        SELECT user_id, begins_at, session_id, {DAY_SECONDS}, used_bytes, connections
        FROM {tx.table("days", **columns, used_bytes="BIGINT", connections="BIGINT")}
        WHERE TRUE
        ON CONFLICT (user_id, begins_at, session_id, span_seconds) DO UPDATE SET
            used_bytes = session_usage.used_bytes + excluded.used_bytes,
            connections = session_usage.connections + excluded.connections
        """,
        days=json.dumps([day._asdict() for day in added.values()]),
    )
    return len(hours)


async def make_days_of_refusals(tx: Transaction, *, before: int, limit: int) -> int:
    """Add hours of refusals to their days; as `make_days`."""
    hours = await tx.all(
        HourRefusalRow,
        _taken("session_refusals", "reason, refusals", "reason"),
        **_bounds(before, limit),
    )
    if not hours:
        return 0
    added: dict[tuple[str, int, str, str], HourRefusalRow] = {}
    for hour in hours:
        begins_at = hour.begins_at - hour.begins_at % DAY_SECONDS
        key = hour.user_id, begins_at, hour.session_id, hour.reason
        day = added.get(key, HourRefusalRow(*key, 0))
        added[key] = day._replace(refusals=day.refusals + hour.refusals)
    columns = {"user_id": "TEXT", "begins_at": "BIGINT", "session_id": "TEXT", "reason": "TEXT"}
    await tx.run(
        f"""
        INSERT INTO session_refusals
            (user_id, begins_at, session_id, span_seconds, reason, refusals)
        SELECT user_id, begins_at, session_id, {DAY_SECONDS}, reason, refusals
        FROM {tx.table("days", **columns, refusals="BIGINT")}
        WHERE TRUE
        ON CONFLICT (user_id, begins_at, session_id, span_seconds, reason) DO UPDATE SET
            refusals = session_refusals.refusals + excluded.refusals
        """,
        days=json.dumps([day._asdict() for day in added.values()]),
    )
    return len(hours)


def _taken(table: str, counts: str, *more_of_the_key: str) -> str:
    """Return SQL that deletes old hours and returns them, so that no other caller adds them up."""
    key = ", ".join(("user_id", "begins_at", "session_id", "span_seconds", *more_of_the_key))
    return f"""
        DELETE FROM {table} WHERE ({key}) IN (
            SELECT {key} FROM {table}
            WHERE span_seconds = {HOUR_SECONDS} AND begins_at < :before
            ORDER BY begins_at LIMIT :limit
        )
        RETURNING user_id, begins_at, session_id, {counts}
    """


def _bounds(before: int, limit: int) -> Mapping[str, int]:
    return {"before": before, "limit": limit}

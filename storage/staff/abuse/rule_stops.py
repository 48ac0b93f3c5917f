"""Queries on the stops of rules and on peaks of figures; only `market.staff` may import them."""

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from storage.engines.store import Transaction

KEPT_SECONDS = 30 * 86_400
HOUR_SECONDS = 3_600
DELETED_MAX = 10_000  # of each table, in one transaction of the sweep


class StopRow(NamedTuple):
    """A stop of a session by a rule; `figures` is JSON, times are UTC seconds."""

    session_id: str
    rule: str
    found_at: int
    user_id: str
    halted_until: int
    figures: str


class PeakRow(NamedTuple):
    """The highest figure of a session in an hour (its number since 1970), for one rule.

    `failed_percent` is the share of failed dials at that moment.
    """

    hour: int
    rule: str
    session_id: str
    amount: int
    failed_percent: int


class TrialRow(NamedTuple):
    """The number of hours in which sessions were above a figure, of the sessions, of the users."""

    hours: int
    sessions: int
    users: int


async def insert(tx: Transaction, row: StopRow) -> bool:
    """Add a stop; return False if this finding has one."""
    values = row._asdict()
    columns, named = ", ".join(values), ", ".join(f":{name}" for name in values)
    added = await tx.run(
        f"INSERT INTO rule_stops ({columns}) VALUES ({named}) ON CONFLICT DO NOTHING", **values
    )
    return added > 0


async def untold(tx: Transaction, *, limit: int) -> list[StopRow]:
    """Return stops without an e-mail to the buyer, the oldest first."""
    return await tx.all(
        StopRow,
        f"""
        SELECT {", ".join(StopRow._fields)} FROM rule_stops
        WHERE told_at IS NULL AND found_at > 0 ORDER BY found_at LIMIT :limit
        """,
        limit=limit,
    )


async def tell(tx: Transaction, row: StopRow, *, now: int) -> bool:
    """Note the e-mail about a stop; return False if another node has sent it."""
    changed = await tx.run(
        """
        UPDATE rule_stops SET told_at = :now
        WHERE session_id = :session_id AND rule = :rule AND found_at = :found_at
            AND told_at IS NULL
        """,
        now=now,
        session_id=row.session_id,
        rule=row.rule,
        found_at=row.found_at,
    )
    return changed > 0


async def uncounted(tx: Transaction, user_id: str, *, since: int) -> list[StopRow]:
    """Return the stops of a user since a time that no suspension has counted, the oldest first."""
    return await tx.all(
        StopRow,
        f"""
        SELECT {", ".join(StopRow._fields)} FROM rule_stops
        WHERE user_id = :user_id AND found_at > :since AND counted_at IS NULL
        ORDER BY found_at
        """,
        user_id=user_id,
        since=since,
    )


async def count(tx: Transaction, user_id: str, *, since: int, now: int) -> None:
    """Note that a suspension has counted the stops of a user since a time."""
    await tx.run(
        """
        UPDATE rule_stops SET counted_at = :now
        WHERE user_id = :user_id AND found_at > :since AND counted_at IS NULL
        """,
        user_id=user_id,
        since=since,
        now=now,
    )


async def stopped(tx: Transaction, *, since: int) -> dict[str, int]:
    """Return the number of stops since a time, by rule."""
    rows = await tx.all(
        _pair,
        "SELECT rule, COUNT(*) FROM rule_stops WHERE found_at >= :since GROUP BY rule",
        since=since,
    )
    return dict(rows)


def _pair(rule: str, number: int) -> tuple[str, int]:
    return rule, number


async def raise_peaks(tx: Transaction, rows: Collection[PeakRow]) -> None:
    """Add peaks of sessions that exist, or raise the ones of the same hour."""
    await tx.run(
        f"""
        INSERT INTO rule_peaks (hour, rule, session_id, amount, failed_percent)
        SELECT new.hour, new.rule, s.id, new.amount, new.failed_percent
        FROM {
            tx.table(
                "new",
                hour="BIGINT",
                rule="TEXT",
                session_id="TEXT",
                amount="BIGINT",
                failed_percent="BIGINT",
            )
        }
        JOIN bandwidth_sessions AS s ON s.id = new.session_id
        WHERE TRUE
        ON CONFLICT (hour, rule, session_id) DO UPDATE SET
            amount = excluded.amount, failed_percent = excluded.failed_percent
        WHERE excluded.amount > rule_peaks.amount
        """,
        new=json.dumps([row._asdict() for row in rows]),
    )


async def trial(
    tx: Transaction, rule: str, *, since: int, more_than: int, failed_percent: int
) -> TrialRow:
    """Return how many sessions had figures above thresholds since a time."""
    found = await tx.one(
        TrialRow,
        """
        SELECT COUNT(*), COUNT(DISTINCT p.session_id), COUNT(DISTINCT s.user_id)
        FROM rule_peaks AS p JOIN bandwidth_sessions AS s ON s.id = p.session_id
        WHERE p.hour >= :hour AND p.rule = :rule AND p.amount > :more_than
            AND p.failed_percent > :failed_percent
        """,
        hour=since // HOUR_SECONDS,
        rule=rule,
        more_than=more_than,
        failed_percent=failed_percent,
    )
    return found or TrialRow(0, 0, 0)


async def delete_old(tx: Transaction, *, now: int) -> int:
    """Delete old stops and peaks, and return their number."""
    old = now - KEPT_SECONDS
    stops = await tx.run(
        """
        DELETE FROM rule_stops WHERE (session_id, rule, found_at) IN (
            SELECT session_id, rule, found_at FROM rule_stops
            WHERE found_at < :old ORDER BY found_at LIMIT :most
        )
        """,
        old=old,
        most=DELETED_MAX,
    )
    peaks = await tx.run(
        """
        DELETE FROM rule_peaks WHERE (hour, rule, session_id) IN (
            SELECT hour, rule, session_id FROM rule_peaks
            WHERE hour < :hour ORDER BY hour LIMIT :most
        )
        """,
        hour=old // HOUR_SECONDS,
        most=DELETED_MAX,
    )
    return stops + peaks


def figures_of(row: StopRow) -> Mapping[str, int]:
    """Return the counts of the minute of a stop."""
    figures: Mapping[str, int] = json.loads(row.figures)
    return figures

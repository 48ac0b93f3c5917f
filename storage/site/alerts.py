"""Queries on alerts to the operators, and on the upkeep that they are about."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class AlertRow(NamedTuple):
    """The newest e-mail of a kind of alert: its time, and the time of its newest finding."""

    kind: str
    sent_at: int
    seen_at: int
    detail: str


class UpkeepRow(NamedTuple):
    """The newest work of a command; `has_passed` is 0 or 1."""

    at: int
    has_passed: int


class MovedRow(NamedTuple):
    """The sums that an author of the staff moved in a currency, in micro-units.

    Args:
        author: `staff:` with the identifier of a member, or `unix:` with a user of the machine.
        email: the address of the member; None for a user of the machine.
        currency: of the amounts.
        acts: the number of amounts.
        given: the sum that users got.
        taken: the sum that users lost.
    """

    author: str
    email: str | None
    currency: str
    acts: int
    given: int
    taken: int


class WorkRow(NamedTuple):
    """Numbers of requests for a second person, complaints, disputes and appeals that wait."""

    approvals: int
    tickets: int
    disputes: int
    appeals: int


NO_WORK = WorkRow(0, 0, 0, 0)


async def find(tx: Transaction, kind: str) -> AlertRow | None:
    """Return the newest e-mail of a kind."""
    return await tx.one(
        AlertRow, "SELECT kind, sent_at, seen_at, detail FROM alerts WHERE kind = :kind", kind=kind
    )


async def since(tx: Transaction, sent_at: int) -> list[AlertRow]:
    """Return the kinds that were sent since a time; there are few kinds."""
    return await tx.all(
        AlertRow,
        """
        SELECT kind, sent_at, seen_at, detail FROM alerts WHERE sent_at >= :sent_at ORDER BY kind
        """,
        sent_at=sent_at,
    )


async def claim(tx: Transaction, row: AlertRow, *, quiet_since: int, not_after: int) -> bool:
    """Claim the e-mail of a kind; return False if one was sent after `quiet_since`.

    An e-mail after `not_after` was sent by a clock that was wrong, and does not count.
    """
    claimed = await tx.run(
        """
        INSERT INTO alerts (kind, sent_at, seen_at, detail)
        VALUES (:kind, :sent_at, :seen_at, :detail)
        ON CONFLICT (kind) DO UPDATE SET
            sent_at = excluded.sent_at, seen_at = excluded.seen_at, detail = excluded.detail
        WHERE alerts.sent_at <= :quiet_since OR alerts.sent_at > :not_after
        """,
        quiet_since=quiet_since,
        not_after=not_after,
        **row._asdict(),
    )
    return claimed == 1


async def note_upkeep(tx: Transaction, name: str, at: int, *, has_passed: bool) -> None:
    """Record the outcome of a command, in the place of an earlier one."""
    await tx.run(
        """
        INSERT INTO upkeep (name, at, has_passed) VALUES (:name, :at, :has_passed)
        ON CONFLICT (name) DO UPDATE SET at = excluded.at, has_passed = excluded.has_passed
        """,
        name=name,
        at=at,
        has_passed=int(has_passed),
    )


async def note_backup(
    tx: Transaction, version: int, place: str, at: int, removed: Sequence[str]
) -> None:
    """Record a backup as the newest one of its schema version.

    Args:
        tx: the transaction.
        version: the schema version of the backup.
        place: its folder.
        at: its time, in UTC seconds.
        removed: folders of backups that are gone.
    """
    for each in removed:
        await tx.run("DELETE FROM schema_backups WHERE place = :place", place=each)
    await tx.run(
        """
        INSERT INTO schema_backups (version, place, at) VALUES (:version, :place, :at)
        ON CONFLICT (version) DO UPDATE SET place = excluded.place, at = excluded.at
        """,
        version=version,
        place=place,
        at=at,
    )


async def upkeep(tx: Transaction, name: str) -> UpkeepRow | None:
    """Return the newest work of a command."""
    return await tx.one(
        UpkeepRow, "SELECT at, has_passed FROM upkeep WHERE name = :name", name=name
    )


async def newest_dispute(tx: Transaction) -> int | None:
    """Return the time of the newest dispute that waits for a decision."""
    return await tx.one(
        int,
        """
        SELECT disputed_at FROM job_reviews WHERE state = 'disputed'
        ORDER BY disputed_at DESC, job_id DESC LIMIT 1
        """,
    )


async def waiting_work(tx: Transaction, now: int, *, most: int) -> WorkRow:
    """Return the numbers of requests and cases that wait, each up to a bound."""
    row = await tx.one(
        WorkRow,
        """
        SELECT
            (SELECT COUNT(*) FROM (SELECT 1 FROM approvals
                WHERE decision IS NULL AND expires_at > :now LIMIT :most) AS asked),
            (SELECT COUNT(*) FROM (SELECT 1 FROM tickets
                WHERE closed_at IS NULL AND due_at > 0 LIMIT :most) AS opened),
            (SELECT COUNT(*) FROM (SELECT 1 FROM job_reviews
                WHERE state = 'disputed' AND disputed_at >= 0 LIMIT :most) AS disputed),
            (SELECT COUNT(*) FROM (SELECT 1 FROM appeals
                WHERE decided_at IS NULL AND due_at > 0 LIMIT :most) AS appealed)
        """,
        now=now,
        most=most,
    )
    assert row is not None  # noqa: S101 - a row of sub-selects is always there
    return row


async def oldest_dispute(tx: Transaction) -> int | None:
    """Return the time of the oldest dispute that waits for a decision."""
    return await tx.one(
        int,
        """
        SELECT disputed_at FROM job_reviews WHERE state = 'disputed'
        ORDER BY disputed_at, job_id LIMIT 1
        """,
    )


async def first_due_appeal(tx: Transaction) -> int | None:
    """Return the time at which the first appeal without a decision is due."""
    return await tx.one(
        int, "SELECT due_at FROM appeals WHERE decided_at IS NULL ORDER BY due_at, id LIMIT 1"
    )


async def first_due_ticket(tx: Transaction) -> int | None:
    """Return the time at which the first open ticket is due."""
    return await tx.one(
        int, "SELECT due_at FROM tickets WHERE closed_at IS NULL ORDER BY due_at, number LIMIT 1"
    )


async def moved(tx: Transaction, since: int, *, limit: int) -> list[MovedRow]:
    """Return the sums of money that each author of the staff moved since a time.

    Groups of an expression: for groups of the column SQLite reads the index by author, with the
    amounts of all days.
    """
    return await tx.all(
        MovedRow,
        """
        SELECT g.author, (SELECT s.email FROM staff AS s WHERE s.id = SUBSTR(g.author, 7)),
            g.currency, g.acts, g.given, g.taken
        FROM (
            SELECT MAX(author) AS author, currency, COUNT(*) AS acts,
                CAST(SUM(CASE WHEN amount > 0 THEN amount ELSE 0 END) AS BIGINT) AS given,
                CAST(SUM(CASE WHEN amount < 0 THEN -amount ELSE 0 END) AS BIGINT) AS taken
            FROM staff_money WHERE created_at > :since GROUP BY author || '', currency
        ) AS g ORDER BY g.author, g.currency LIMIT :limit
        """,
        since=since,
        limit=limit,
    )


async def newest_barred(tx: Transaction) -> int | None:
    """Return the time at which the newest barred exit was barred."""
    return await tx.one(
        int,
        """
        SELECT barred_at FROM exits WHERE barred_at IS NOT NULL
        ORDER BY barred_at DESC, device_id DESC LIMIT 1
        """,
    )

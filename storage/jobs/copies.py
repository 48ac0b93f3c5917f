"""Queries on copies: jobs that are the same work, done by several devices."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row
from storage.money.ledger import DifferenceRow


class GroupRow(NamedTuple):
    """The copies of one piece of work; times in UTC seconds."""

    id: str
    copies: int
    compare: str
    review_seconds: int
    state: str
    canonical_id: str | None
    result_at: int | None
    decided_at: int | None


class MemberRow(NamedTuple):
    """A job that is a copy, and its buyer."""

    job_id: str
    group_id: str
    buyer_id: str


class CopyRow(NamedTuple):
    """A copy, the verdict on its result, and the device that has it, or had it last.

    Its price is in micro-credits.
    """

    job_id: str
    buyer_id: str
    verdict: str | None
    status: str
    price_credit: int
    device_id: str | None


class TakenRow(NamedTuple):
    """Device that took a copy: its owner and its network, "" if that is unknown."""

    group_id: str
    job_id: str
    owner_id: str
    network: str


class OwnerRow(NamedTuple):
    """A device and its owner."""

    device_id: str
    user_id: str


class NetworkRow(NamedTuple):
    """Network of a device that took a copy."""

    job_id: str
    network: str


class ResultRow(NamedTuple):
    """Result of a copy."""

    job_id: str
    result: str


class OutputRow(NamedTuple):
    """The SHA-256 of an output of a copy; "" for one that is not whole."""

    job_id: str
    name: str
    digest: str


_GROUP = ", ".join(GroupRow._fields)


async def insert(tx: Transaction, group: GroupRow, job_ids: Sequence[str]) -> None:
    """Add a group of jobs, the first copy first."""
    await insert_row(tx, "copy_groups", **group._asdict())
    for number, job_id in enumerate(job_ids, start=1):
        await insert_row(tx, "job_copies", job_id=job_id, group_id=group.id, number=number)


async def find(tx: Transaction, job_id: str) -> GroupRow | None:
    """Return the group of a copy; None for a job that is not a copy."""
    return await tx.one(
        GroupRow,
        f"""
        SELECT {_GROUP} FROM copy_groups
        WHERE id = (SELECT group_id FROM job_copies WHERE job_id = :job_id)
        """,
        job_id=job_id,
    )


async def copies(tx: Transaction, group_id: str) -> list[CopyRow]:
    """Return the copies of a group, the first one first."""
    return await tx.all(
        CopyRow,
        """
        SELECT c.job_id, j.user_id, c.verdict, j.status, j.price_credit, j.device_id
        FROM job_copies AS c JOIN jobs AS j ON j.id = c.job_id
        WHERE c.group_id = :group_id ORDER BY c.number
        """,
        group_id=group_id,
    )


async def members(tx: Transaction, job_ids: Sequence[str]) -> list[MemberRow]:
    """Return all copies of the groups that these jobs are copies in."""
    group_ids = await tx.all(
        str,
        f"""
        SELECT DISTINCT c.group_id
        FROM {tx.table("asked", id="TEXT")} JOIN job_copies AS c ON c.job_id = asked.id
        """,
        asked=_ids(job_ids),
    )
    if not group_ids:  # as nearly always
        return []
    return await tx.all(
        MemberRow,
        f"""
        SELECT c.job_id, c.group_id, j.user_id
        FROM {tx.table("asked", id="TEXT")} JOIN job_copies AS c ON c.group_id = asked.id
        JOIN jobs AS j ON j.id = c.job_id
        """,
        asked=_ids(group_ids),
    )


async def taken(tx: Transaction, group_ids: Sequence[str]) -> list[TakenRow]:
    """Return the owners and networks that took copies of groups, unless the attempt was lost.

    An owner that failed at a copy is among them, and cannot fail at the others.
    """
    return await tx.all(
        TakenRow,
        f"""
        SELECT c.group_id, c.job_id, d.user_id, COALESCE(n.network, '')
        FROM {tx.table("asked", id="TEXT")} JOIN job_copies AS c ON c.group_id = asked.id
        JOIN job_attempts AS a ON a.job_id = c.job_id
        JOIN devices AS d ON d.id = a.device_id
        LEFT JOIN copy_networks AS n ON n.job_id = a.job_id AND n.attempt = a.attempt
        WHERE COALESCE(a.outcome, '') <> 'lost'
        """,
        asked=_ids(group_ids),
    )


async def owners(tx: Transaction, device_ids: Sequence[str]) -> list[OwnerRow]:
    """Return the owners of these devices."""
    return await tx.all(
        OwnerRow,
        f"""
        SELECT DISTINCT d.id, d.user_id
        FROM {tx.table("asked", id="TEXT")} JOIN devices AS d ON d.id = asked.id
        """,
        asked=_ids(device_ids),
    )


async def workers(tx: Transaction, group_id: str) -> list[str]:
    """Return the owners whose devices run copies of a group, have finished them, or were paid."""
    return await tx.all(
        str,
        """
        SELECT d.user_id FROM job_copies AS c
        JOIN jobs AS j ON j.id = c.job_id
        JOIN devices AS d ON d.id = j.device_id
        WHERE c.group_id = :group_id
        UNION
        SELECT p.user_id FROM job_copies AS c
        JOIN job_draws AS p ON p.job_id = c.job_id
        WHERE c.group_id = :group_id
        """,
        group_id=group_id,
    )


async def note_networks(tx: Transaction, rows: Sequence[NetworkRow]) -> None:
    """Record the networks of the devices that took copies, in the attempts that have just begun."""
    await tx.run(
        f"""
        INSERT INTO copy_networks (job_id, attempt, network)
        SELECT j.id, j.attempts, noted.network
        FROM {tx.table("noted", job_id="TEXT", network="TEXT")}
        JOIN jobs AS j ON j.id = noted.job_id
        """,
        noted=json.dumps([row._asdict() for row in rows]),
    )


async def results(tx: Transaction, group_id: str) -> list[ResultRow]:
    """Return the results of a group's finished copies."""
    return await tx.all(
        ResultRow,
        """
        SELECT j.id, COALESCE(j.result, '') FROM job_copies AS c JOIN jobs AS j ON j.id = c.job_id
        WHERE c.group_id = :group_id AND j.status = 'completed'
        """,
        group_id=group_id,
    )


async def outputs(tx: Transaction, group_id: str) -> list[OutputRow]:
    """Return the outputs of a group's finished copies, ordered by identifier."""
    return await tx.all(
        OutputRow,
        """
        SELECT a.job_id, a.name, CASE WHEN a.content_id IS NULL THEN '' ELSE a.digest END
        FROM job_copies AS c
        JOIN jobs AS j ON j.id = c.job_id
        JOIN artifacts AS a ON a.job_id = j.id AND a.attempt = j.attempts
        WHERE c.group_id = :group_id AND j.status = 'completed'
            AND a.kind = 'output'
        ORDER BY a.id
        """,
        group_id=group_id,
    )


async def note_result(tx: Transaction, group_id: str, now: int) -> None:
    """Record that a group has a result, if it is the first."""
    await tx.run(
        "UPDATE copy_groups SET result_at = :now WHERE id = :id AND result_at IS NULL",
        id=group_id,
        now=now,
    )


async def decide(
    tx: Transaction, group_id: str, *, state: str, canonical_id: str | None, now: int
) -> bool:
    """Record the outcome of a group; False when that was decided before."""
    row_count = await tx.run(
        """
        UPDATE copy_groups SET state = :state, canonical_id = :canonical_id, decided_at = :now
        WHERE id = :id AND state = 'open'
        """,
        id=group_id,
        state=state,
        canonical_id=canonical_id,
        now=now,
    )
    return row_count == 1


async def judge(tx: Transaction, job_id: str, verdict: str) -> None:
    """Record whether a copy agrees with its group's result."""
    await tx.run(
        "UPDATE job_copies SET verdict = :verdict WHERE job_id = :job_id AND verdict IS NULL",
        job_id=job_id,
        verdict=verdict,
    )


async def due_to_expire(tx: Transaction, *, result_before: int, limit: int) -> list[str]:
    """Return copies that still wait long after their group had a result."""
    return await tx.all(
        str,
        """
        SELECT j.id FROM copy_groups AS g
        JOIN job_copies AS c ON c.group_id = g.id
        JOIN jobs AS j ON j.id = c.job_id
        WHERE g.state = 'open' AND g.result_at IS NOT NULL AND g.result_at <= :result_before
            AND j.status = 'waiting'
        ORDER BY g.result_at
        LIMIT :limit
        """,
        result_before=result_before,
        limit=limit,
    )


async def against_money(tx: Transaction) -> list[DifferenceRow]:
    """Return the groups and copies whose state contradicts the decision, the answers or the money.

    These are groups in which fewer agree than decide, and copies that differ and may still be paid,
    or that agree and were never paid for; and copies that failed although most agree on a result,
    and may still be paid for their time.
    """
    return [
        *await tx.all(
            DifferenceRow,
            """
            SELECT 'copies:' || id, CAST(SUM(needed) AS BIGINT), CAST(SUM(agree) AS BIGINT) FROM (
                SELECT id, copies / 2 + 1 AS needed, 0 AS agree
                FROM copy_groups WHERE state = 'agreed'
                UNION ALL
                SELECT group_id, 0, 1 FROM job_copies WHERE verdict = 'agrees'
            ) AS both_lists
            GROUP BY id HAVING SUM(agree) < SUM(needed)
            """,
        ),
        *await tx.all(
            DifferenceRow,
            """
            SELECT 'job:' || job_id, 1, CAST(SUM(reviews) AS BIGINT) FROM (
                SELECT job_id, 1 AS judged, 0 AS reviews FROM job_copies WHERE verdict IS NOT NULL
                UNION ALL
                SELECT r.job_id, 0, 1 FROM job_reviews AS r
                JOIN job_copies AS c ON c.job_id = r.job_id
                WHERE r.is_draw = 0
                    AND (c.verdict = 'agrees' OR r.state NOT IN ('held', 'disputed'))
            ) AS both_lists
            GROUP BY job_id HAVING SUM(judged) > SUM(reviews)
            """,
        ),
        *await tx.all(
            DifferenceRow,
            """
            SELECT 'job:' || r.job_id, 0, 1 FROM copy_groups AS g
            JOIN job_copies AS c ON c.group_id = g.id
            JOIN jobs AS j ON j.id = c.job_id
            JOIN job_reviews AS r ON r.job_id = c.job_id
            WHERE g.state = 'agreed' AND j.status = 'failed' AND r.is_draw = 0
                AND r.state IN ('held', 'disputed')
            """,
        ),
    ]


def _ids(ids: Sequence[str]) -> str:
    return json.dumps([{"id": each} for each in ids])

"""Queries on appeals: requests of one side of a decided dispute for another decision."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row


class AppealRow(NamedTuple):
    """An appeal of a buyer or of a worker; times in UTC seconds.

    `given` is the amount that the house has paid for it, in micro-units of the side's currency.
    """

    id: str
    job_id: str
    user_id: str
    reason: str
    created_at: int
    due_at: int
    given: int = 0


class DecidedRow(NamedTuple):
    """An appeal as in `AppealRow`, and its decision: upheld, voided, or None; with its time."""

    id: str
    job_id: str
    user_id: str
    reason: str
    created_at: int
    due_at: int
    given: int
    decision: str | None
    decided_at: int | None


_COLUMNS = ", ".join(f"a.{name}" for name in AppealRow._fields)
_APPEAL = f"SELECT {_COLUMNS} FROM appeals AS a"


async def insert(tx: Transaction, row: AppealRow) -> None:
    """Add an appeal."""
    await insert_row(tx, "appeals", **row._asdict())


async def find(tx: Transaction, appeal_id: str) -> AppealRow | None:
    """Return an appeal."""
    return await tx.one(AppealRow, f"{_APPEAL} WHERE a.id = :id", id=appeal_id)


async def of_job(tx: Transaction, job_id: str) -> list[AppealRow]:
    """Return the appeals of both sides of a job."""
    return await tx.all(
        AppealRow, f"{_APPEAL} WHERE a.job_id = :job_id ORDER BY a.id", job_id=job_id
    )


async def of_jobs(tx: Transaction, job_ids: Sequence[str]) -> list[AppealRow]:
    """Return the appeals of all sides of some jobs."""
    return await tx.all(
        AppealRow,
        f"""
        SELECT {_COLUMNS} FROM {tx.table("asked", id="TEXT")}
        JOIN appeals AS a ON a.job_id = asked.id
        """,
        asked=json.dumps([{"id": job_id} for job_id in job_ids]),
    )


async def page(tx: Transaction, *, user_id: str, before: str, limit: int) -> list[AppealRow]:
    """Return the appeals before one, of a user or of all ("") users, newest first."""
    of_user = "a.user_id = :user_id AND " if user_id else ""
    order = NEWEST_FIRST if user_id else "DESC"  # of all users: the primary key has the order
    return await tx.all(
        AppealRow,
        f"{_APPEAL} WHERE {of_user}a.id < :before ORDER BY a.id {order} LIMIT :limit",
        before=behind(before),
        limit=limit,
        **({"user_id": user_id} if user_id else {}),
    )


async def first_due(tx: Transaction, *, user_id: str = "", limit: int) -> list[AppealRow]:
    """Return the appeals without a decision, of a user or of all (""), the first due first."""
    of_user = "a.user_id = :user_id AND " if user_id else ""
    return await tx.all(
        AppealRow,
        f"{_APPEAL} WHERE {of_user}a.decided_at IS NULL ORDER BY a.due_at, a.id LIMIT :limit",
        limit=limit,
        **({"user_id": user_id} if user_id else {}),
    )


async def decided_page(
    tx: Transaction, user_id: str, *, before: str, limit: int
) -> list[DecidedRow]:
    """Return the appeals of a user before one with their decisions, newest first."""
    return await tx.all(
        DecidedRow,
        f"""
        SELECT {_COLUMNS}, d.decision, d.decided_at FROM appeals AS a
        LEFT JOIN case_decisions AS d ON d.kind = 'appeal' AND d.subject_id = a.id
        WHERE a.user_id = :user_id AND a.id < :before
        ORDER BY a.id {NEWEST_FIRST} LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
    )


async def close(tx: Transaction, appeal_id: str, now: int) -> None:
    """Record that an appeal has its decision."""
    await tx.run(
        "UPDATE appeals SET decided_at = :now WHERE id = :id AND decided_at IS NULL",
        id=appeal_id,
        now=now,
    )


async def give(tx: Transaction, appeal_id: str, amount: int) -> None:
    """Record the amount that the house pays for an appeal."""
    await tx.run("UPDATE appeals SET given = :amount WHERE id = :id", id=appeal_id, amount=amount)

"""Queries on answers: what workers say about disputes of their work, before the decision."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class AnswerRow(NamedTuple):
    """The answer of a worker to the dispute of a job; the time in UTC seconds."""

    job_id: str
    user_id: str
    answer: str
    answered_at: int


_COLUMNS = ", ".join(f"a.{name}" for name in AnswerRow._fields)


async def put(tx: Transaction, row: AnswerRow) -> None:
    """Add an answer, in place of an earlier one of the same worker to the same dispute."""
    await tx.run(
        """
        INSERT INTO dispute_answers (job_id, user_id, answer, answered_at)
        VALUES (:job_id, :user_id, :answer, :answered_at)
        ON CONFLICT (job_id, user_id) DO UPDATE SET
            answer = excluded.answer, answered_at = excluded.answered_at
        """,
        **row._asdict(),
    )


async def of_job(tx: Transaction, job_id: str) -> list[AnswerRow]:
    """Return the answers of all workers of a job, the oldest first."""
    return await tx.all(
        AnswerRow,
        f"""
        SELECT {_COLUMNS} FROM dispute_answers AS a
        WHERE a.job_id = :job_id AND a.answer <> '' ORDER BY a.answered_at, a.user_id
        """,
        job_id=job_id,
    )


async def of_jobs(tx: Transaction, job_ids: Sequence[str]) -> list[AnswerRow]:
    """Return the answers of all workers of some jobs."""
    # Not of one worker: SQLite would read all answers of that worker, for each job.
    return await tx.all(
        AnswerRow,
        f"""
        SELECT {_COLUMNS} FROM {tx.table("asked", id="TEXT")}
        JOIN dispute_answers AS a ON a.job_id = asked.id
        """,
        asked=json.dumps([{"id": job_id} for job_id in sorted(set(job_ids))]),
    )

"""Queries on samples: jobs of the operator whose answers are known, each for one device."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row
from storage.money.ledger import DifferenceRow


class SampleRow(NamedTuple):
    """A sample: price in micro-credits, `created_at` in UTC seconds.

    Devices see `shown_buyer` as its buyer. `is_first` is 1 if its device had none before. `outcome`
    is null until the device has ended it: "right", "wrong" or "none".
    """

    job_id: str
    device_id: str
    owner_id: str
    answer: str
    shown_buyer: str
    price: int
    is_first: int
    created_at: int
    outcome: str | None = None


class LossRow(NamedTuple):
    """Loss of the reputation of a device, or of its owner, by a wrong result of a sample.

    `correctness` is in millionths, `streak` the right checks in a row before, and `checks` the
    checks up to it.
    """

    job_id: str
    reputation_id: str
    correctness: int
    streak: int
    checks: int


class WrongRow(NamedTuple):
    """A sample with a wrong result: price in micro-credits, `failed_at` in UTC seconds."""

    job_id: str
    device_id: str
    owner_id: str
    answer: str
    result: str | None
    price: int
    failed_at: int


class EndedRow(NamedTuple):
    """A sample that a device has ended, at a time (UTC seconds)."""

    job_id: str
    outcome: str
    ended_at: int | None


class ShownRow(NamedTuple):
    """Buyer of a sample, as devices see it."""

    job_id: str
    buyer_id: str


class OutcomeRow(NamedTuple):
    """The number of decided samples."""

    outcome: str
    samples: int


_COLUMNS = ", ".join(SampleRow._fields)
# `finished_at` is set: the result that is wrong ends the job.
_WRONG = """
    SELECT s.job_id, s.device_id, s.owner_id, s.answer, j.result, s.price,
        COALESCE(j.finished_at, 0)
    FROM job_samples AS s JOIN jobs AS j ON j.id = s.job_id
    WHERE s.outcome = 'wrong'
"""


async def insert(tx: Transaction, sample: SampleRow) -> None:
    """Add a sample."""
    await insert_row(tx, "job_samples", **sample._asdict())


async def find(tx: Transaction, job_id: str) -> SampleRow | None:
    """Return a sample; None for any other job."""
    return await tx.one(
        SampleRow, f"SELECT {_COLUMNS} FROM job_samples WHERE job_id = :job_id", job_id=job_id
    )


async def wrong_page(tx: Transaction, *, before: str, limit: int) -> list[WrongRow]:
    """Return the samples with a wrong result before one, newest first."""
    return await tx.all(
        WrongRow,
        # The index of the wrong answers has the order.
        f"{_WRONG} AND s.job_id < :before ORDER BY s.job_id DESC LIMIT :limit",
        before=behind(before),
        limit=limit,
    )


async def find_wrong(tx: Transaction, job_id: str) -> WrongRow | None:
    """Return a sample with a wrong result; None for any other job."""
    return await tx.one(WrongRow, f"{_WRONG} AND s.job_id = :job_id", job_id=job_id)


async def ended_on(tx: Transaction, device_id: str, *, limit: int) -> list[EndedRow]:
    """Return the newest samples that a device has ended."""
    return await tx.all(
        EndedRow,
        f"""
        SELECT s.job_id, s.outcome, a.ended_at FROM job_attempts AS a
        JOIN job_samples AS s ON s.job_id = a.job_id
        WHERE a.device_id = :device_id AND s.outcome IS NOT NULL
        ORDER BY a.job_id {NEWEST_FIRST} LIMIT :limit
        """,
        device_id=device_id,
        limit=limit,
    )


async def insert_losses(tx: Transaction, rows: Sequence[LossRow]) -> None:
    """Record what a wrong result has taken."""
    for row in rows:
        await insert_row(tx, "sample_losses", **row._asdict())


async def losses(tx: Transaction, job_id: str) -> list[LossRow]:
    """Return what the wrong result of a sample has taken."""
    return await tx.all(
        LossRow,
        """
        SELECT job_id, reputation_id, correctness, streak, checks FROM sample_losses
        WHERE job_id = :job_id ORDER BY reputation_id
        """,
        job_id=job_id,
    )


async def end(tx: Transaction, job_id: str, outcome: str) -> None:
    """Record the outcome of a sample; its job is locked."""
    row_count = await tx.run(
        "UPDATE job_samples SET outcome = :outcome WHERE job_id = :job_id AND outcome IS NULL",
        job_id=job_id,
        outcome=outcome,
    )
    assert row_count == 1  # noqa: S101 - the job ends once, in this transaction


async def jobs_left(tx: Transaction, device_id: str) -> int | None:
    """Return the number of jobs before a device's next sample; None if it never had one."""
    return await tx.one(
        int, "SELECT jobs_left FROM sample_turns WHERE device_id = :device_id", device_id=device_id
    )


async def with_jobs_left(tx: Transaction, device_ids: Sequence[str]) -> list[str]:
    """Return the devices among these that must complete jobs before their next sample."""
    return await tx.all(
        str,
        f"""
        SELECT t.device_id FROM {tx.table("asked", id="TEXT")}
        JOIN sample_turns AS t ON t.device_id = asked.id
        WHERE t.jobs_left > 0
        """,
        asked=json.dumps([{"id": device_id} for device_id in device_ids]),
    )


async def set_jobs_left(tx: Transaction, device_id: str, jobs: int) -> None:
    """Set the number of jobs that a device must complete before its next sample."""
    await tx.run(
        """
        INSERT INTO sample_turns (device_id, jobs_left) VALUES (:device_id, :jobs)
        ON CONFLICT (device_id) DO UPDATE SET jobs_left = excluded.jobs_left
        """,
        device_id=device_id,
        jobs=jobs,
    )


async def count_job(tx: Transaction, device_id: str) -> None:
    """Note that a device has completed a job."""
    await tx.run(
        """
        UPDATE sample_turns SET jobs_left = jobs_left - 1
        WHERE device_id = :device_id AND jobs_left > 0
        """,
        device_id=device_id,
    )


async def spent_since(tx: Transaction, since: int) -> int:
    """Return the price of the samples since a moment that were paid, or may be."""
    number = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(price), 0) AS BIGINT) FROM job_samples
        WHERE created_at >= :since AND COALESCE(outcome, 'right') = 'right'
        """,
        since=since,
    )
    return number or 0


async def spent_on(tx: Transaction, owner_id: str, since: int) -> int:
    """Return the same for the samples of one owner's devices."""
    number = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(price), 0) AS BIGINT) FROM job_samples
        WHERE created_at >= :since AND COALESCE(outcome, 'right') = 'right'
            AND owner_id = :owner_id
        """,
        since=since,
        owner_id=owner_id,
    )
    return number or 0


async def last_waits(tx: Transaction, *, limit: int) -> list[int]:
    """Return the waiting seconds of the last jobs that devices were given."""
    return await tx.all(
        int,
        """
        SELECT accepted_at - created_at
        FROM (SELECT id, accepted_at, created_at FROM jobs ORDER BY id DESC LIMIT :limit) AS j
        WHERE accepted_at IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM job_samples AS s WHERE s.job_id = j.id)
        """,
        limit=limit,
    )


async def users_since(tx: Transaction) -> int:
    """Return since when there are users, in UTC seconds."""
    since = await tx.one(int, "SELECT created_at FROM users ORDER BY id LIMIT 1")
    return 0 if since is None else since


async def firsts_since(tx: Transaction, owner_id: str, since: int) -> int:
    """Count the devices of an owner that have had their first sample since a moment."""
    number = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM job_samples
        WHERE created_at >= :since AND owner_id = :owner_id AND is_first = 1
        """,
        since=since,
        owner_id=owner_id,
    )
    return number or 0


async def shown(tx: Transaction, job_ids: Sequence[str]) -> dict[str, str]:
    """Return the shown buyer of each of these jobs that is a sample."""
    rows = await tx.all(
        ShownRow,
        f"""
        SELECT job_id, shown_buyer FROM job_samples
        WHERE job_id IN (SELECT id FROM {tx.table("asked", id="TEXT")})
        """,
        asked=json.dumps([{"id": job_id} for job_id in job_ids]),
    )
    return dict(rows)


async def held_reviews(tx: Transaction, device_id: str, *, limit: int) -> list[str]:
    """Return the jobs in review, not disputed, that a device has done; samples are left out."""
    return await tx.all(
        str,
        """
        SELECT DISTINCT r.job_id FROM job_reviews AS r
        JOIN job_attempts AS a ON a.job_id = r.job_id AND a.attempt = r.attempt
        LEFT JOIN job_samples AS s ON s.job_id = r.job_id
        WHERE r.state = 'held' AND a.device_id = :device_id AND s.job_id IS NULL
        ORDER BY r.job_id
        LIMIT :limit
        """,
        device_id=device_id,
        limit=limit,
    )


async def freeze(
    tx: Transaction, device_id: str, job_ids: Sequence[str], *, reason: str, now: int
) -> None:
    """Dispute the pay of a device for these jobs, which the caller has locked."""
    await tx.run(
        f"""
        UPDATE job_reviews SET state = 'disputed', reason = :reason, disputed_at = :now
        WHERE state = 'held' AND job_id IN (SELECT id FROM {tx.table("asked", id="TEXT")})
            AND EXISTS (
                SELECT 1 FROM job_attempts AS a WHERE a.job_id = job_reviews.job_id
                    AND a.attempt = job_reviews.attempt AND a.device_id = :device_id
            )
        """,
        asked=json.dumps([{"id": job_id} for job_id in job_ids]),
        device_id=device_id,
        reason=reason,
        now=now,
    )


async def frozen_reviews(
    tx: Transaction, device_id: str, *, reason: str, at: int, limit: int
) -> list[str]:
    """Return the jobs of a device whose pay `freeze` disputed at a time, if it is disputed."""
    return await tx.all(
        str,
        """
        SELECT DISTINCT r.job_id FROM job_reviews AS r
        JOIN job_attempts AS a ON a.job_id = r.job_id AND a.attempt = r.attempt
        WHERE r.state = 'disputed' AND r.disputed_at = :at AND r.reason = :reason
            AND a.device_id = :device_id
        ORDER BY r.job_id
        LIMIT :limit
        """,
        device_id=device_id,
        reason=reason,
        at=at,
        limit=limit,
    )


async def unfreeze(
    tx: Transaction, device_id: str, job_ids: Sequence[str], *, reason: str, at: int, now: int
) -> None:
    """Let the reviews go on that `freeze` has disputed; the caller has locked their jobs.

    Each review ends later, by the duration of its dispute.
    """
    await tx.run(
        f"""
        UPDATE job_reviews SET state = 'held', reason = NULL, disputed_at = NULL,
            review_until = review_until + :now - :at
        WHERE state = 'disputed' AND disputed_at = :at AND reason = :reason
            AND job_id IN (SELECT id FROM {tx.table("asked", id="TEXT")})
            AND EXISTS (
                SELECT 1 FROM job_attempts AS a WHERE a.job_id = job_reviews.job_id
                    AND a.attempt = job_reviews.attempt AND a.device_id = :device_id
            )
        """,
        asked=json.dumps([{"id": job_id} for job_id in job_ids]),
        device_id=device_id,
        reason=reason,
        at=at,
        now=now,
    )


async def by_outcome(tx: Transaction) -> list[OutcomeRow]:
    """Count the decided samples."""
    return await tx.all(
        OutcomeRow,
        """
        SELECT outcome, COUNT(*) FROM job_samples WHERE outcome IS NOT NULL GROUP BY outcome
        """,
    )


async def against_money(tx: Transaction) -> list[DifferenceRow]:
    """Return the wrong samples that were paid for, and the right ones that were not."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT h.id, CASE WHEN s.outcome = 'right' THEN s.price ELSE 0 END,
            COALESCE(h.captured, -1)
        FROM job_samples AS s JOIN holds AS h ON h.id = 'job:' || s.job_id
        WHERE s.outcome IS NOT NULL
            AND COALESCE(h.captured, -1) <> CASE WHEN s.outcome = 'right' THEN s.price ELSE 0 END
        """,
    )

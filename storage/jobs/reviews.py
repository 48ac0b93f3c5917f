"""Queries on reviews: finished jobs whose buyers may look at the result before it is paid for."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row
from storage.money.ledger import DifferenceRow, differences


class ReviewRow(NamedTuple):  # as wide as its table
    """A finished job in review, or that was: times in UTC seconds.

    The worker `user_id` has earned `earned` micro-credits; `price` is the payment of the buyer, in
    micro-units of `currency`. `reason` is why the buyer disputes it. `is_draw` is 1 if it is about
    the payment of an attempt for its time, and not about a result. A dispute that was decided in
    part has returned `refunded` to the buyer, and has withheld `withheld` of the earnings.
    """

    job_id: str
    attempt: int
    user_id: str
    buyer_id: str
    earned: int
    currency: str
    price: int
    created_at: int
    review_until: int
    state: str
    reason: str | None
    disputed_at: int | None
    resolved_at: int | None
    is_draw: int = 0
    refunded: int = 0
    withheld: int = 0


class DisputesRow(NamedTuple):
    """The numbers of all disputes, of reversed disputes, and of disputes decided in part."""

    disputed: int
    reversed: int
    split: int


COUNTED_MAX = 1_000  # disputes of one person that are counted
_COLUMNS = ", ".join(ReviewRow._fields)
_REVIEW = f"SELECT {_COLUMNS} FROM job_reviews"
IS_OPEN = "state IN ('held', 'disputed')"
# The reference of a review, with `r`: the name of its hold, and the beginning of its transfers'
# names.
REFERENCE = """
    'review:job:' || r.job_id || CASE WHEN r.is_draw = 1 THEN ':attempt:' || r.attempt ELSE '' END
"""
# Amount that the house keeps of the price until the review is decided: the fee, or the whole price
# where the worker is paid in another currency.
_KEPT = "CASE WHEN currency = 'credit' THEN price - earned ELSE price END"

# Amount that the house gets of an upheld price: less after a decision in part.
_FEE = f"{_KEPT} - refunded + CASE WHEN currency = 'credit' THEN withheld ELSE 0 END"


async def insert(tx: Transaction, review: ReviewRow) -> None:
    """Add a review."""
    await insert_row(tx, "job_reviews", **review._asdict())


async def of_job(tx: Transaction, job_id: str) -> list[ReviewRow]:
    """Return the review of a job's result, or the reviews of its attempts' pay, in order."""
    return await tx.all(
        ReviewRow, f"{_REVIEW} WHERE job_id = :job_id ORDER BY attempt", job_id=job_id
    )


async def of_jobs(tx: Transaction, job_ids: Sequence[str]) -> dict[str, list[ReviewRow]]:
    """Return the reviews of jobs, as `of_job` does, by the job."""
    columns = ", ".join(f"r.{name}" for name in ReviewRow._fields)
    rows = await tx.all(
        ReviewRow,
        f"""
        SELECT {columns} FROM {tx.table("asked", id="TEXT")}
        JOIN job_reviews AS r ON r.job_id = asked.id ORDER BY r.job_id, r.attempt
        """,
        asked=json.dumps([{"id": job_id} for job_id in sorted(set(job_ids))]),
    )
    found: dict[str, list[ReviewRow]] = {job_id: [] for job_id in job_ids}
    for row in rows:
        found[row.job_id].append(row)
    return found


async def dispute(tx: Transaction, job_id: str, *, reason: str, now: int) -> bool:
    """Freeze the reviewed pay of a job; False if nothing is held, or its time is over."""
    row_count = await tx.run(
        """
        UPDATE job_reviews SET state = 'disputed', reason = :reason, disputed_at = :now
        WHERE job_id = :job_id AND state = 'held' AND review_until > :now
        """,
        job_id=job_id,
        reason=reason,
        now=now,
    )
    return row_count > 0


async def was_disputed(tx: Transaction, user_id: str, since: int, *, but: str) -> bool:
    """Return whether a worker's pay for another job than `but` is disputed since a time."""
    found = await tx.one(
        int,
        """
        SELECT 1 FROM job_reviews
        WHERE user_id = :user_id AND disputed_at IS NOT NULL AND disputed_at > :since
            AND job_id <> :but
        LIMIT 1
        """,
        user_id=user_id,
        since=since,
        but=but,
    )
    return found is not None


async def resolve(
    tx: Transaction,
    before: ReviewRow,
    *,
    after: str,
    now: int,
    refunded: int = 0,
    withheld: int = 0,
) -> bool:
    """End a review if its state is still as read; return False otherwise."""
    row_count = await tx.run(
        """
        UPDATE job_reviews SET state = :after, resolved_at = :now, refunded = :refunded,
            withheld = :withheld
        WHERE job_id = :job_id AND attempt = :attempt AND state = CAST(:before AS TEXT)
            AND resolved_at IS NULL
        """,
        job_id=before.job_id,
        attempt=before.attempt,
        before=before.state,
        after=after,
        now=now,
        refunded=refunded,
        withheld=withheld,
    )
    return row_count == 1


async def schedule(tx: Transaction, job_id: str, review_until: int) -> None:
    """Set until when the reviews of a job last that are held."""
    await tx.run(
        """
        UPDATE job_reviews SET review_until = :review_until
        WHERE job_id = :job_id AND state = 'held'
        """,
        job_id=job_id,
        review_until=review_until,
    )


async def due(tx: Transaction, *, now: int, limit: int) -> list[str]:
    """Return jobs with a review that is over, the longest first, once for each such review."""
    return await tx.all(
        str,
        """
        SELECT job_id FROM job_reviews WHERE state = 'held' AND review_until <= :now
        ORDER BY review_until
        LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def disputed(tx: Transaction, *, limit: int) -> list[ReviewRow]:
    """Return reviews that wait for the operator, the oldest dispute first."""
    return await tx.all(
        ReviewRow,
        f"{_REVIEW} WHERE state = 'disputed' AND disputed_at >= 0"
        " ORDER BY disputed_at, job_id LIMIT :limit",
        limit=limit,
    )


async def earned_in_review(tx: Transaction, user_id: str) -> int:
    """Return the earnings of a worker that are in review, in micro-credits."""
    number = await tx.one(
        int,
        f"""
        SELECT CAST(COALESCE(SUM(earned), 0) AS BIGINT) FROM job_reviews
        WHERE user_id = :user_id AND {IS_OPEN}
        """,
        user_id=user_id,
    )
    return number or 0


async def kept_against_reviews(tx: Transaction) -> list[DifferenceRow]:
    """Return each `review` account of the house that differs from the sum kept for open reviews."""
    return await tx.all(
        DifferenceRow,
        differences(
            f"""
            SELECT 'house:review:' || currency AS reference, {_KEPT} AS amount
            FROM job_reviews WHERE {IS_OPEN}
            """,
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'review'",
        ),
    )


async def reviews_against_holds(tx: Transaction) -> list[DifferenceRow]:
    """Return each review whose buyer has not paid its price, or whose worker's part is not held."""
    return [
        *await tx.all(
            DifferenceRow,
            """
            SELECT 'job:' || r.job_id, r.price, COALESCE(h.captured - h.drawn, 0)
            FROM job_reviews AS r LEFT JOIN holds AS h ON h.id = 'job:' || r.job_id
            WHERE r.is_draw = 0 AND r.price <> COALESCE(h.captured - h.drawn, 0)
            """,
        ),
        *await tx.all(
            DifferenceRow,
            """
            SELECT reference, CAST(SUM(expected) AS BIGINT), CAST(SUM(actual) AS BIGINT) FROM (
                SELECT 'job:' || job_id || ':attempt:' || attempt AS reference,
                    price AS expected, 0 AS actual
                FROM job_reviews WHERE is_draw = 1
                UNION ALL
                SELECT 'job:' || job_id || ':attempt:' || attempt, 0, amount FROM job_draws
            ) AS both_lists
            GROUP BY reference HAVING SUM(expected) > 0 AND SUM(expected) <> SUM(actual)
            """,
        ),
        *await tx.all(
            DifferenceRow,
            f"""
            SELECT {REFERENCE}, r.earned, COALESCE(h.amount, 0) FROM job_reviews AS r
            LEFT JOIN holds AS h ON h.id = {REFERENCE} AND h.user_id = r.user_id
            WHERE r.earned <> COALESCE(h.amount, 0)
        """,
        ),
    ]


async def resolutions_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each decided review whose worker, buyer or house did not get their money."""
    credited = f"""
        (SELECT CAST(COALESCE(SUM(e.amount), 0) AS BIGINT)
        FROM transfers AS t JOIN entries AS e ON e.transfer_id = t.id
        WHERE t.business_key = {REFERENCE} || ':{{of}}' AND e.credit_account = {{to}})
    """
    reversed_to, expected = "CASE WHEN r.state = 'reversed' THEN {} ELSE {} END", []
    for amount, of, account in (
        (
            reversed_to.format("0", "r.earned - r.withheld"),
            "capture",
            "'user:' || r.user_id || ':available:credit'",
        ),
        (reversed_to.format("0", _FEE), "fee", "'house:revenue:' || r.currency"),
        (
            reversed_to.format("r.price", "r.refunded"),
            "refund",
            "'user:' || r.buyer_id || ':available:' || r.currency",
        ),
    ):
        actual = credited.format(of=of, to=account)
        expected += await tx.all(
            DifferenceRow,
            f"""
            SELECT {REFERENCE} || ':{of}', {amount}, {actual}
            FROM job_reviews AS r
            WHERE r.resolved_at IS NOT NULL AND {amount} <> {actual}
            """,
        )
    return expected


async def disputes_with(tx: Transaction, *, worker: str = "", buyer: str = "") -> DisputesRow:
    """Count the disputes about a worker's jobs, or by a buyer."""
    column, value = ("user_id", worker) if worker else ("buyer_id", buyer)
    found = await tx.one(
        DisputesRow,
        f"""
        SELECT COUNT(*), COALESCE(SUM(CASE WHEN state = 'reversed' THEN 1 ELSE 0 END), 0),
            COALESCE(SUM(CASE WHEN refunded > 0 THEN 1 ELSE 0 END), 0)
        FROM (
            SELECT state, refunded FROM job_reviews
            WHERE {column} = :value AND disputed_at IS NOT NULL LIMIT :most
        ) AS disputes
        """,
        value=value,
        most=COUNTED_MAX,
    )
    return found or DisputesRow(0, 0, 0)

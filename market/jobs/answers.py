"""Answers: a worker says something about the dispute of its work, before the staff decides.

Only the staff reads the statements of both sides: the buyer's reason, and the worker's answer. They
are texts of strangers about each other; the reason of the decision goes to both sides.
"""

from collections.abc import Sequence

from msgspec import Struct

from market.accounts.bounds import lock_user
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.events.context import Context
from market.jobs.reviews import check_reason
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.jobs import answers as queries
from storage.jobs import reviews as review_queries
from storage.jobs.answers import AnswerRow


class OpenDispute(Struct, frozen=True):
    """A dispute of a worker's pay that waits for the staff: its time, and the worker's answer."""

    disputed_at: int
    answer: str | None


class Answers:
    """Answers of workers to disputes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def answer(self, user_id: str, job_id: str, text: str) -> AnswerRow:
        """Answer a dispute for the staff; a later answer replaces it until the decision.

        Args:
            user_id: a worker whose pay is disputed.
            job_id: the job.
            text: the answer, of 1 to 2,000 characters.

        Raises:
            MarketError: `invalid_field`; `job_not_found`, for all but both sides of the job;
                `not_reviewable`, for the buyer, and when no pay of the worker is disputed any more,
                or is not yet.
        """
        check_reason(text, "text")
        return await self._context.store.write(self._answer, user_id, job_id, text)

    async def _answer(self, tx: Transaction, user_id: str, job_id: str, text: str) -> AnswerRow:
        await tx.lock("jobs", [job_id])  # as a decision does
        rows = await review_queries.of_job(tx, job_id)
        own = [row for row in rows if row.user_id == user_id]
        if not own:
            if any(row.buyer_id == user_id for row in rows):
                message = "The reason of the dispute is the statement of its buyer."
                raise MarketError(Code.NOT_REVIEWABLE, message)
            raise MarketError(Code.JOB_NOT_FOUND)
        if all(row.state != ReviewStatus.DISPUTED for row in own):
            message = "Your pay for this job is not disputed; an answer is possible until the "
            raise MarketError(Code.NOT_REVIEWABLE, f"{message}decision about a dispute.")
        await lock_user(tx, user_id)  # as an erasure does, which finds the text, or comes first
        if await closures.is_erased(tx, user_id):
            raise MarketError(Code.JOB_NOT_FOUND)
        row = AnswerRow(job_id, user_id, text, self._context.now())
        await queries.put(tx, row)
        return row


async def open_disputes(
    tx: Transaction, user_id: str, job_ids: Sequence[str]
) -> dict[str, OpenDispute]:
    """Return the disputes of a worker's pay that wait for a decision, by the job."""
    reviews = await review_queries.of_jobs(tx, job_ids)
    since = {
        job_id: min(row.disputed_at or 0 for row in disputed)
        for job_id, rows in reviews.items()
        if (disputed := [row for row in rows if _is_open(row, user_id)])
    }
    answers = await queries.of_jobs(tx, list(since)) if since else []
    own = {row.job_id: row.answer for row in answers if row.user_id == user_id}
    return {job_id: OpenDispute(at, own.get(job_id)) for job_id, at in since.items()}


def _is_open(row: review_queries.ReviewRow, user_id: str) -> bool:
    return row.user_id == user_id and row.state == ReviewStatus.DISPUTED

"""Decisions about disputes without an act of the staff."""

from market.base.states import ReviewStatus
from market.events.context import Context
from market.jobs import reviews
from storage.jobs.reviews import ReviewRow


async def decide_review(context: Context, job_id: str, state: ReviewStatus) -> list[ReviewRow]:
    """Decide a dispute, and return its reviews as they were before."""
    chosen = reviews.decision(context.identifiers.new, state, context.now())
    return await context.store.write(reviews.decide_in, context, chosen, job_id)

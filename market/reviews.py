"""Reviews: the buyer of a finished job may look at the result before the worker is paid.

It is for jobs that say themselves what is to run. When such a job is completed, its price leaves
the buyer. What the worker earns of it waits in the worker's held account, under a hold of its own;
what the house keeps waits in an account of the house. The buyer confirms, or says nothing until the
time is over: then both are paid. The buyer disputes: then nothing moves until the operator has
decided that the payment stands (`upheld`), or that the buyer gets all of it back (`reversed`).
"""

import logging
from collections.abc import Callable

from msgspec import Struct

from market import ledger, trust
from market.context import Context
from market.errors import Code, MarketError
from market.ledger import Movement, Transfer, TransferIds, TransferKind
from market.money import Currency
from market.states import ReviewStatus
from market.sweeping import Sweep
from storage import jobs as job_queries
from storage import reviews as queries
from storage.jobs import JobRow
from storage.ledger import HoldRow
from storage.reviews import ReviewRow
from storage.store import Transaction

REASON_MAX_CHARACTERS = 2_000
EXPIRE_MAX_REVIEWS = 100  # in one sweep; another one follows soon
DISPUTES_MAX = 1_000  # more than anybody reads at once

_logger = logging.getLogger("reviews")


class Beginning(Struct, frozen=True):
    """What begins a review: whom it is about, and what each of them gets of the price."""

    worker: str
    earned: int
    seconds: int
    resolution: TransferIds
    hold_id: str
    now: int


class Decision(Struct, frozen=True):
    """How a review ends, and what that needs from outside its transaction."""

    state: ReviewStatus
    now: int
    resolution: TransferIds
    rest_id: str


class Reviews:
    """Decides who is paid for finished jobs.

    Args:
        context: the store, identifiers and the time.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._new_id: Callable[[], str] = context.identifiers.new
        self._now = context.now
        self._expiring = Sweep("the review of job %s cannot be ended", _logger)

    async def confirm(self, user_id: str, job_id: str) -> None:
        """Have a job paid for now; confirming again changes nothing.

        A buyer who has disputed it gives that up.

        Raises:
            MarketError: `job_not_found`; `not_reviewable`, when it is not in review any more, or
                never was.
        """
        await self._store.write(_confirm, self._decision(ReviewStatus.CONFIRMED), user_id, job_id)

    async def dispute(self, user_id: str, job_id: str, reason: str) -> None:
        """Have nobody paid for a job until the operator has decided.

        Doing it again changes nothing, not even the reason.

        Raises:
            MarketError: `job_not_found`; `not_reviewable`, when it is not in review any more;
                `invalid_field`.
        """
        if not 1 <= len(reason) <= REASON_MAX_CHARACTERS:
            message = f"reason must have 1 to {REASON_MAX_CHARACTERS} characters."
            raise MarketError(Code.INVALID_FIELD, message, field="reason")
        await self._store.write(_dispute, user_id, job_id, reason=reason, now=self._now())

    async def expire(self) -> int:
        """Pay for jobs that their buyers have not disputed in time; return for how many.

        A review that cannot be ended is logged, and tried again after a while.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()

        async def find(limit: int) -> list[str]:
            return await self._store.read(queries.due, now=now, limit=limit)

        async def pay(job_id: str) -> None:
            await self._store.write(_expire, self._decision(ReviewStatus.EXPIRED), job_id)

        return await self._expiring.run(find, pay, most=EXPIRE_MAX_REVIEWS, now=now)

    async def earned_in_review(self, user_id: str) -> int:
        """Return what a worker has earned that is in review, in micro-credits."""
        return await self._store.read(queries.earned_in_review, user_id)

    def _decision(self, state: ReviewStatus) -> Decision:
        return decision(self._new_id, state, self._now())


def decision(new_id: Callable[[], str], state: ReviewStatus, now: int) -> Decision:
    """Return a decision with identifiers for its transfers."""
    return Decision(state, now, TransferIds(new_id(), new_id()), new_id())


async def disputes(context: Context) -> list[ReviewRow]:
    """Return the reviews that wait for the operator, the oldest dispute first."""
    return await context.store.read(queries.disputed, limit=DISPUTES_MAX)


async def decide(context: Context, job_id: str, state: ReviewStatus) -> ReviewRow:
    """Decide a dispute as the operator; return the review as it was before.

    Deciding again alike changes nothing.

    Raises:
        MarketError: `job_not_found`; `not_reviewable`, when nobody disputes it.
    """
    chosen = decision(context.identifiers.new, state, context.now())
    return await context.store.write(_decide, chosen, job_id)


def hold_of(job_id: str) -> str:
    """Return the hold of what a worker has earned of a job that is in review."""
    return f"review:job:{job_id}"


async def begin(tx: Transaction, job: JobRow, job_hold_id: str, how: Beginning) -> None:
    """Take the price of a completed job from its buyer, and keep it until the review is over.

    Args:
        tx: the transaction; it has just completed the job.
        job: as it was while it ran.
        job_hold_id: the hold of its price.
        how: who has done it, and what that has earned in credits.
    """
    currency = Currency(job.currency)
    kept, source = ledger.review(currency), ledger.revenue(Currency.CREDIT)
    if currency == Currency.CREDIT:
        source = kept
    # All that the transfers below move, also what `capture` releases: nothing, for the price is
    # captured whole.
    movements = (
        Movement(ledger.held(job.user_id, currency), kept, job.price_held),
        Movement(source, ledger.held(how.worker, Currency.CREDIT), how.earned),
    )
    await ledger.lock(tx, movements)
    await ledger.capture(
        tx, job_hold_id, [(kept, job.price_held)], transfer_ids=how.resolution, now=how.now
    )
    hold = HoldRow(hold_of(job.id), how.worker, Currency.CREDIT, how.earned, None)
    await ledger.hold(tx, hold, transfer_id=how.hold_id, now=how.now, source=source)
    review = ReviewRow(
        job_id=job.id,
        attempt=job.attempts,
        user_id=how.worker,
        buyer_id=job.user_id,
        earned=how.earned,
        currency=currency,
        price=job.price_held,
        created_at=how.now,
        review_until=how.now + how.seconds,
        state=ReviewStatus.HELD,
        reason=None,
        disputed_at=None,
        resolved_at=None,
    )
    await queries.insert(tx, review)


async def schedule(tx: Transaction, job_id: str, until: int) -> None:
    """Let the buyer of a finished job look at it until a moment, unless the review is decided."""
    await queries.schedule(tx, job_id, until)


async def give_back(tx: Transaction, chosen: Decision, job_id: str) -> None:
    """Give a buyer the price of a finished job back, unless it was paid for; the job is locked."""
    assert chosen.state == ReviewStatus.REVERSED  # noqa: S101 - nothing else gives money back
    review = await queries.find(tx, job_id)
    if review is not None and review.state in (ReviewStatus.HELD, ReviewStatus.DISPUTED):
        await _resolve(tx, chosen, review)


async def _of_buyer(tx: Transaction, user_id: str, job_id: str) -> ReviewRow:
    """Lock a buyer's job, and return its review."""
    await tx.lock("jobs", [job_id])
    job = await job_queries.find(tx, job_id)
    if job is None or job.user_id != user_id:
        raise MarketError(Code.JOB_NOT_FOUND)
    review = await queries.find(tx, job_id)
    if review is None:
        raise MarketError(Code.NOT_REVIEWABLE)
    return review


async def _confirm(tx: Transaction, chosen: Decision, user_id: str, job_id: str) -> None:
    review = await _of_buyer(tx, user_id, job_id)
    if review.state == ReviewStatus.CONFIRMED:
        return
    if review.state not in (ReviewStatus.HELD, ReviewStatus.DISPUTED):
        raise MarketError(Code.NOT_REVIEWABLE)
    await _resolve(tx, chosen, review)


async def _dispute(tx: Transaction, user_id: str, job_id: str, *, reason: str, now: int) -> None:
    review = await _of_buyer(tx, user_id, job_id)
    if review.state == ReviewStatus.DISPUTED:
        return
    if not await queries.dispute(tx, job_id, reason=reason, now=now):
        raise MarketError(Code.NOT_REVIEWABLE)


async def _expire(tx: Transaction, chosen: Decision, job_id: str) -> None:
    await tx.lock("jobs", [job_id])
    review = await queries.find(tx, job_id)
    is_due = review is not None and review.state == ReviewStatus.HELD
    if review is not None and is_due and review.review_until <= chosen.now:
        await _resolve(tx, chosen, review)


async def _decide(tx: Transaction, chosen: Decision, job_id: str) -> ReviewRow:
    await tx.lock("jobs", [job_id])
    job = await job_queries.find(tx, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND)
    review = await queries.find(tx, job_id)
    if review is None or review.state not in (ReviewStatus.DISPUTED, chosen.state):
        raise MarketError(Code.NOT_REVIEWABLE, "Nobody disputes the payment of this job.")
    if review.state == ReviewStatus.DISPUTED:
        if chosen.state == ReviewStatus.REVERSED and job.device_id is not None:
            await trust.checked(tx, job.device_id, is_right=False)
        await _resolve(tx, chosen, review)
    return review


async def _resolve(tx: Transaction, chosen: Decision, review: ReviewRow) -> None:
    """End a review that is open: pay the worker and the house, or the buyer."""
    ReviewStatus(review.state).require_before(chosen.state)
    if not await queries.resolve(tx, review, after=chosen.state, now=chosen.now):
        raise MarketError(Code.NOT_REVIEWABLE)
    currency = Currency(review.currency)
    kept, is_credit = ledger.review(currency), currency == Currency.CREDIT
    if chosen.state == ReviewStatus.REVERSED:
        # The worker's part goes back to where it came from.
        earner = kept if is_credit else ledger.revenue(Currency.CREDIT)
        rest = Movement(kept, ledger.available(review.buyer_id, currency), review.price)
        kind = TransferKind.REFUND
        await job_queries.earn_nothing(tx, review.job_id)
    else:
        earner = ledger.available(review.user_id, Currency.CREDIT)
        amount = review.price - review.earned if is_credit else review.price
        rest = Movement(kept, ledger.revenue(currency), amount)
        kind = TransferKind.FEE
    hold_id = hold_of(review.job_id)
    part = Movement(ledger.held(review.user_id, Currency.CREDIT), earner, review.earned)
    await ledger.lock(tx, (part, rest))
    captured = await ledger.capture(
        tx, hold_id, [(earner, review.earned)], transfer_ids=chosen.resolution, now=chosen.now
    )
    assert captured is not None  # noqa: S101 - a review that is open has an open hold
    key = f"{hold_id}:{kind}"
    transfer = Transfer(chosen.rest_id, key, kind, hold_id, currency, (rest,), chosen.now)
    await ledger.post(tx, transfer)

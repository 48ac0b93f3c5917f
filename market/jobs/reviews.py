"""Reviews: the buyer of a finished job may look at the result before the worker is paid.

Only jobs with a payload have reviews. When such a job is completed, its price leaves the buyer's
account. The worker's part waits in the worker's held account, under a hold of its own. The house's
part waits in an account of the house. If the buyer confirms, or does nothing until the time is
over, both are paid. If the buyer disputes, no money moves until the operator decides that the
payment stands (`upheld`), or that the buyer gets all of it back (`reversed`).

A replica that is paid by time has such a review of each attempt that was paid, instead; so has an
attempt at another job whose work has failed, beside the review of the result. The buyer and the
operator decide about all open reviews of a job together.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from market.accounts.letters import Letters
from market.accounts.mail import job_disputed
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.base.sweeping import Sweep
from market.base.texts import can_be_shown
from market.events.catalogue import JobDisputed, JobPaid
from market.events.catalogue import amount as shown
from market.events.context import Context
from market.events.recording import NewEvent, record_all
from market.money import ledger
from market.money.ledger import Movement, Payment, Transfer, TransferIds, TransferKind
from market.money.money import Currency
from market.trust import trust
from storage.attempts import attempts as attempt_queries
from storage.engines.store import Transaction
from storage.jobs import jobs as job_queries
from storage.jobs import reviews as queries
from storage.jobs.jobs import JobRow
from storage.jobs.reviews import ReviewRow
from storage.money.ledger import HoldRow

REASON_MAX_CHARACTERS = 2_000
EXPIRE_MAX_REVIEWS = 100  # in one sweep; the next sweep follows soon
DISPUTES_MAX = 1_000  # more than an operator reads in one sitting

# A worker gets no second e-mail about disputes in this time: buyers must not fill a mailbox.
LETTER_PAUSE_SECONDS = 3_600

_logger = logging.getLogger("reviews")


class Beginning(Struct, frozen=True):
    """Beginning of a review: the worker, and each party's part of the price.

    `price` is the price of the work, in the job's currency; the rest of the buyer's hold is
    released. `earned` is the worker's part, in micro-credits.
    """

    worker: str
    price: int
    earned: int
    seconds: int
    resolution: TransferIds
    hold_id: str
    now: int


class Decision(Struct, frozen=True):
    """End of a review: its state, and the time and identifiers that its transaction needs.

    An upheld payment may be split: the buyer gets `buyer_percent` of the price back.
    """

    state: ReviewStatus
    now: int
    new_id: Callable[[], str]
    buyer_percent: int = 0


def check_reason(reason: str, field: str = "reason") -> None:
    """Check the statement of one side of a dispute: its reason, an answer, or an appeal.

    Args:
        reason: the text.
        field: the field of the request that has it.

    Raises:
        MarketError: `invalid_field`.
    """
    if not 1 <= len(reason) <= REASON_MAX_CHARACTERS:
        message = f"{field} must have 1 to {REASON_MAX_CHARACTERS} characters."
        raise MarketError(Code.INVALID_FIELD, message, field=field)
    if not can_be_shown(reason):  # it stands in pages and terminals of the staff
        message = f"{field} must have lines of printable characters alone."
        raise MarketError(Code.INVALID_FIELD, message, field=field)


class Reviews:
    """Decisions about the payment for finished jobs.

    Args:
        letters: e-mails to the workers of disputed jobs.
    """

    def __init__(self, context: Context, letters: Letters) -> None:
        self._context = context
        self._letters = letters
        self._store = context.store
        self._new_id: Callable[[], str] = context.identifiers.new
        self._now = context.now
        self._expiring = Sweep("the review of job %s cannot be ended", _logger)

    async def confirm(self, user_id: str, job_id: str) -> None:
        """Pay for a job now; a second confirmation changes nothing.

        A buyer that had disputed the job withdraws the dispute.

        Raises:
            MarketError: `job_not_found`; `not_reviewable`, when it is not in review any more, or
                never was.
        """
        chosen = self._decision(ReviewStatus.CONFIRMED)
        await self._store.write(_confirm, self._context, chosen, user_id, job_id)

    async def dispute(self, user_id: str, job_id: str, reason: str) -> None:
        """Stop the payment for a job until the operator decides, and tell its workers.

        The same dispute again changes nothing.

        Raises:
            MarketError: `job_not_found`; `not_reviewable`, when it is not in review any more;
                `already_disputed`, with another reason, which stays; `invalid_field`.
        """
        check_reason(reason)
        await self._store.write(self._dispute, user_id, job_id, reason)
        self._letters.wake()

    async def expire(self) -> int:
        """Pay for jobs that their buyers have not disputed in time. Return their number.

        A review that cannot be ended is logged, and tried again after a while.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()

        async def find(limit: int) -> list[str]:
            return await self._store.read(queries.due, now=now, limit=limit)

        async def pay(job_id: str) -> None:
            chosen = self._decision(ReviewStatus.EXPIRED)
            await self._store.write(_expire, self._context, chosen, job_id)

        return await self._expiring.run(find, pay, most=EXPIRE_MAX_REVIEWS, now=now)

    async def earned_in_review(self, user_id: str) -> int:
        """Return a worker's earnings in review, in micro-credits."""
        return await self._store.read(queries.earned_in_review, user_id)

    async def _dispute(self, tx: Transaction, user_id: str, job_id: str, reason: str) -> None:
        rows, now = await _of_buyer(tx, user_id, job_id), self._now()
        if not await queries.dispute(tx, job_id, reason=reason, now=now):
            before = [row.reason for row in rows if row.state == ReviewStatus.DISPUTED]
            if not before:
                raise MarketError(Code.NOT_REVIEWABLE)
            if reason not in before:
                raise MarketError(Code.ALREADY_DISPUTED)
            return
        held = [row for row in rows if row.state == ReviewStatus.HELD and row.review_until > now]
        workers = dict.fromkeys(row.user_id for row in held if row.user_id != user_id)
        event = JobDisputed(job_id)
        await record_all(tx, self._context, [NewEvent(worker, event, job_id) for worker in workers])
        for worker in workers:
            since = now - LETTER_PAUSE_SECONDS
            if await queries.was_disputed(tx, worker, since, but=job_id):
                continue
            name = f"job disputed:{job_id}:{worker}"
            await self._letters.put(tx, worker, name, partial(job_disputed, job_id=job_id))

    def _decision(self, state: ReviewStatus) -> Decision:
        return decision(self._new_id, state, self._now())


def decision(
    new_id: Callable[[], str], state: ReviewStatus, now: int, buyer_percent: int = 0
) -> Decision:
    """Return a decision that is made now."""
    return Decision(state, now, new_id, buyer_percent)


async def disputes(context: Context) -> list[ReviewRow]:
    """Return the reviews that wait for the operator, the oldest dispute first."""
    return await context.store.read(queries.disputed, limit=DISPUTES_MAX)


def hold_of(review: ReviewRow) -> str:
    """Return the hold of the worker's earnings from a job in review."""
    attempt = f":attempt:{review.attempt}" if review.is_draw else ""
    return f"review:job:{review.job_id}{attempt}"


def most_urgent(rows: Sequence[ReviewRow]) -> ReviewRow | None:
    """Return the review of a job to show to its buyer: an open one comes first."""
    order = (ReviewStatus.DISPUTED, ReviewStatus.HELD)
    ranks = {state: len(order) - place for place, state in enumerate(order)}
    return max(
        rows, key=lambda row: (ranks.get(ReviewStatus(row.state), 0), row.attempt), default=None
    )


async def begin(tx: Transaction, job: JobRow, job_hold_id: str, how: Beginning) -> None:
    """Take the price of a job from its buyer, and keep it until the review is over.

    Args:
        tx: the transaction; it has just ended the job.
        job: the job while it ran.
        job_hold_id: the hold of its price.
        how: the worker and its earnings in credits.
    """
    currency = Currency(job.currency)
    kept, source = ledger.review(currency), ledger.revenue(Currency.CREDIT)
    if currency == Currency.CREDIT:
        source = kept
    # All movements of the transfers below, also the release by `capture`.
    buyer, rest = ledger.held(job.user_id, currency), job.price_held - how.price
    movements = (
        Movement(buyer, kept, how.price),
        Movement(buyer, ledger.available(job.user_id, currency), rest),
        Movement(source, ledger.held(how.worker, Currency.CREDIT), how.earned),
    )
    await ledger.lock(tx, movements)
    await ledger.capture(
        tx, job_hold_id, [Payment(kept, how.price)], transfer_ids=how.resolution, now=how.now
    )
    await keep(tx, job, how)


async def keep(tx: Transaction, job: JobRow, how: Beginning, *, is_draw: bool = False) -> None:
    """Begin the review of a payment which the house's account for reviews has received just now.

    Args:
        tx: the transaction, which has locked every account that this moves money between.
        job: the job while it ran.
        how: the worker, the amount received, and the worker's earnings of it in credits.
        is_draw: whether it pays for the time of an attempt, and not for a result.
    """
    currency, house = Currency(job.currency), ledger.revenue(Currency.CREDIT)
    source = ledger.review(currency) if currency == Currency.CREDIT else house
    review = ReviewRow(
        job_id=job.id,
        attempt=job.attempts,
        user_id=how.worker,
        buyer_id=job.user_id,
        earned=how.earned,
        currency=currency,
        price=how.price,
        created_at=how.now,
        review_until=how.now + how.seconds,
        state=ReviewStatus.HELD,
        reason=None,
        disputed_at=None,
        resolved_at=None,
        is_draw=int(is_draw),
    )
    # The pay of a buyer's own device is not earned: it was the buyer's money.
    part = how.earned if how.worker != job.user_id else 0
    hold = HoldRow(hold_of(review), how.worker, Currency.CREDIT, how.earned, None, part)
    await ledger.hold(tx, hold, transfer_id=how.hold_id, now=how.now, source=source)
    await queries.insert(tx, review)


async def schedule(tx: Transaction, job_id: str, until: int) -> None:
    """Set the end of a review, unless it is decided."""
    await queries.schedule(tx, job_id, until)


async def give_back(
    tx: Transaction, chosen: Decision, job_id: str, *, is_draw: bool = False
) -> None:
    """Return the price of a finished job to its buyer, unless it was paid; the job is locked.

    With `is_draw` it is the pay of its earlier attempts for their time.
    """
    assert chosen.state == ReviewStatus.REVERSED  # noqa: S101 - nothing else gives money back
    rows = await queries.of_job(tx, job_id)
    is_open = (ReviewStatus.HELD, ReviewStatus.DISPUTED)
    chosen_rows = [row for row in rows if bool(row.is_draw) == is_draw]
    await _resolve(tx, chosen, [row for row in chosen_rows if row.state in is_open])


async def _of_buyer(tx: Transaction, user_id: str, job_id: str) -> list[ReviewRow]:
    """Lock a buyer's job, and return its reviews."""
    await tx.lock("jobs", [job_id])
    job = await job_queries.find(tx, job_id)
    if job is None or job.user_id != user_id:
        raise MarketError(Code.JOB_NOT_FOUND)
    rows = await queries.of_job(tx, job_id)
    if not rows:
        raise MarketError(Code.NOT_REVIEWABLE)
    return rows


async def _confirm(
    tx: Transaction, context: Context, chosen: Decision, user_id: str, job_id: str
) -> None:
    rows = await _of_buyer(tx, user_id, job_id)
    open_rows = [row for row in rows if row.state in (ReviewStatus.HELD, ReviewStatus.DISPUTED)]
    if not open_rows and not any(row.state == ReviewStatus.CONFIRMED for row in rows):
        raise MarketError(Code.NOT_REVIEWABLE)
    await record_all(tx, context, await _resolve(tx, chosen, open_rows))


async def _expire(tx: Transaction, context: Context, chosen: Decision, job_id: str) -> None:
    await tx.lock("jobs", [job_id])
    rows = await queries.of_job(tx, job_id)
    held = [row for row in rows if row.state == ReviewStatus.HELD]
    over = [row for row in held if row.review_until <= chosen.now]
    await record_all(tx, context, await _resolve(tx, chosen, over))


async def decide_in(
    tx: Transaction, context: Context, chosen: Decision, job_id: str
) -> list[ReviewRow]:
    """Decide a dispute within an act of the staff, and return its reviews as they were before.

    The same decision again changes nothing.

    Raises:
        MarketError: `job_not_found`; `not_reviewable`, when the job is not disputed.
    """
    await tx.lock("jobs", [job_id])
    job = await job_queries.find(tx, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND)
    rows = await queries.of_job(tx, job_id)
    disputed = [row for row in rows if row.state == ReviewStatus.DISPUTED]
    decided = [row for row in rows if row.state == chosen.state]
    if not disputed and not decided:
        raise MarketError(Code.NOT_REVIEWABLE, "The payment of this job is not disputed.")
    if chosen.state == ReviewStatus.REVERSED:
        attempts = [row.attempt for row in disputed]
        for device_id in await attempt_queries.devices_of(tx, job_id, attempts):
            await trust.checked(tx, device_id, is_right=False)
    await record_all(tx, context, await _resolve(tx, chosen, disputed))
    return disputed or decided


async def _resolve(tx: Transaction, chosen: Decision, rows: Sequence[ReviewRow]) -> list[NewEvent]:
    """End reviews of one job that are open: pay the workers and the house, or the buyer.

    Returns:
        The events of the workers who are paid.
    """
    if not rows:
        return []
    # Lock all accounts in one call: every caller locks accounts in the same order.
    await tx.lock("accounts", sorted({account for row in rows for account in _accounts_of(row)}))
    events = []
    for row in rows:
        amount = await _resolve_one(tx, chosen, row)
        if amount:
            event = JobPaid(row.job_id, row.attempt, shown(amount))
            events.append(NewEvent(row.user_id, event, row.job_id))
    return events


def _accounts_of(review: ReviewRow) -> set[str]:
    """Return every account that the end of a review may touch."""
    currency = Currency(review.currency)
    return {
        ledger.held(review.user_id, Currency.CREDIT),
        ledger.available(review.user_id, Currency.CREDIT),
        ledger.available(review.buyer_id, currency),
        ledger.review(currency),
        ledger.revenue(currency),
        ledger.revenue(Currency.CREDIT),
    }


async def _resolve_one(tx: Transaction, chosen: Decision, review: ReviewRow) -> int:
    """End a review, and return the micro-credits that its worker is paid."""
    ReviewStatus(review.state).require_before(chosen.state)
    refunded = review.price * chosen.buyer_percent // 100
    withheld = review.earned - review.earned * (100 - chosen.buyer_percent) // 100
    if not await queries.resolve(
        tx, review, after=chosen.state, now=chosen.now, refunded=refunded, withheld=withheld
    ):
        raise MarketError(Code.NOT_REVIEWABLE)
    currency = Currency(review.currency)
    kept, is_credit = ledger.review(currency), currency == Currency.CREDIT
    source = kept if is_credit else ledger.revenue(Currency.CREDIT)
    pay = review.earned - withheld
    part = pay if review.user_id != review.buyer_id else 0
    payments = [Payment(ledger.available(review.user_id, Currency.CREDIT), pay, part)]
    if chosen.state == ReviewStatus.REVERSED:
        # The worker's part goes back to where it came from.
        payments = [Payment(source, review.earned)]
        rest = Movement(kept, ledger.available(review.buyer_id, currency), review.price)
        kind = TransferKind.REFUND
        if not review.is_draw:
            await job_queries.earn_nothing(tx, review.job_id)
    else:
        if withheld:
            payments.append(Payment(source, withheld))
        amount = review.price - refunded
        if is_credit:
            amount -= review.earned - withheld
        rest = Movement(kept, ledger.revenue(currency), amount)
        kind = TransferKind.FEE
        if not review.is_draw and withheld:
            await job_queries.earn_less(tx, review.job_id, withheld)
    hold_id, new_id = hold_of(review), chosen.new_id
    captured = await ledger.capture(
        tx,
        hold_id,
        payments,
        transfer_ids=TransferIds(new_id(), new_id()),
        now=chosen.now,
    )
    assert captured is not None  # noqa: S101 - a review that is open has an open hold
    key = f"{hold_id}:{kind}"
    transfer = Transfer(new_id(), key, kind, hold_id, currency, (rest,), chosen.now)
    await ledger.post(tx, transfer)
    if refunded:
        kind = TransferKind.REFUND
        back = Movement(kept, ledger.available(review.buyer_id, currency), refunded)
        key = f"{hold_id}:{kind}"
        await ledger.post(tx, Transfer(new_id(), key, kind, hold_id, currency, (back,), chosen.now))
    return 0 if chosen.state == ReviewStatus.REVERSED else pay

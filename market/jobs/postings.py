"""Postings: new jobs of buyers, with the holds of their prices.

A posting never waits: it is checked, and then stored in one transaction, or not at all.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from market.accounts.bounds import Bounds, require
from market.accounts.personal import bounds_of
from market.accounts.spending import Spender, spend
from market.accounts.suspensions import require_may_buy
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.base.texts import shows_nothing
from market.events.catalogue import JobCreated, amount
from market.events.context import Context
from market.events.recording import NewEvent, record_all
from market.files.artifacts import require_inputs
from market.jobs import copies
from market.jobs.copies import Copying
from market.jobs.pay import hold_of
from market.jobs.specs import Spec
from market.money import ledger
from market.money.ledger import ShortfallError
from market.money.money import MICRO, Currency
from storage.engines.store import Transaction
from storage.jobs import job_specs as spec_queries
from storage.jobs import jobs as queries
from storage.jobs.job_specs import SpecRow
from storage.jobs.jobs import JobRow
from storage.money.ledger import HoldRow

TITLE_MAX_CHARACTERS = 200
TEXT_MAX_CHARACTERS = 20_000
DURATION_MAX_HOURS = 8_760
PRICE_MAX = 1_000_000 * MICRO
# Bytes of the rows of a job, its hold and their transfers, with indexes but without texts.
JOB_BYTES = 1_024
DAY_SECONDS = 86_400


class NewJob(Struct, frozen=True):
    """Job that a buyer posts: `price` in micro-credits, `duration_hrs` as the estimate.

    `spec` holds the work and the needs, as understood; None for a job that describes them in words.
    """

    title: str
    job_type: str
    price: int
    duration_hrs: int
    description: str
    requirements: str
    spec: Spec | None = None


class Posting(Struct, frozen=True):
    """Row of a new job, its artifacts, and the transfer of its hold."""

    row: JobRow
    spec: SpecRow | None
    artifact_ids: Sequence[str]
    transfer_id: str


class HeldPrice(Struct, frozen=True):
    """The price of a job as its buyer holds it, in micro-units of a currency."""

    currency: Currency
    amount: int


class CopyGroup(Struct, frozen=True):
    """Group of new jobs that are copies of each other, and the time of their review."""

    copying: Copying
    review_seconds: int


class Order(Struct, frozen=True):
    """New jobs that are posted together, with their specifications.

    Attributes:
        posted: the jobs.
        group: their comparison, if they are copies of each other.
        begin: begins the transaction: it locks the buyer, and keeps the reply to a request with a
            key.
        spender: the API key that pays; None where the buyer does so by hand.
    """

    posted: Sequence[Posting]
    begin: Callable[[Transaction], Awaitable[None]]
    group: CopyGroup | None = None
    spender: Spender | None = None

    @property
    def price(self) -> int:
        """The price of all of them together, in micro-credits."""
        return sum(each.row.price_credit for each in self.posted)


def check(new: NewJob) -> None:
    """Check the fields of a buyer's new job.

    Raises:
        MarketError: `invalid_field`.
    """
    for field, text, least, most in (
        ("title", new.title, 1, TITLE_MAX_CHARACTERS),
        ("description", new.description, 0, TEXT_MAX_CHARACTERS),
        ("requirements", new.requirements, 0, TEXT_MAX_CHARACTERS),
    ):
        if not least <= len(text) <= most:
            message = f"{field} must have {least} to {most} characters."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
    # It stands in terminals and pages of others.
    if not new.title.isprintable() or shows_nothing(new.title):
        message = "title must have printable characters alone, on one line."
        raise MarketError(Code.INVALID_FIELD, message, field="title")
    if not 1 <= new.duration_hrs <= DURATION_MAX_HOURS:
        message = f"duration_hrs must be from 1 to {DURATION_MAX_HOURS}."
        raise MarketError(Code.INVALID_FIELD, message, field="duration_hrs")
    if new.price > PRICE_MAX:
        message = f"price_credit must be at most {PRICE_MAX // MICRO}."
        raise MarketError(Code.INVALID_FIELD, message, field="price_credit")


def waiting(
    new: NewJob,
    *,
    job_id: str,
    user_id: str,
    now: int,
    deploy_id: str | None = None,
    held: HeldPrice | None = None,
) -> JobRow:
    """Return a new job's row; by default its price is held in credits."""
    held = held or HeldPrice(Currency.CREDIT, new.price)
    return JobRow(
        id=job_id,
        user_id=user_id,
        title=new.title,
        job_type=new.job_type,
        price_credit=new.price,
        duration_hrs=new.duration_hrs,
        description=new.description,
        requirements=new.requirements,
        status=JobStatus.WAITING,
        attempts=0,
        device_id=None,
        created_at=now,
        accepted_at=None,
        finished_at=None,
        earned=0,
        result=None,
        deploy_id=deploy_id,
        currency=held.currency,
        price_held=held.amount,
        failure_reason=None,
        text_bytes=sum(
            len(text.encode()) for text in (new.title, new.description, new.requirements)
        ),
    )


async def create(tx: Transaction, context: Context, order: Order, bounds: Bounds) -> None:
    """Post jobs, with their specifications.

    Raises:
        MarketError: as `put_up`; `account_suspended`, `spend_limit_reached`.
    """
    posted, group = order.posted, order.group
    await order.begin(tx)
    await put_up(tx, context, [(each.row, each.transfer_id) for each in posted], bounds)
    await require_may_buy(tx, posted[0].row.user_id)
    for each in posted:
        if each.spec is not None:
            await spec_queries.insert(tx, each.spec)
            await require_inputs(tx, each.row.user_id, each.row.id, each.artifact_ids)
    if group is not None:
        job_ids = [each.row.id for each in posted]
        await copies.begin(tx, group.copying, job_ids, group.review_seconds)
    for currency in {each.row.currency for each in posted}:
        price = sum(each.row.price_held for each in posted if each.row.currency == currency)
        await spend(tx, order.spender, currency, price, posted[0].row.created_at)


async def put_up(
    tx: Transaction, context: Context, jobs: Sequence[tuple[JobRow, str]], bounds: Bounds
) -> None:
    """Add jobs of one user, each with the identifier of its transfer, and hold their prices.

    The caller has locked the user (`bounds.lock_user`).

    Raises:
        MarketError: `insufficient_funds`, `too_many_jobs`, `too_many_free_jobs`,
            `too_much_job_text`.
    """
    user_id, now = jobs[0][0].user_id, jobs[0][0].created_at
    taken = Counter[str]()
    for job, transfer_id in jobs:
        hold = HoldRow(hold_of(job.id), job.user_id, job.currency, job.price_held, None)
        try:
            await ledger.hold(tx, hold, transfer_id=transfer_id, now=now)
        except ShortfallError as error:  # the jobs before it are not posted either
            has = None if error.available is None else error.available + taken[job.currency]
            raise ShortfallError(error.currency, has) from error
        taken[job.currency] += job.price_held
        await queries.insert(tx, job)
    await record_all(tx, context, [NewEvent(user_id, _created(job), job.id) for job, _ in jobs])
    bounds = await bounds_of(tx, user_id, bounds, now)
    if not (bounds.jobs or bounds.free_jobs or bounds.job_bytes):
        return
    work = await queries.open_work(
        tx, user_id, free_below=bounds.free_below, job_bytes=JOB_BYTES, since=now - DAY_SECONDS
    )
    require(work.jobs, bounds.jobs, Code.TOO_MANY_JOBS)
    if any(job.price_credit < bounds.free_below for job, _ in jobs):
        require(work.free_jobs, bounds.free_jobs, Code.TOO_MANY_FREE_JOBS, field="price_credit")
    require(work.size_bytes, bounds.job_bytes, Code.TOO_MUCH_JOB_TEXT)


def _created(job: JobRow) -> JobCreated:
    return JobCreated(job.id, job.title, amount(job.price_credit), job.deploy_id)

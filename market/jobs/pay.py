"""The worth of the work at a job, and its payment from the hold.

Replicas that are paid by time have `market.jobs.draws` instead. So have attempts
at other jobs whose own work has failed; the last attempt has the rest of the price.
"""

from msgspec import Struct

from market.events.context import Context
from market.jobs import draws, reviews
from market.jobs.draws import FEE_WHOLE
from market.money import ledger
from market.money.ledger import Movement, Payment, Transfer, TransferIds, TransferKind
from market.money.money import Currency
from storage.attempts.attempts import SpecRow
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow

HOUR_SECONDS = 3_600


class Moment(Struct, frozen=True):
    """The values of a change from outside its transaction: the time, identifiers of transfers."""

    now: int
    resolution: TransferIds
    payout_id: str

    @classmethod
    def of(cls, context: Context) -> "Moment":
        """Return the values for a change that is made now."""
        new = context.identifiers.new
        return cls(context.now(), TransferIds(new(), new()), new())


class Pay(Struct, frozen=True):
    """The pay of a worker for a job.

    Attributes:
        worker: the owner of the device.
        gross: micro-credits that the work is worth.
        earned: the worker's part of that.
        review_seconds: the time of review before it is paid; 0 pays without a review.
    """

    worker: str
    gross: int
    earned: int
    review_seconds: int = 0

    @classmethod
    def after_fee(cls, worker: str, gross: int, fee: int, review_seconds: int = 0) -> "Pay":
        """Return the pay of work; the house keeps `fee` ten-thousandths."""
        return cls(worker, gross, gross - gross * fee // FEE_WHOLE, review_seconds)


def hold_of(job_id: str) -> str:
    """Return the hold that pays for a job."""
    return f"job:{job_id}"


def share(
    job: JobRow, began: int | None, now: int, spec: SpecRow | None, *, paid_seconds: int = 0
) -> int:
    """Return the price of the elapsed part of a job's estimated time, since work began.

    At most the job's time limit, with its grace: its device can report late that the time was over,
    or report everything late because the service was away. And at most the rest after earlier
    attempts, which were paid for `paid_seconds`.
    """
    if began is None:
        return 0
    whole = job.duration_hrs * HOUR_SECONDS
    ran = min(max(now - began, 0), whole - paid_seconds)
    if spec is not None:
        ran = min(ran, draws.seconds_max(spec, whole))
    return draws.price_of_seconds(job.price_credit, paid_seconds, ran, whole)


def rest(job: JobRow, paid_seconds: int) -> int:
    """Return the part of a job's price that is left after the paid seconds of its attempts."""
    return job.price_credit - spent(job, paid_seconds)


def spent(job: JobRow, paid_seconds: int) -> int:
    """Return the part of a job's price that the paid seconds of its attempts have used."""
    whole = job.duration_hrs * HOUR_SECONDS
    return draws.price_of_seconds(job.price_credit, 0, paid_seconds, whole)


async def settle(tx: Transaction, moment: Moment, job: JobRow, pay: Pay | None) -> None:
    """Pay for an ended job, or begin its buyer's review first.

    A worker is always paid in credits. Where the buyer holds another currency, the house takes that
    and pays the credits.

    Args:
        tx: the transaction; it has just ended the job.
        moment: the time, with the identifiers of the transfers.
        job: as it was while it ran.
        pay: the pay of the worker; None gives the buyer everything back.
    """
    payments: list[Payment] = []
    if pay is not None:
        if pay.review_seconds:
            await _begin_review(tx, moment, job, pay)
            return
        house, fee = ledger.revenue(Currency(job.currency)), pay.gross - pay.earned
        if job.currency == Currency.CREDIT:
            worker = ledger.available(pay.worker, Currency.CREDIT)
            payments = [
                Payment(worker, pay.earned, earned_part(job, pay)),
                Payment(house, fee),
            ]
        else:
            payments = [Payment(house, held_part(job, pay.gross))]
            await _pay_out(tx, moment, job, pay)
    await ledger.capture(
        tx, hold_of(job.id), payments, transfer_ids=moment.resolution, now=moment.now
    )


def earned_part(job: JobRow, pay: Pay) -> int:
    """Return the part of a worker's pay that counts as earned.

    The pay of a buyer's own device does not: it was the buyer's money.
    """
    return pay.earned if pay.worker != job.user_id else 0


async def _begin_review(tx: Transaction, moment: Moment, job: JobRow, pay: Pay) -> None:
    """Begin the review of a job's result, before its worker is paid."""
    how = reviews.Beginning(
        worker=pay.worker,
        price=held_part(job, pay.gross),
        earned=pay.earned,
        seconds=pay.review_seconds,
        resolution=moment.resolution,
        hold_id=moment.payout_id,
        now=moment.now,
    )
    await reviews.begin(tx, job, hold_of(job.id), how)


def held_part(job: JobRow, gross: int) -> int:
    """Return the part of the held price, in its currency, for work worth `gross` credits."""
    if job.currency == Currency.CREDIT and gross < job.price_credit:
        return gross
    return job.price_held * gross // job.price_credit if job.price_credit else job.price_held


async def _pay_out(tx: Transaction, moment: Moment, job: JobRow, pay: Pay) -> None:
    """Pay a worker in credits for a price that is held in another currency."""
    payout = Movement(
        ledger.revenue(Currency.CREDIT),
        ledger.available(pay.worker, Currency.CREDIT),
        pay.earned,
        earned_part(job, pay),
    )
    currency = Currency(job.currency)
    buyer = ledger.available(job.user_id, currency)
    held = Movement(ledger.held(job.user_id, currency), buyer, job.price_held)
    captured = Movement(buyer, ledger.revenue(currency), job.price_held)
    await ledger.lock(tx, (payout, held, captured))
    reference, kind = hold_of(job.id), TransferKind.PAYOUT
    key = f"{reference}:{kind}"
    transfer = Transfer(
        moment.payout_id, key, kind, reference, Currency.CREDIT, (payout,), moment.now
    )
    await ledger.post(tx, transfer)

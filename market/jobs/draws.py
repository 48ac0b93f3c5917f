"""Draws: payments of single attempts from the hold of work that continues.

Replicas are paid for the time that they can be used, to the second, attempt by attempt. An attempt
at another job is paid so when its own work has failed and the job waits for the next attempt.

A replica's hold is drawn from whenever an attempt at it ends, however it ends. The rest is there
for the next attempt, and is released when the replica is over. As with a result, the pay is in
review for a while: only the device says that a replica served, or that the work has failed.
"""

import json
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from market.base.states import JobStatus
from market.jobs import reviews
from market.jobs.overdue import GRACE_SECONDS
from market.money import ledger
from market.money.ledger import Movement, Payment, Transfer, TransferIds, TransferKind
from market.money.money import Currency
from proxyctl.protocol.jobspec import Payload
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import SpecRow
from storage.deploys.rollouts import ReplicaRow
from storage.devices import devices as device_queries
from storage.engines.store import Transaction
from storage.jobs import draws as queries
from storage.jobs.draws import DrawRow
from storage.jobs.jobs import JobRow

FEE_WHOLE = 10_000
# Least time in seconds that a replica gets and pays for, even if less is left: a shorter time is
# not worth the effort of a device.
SECONDS_MIN = 60
# Time before a replica is ready is not paid: its device may do nothing. But nor does its buyer have
# a device for nothing again and again, by a restart in time: in a day it has this much, which is
# enough to load a large model.
UNREADY_FREE_SECONDS = 1_800
# The same, of all devices together: the time of eight. A hundred replicas that are never ready
# would otherwise have fifty hours of work a day for nothing.
UNREADY_FREE_IN_ALL_SECONDS = 8 * UNREADY_FREE_SECONDS
DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600


class Drawn(Struct, frozen=True):
    """Payments for the attempts at a replica.

    Attributes:
        left: paid seconds that remain for the replica.
        had: the same, before this attempt.
        worked: seconds of work of this attempt, paid or not; 0 if it never became ready.
        due: the payment for this attempt; None for no payment.
        served: the paid seconds in which it could be used.
    """

    left: int
    had: int
    worked: int = 0
    due: DrawRow | None = None
    served: int = 0


class Drawing(Struct, frozen=True):
    """Fee, time and identifiers that a draw needs from outside.

    Attributes:
        fee: the house's part, in ten-thousandths.
        now: UTC seconds.
        new_id: makes identifiers of transfers.
        review_seconds: duration in which the buyer may dispute the payment; 0 pays immediately.
    """

    fee: int
    now: int
    new_id: Callable[[], str]
    review_seconds: int = 0


class _Time(Struct, frozen=True):
    """Seconds of an attempt: paid, served (it could be used, or worked), and worked."""

    paid: int = 0
    served: int = 0
    worked: int = 0


async def due_now(tx: Transaction, job: JobRow, replica: ReplicaRow, how: Drawing) -> int:
    """Return the pay of the attempt at a replica if its buyer ended it now.

    In micro-units of its hold. Nothing is changed.
    """
    drawn = await _measure(tx, job, replica, how)
    return 0 if drawn.due is None else drawn.due.amount


async def draw(
    tx: Transaction,
    job: JobRow,
    replica: ReplicaRow,
    how: Drawing,
    *,
    is_lost: bool = False,
    is_devices_fault: bool = False,
) -> Drawn:
    """Return the pay of an attempt at a replica that ends now, and record its time of use.

    An attempt that was paid before is not paid again. The same transaction pays the amount due
    (`pay`), after it has changed the reputation of the device: reputations are locked before
    accounts, and accounts before the row of the pay, which refers to the worker.

    Args:
        tx: the transaction, which has locked the job.
        job: as it is before the attempt ends.
        replica: the replica that the job is.
        how: the values from outside.
        is_lost: whether its device has fallen silent; it is paid until its last report then.
        is_devices_fault: whether its device could not do it; the time before it was ready is never
            paid then.
    """
    drawn = await _measure(
        tx, job, replica, how, is_lost=is_lost, is_devices_fault=is_devices_fault
    )
    if drawn.due is not None:  # before the attempts that count as failures are counted
        await queries.set_served(tx, job.id, job.attempts, drawn.served)
    return drawn


async def _measure(
    tx: Transaction,
    job: JobRow,
    replica: ReplicaRow,
    how: Drawing,
    *,
    is_lost: bool = False,
    is_devices_fault: bool = False,
) -> Drawn:
    """Return the pay of an attempt, and its seconds of possible use."""
    before = await queries.drawn(tx, job.id, job.attempts)
    left = replica.seconds - before.seconds
    if job.status != JobStatus.RUNNING or job.device_id is None or before.has_last:
        return Drawn(left, left)
    time = await _time(tx, job, replica, how.now, is_lost=is_lost)
    if is_devices_fault and not time.served:
        time = replace(time, paid=0)
    seconds = min(time.paid, left)
    owner = await device_queries.owner_of(tx, job.device_id)
    if seconds == 0 or owner is None:
        return Drawn(left, left, time.worked)
    used, whole = before.seconds, replica.seconds
    gross = price_of_seconds(job.price_credit, used, seconds, whole)
    amount = price_of_seconds(job.price_held, used, seconds, whole)
    earned = gross - gross * how.fee // FEE_WHOLE
    row = DrawRow(
        job_id=job.id,
        attempt=job.attempts,
        device_id=job.device_id,
        user_id=owner,
        seconds=seconds,
        amount=amount,
        earned=earned,
        created_at=how.now,
    )
    return Drawn(left - seconds, left, time.worked, row, min(time.served, seconds))


async def draw_failed(
    tx: Transaction, job: JobRow, spec: SpecRow, worker: str, how: Drawing
) -> Drawn | None:
    """Return the pay of an attempt at a job whose own work has failed; None without pay.

    It is the price of the attempt's time. The rest of the price is for the rest of the job's time,
    so each attempt has the same pay for an hour. `pay` records and pays it.

    Args:
        tx: the transaction, which has locked the job.
        job: as it is before the attempt ends; it has no replica.
        spec: the job's specification.
        worker: the owner of the device.
        how: the values from outside.
    """
    assert job.device_id is not None  # noqa: S101 - the job runs
    used = (await queries.drawn(tx, job.id, job.attempts)).seconds
    whole = job.duration_hrs * HOUR_SECONDS
    began, _, _ = await attempt_queries.begun(tx, job.id, job.attempts)
    worked = 0 if began is None else max(how.now - began, 0)
    seconds = min(worked, seconds_max(spec, whole), whole - used)
    amount = price_of_seconds(job.price_held, used, seconds, whole)
    gross = price_of_seconds(job.price_credit, used, seconds, whole)
    if not amount:
        return None
    row = DrawRow(
        job_id=job.id,
        attempt=job.attempts,
        device_id=job.device_id,
        user_id=worker,
        seconds=seconds,
        amount=amount,
        earned=gross - gross * how.fee // FEE_WHOLE,
        created_at=how.now,
    )
    left = whole - used - seconds
    return Drawn(left, whole - used, worked, row)


def seconds_max(spec: SpecRow, whole: int) -> int:
    """Return the most paid seconds of an attempt: its time, and then its grace.

    The work may go on for all its grace. Without pay for that a job of one second with a grace of
    ten minutes would cost the price of a second.
    """
    grace = json.loads(spec.payload).get("grace_s", Payload.grace_s)
    return (spec.timeout_seconds or whole) + int(grace)


async def drawn_seconds(tx: Transaction, job_id: str) -> int:
    """Return the seconds of a job that attempts were paid for before the present one."""
    return (await queries.drawn(tx, job_id, 0)).seconds


def price_of_seconds(price: int, used: int, seconds: int, whole: int) -> int:
    """Return the price of some seconds, rounded so that the parts add up to the whole price.

    Args:
        price: the price of `whole` seconds.
        used: the seconds of them that were paid before.
        seconds: the seconds to pay now.
        whole: all seconds of the price.
    """
    return price * (used + seconds) // whole - price * used // whole


async def pay(tx: Transaction, job: JobRow, drawn: Drawn, hold_id: str, how: Drawing) -> None:
    """Record and pay the amount that is due for an attempt; nothing without one.

    With a time for review, the money is kept in review until then. The worker is paid in credits,
    also where the hold is in another currency.

    Args:
        tx: the transaction, which has locked the job.
        job: the job before the attempt ended.
        drawn: the result of `draw` or `draw_failed`.
        hold_id: the hold that pays for it.
        how: the fee, the time and the identifiers from outside.
    """
    row = drawn.due
    if row is None:
        return
    await tx.lock("accounts", sorted(await accounts_of(tx, job)))
    await queries.insert(tx, row)
    key, currency = f"{hold_id}:attempt:{row.attempt}", Currency(job.currency)
    if how.review_seconds:
        kept = [Payment(ledger.review(currency), row.amount)]
        await ledger.draw(tx, hold_id, kept, key=key, transfer_id=how.new_id(), now=how.now)
        ids = TransferIds(how.new_id(), how.new_id())
        beginning = reviews.Beginning(
            worker=row.user_id,
            earned=row.earned,
            price=row.amount,
            seconds=how.review_seconds,
            resolution=ids,
            hold_id=how.new_id(),
            now=how.now,
        )
        await reviews.keep(tx, job, beginning, is_draw=True)
        return
    worker = ledger.available(row.user_id, Currency.CREDIT)
    house = ledger.revenue(currency)
    payments = [Payment(house, row.amount)]
    # The pay of a buyer's own device is not earned: it was the buyer's money.
    part = row.earned if row.user_id != job.user_id else 0
    if currency is Currency.CREDIT:
        payments = [
            Payment(worker, row.earned, part),
            Payment(house, row.amount - row.earned),
        ]
    await ledger.draw(tx, hold_id, payments, key=key, transfer_id=how.new_id(), now=how.now)
    if currency is not Currency.CREDIT:
        kind = TransferKind.PAYOUT
        movement = Movement(ledger.revenue(Currency.CREDIT), worker, row.earned, part)
        payout = Transfer(
            how.new_id(), f"{key}:{kind}", kind, hold_id, Currency.CREDIT, (movement,), how.now
        )
        await ledger.post(tx, payout)


async def accounts_of(tx: Transaction, job: JobRow) -> set[str]:
    """Return every account that may change when a replica ends or is replaced."""
    currency, buyer = Currency(job.currency), job.user_id
    accounts = {
        ledger.available(buyer, currency),
        ledger.available(buyer, Currency.CREDIT),
        ledger.held(buyer, currency),
        ledger.revenue(currency),
        ledger.revenue(Currency.CREDIT),
        ledger.review(currency),
    }
    owner = None if job.device_id is None else await device_queries.owner_of(tx, job.device_id)
    if owner is not None:
        accounts.add(ledger.available(owner, Currency.CREDIT))
        accounts.add(ledger.held(owner, Currency.CREDIT))
    return accounts


async def _time(
    tx: Transaction, job: JobRow, replica: ReplicaRow, now: int, *, is_lost: bool
) -> _Time:
    """Return the seconds of an attempt that are paid, that it could be used, and that it worked."""
    began, ready, renewed = await attempt_queries.begun(tx, job.id, job.attempts)
    until = min(now, renewed) if is_lost and renewed is not None else now
    since = began if replica.ready_within is None else ready
    if began is None:
        return _Time()
    if since is not None:
        served = max(until - since, 0)
        return _Time(served, served, max(until - began, 0))
    assert job.device_id is not None  # noqa: S101 - the job runs
    assert replica.ready_within is not None  # noqa: S101 - else it is ready once it has begun
    # A late report of the end gives the attempt no more time than this.
    unready = min(max(until - began, 0), replica.ready_within + GRACE_SECONDS)
    given = await queries.unready_seconds(
        tx,
        buyer_id=job.user_id,
        device_id=job.device_id,
        since=now - DAY_SECONDS,
        late=GRACE_SECONDS,
    )
    free = min(UNREADY_FREE_SECONDS - given.of_device, UNREADY_FREE_IN_ALL_SECONDS - given.in_all)
    return _Time(paid=max(unready - max(free, 0), 0))

"""Appeals: either side of a decided dispute may ask once for a decision of another person.

The first decision stays with the side that it favours. If the second one favours the appellant, the
house pays the difference, and the awarded amounts stay.
"""

from collections.abc import Sequence

from msgspec import Struct

from market.accounts.bounds import lock_user
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.events.context import Context
from market.files.evidence import APPEAL_SECONDS
from market.jobs.reviews import check_reason
from market.money.money import Currency
from storage.accounts import closures
from storage.attempts import attempts as attempt_queries
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs import appeals as queries
from storage.jobs import jobs as job_queries
from storage.jobs import reviews as review_queries
from storage.jobs.appeals import AppealRow, DecidedRow
from storage.jobs.reviews import ReviewRow

DUE_SECONDS = 72 * 3_600
_DECIDED = (ReviewStatus.UPHELD, ReviewStatus.REVERSED)


class Claim(Struct, frozen=True):
    """The part of one side in the decided reviews of a job, in micro-units of `currency`.

    A buyer claims the price, a worker the earnings: `most` in all. The decision has awarded
    `awarded`. `decided_at` is the time of the newest decision, in UTC seconds.
    """

    is_buyer: bool
    currency: Currency
    most: int
    awarded: int
    decided_at: int

    @property
    def ends_at(self) -> int:
        """The end of the time to appeal."""
        return self.decided_at + APPEAL_SECONDS


class Appeals:
    """Appeals of buyers and workers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def appeal(self, user_id: str, job_id: str, reason: str) -> AppealRow:
        """Ask for a second decision about the dispute of a job; the same again changes nothing.

        Args:
            user_id: the buyer of the job, or a worker whose pay was disputed.
            job_id: the job.
            reason: the objection to the decision, for the staff.

        Raises:
            MarketError: `invalid_field`; `job_not_found`, for all others; `not_reviewable`, when
                nothing was decided, the decision has awarded everything, or its 14 days are over;
                `already_appealed`, with another reason, which stays.
        """
        check_reason(reason)
        return await self._context.store.write(self._appeal, user_id, job_id, reason)

    async def appeal_of_device(self, device: DeviceRow, job_id: str, reason: str) -> AppealRow:
        """Ask for a second decision about the work of a device, for its owner, as `appeal` does.

        A worker token is on the machine of the device. So it uses up neither an appeal about
        another device, nor one about a job that the owner has bought.

        Raises:
            MarketError: as `appeal`; `job_not_found`, also for these jobs.
        """
        check_reason(reason)

        async def unit(tx: Transaction) -> AppealRow:
            await _require_work(tx, device, job_id)
            return await self._appeal(tx, device.user_id, job_id, reason)

        return await self._context.store.write(unit)

    async def listed(self, user_id: str, *, before: str = "", limit: int) -> list[DecidedRow]:
        """Return the newest appeals of a user, with their decisions."""
        return await self._context.store.read(
            queries.decided_page, user_id, before=before, limit=limit
        )

    async def _appeal(self, tx: Transaction, user_id: str, job_id: str, reason: str) -> AppealRow:
        await tx.lock("jobs", [job_id])
        job = await job_queries.find(tx, job_id)
        rows = await review_queries.of_job(tx, job_id)
        if job is None or user_id not in {job.user_id, *(row.user_id for row in rows)}:
            raise MarketError(Code.JOB_NOT_FOUND)
        for before in await queries.of_job(tx, job_id):
            if before.user_id != user_id:
                continue
            if before.reason != reason:
                raise MarketError(Code.ALREADY_APPEALED)
            return before
        claim, now = claim_of(rows, user_id), self._context.now()
        if claim is None:
            raise MarketError(Code.NOT_REVIEWABLE, "No dispute of this job was decided.")
        if claim.awarded >= claim.most:
            raise MarketError(Code.NOT_REVIEWABLE, "The decision has given you everything.")
        if now > claim.ends_at:
            raise MarketError(Code.NOT_REVIEWABLE, "The time to appeal is over.")
        await lock_user(tx, user_id)  # as an erasure does, which finds the text, or comes first
        if await closures.is_erased(tx, user_id):
            raise MarketError(Code.JOB_NOT_FOUND)
        row = AppealRow(
            self._context.identifiers.new(), job_id, user_id, reason, now, now + DUE_SECONDS
        )
        await queries.insert(tx, row)
        return row


async def _require_work(tx: Transaction, device: DeviceRow, job_id: str) -> None:
    """Check that a device has done work that another user than its owner has reviewed.

    Raises:
        MarketError: `job_not_found`.
    """
    rows = await review_queries.of_job(tx, job_id)
    attempts = [row.attempt for row in rows if row.buyer_id != device.user_id]
    if device.id not in await attempt_queries.devices_of(tx, job_id, attempts):
        raise MarketError(Code.JOB_NOT_FOUND)


async def open_until(
    tx: Transaction, user_id: str, job_ids: Sequence[str], now: int
) -> dict[str, int]:
    """Return the end of the time to appeal, by the job; without jobs that permit no appeal."""
    reviews = await review_queries.of_jobs(tx, job_ids)
    claims = {job_id: claim_of(rows, user_id) for job_id, rows in reviews.items()}
    ends = {
        job_id: claim.ends_at
        for job_id, claim in claims.items()
        if claim is not None and claim.awarded < claim.most and now <= claim.ends_at
    }
    appeals = await queries.of_jobs(tx, list(ends))
    appealed = {row.job_id for row in appeals if row.user_id == user_id}
    return {job_id: ends_at for job_id, ends_at in ends.items() if job_id not in appealed}


def claim_of(rows: Sequence[ReviewRow], user_id: str) -> Claim | None:
    """Return the claim of one side in the decided disputes of a job; None without a decision.

    `rows` are all reviews of the job.
    """
    decided = [
        row
        for row in rows
        if row.state in _DECIDED
        and row.disputed_at is not None
        and row.resolved_at is not None
        and user_id in (row.buyer_id, row.user_id)
    ]
    if not decided:
        return None
    is_buyer = decided[0].buyer_id == user_id
    last = max(row.resolved_at or 0 for row in decided)
    if is_buyer:
        back = sum(row.price if _is_reversed(row) else row.refunded for row in decided)
        most = sum(row.price for row in decided)
        return Claim(True, Currency(decided[0].currency), most, back, last)
    kept = sum(0 if _is_reversed(row) else row.earned - row.withheld for row in decided)
    return Claim(False, Currency.CREDIT, sum(row.earned for row in decided), kept, last)


def _is_reversed(row: ReviewRow) -> bool:
    return row.state == ReviewStatus.REVERSED

"""Disputes that the staff judges: the evidence, and one decision with a reason for both sides.

A decision upholds the payment, reverses it, or splits it: then the buyer gets a percentage of the
price back. It is final for the side that it favours; the other side may appeal to another person
(`market.staff.cases.appeals`). Above the limit a decision waits for a second person.
"""

from typing import Final, Literal

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.events.catalogue import JobDecided
from market.events.context import Context
from market.events.recording import NewEvent, record_all
from market.jobs import reviews
from market.money.money import Currency
from market.staff.base.acts import (
    JOB,
    REASON_MAX_CHARACTERS,
    REPEATED,
    Act,
    Changes,
    Text,
    TextKind,
    act,
    checked_text,
    permit,
    require_name,
    require_stranger,
)
from market.staff.base.roles import Action, Author, Member, Role
from market.staff.base.shown_reasons import show_reason
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting, State
from market.staff.money.second_person_limit import needs_second_person
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import AttemptRow
from storage.engines.store import Transaction
from storage.files import artifacts as artifact_queries
from storage.files.artifacts import ArtifactRow
from storage.jobs import answers as answer_queries
from storage.jobs import jobs as job_queries
from storage.jobs import reviews as review_queries
from storage.jobs.answers import AnswerRow
from storage.jobs.jobs import JobRow
from storage.jobs.reviews import DisputesRow, ReviewRow
from storage.staff.base import staff as staff_queries
from storage.staff.money import judging as queries
from storage.staff.money.judging import DeviceHistoryRow

LISTED_MAX = 100
DEVICES_MAX = 10
UPHOLD: Final = "upheld"
REVERSE: Final = "reversed"
SPLIT: Final = "split"


class DeviceEvidence(Struct, frozen=True):
    """The history of a device that tried the job, and the disputes about its owner's jobs."""

    device_id: str
    owner_id: str | None
    history: DeviceHistoryRow
    disputes: DisputesRow


class Evidence(Struct, frozen=True):
    """All that a decision about a job is founded on, but for the log."""

    job: JobRow
    payload: str | None
    reviews: list[ReviewRow]
    answers: list[AnswerRow]
    attempts: list[AttemptRow]
    artifacts: list[ArtifactRow]
    devices: list[DeviceEvidence]
    buyer_disputes: DisputesRow


class Verdict(Struct, frozen=True):
    """A decision: the buyer gets `buyer_percent` of the price back: 0, 100, or between."""

    buyer_percent: int

    @property
    def word(self) -> Literal["upheld", "reversed", "split"]:
        """The decision in a word."""
        if self.buyer_percent in (0, 100):
            return REVERSE if self.buyer_percent else UPHOLD
        return SPLIT

    @property
    def state(self) -> ReviewStatus:
        """The state of a review that is decided so."""
        return ReviewStatus.REVERSED if self.word == REVERSE else ReviewStatus.UPHELD


class Decided(Struct, frozen=True):
    """Outcome of a decision, and the reviews as they were before."""

    outcome: Outcome
    rows: list[ReviewRow]


async def evidence(context: Context, author: Author, job_id: str) -> Evidence:
    """Return the evidence about a job; the log records that it was read.

    The support role sees only jobs that were disputed, and no member a review of an own account.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `job_not_found`.
    """
    require_name(job_id)
    job = await context.store.read(_find, job_id.lower())

    async def look(tx: Transaction) -> tuple[Evidence, Changes]:
        await require_no_side(tx, author, job.id)
        found = await _evidence(tx, await _find(tx, job.id))
        is_disputed = any(row.disputed_at is not None for row in found.reviews)
        if isinstance(author, Member) and author.role is Role.SUPPORT and not is_disputed:
            raise MarketError(Code.NOT_PERMITTED, "The role support sees disputed jobs only.")
        return found, {}

    new = Act(author, Action.JOB_VIEW, JOB, job.id, job.user_id)
    return await context.store.write(act, context, new, look)


async def disputes(context: Context, author: Author, *, limit: int) -> list[ReviewRow]:
    """Return the reviews that wait for a decision, the oldest dispute first.

    A member sees that an own account is in dispute, and no reason of it.

    Raises:
        MarketError: `not_permitted`.
    """

    async def look(tx: Transaction) -> list[ReviewRow]:
        await permit(tx, author, Action.JOB_VIEW)
        rows = await review_queries.disputed(tx, limit=limit)
        if not isinstance(author, Member):
            return rows
        own = await staff_queries.own_users(tx, author.staff_id)
        return [row if own.isdisjoint(_sides([row])) else row._replace(reason=None) for row in rows]

    return await context.store.read(look)


async def decide(
    context: Context, author: Author, job_id: str, verdict: Verdict, limits: Limits, why: str
) -> Decided:
    """Decide a dispute, or ask a second person; the same decision again changes nothing.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        job_id: the job.
        verdict: the decision.
        limits: the amounts that one person may decide about.
        why: the reason, which buyer and workers get.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `job_not_found`; `not_reviewable`, when the
            job is not disputed, or was decided before.
    """
    if not 0 <= verdict.buyer_percent <= 100:
        raise MarketError(Code.INVALID_FIELD, "A percentage is from 0 to 100.", field="percent")
    require_name(job_id)
    text = Text(TextKind.DECISION, checked_text(why, "reason", REASON_MAX_CHARACTERS))
    job = await context.store.read(_find, job_id.lower())

    async def change(tx: Transaction) -> tuple[Decided, Changes]:
        await tx.lock("jobs", [job.id])
        await require_no_side(tx, author, job.id)
        rows = await review_queries.of_job(tx, job.id)
        disputed = [row for row in rows if row.state == ReviewStatus.DISPUTED]
        if not disputed:
            before = _decided_before(rows, job, verdict)
            return before, {REPEATED: (None, verdict.word)}
        new = _amount(job, disputed, verdict)
        waiting = await _earlier(tx, context, new) if new.amount else None
        if waiting is not None:
            return Decided(waiting, disputed), {REPEATED: (None, waiting.id)}
        if new.amount and await needs_second_person(tx, context, author, new, limits):
            asked, changes = await approvals.ask(tx, context, author, new)
            return Decided(asked, disputed), changes
        posting = Posting(approvals.author_key(author))
        outcome, changes = await _carry_out(tx, context, new, posting, text.body)
        # The text of the act itself is the buyer's.
        workers = dict.fromkeys(row.user_id for row in disputed if row.user_id != job.user_id)
        shown = await show_reason(tx, context, workers, text.body)
        return Decided(outcome, disputed), {**changes, **shown}

    made = Act(author, Action.JOB_DECIDE, JOB, job.id, job.user_id, text)
    return await context.store.write(act, context, made, change)


async def post(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Carry out a decision that a second person approves.

    Raises:
        MarketError: `not_reviewable`, when the job is not disputed any more.
    """
    await tx.lock("jobs", [str(new.payload["job"])])
    why = await queries.text_of(tx, posting.log_number)
    return await _carry_out(tx, context, new, posting, why)


async def parties(tx: Transaction, job_id: str) -> list[str]:
    """Return the buyer of a job and the workers whose pay was reviewed; [] without a review."""
    return _sides(await review_queries.of_job(tx, job_id))


async def require_no_side(tx: Transaction, author: Author, job_id: str) -> None:
    """Check that no party of a reviewed job is the author's own account.

    Raises:
        MarketError: `not_permitted`.
    """
    for party in await parties(tx, job_id):
        await require_stranger(tx, author, party)


async def disputing(tx: Transaction, job_id: str) -> list[str]:
    """Return the buyer of a job and the workers whose pay is disputed now; [] without a dispute."""
    rows = await review_queries.of_job(tx, job_id)
    return _sides([row for row in rows if row.state == ReviewStatus.DISPUTED])


def _sides(rows: list[ReviewRow]) -> list[str]:
    return list(dict.fromkeys(each for row in rows for each in (row.buyer_id, row.user_id)))


async def _carry_out(
    tx: Transaction, context: Context, new: Amount, posting: Posting, why: str
) -> tuple[Outcome, Changes]:
    job_id, percent = str(new.payload["job"]), int(new.payload["buyer_percent"] or 0)
    verdict = Verdict(percent)
    job = await _find(tx, job_id)
    rows = await review_queries.of_job(tx, job_id)
    disputed = [row for row in rows if row.state == ReviewStatus.DISPUTED]
    if not disputed or _amount(job, disputed, verdict) != new:
        raise MarketError(Code.NOT_REVIEWABLE, "The dispute is not the one that was judged.")
    chosen = reviews.decision(
        context.identifiers.new,
        verdict.state,
        context.now(),
        percent if verdict.word == SPLIT else 0,
    )
    await reviews.decide_in(tx, context, chosen, job_id)
    if new.amount:
        outcome = await approvals.record(
            tx, context, posting.author, new, act_id=job_id, approval_id=posting.approval_id
        )
    else:
        outcome = Outcome(State.DONE, job_id, new.user_id, new.currency, 0)
    event = JobDecided(job_id, verdict.word, percent, why)
    parties = dict.fromkeys((job.user_id, *(row.user_id for row in disputed)))
    await record_all(tx, context, [NewEvent(each, event, job_id) for each in parties])
    changes: Changes = {
        "decision": (None, verdict.word),
        "buyer_percent": (None, percent),
        str(new.currency): (None, new.amount),
    }
    return outcome, changes


async def _earlier(tx: Transaction, context: Context, new: Amount) -> Outcome | None:
    """Return the request that waits for the same decision; another decision is refused."""
    try:
        return await approvals.earlier(tx, context, new)
    except MarketError as error:
        if error.code is not Code.REFERENCE_REUSED:
            raise
        message = "Another decision about this job waits for a second person; refuse it first."
        raise MarketError(Code.NOT_REVIEWABLE, message) from error


def _amount(job: JobRow, disputed: list[ReviewRow], verdict: Verdict) -> Amount:
    """Return the decided price, which counts for the side that gets more of it."""
    price = sum(row.price for row in disputed)
    is_for_buyer = verdict.buyer_percent > 0
    return Amount(
        Action.JOB_DECIDE,
        f"decide:{job.id}:{min(row.attempt for row in disputed)}",
        job.user_id if is_for_buyer else disputed[0].user_id,
        Currency(job.currency),
        price,
        {
            "job": job.id,
            "buyer_percent": verdict.buyer_percent,
            "attempts": ",".join(str(row.attempt) for row in disputed),
        },
    )


def _decided_before(rows: list[ReviewRow], job: JobRow, verdict: Verdict) -> Decided:
    """Return the outcome of an equal decision of before."""
    same = [row for row in rows if row.state == verdict.state and row.disputed_at is not None]
    percent = verdict.buyer_percent if verdict.word == SPLIT else 0
    same = [row for row in same if row.refunded == row.price * percent // 100]
    if not same:
        if any(row.disputed_at is not None and row.resolved_at is not None for row in rows):
            raise MarketError(
                Code.NOT_REVIEWABLE,
                "The payment of this job is not disputed. It was decided before, and a decision is "
                "final; correct the balance instead.",
            )
        raise MarketError(Code.NOT_REVIEWABLE, "The payment of this job is not disputed.")
    amount = sum(row.price for row in same)
    outcome = Outcome(State.DONE_BEFORE, job.id, job.user_id, Currency(job.currency), amount)
    return Decided(outcome, same)


async def _find(tx: Transaction, job_id: str) -> JobRow:
    job = await job_queries.find(tx, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND, "There is no such job.")
    return job


async def _evidence(tx: Transaction, job: JobRow) -> Evidence:
    attempts = await attempt_queries.of_job(tx, job.id, limit=LISTED_MAX)
    spec = await attempt_queries.spec(tx, job.id)
    rows = await review_queries.of_job(tx, job.id)
    owners = {row.attempt: row.user_id for row in rows}
    devices: list[DeviceEvidence] = []
    for attempt in {each.device_id: each for each in attempts}.values():
        if len(devices) == DEVICES_MAX:
            break
        owner = owners.get(attempt.attempt)
        devices.append(
            DeviceEvidence(
                attempt.device_id,
                owner,
                await queries.device_history(tx, attempt.device_id),
                await review_queries.disputes_with(tx, worker=owner)
                if owner
                else DisputesRow(0, 0, 0),
            )
        )
    return Evidence(
        job=job,
        payload=None if spec is None else str(spec.payload),
        reviews=rows,
        answers=await answer_queries.of_job(tx, job.id),
        attempts=attempts,
        artifacts=await artifact_queries.page_of_job(
            tx, job_id=job.id, before="", limit=LISTED_MAX
        ),
        devices=devices,
        buyer_disputes=await review_queries.disputes_with(tx, buyer=job.user_id),
    )

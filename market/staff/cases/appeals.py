"""Appeals against decisions about disputes, which another person than the first judges.

The first decision stays as it is. If the appeal succeeds, the house pays the missing part to the
appellant, or a percentage of it.
"""

import json
from collections.abc import Sequence

from market.events.context import Context
from market.jobs.appeals import Claim, claim_of
from market.money.money import as_decimal
from market.staff.base.acts import APPROVAL, CASE, JOB, REPEATED, WAITING, Changes
from market.staff.base.columns import author_of
from market.staff.base.roles import Action
from market.staff.cases.base import (
    HISTORY_MAX,
    Case,
    CaseKind,
    Decision,
    Evidence,
    Fact,
    Kind,
    Parties,
    PastEvent,
)
from storage.engines.store import Transaction
from storage.jobs import answers
from storage.jobs import appeals as queries
from storage.jobs import reviews as review_queries
from storage.jobs.appeals import AppealRow
from storage.jobs.reviews import ReviewRow
from storage.staff.base import log
from storage.staff.base.log import ShownLogRow
from storage.staff.cases import case_decisions

# The acts of a second person about a decision, in words.
_ENDINGS = {Action.APPROVAL_APPROVE: "approval", Action.APPROVAL_REFUSE: "refusal"}


class Appeals(CaseKind):
    """Appeals of buyers and workers."""

    async def find(self, tx: Transaction, case_id: str) -> Case | None:
        """Return an appeal."""
        row = await queries.find(tx, case_id)
        return None if row is None else (await _cases(tx, [row]))[0]

    async def page(self, tx: Transaction, *, user_id: str, before: str, limit: int) -> list[Case]:
        """Return the newest appeals, of a user or of all users."""
        rows = await queries.page(tx, user_id=user_id, before=before, limit=limit)
        return await _cases(tx, rows)

    async def first_due(self, tx: Transaction, user_id: str, limit: int, /) -> list[Case]:
        """Return the appeals that wait for a decision, the first one that is due first."""
        return await _cases(tx, await queries.first_due(tx, user_id=user_id, limit=limit))

    async def evidence(self, tx: Transaction, case: Case) -> Evidence:
        """Return the objection, and both decisions with their authors and their reasons."""
        row = await queries.find(tx, case.id)
        assert row is not None  # noqa: S101 - no appeal is deleted
        rows = await review_queries.of_job(tx, row.job_id)
        claim = _claim(rows, row)
        facts = [
            Fact("job", row.job_id),
            Fact("appellant", "buyer" if claim.is_buyer else "worker"),
            Fact("the appellant says", row.reason),
            Fact(f"claimed {claim.currency}", as_decimal(claim.most)),
            Fact(f"awarded {claim.currency}", as_decimal(claim.awarded)),
            Fact(f"paid for the appeal {claim.currency}", as_decimal(row.given)),
            Fact("other appeals", len(await queries.of_job(tx, row.job_id)) - 1),
        ]
        past = [
            PastEvent(at, f"attempt {each.attempt}: {what}", detail)
            for each in rows
            for at, what, detail in (
                (each.disputed_at, "disputed by the buyer", each.reason or ""),
                (each.resolved_at, each.state, _returned(each)),
            )
            if at is not None
        ]
        past += [
            PastEvent(each.answered_at, "answered by the worker", each.answer)
            for each in await answers.of_job(tx, row.job_id)
        ]
        past += await _decisions(tx, JOB, row.job_id, Action.JOB_DECIDE, "")
        past += await _decisions(tx, CASE, row.id, Action.CASE_DECIDE, " about the appeal")
        return Evidence(facts, sorted(past, key=lambda each: each.at)[-HISTORY_MAX:])

    async def parties(self, tx: Transaction, case: Case, /) -> Parties:
        """Return both sides of the job, and the authors of the first decision."""
        row = await queries.find(tx, case.id)
        assert row is not None  # noqa: S101 - no appeal is deleted
        rows = await review_queries.of_job(tx, row.job_id)
        attempts = [each.attempt for each in rows]
        return Parties(
            tuple(dict.fromkeys((rows[0].buyer_id, *(each.user_id for each in rows)))),
            frozenset(await case_decisions.deciders(tx, row.job_id, attempts)),
        )

    async def void(self, tx: Transaction, _context: Context, case: Case, /) -> Changes:
        """Record the amount that the house pays."""
        await queries.give(tx, case.id, case.void_amount)
        return {}

    async def close(self, tx: Transaction, case: Case, now: int, /) -> None:
        """Take the appeal out of the list of open ones."""
        await queries.close(tx, case.id, now)

    def words(self, case: Case, decision: Decision) -> str:
        """Return the decision in a sentence for the appellant."""
        if decision is Decision.UPHELD:
            return f"Your appeal was looked at: {case.summary} The first decision stays."
        paid = f"{as_decimal(case.void_amount)} {case.currency}"
        return f"Your appeal was successful: {case.summary} The service pays you {paid}."


def _returned(row: ReviewRow) -> str:
    """Return the part of the price that the first decision gave back, in words."""
    return f"{as_decimal(row.refunded)} {row.currency} to the buyer" if row.refunded else ""


async def _decisions(
    tx: Transaction, subject: str, subject_id: str, action: Action, about: str
) -> list[PastEvent]:
    """Return the acts that decided about a subject: each with its author and reason."""
    acts = await log.of_subject(tx, subject, subject_id, action=action, limit=HISTORY_MAX)
    found = []
    for act in acts:
        changes = json.loads(act.changes)
        if REPEATED in changes:
            continue
        approval_id = changes.get(WAITING, (None, None))[1]
        what = "decision" if approval_id is None else "request to decide"
        found.append(_judged(act, f"{what}{about}"))
        if approval_id is not None:
            ended = await log.of_subject(tx, APPROVAL, approval_id, limit=1)
            found += [_judged(each, f"{_ENDINGS[Action(each.action)]}{about}") for each in ended]
    return found


def _judged(row: ShownLogRow, what: str) -> PastEvent:
    return PastEvent(row.at, f"{what} by {author_of(row)}", row.text or "")


async def _cases(tx: Transaction, rows: Sequence[AppealRow]) -> list[Case]:
    reviews = await review_queries.of_jobs(tx, [row.job_id for row in rows])
    return [_case(reviews[row.job_id], row) for row in rows]


def _case(rows: Sequence[ReviewRow], row: AppealRow) -> Case:
    claim = _claim(rows, row)
    side = "buyer" if claim.is_buyer else "worker"
    return Case(
        Kind.APPEAL,
        row.id,
        row.user_id,
        row.created_at,
        f"appeal of the {side} of job {row.job_id}.",
        void_amount=claim.most - claim.awarded,
        currency=claim.currency,
        entitled=claim.most,
        due_at=row.due_at,
        job_id=row.job_id,
        pays_for_work=not claim.is_buyer,
    )


def _claim(rows: Sequence[ReviewRow], row: AppealRow) -> Claim:
    claim = claim_of(rows, row.user_id)
    assert claim is not None  # noqa: S101 - an appeal is about a decision, which stays
    return claim

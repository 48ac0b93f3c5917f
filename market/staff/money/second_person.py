"""The second person: approves or refuses an act that waits, once.

The author of an act never approves it, and may withdraw it. An approval carries the act out in the
same transaction, so its conditions hold at that time. Approvals, refusals and the end of the time
exclude each other.
"""

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.money.money import Currency
from market.staff.base.acts import (
    APPROVAL,
    Act,
    Changes,
    act,
    reason,
    require_name,
)
from market.staff.base.requests import Decision
from market.staff.base.roles import MATRIX, Action, Author, require
from market.staff.base.shown_reasons import show_reason
from market.staff.money import doubts, forgiving, judging, money, paying
from market.staff.money.approvals import (
    Amount,
    Outcome,
    Posting,
    author_key,
    payload_hash,
    state_of,
)
from storage.engines.store import Transaction
from storage.staff.base import log as log_queries
from storage.staff.base import staff as staff_queries
from storage.staff.money import approvals as queries
from storage.staff.money import judging as judging_queries
from storage.staff.money import money_writes as writes
from storage.staff.money.approvals import ApprovalRow

Poster = Callable[
    [Transaction, Context, Amount, Posting], Coroutine[Any, Any, tuple[Outcome, Changes]]
]
# The function that carries out each act which can wait.
POSTERS: Mapping[Action, Poster] = {
    Action.MONEY_REFUND: money.post,
    Action.MONEY_CORRECT: money.post,
    Action.MONEY_DEPOSIT: money.post,
    Action.JOB_DECIDE: judging.post,
    Action.PAYOUT_APPROVE: paying.post,
    Action.PAYOUT_IMPORT: paying.post_return,
    Action.PAYMENT_CREDIT: doubts.post,
    Action.DEBT_FORGIVE: forgiving.post,
}


class Refused(Struct, frozen=True):
    """A request that was refused, or withdrawn by its author."""

    id: str
    action: str
    user_id: str
    is_withdrawn: bool


async def approve(
    context: Context,
    author: Author,
    approval_id: str,
    why: str = "",
    *,
    posters: Mapping[Action, Poster] = POSTERS,
) -> Outcome:
    """Approve an act that waits, and carry it out.

    Args:
        context: the store, identifiers and the time.
        author: the second person.
        approval_id: the request.
        why: a reason, "" for none.
        posters: the functions that carry out the acts which can be approved here.

    Raises:
        MarketError: `approval_not_found`, `approval_over`; `not_permitted`, when the author of the
            act approves it, or may not do it any more; or a refusal of the act itself.
    """
    row = await find(context, approval_id)

    async def change(tx: Transaction) -> tuple[Outcome, Changes]:
        waiting = await require_approvable(tx, context, author, row.id)
        await _require_no_side(tx, author, waiting)
        if payload_hash(waiting.payload) != waiting.payload_hash:
            raise MarketError(Code.APPROVAL_OVER, "The stored request was changed; it is void.")
        decided = await writes.decide(
            tx, row.id, Decision.APPROVED, by=author_key(author), now=context.now()
        )
        assert decided  # noqa: S101 - the log is locked, and the row was undecided
        new = _amount_of(waiting)
        require(author, new.action)  # finance approves money, and no erasure
        post = posters.get(new.action)
        if post is None:
            raise MarketError(Code.NOT_PERMITTED, "A command on the machine approves this act.")
        readers = await _readers(tx, waiting)  # before the act: it ends a dispute
        outcome, changes = await post(
            tx, context, new, Posting(waiting.asked_by, waiting.id, waiting.log_number)
        )
        why_asked = await judging_queries.text_of(tx, waiting.log_number)
        shown = await show_reason(tx, context, readers, why_asked)
        return outcome, {**changes, **shown, "decision": (None, Decision.APPROVED)}

    text = reason(why) if why else None
    new = Act(author, Action.APPROVAL_APPROVE, APPROVAL, row.id, row.user_id, text)
    return await context.store.write(act, context, new, change)


async def refuse(context: Context, author: Author, approval_id: str, why: str) -> Refused:
    """Refuse an act that waits; its author withdraws it so.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `approval_not_found`, `approval_over`.
    """
    row = await find(context, approval_id)

    async def change(tx: Transaction) -> tuple[Refused, Changes]:
        waiting = await _waiting(tx, context, row.id)
        await _require_no_side(tx, author, waiting)
        key = author_key(author)
        decided = await writes.decide(tx, row.id, Decision.REFUSED, by=key, now=context.now())
        assert decided  # noqa: S101 - the log is locked, and the row was undecided
        refused = Refused(row.id, waiting.action, waiting.user_id, waiting.asked_by == key)
        return refused, {"decision": (None, Decision.REFUSED)}

    new = Act(author, Action.APPROVAL_REFUSE, APPROVAL, row.id, row.user_id, reason(why))
    return await context.store.write(act, context, new, change)


async def find(context: Context, approval_id: str) -> ApprovalRow:
    """Return a request.

    Raises:
        MarketError: `invalid_field`, `approval_not_found`.
    """
    require_name(approval_id)
    row = await context.store.read(queries.find, approval_id.lower())
    if row is None:
        raise MarketError(Code.APPROVAL_NOT_FOUND)
    return row


async def require_approvable(
    tx: Transaction, context: Context, author: Author, approval_id: str
) -> ApprovalRow:
    """Return a request as it is now, if it waits for another than its author.

    Raises:
        MarketError: `approval_not_found`, `approval_over`, `not_permitted`.
    """
    waiting = await _waiting(tx, context, approval_id)
    await _require_another(tx, waiting, author)
    await _require_asker(tx, waiting)
    return waiting


async def _waiting(tx: Transaction, context: Context, approval_id: str) -> ApprovalRow:
    """Return a request as it is now, if it can still be decided."""
    row = await queries.find(tx, approval_id)
    if row is None:
        raise MarketError(Code.APPROVAL_NOT_FOUND)
    if row.decision is not None:
        raise MarketError(
            Code.APPROVAL_OVER, f"The request was {state_of(row, context.now())} before."
        )
    if row.expires_at <= context.now():
        raise MarketError(Code.APPROVAL_OVER, "The time of the request is over; ask again.")
    return row


async def _require_another(tx: Transaction, row: ApprovalRow, author: Author) -> None:
    """Refuse the author of a request, and the Unix user who ran the command that asked."""
    asked_as = await log_queries.unix_user_of(tx, row.log_number)
    is_same_unix_user = author.unix_user is not None and author.unix_user == asked_as
    if row.asked_by == author_key(author) or is_same_unix_user:
        raise MarketError(
            Code.NOT_PERMITTED, "You asked for this yourself: a second person has to approve it."
        )


async def _require_no_side(tx: Transaction, author: Author, row: ApprovalRow) -> None:
    """Refuse a side of the job that a request is about: a dispute, or an appeal."""
    job_id = json.loads(row.payload).get("job")
    if job_id is not None:
        await judging.require_no_side(tx, author, job_id)


async def _require_asker(tx: Transaction, row: ApprovalRow) -> None:
    """Refuse a request whose author is locked, or has a role now that does not permit the act."""
    kind, _, staff_id = row.asked_by.partition(":")
    if kind != "staff":
        return
    asker = await staff_queries.find(tx, staff_id)
    roles = {str(role) for role in MATRIX[Action(row.action)]}
    if asker is None or asker.locked_at is not None or asker.role not in roles:
        raise MarketError(
            Code.NOT_PERMITTED, "The member who asked is locked or has another role now."
        )


async def _readers(tx: Transaction, row: ApprovalRow) -> list[str]:
    """Return the users who read the reason of an act once it took place: both sides of a dispute.

    Most acts have none.
    """
    if row.action == Action.JOB_DECIDE:
        return await judging.disputing(tx, json.loads(row.payload)["job"])
    return [row.user_id] if row.action == Action.CASE_DECIDE else []


def _amount_of(row: ApprovalRow) -> Amount:
    return Amount(
        Action(row.action),
        row.business_key,
        row.user_id,
        Currency(row.currency),
        row.amount,
        json.loads(row.payload),
    )

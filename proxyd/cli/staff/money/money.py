"""Commands that move money of users, and those of the second person."""

from argparse import Namespace

from market.money.money import Currency, as_decimal
from market.staff.money import approvals, money, second_person
from market.staff.money.approvals import Outcome, State
from proxyd import slices
from proxyd.cli.staff.base.desk import Command, Desk, Report, when
from proxyd.cli.staff.base.endings import finish_erasures, posters_of
from storage.staff.money.approvals import ShownApprovalRow


async def _refund(desk: Desk, options: Namespace) -> Report:
    outcome = await money.refund(
        desk.context,
        desk.author,
        options.user,
        slices.approval_limits(desk.settings),
        amount=options.amount,
        currency=Currency(options.currency),
        deposit=options.deposit,
        reference=options.reference,
        why=options.reason,
    )
    return report(outcome, "refunded")


async def _correct(desk: Desk, options: Namespace) -> Report:
    outcome = await money.correct(
        desk.context,
        desk.author,
        options.user,
        slices.approval_limits(desk.settings),
        amount=options.amount,
        currency=Currency(options.currency),
        reference=options.reference,
        why=options.reason,
    )
    return report(outcome, "corrected")


async def _history(desk: Desk, options: Namespace) -> Report:
    found = await money.history(
        desk.context, desk.author, options.user, before=options.before, limit=options.limit
    )
    return {
        "user": {"id": found.user.id, "username": found.user.username, "email": found.user.email},
        "balances": [
            {
                "currency": currency,
                "available": as_decimal(found.available[currency]),
                "held": as_decimal(found.held[currency]),
            }
            for currency in Currency
        ],
        "transactions": [
            {
                "at": when(change.created_at),
                "kind": change.kind,
                "amount": as_decimal(change.amount),
                "currency": change.currency,
                "reference": change.reference,
                "id": change.id,
            }
            for change in found.changes
        ],
    }


async def _approvals(desk: Desk, options: Namespace) -> Report:
    rows = await approvals.listed(
        desk.context,
        desk.author,
        is_open=not options.all,
        before=options.before,
        limit=options.limit,
    )
    return {"approvals": [_approval(row, desk.context.now()) for row in rows]}


async def _approve(desk: Desk, options: Namespace) -> Report:
    outcome = await second_person.approve(
        desk.context, desk.author, options.approval, options.reason, posters=posters_of(desk)
    )
    await finish_erasures(desk)
    return report(outcome, "approved")


async def _refuse(desk: Desk, options: Namespace) -> Report:
    refused = await second_person.refuse(
        desk.context, desk.author, options.approval, options.reason
    )
    word = "withdrawn" if refused.is_withdrawn else "refused"
    return {word: {"id": refused.id, "action": refused.action, "user": refused.user_id}}


def report(outcome: Outcome, word: str) -> Report:
    """Return the outcome of an act that moves money: done, done before, or waiting."""
    row = {
        "user": outcome.user_id,
        "amount": as_decimal(outcome.amount),
        "currency": outcome.currency,
    }
    if outcome.state is State.WAITS:
        return {"waits": {"approval": outcome.id, **row, "expires": when(outcome.expires_at)}}
    if outcome.state is State.DONE_BEFORE:
        word = f"{word} before"
    return {word: {"id": outcome.id, **row}}


def _approval(shown: ShownApprovalRow, now: int) -> Report:
    row = shown.approval
    state = row.decision or ("expired" if row.expires_at <= now else "waits")
    return {
        "id": row.id,
        "state": state,
        "action": row.action,
        "user": shown.username,
        "amount": as_decimal(row.amount),
        "currency": row.currency,
        "by": row.asked_by,
        "asked": when(row.asked_at),
        "expires": when(row.expires_at),
        "decided_by": row.decided_by,
        "reason": shown.reason,
    }


COMMANDS: dict[str, Command] = {
    "money refund": _refund,
    "money correct": _correct,
    "money history": _history,
    "approvals": _approvals,
    "approve": _approve,
    "refuse": _refuse,
}

"""Commands that move money of users, and those of the second person."""

import json
import secrets
from argparse import Namespace
from collections.abc import Mapping

from market.accounts import accounts
from market.base.errors import Code, MarketError
from market.money.money import Currency, as_decimal
from market.staff.leaving import closing
from market.staff.money import approvals, deposits, money, second_person
from market.staff.money.approvals import Outcome, State
from proxyd.cli.staff.base.desk import WAITS, Command, Desk, Ended, Report, when
from proxyd.ops.base.books import approval_limits
from storage.staff.money.approvals import ShownApprovalRow

WORDS = {State.DONE: "deposited", State.DONE_BEFORE: "was deposited before"}
NAMES = {State.DONE: "deposited", State.DONE_BEFORE: "deposited before", State.WAITS: "waits"}


async def _deposit(desk: Desk, options: Namespace) -> Report | Ended:
    amounts = {Currency.USD: options.usd, Currency.CREDIT: options.credits}
    if not any(amounts.values()):
        raise MarketError(Code.INVALID_FIELD, "Nothing to deposit: give --usd or --credits.")
    is_named = options.reference is not None
    outcomes = await deposits.deposit(
        desk.context,
        desk.author,
        options.user,
        approval_limits(desk.settings),
        amounts=amounts,
        reference=options.reference if is_named else secrets.token_hex(16),
        why=options.reason,
    )
    user_id = outcomes[0].user_id
    _, balance = await desk.context.store.read(accounts.spendable, user_id)
    has = f"{options.user} has {in_words(balance)}"
    lists: dict[State, list[Report]] = {}
    for each in outcomes:
        lists.setdefault(each.state, []).append(row_of(each))
    words = [
        *(f"{WORDS[state]}; {has}" for state in (State.DONE, State.DONE_BEFORE) if state in lists),
        *(f"waits: approval {row['approval']}; {has}" for row in lists.get(State.WAITS, [])),
    ]
    report: Report = {
        **{NAMES[state]: rows for state, rows in lists.items()},
        "balances": [
            {"currency": currency, "available": as_decimal(amount)}
            for currency, amount in balance.items()
        ],
        "words": words[0] if State.WAITS not in lists else "\n".join(words),
    }
    return Ended(report, WAITS) if State.WAITS in lists else report


async def _refund(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await money.refund(
        desk.context,
        desk.author,
        options.user,
        approval_limits(desk.settings),
        amount=options.amount,
        currency=Currency(options.currency),
        deposit=options.deposit,
        reference=options.reference,
        why=options.reason,
    )
    return report(outcome, "refunded")


async def _correct(desk: Desk, options: Namespace) -> Report | Ended:
    outcome = await money.correct(
        desk.context,
        desk.author,
        options.user,
        approval_limits(desk.settings),
        amount=options.amount,
        currency=Currency(options.currency),
        reference=options.reference,
        why=options.reason,
        leaves_debt=options.debt,
    )
    return report(outcome, "corrected")


async def _history(desk: Desk, options: Namespace) -> Report:
    found = await money.history(
        desk.context, desk.author, options.user, before=options.before or "", limit=options.limit
    )
    return {
        "user": {"id": found.user.id, "username": found.user.username, "email": found.user.email},
        "balances": [
            {
                "currency": currency,
                "available": as_decimal(found.available[currency]),
                "held": as_decimal(found.held[currency]),
                "owed": as_decimal(found.owed[currency]),
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
        before=options.before or "",
        limit=options.limit,
    )
    return {"approvals": [_approval(row, desk.context.now()) for row in rows]}


async def _approve(desk: Desk, options: Namespace) -> Report | Ended:
    from proxyd.cli.staff.base.endings import (  # noqa: PLC0415 - imports the whole service
        finish_erasures,
        posters_of,
    )

    await closing.end_sessions_of_request(
        desk.context, desk.author, options.approval, options.reason
    )
    outcome = await second_person.approve(
        desk.context, desk.author, options.approval, options.reason, posters=posters_of(desk)
    )
    await finish_erasures(desk)
    if not outcome.moves_money:
        return {"approved": {"id": outcome.id, "user": outcome.user_id}}
    return report(outcome, "approved")


async def _refuse(desk: Desk, options: Namespace) -> Report:
    refused = await second_person.refuse(
        desk.context, desk.author, options.approval, options.reason
    )
    word = "withdrawn" if refused.is_withdrawn else "refused"
    return {word: {"id": refused.id, "action": refused.action, "user": refused.user_id}}


def report(outcome: Outcome, word: str) -> Report | Ended:
    """Return the outcome of an act that moves money: done, done before, or waiting."""
    row = row_of(outcome)
    if outcome.state is State.WAITS:
        return Ended({"waits": row}, WAITS)
    if outcome.state is State.DONE_BEFORE:
        word = f"{word} before"
    return {word: row}


def row_of(outcome: Outcome) -> Report:
    """Return the row of an act that moves money; one that waits has its approval and its end."""
    row = {
        "user": outcome.user_id,
        "amount": as_decimal(outcome.amount),
        "currency": outcome.currency,
    }
    if outcome.state is State.WAITS:
        return {"approval": outcome.id, **row, "expires": when(outcome.expires_at)}
    return {"id": outcome.id, **row}


def in_words(amounts: Mapping[Currency, int]) -> str:
    """Return amounts in micro-units as text, such as "5.00 usd, 0.00 credit"."""
    return ", ".join(f"{as_decimal(amount)} {currency}" for currency, amount in amounts.items())


def _approval(shown: ShownApprovalRow, now: int) -> Report:
    row = shown.approval
    amount = {"amount": as_decimal(row.amount), "currency": row.currency}
    waived = approvals.waived_by(json.loads(row.payload))
    return {
        "id": row.id,
        "state": approvals.state_of(row, now),
        "action": row.action,
        "user": shown.username,
        **({} if row.action in approvals.WITHOUT_MONEY else amount),
        **({"waived": in_words(waived)} if waived else {}),
        "by": row.asked_by,
        "asked": when(row.asked_at),
        "expires": when(row.expires_at),
        "decided_by": row.decided_by,
        "reason": shown.reason,
    }


COMMANDS: dict[str, Command] = {
    "wallet deposit": _deposit,
    "money refund": _refund,
    "money correct": _correct,
    "money history": _history,
    "approvals": _approvals,
    "approve": _approve,
    "refuse": _refuse,
}

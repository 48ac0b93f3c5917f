"""Exits that have cheated: barred, and their unpaid earnings go back to the buyers.

One person returns no more than the limit of corrections, and more waits for a second person: the
bar holds meanwhile, and a barred exit is not paid. Each transaction reverses a bounded number of
earnings, and its row in the log has their sums.
"""

import json
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.exits import payouts
from market.money.money import Currency
from market.staff.base.acts import (
    DEVICE,
    REPEATED,
    Act,
    Changes,
    Text,
    act,
    reason,
    require_name,
)
from market.staff.base.requests import Decision
from market.staff.base.roles import Action, Author, Member
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting, State, author_key
from market.staff.money.second_person_limit import needs_second_person
from market.staff.stopping.stopping import change_exit
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.exits.exits import ConsentRow, PendingRow
from storage.staff.base import log as log_queries
from storage.staff.base import staff as staff_queries
from storage.staff.money import approvals as queries
from storage.staff.money import money_writes as writes

# Bound a transaction: earnings that one person reverses, and those of a request.
REVERSED_MAX_EARNINGS = 200
ASKED_MAX_EARNINGS = 1_000
OWN_ACCOUNT = "You would get money back for an account of your own; another member has to do this."


class ClawedBack(Struct, frozen=True):
    """The barred exits, the number of their reversed earnings, and micro-USD.

    `amount` is what the owner loses, `refunded` what the buyers get. `waiting` are the requests
    that a second person decides: one for each exit at most.
    """

    devices: tuple[str, ...]
    earnings: int = 0
    amount: int = 0
    refunded: int = 0
    waiting: tuple[Outcome, ...] = ()


class _NothingPendingError(Exception):
    """No earning is pending: the transaction is rolled back, and with it the row of the log."""


async def claw_back(
    context: Context,
    author: Author,
    limits: Limits,
    device_id: str,
    why: str,
    *,
    with_owner: bool = False,
) -> ClawedBack:
    """Bar an exit, and reverse its unpaid earnings (`market.exits.payouts.reverse`).

    The log has a row for the bar, and one for each part of the earnings. After a crash a repetition
    reverses the rest. Above the limit a request waits for a second person (`post`).

    Args:
        context: the store, identifiers and the time.
        author: of the acts.
        limits: the money that one person may move.
        device_id: the exit.
        why: the reason, which is kept with the device as well.
        with_owner: whether all exits of its owner are clawed back.

    Raises:
        MarketError: `not_permitted`, also if an account of the author gets money back;
            `invalid_field`; `token_not_found`, if it was never an exit.
    """
    require_name(device_id)
    text, first = reason(why), device_id.lower()
    found = await context.store.read(exit_queries.of_owner_of, first) if with_owner else []
    # One that has never been an exit is refused there.
    devices, total = tuple(found or [first]), payouts.ClawedBack()
    waiting = []
    for each in devices:
        event = ConsentRow(context.identifiers.new(), each, "barred", "", text.body, context.now())
        bar = partial(_bar, author=author, event=event)
        barred = await change_exit(
            context, author, Action.DEVICE_CLAW_BACK, each, why, bar, is_barred=True
        )
        taking = _Taking(author, limits, each, barred.user_id, text)
        done, waits = await _take_back(context, taking)
        total += done
        waiting += waits
    return ClawedBack(devices, total.earnings, total.amount, total.refunded, tuple(waiting))


async def post(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Reverse the earnings of a request that a second person approves.

    They were pending at the time of the request, and still are.

    Raises:
        MarketError: `approval_over`, if the exit was pardoned, if nothing is pending any more, or
            if it is more money than in the request; `not_permitted`, if an account of the second
            person gets money back.
    """
    device_id, until = str(new.payload["device"]), int(new.payload["until"] or 0)
    approval = await queries.find(tx, posting.approval_id or "")
    kind, _, staff_id = str(approval and approval.decided_by).partition(":")
    if kind == "staff" and await staff_queries.bought_through(tx, staff_id, device_id):
        raise MarketError(Code.NOT_PERMITTED, OWN_ACCOUNT)
    exit_ = await exit_queries.find(tx, device_id)
    if exit_ is None or exit_.barred_at is None:
        raise MarketError(Code.APPROVAL_OVER, "The exit was pardoned meanwhile; refuse this.")
    pending = await exit_queries.pending_of(tx, device_id, until=until, limit=ASKED_MAX_EARNINGS)
    if not pending or _worth(pending) > -new.amount:
        message = "Its unpaid earnings are others by now; refuse this, and claw back again."
        raise MarketError(Code.APPROVAL_OVER, message)
    done = await _reverse(tx, context, device_id, pending)
    outcome = await approvals.record(
        tx, context, posting.author, new, act_id=device_id, approval_id=posting.approval_id
    )
    return outcome, _sums(done)


class _Taking(Struct, frozen=True):
    """Reversal of the unpaid earnings of one exit: its author, its limits and its reason."""

    author: Author
    limits: Limits
    device_id: str
    owner_id: str
    text: Text


async def _take_back(context: Context, taking: _Taking) -> tuple[payouts.ClawedBack, list[Outcome]]:
    """Reverse the earnings of a barred exit, a part at a time, until none is left or one waits."""
    total = payouts.ClawedBack()
    made = Act(
        taking.author,
        Action.DEVICE_CLAW_BACK,
        DEVICE,
        taking.device_id,
        taking.owner_id,
        taking.text,
    )
    while True:
        try:
            part = await context.store.write(act, context, made, partial(_step, context, taking))
        except _NothingPendingError:
            return total, []
        if isinstance(part, Outcome):
            return total, [part]
        total += part


async def _step(
    context: Context, taking: _Taking, tx: Transaction
) -> tuple[payouts.ClawedBack | Outcome, Changes]:
    """Reverse a part of the earnings of an exit, or ask a second person for all of them."""
    device_id, until = taking.device_id, context.now()
    pending = await exit_queries.pending_of(tx, device_id, until=until, limit=ASKED_MAX_EARNINGS)
    if not pending:
        raise _NothingPendingError
    waiting = await _waiting(tx, context, taking)
    if waiting is not None:
        return waiting, {REPEATED: (None, waiting.id)}
    number = (await log_queries.head(tx)).number + 1

    def request(rows: Sequence[PendingRow]) -> Amount:
        return Amount(
            Action.DEVICE_CLAW_BACK,
            f"clawback:{device_id}:{number}",
            taking.owner_id,
            Currency.USD,
            -_worth(rows),
            {"device": device_id, "until": until, "earnings": len(rows)},
        )

    whole = request(pending)
    if await needs_second_person(tx, context, taking.author, whole, taking.limits):
        return await approvals.ask(tx, context, taking.author, whole)
    part = pending[:REVERSED_MAX_EARNINGS]
    done = await _reverse(tx, context, device_id, part)
    await approvals.record(
        tx,
        context,
        author_key(taking.author),
        request(part),
        act_id=device_id,
        approval_id=None,
    )
    return done, _sums(done)


async def _waiting(tx: Transaction, context: Context, taking: _Taking) -> Outcome | None:
    """Return the request about an exit that waits; one whose time is over is closed."""
    for row in await queries.undecided_of(tx, taking.owner_id):
        is_this = row.action == Action.DEVICE_CLAW_BACK
        if not is_this or json.loads(row.payload)["device"] != taking.device_id:
            continue
        if row.expires_at > context.now():
            return Outcome(
                State.WAITS, row.id, row.user_id, Currency.USD, row.amount, row.expires_at
            )
        await writes.decide(tx, row.id, Decision.EXPIRED, by=None, now=context.now())
    return None


async def _reverse(
    tx: Transaction, context: Context, device_id: str, pending: Sequence[PendingRow]
) -> payouts.ClawedBack:
    new_id = context.identifiers.new
    ids = [payouts.EarningIds(new_id(), new_id()) for _ in pending]
    return await payouts.reverse(tx, device_id, pending, ids, now=context.now())


async def _bar(tx: Transaction, author: Author, event: ConsentRow) -> None:
    if isinstance(author, Member) and await staff_queries.bought_through(
        tx, author.staff_id, event.device_id
    ):
        raise MarketError(Code.NOT_PERMITTED, OWN_ACCOUNT)
    await payouts.bar(tx, event)


def _worth(rows: Sequence[PendingRow]) -> int:
    return sum(payouts.worth(row) for row in rows)


def _sums(done: payouts.ClawedBack) -> Changes:
    return {
        "earnings": (None, done.earnings),
        "usd": (None, -done.amount),
        "refunded_usd": (None, done.refunded),
    }

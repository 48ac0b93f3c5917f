"""Amounts above a limit: the act waits until a second person approves it.

An act above the limit (`second_person_limit`) is stored as a request: its payload never changes,
and is carried out by the approval (`second_person`). The newest row of the log is locked meanwhile,
so acts are decided one after the other.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.money.money import Currency
from market.staff.base.acts import WAITING, Changes, permit
from market.staff.base.requests import Decision
from market.staff.base.roles import Action, Author, Member, Rule
from storage.engines.store import Transaction
from storage.staff.base import log as log_queries
from storage.staff.money import approvals as queries
from storage.staff.money import money as money_queries
from storage.staff.money import money_writes as writes
from storage.staff.money.approvals import ApprovalRow, ShownApprovalRow
from storage.staff.money.money import MoneyRow

WAITS_SECONDS = 72 * 3_600

# The largest amounts that one person moves, in micro-units.
Limits = Mapping[Currency, int]
Payload = dict[str, str | int | None]
RequestState = Literal["waits", "approved", "refused", "expired", "moot"]


class Amount(Struct, frozen=True):
    """An act that moves money: `amount` is what the user gets, negative for money taken.

    `business_key` makes it happen once. `payload` has all that carries the act out, and never
    changes while the act waits.
    """

    action: Action
    business_key: str
    user_id: str
    currency: Currency
    amount: int
    payload: Payload


# Acts that wait for a second person as well, and have no amount of their own: it is 0. Their
# payload names the money that the user gives up with the account.
WITHOUT_MONEY = frozenset((Action.USER_CLOSE, Action.USER_ERASE))


class Posting(Struct, frozen=True):
    """The author of an act that is carried out, and the request that was approved, if one was.

    `log_number` is the row of the log that asked for it.
    """

    author: str
    approval_id: str | None = None
    log_number: int = 0


class State(StrEnum):
    """The state of an act that moves money."""

    DONE = "done"
    DONE_BEFORE = "done before"
    WAITS = "waits for a second person"


class Outcome(Struct, frozen=True):
    """Outcome of an act; `id` is its transfer or its subject, or the request that waits."""

    state: State
    id: str
    user_id: str
    currency: Currency
    amount: int
    expires_at: int | None = None
    moves_money: bool = True


def author_key(author: Author) -> str:
    """Return the name under which an author's amounts count."""
    if isinstance(author, Member):
        return f"staff:{author.staff_id}"
    if isinstance(author, Rule):
        return f"rule:{author.name}"
    return f"unix:{author.unix_user}"


def encoded(payload: Payload) -> str:
    """Return a payload as text; equal payloads have one text."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"))


def waived_by(payload: Payload) -> dict[Currency, int]:
    """Return the money that goes to the house with an account, in micro-units; {} for none."""
    amounts = {currency: int(payload.get(currency) or 0) for currency in Currency}
    return {currency: each for currency, each in amounts.items() if each and "waives" in payload}


def payload_hash(text: str) -> str:
    """Return the hash of a payload's text."""
    return hashlib.sha256(text.encode()).hexdigest()


async def earlier(tx: Transaction, context: Context, new: Amount) -> Outcome | None:
    """Return the outcome of an equal act that was done before or waits; None if it is new.

    A request whose time is over is closed, so that a new request for its act is possible.

    Raises:
        MarketError: `reference_reused`, when the earlier act was another one.
    """
    done = await money_queries.find(tx, new.business_key)
    if done is not None:
        if done.payload_hash != payload_hash(encoded(new.payload)):
            raise MarketError(Code.REFERENCE_REUSED)
        return _outcome(State.DONE_BEFORE, done.id, new)
    waiting = await queries.find_open(tx, new.business_key)
    if waiting is None:
        return None
    if waiting.expires_at <= context.now():
        await writes.decide(tx, waiting.id, Decision.EXPIRED, by=None, now=context.now())
        return None
    if waiting.payload != encoded(new.payload):
        raise MarketError(Code.REFERENCE_REUSED)
    return _outcome(State.WAITS, waiting.id, new, waiting.expires_at)


async def ask(
    tx: Transaction, context: Context, author: Author, new: Amount
) -> tuple[Outcome, Changes]:
    """Store an act as a request for a second person, within the act that asks."""
    now, text = context.now(), encoded(new.payload)
    row = ApprovalRow(
        id=context.identifiers.new(),
        action=new.action,
        business_key=new.business_key,
        user_id=new.user_id,
        currency=new.currency,
        amount=new.amount,
        payload=text,
        payload_hash=payload_hash(text),
        asked_by=author_key(author),
        log_number=(await log_queries.head(tx)).number + 1,
        asked_at=now,
        expires_at=now + WAITS_SECONDS,
        decided_by=None,
        decided_at=None,
        decision=None,
    )
    await writes.insert_approval(tx, row)
    changes: Changes = {WAITING: (None, row.id), str(new.currency): (None, new.amount)}
    return _outcome(State.WAITS, row.id, new, row.expires_at), changes


async def record(
    tx: Transaction,
    context: Context,
    author: str,
    new: Amount,
    *,
    act_id: str,
    approval_id: str | None,
    deposit_id: str | None = None,
) -> Outcome:
    """Record the amount of an act that is carried out now.

    Args:
        tx: the transaction of the act.
        context: gives the time.
        author: the key of the author who asked for it.
        new: the act.
        act_id: the transfer or the subject.
        approval_id: the request that a second person approved; None below the limit.
        deposit_id: the deposit that a refund returns.
    """
    row = MoneyRow(
        business_key=new.business_key,
        id=act_id,
        action=new.action,
        user_id=new.user_id,
        currency=new.currency,
        amount=new.amount,
        payload_hash=payload_hash(encoded(new.payload)),
        author=author,
        approval_id=approval_id,
        deposit_id=deposit_id,
        created_at=context.now(),
    )
    await writes.insert_money(tx, row)
    return _outcome(State.DONE, act_id, new)


async def listed(
    context: Context, author: Author, *, is_open: bool = True, before: str = "", limit: int
) -> list[ShownApprovalRow]:
    """Return the requests that wait, or all requests, the newest first.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_listed, author, is_open, before, limit)


async def _listed(
    tx: Transaction, author: Author, is_open: bool, before: str, limit: int
) -> list[ShownApprovalRow]:
    await permit(tx, author, Action.APPROVAL_LIST)
    return await queries.page(tx, is_open=is_open, before=before, limit=limit)


def state_of(row: ApprovalRow, now: int) -> RequestState:
    """Return the state of a request at a time (UTC seconds).

    A request that has expired before its time is moot (`market.staff.base.requests`).
    """
    if row.decision is None:
        return "expired" if row.expires_at <= now else "waits"
    decision = Decision(row.decision)
    if decision is Decision.EXPIRED and (row.decided_at or 0) < row.expires_at:
        return "moot"
    return decision.value


def _outcome(state: State, act_id: str, new: Amount, expires_at: int | None = None) -> Outcome:
    return Outcome(
        state,
        act_id,
        new.user_id,
        new.currency,
        new.amount,
        expires_at,
        new.action not in WITHOUT_MONEY,
    )

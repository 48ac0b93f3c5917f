"""The one entry point for acts of staff: `act` checks, changes and logs in one transaction."""

import json
import secrets
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from market.accounts.bounds import lock_user
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.base import answers
from market.staff.base.chain import digest, text_digest
from market.staff.base.roles import ON_LIVING, ON_ONESELF, Action, Author, Member, require
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.staff.base import log as log_queries
from storage.staff.base import staff as queries
from storage.staff.base import writes
from storage.staff.base.log import LogRow
from storage.staff.base.writes import TextRow

NAME_MAX_CHARACTERS = 254  # of the longest e-mail address
REASON_MAX_CHARACTERS = 500
NOTE_MAX_CHARACTERS = 2_000
SALT_BYTES = 16
ERASED = "The account is erased."
# Kinds of subjects.
STAFF, USER, SEARCH = "staff", "user", "search"
SESSION, KEY, DEVICE, JOB, TICKET = "session", "key", "device", "job", "ticket"
PAYMENT, CASE = "payment", "case"
PAYOUT, BATCH = "payout", "payout_batch"
APPROVAL = "approval"

# Fields of an act that has changed nothing for the user: an equal one was done before or waits, or
# this one waits for a second person.
REPEATED, WAITING = "repeated", "approval"

_Result = TypeVar("_Result")
# The old and the new value of each changed field, by its name: identifiers, amounts and states.
# The names of amounts are in `columns.AMOUNTS`.
Changes = Mapping[str, tuple[str | int | bool | None, str | int | bool | None]]
Change = Callable[[Transaction], Coroutine[Any, Any, tuple[_Result, Changes]]]


class TextKind(StrEnum):
    """Kinds of free text, and their column in `texts`."""

    REASON = "reason"
    NOTE = "note"
    SEARCH = "search"
    DECISION = "decision"  # its users read it: both sides of a dispute, or a suspended user
    TICKET = "ticket"


# A text for users is one for the staff until its act takes place: a refused one tells them nothing.
_KIND_BEFORE = {TextKind.DECISION: TextKind.REASON}


class Text(Struct, frozen=True):
    """Free text of an act; it may have personal data, so it is never part of the log's row."""

    kind: TextKind
    body: str


class Act(Struct, frozen=True):
    """An act of the staff: its author, its subject, its user, and its free text."""

    author: Author
    action: Action
    subject_kind: str
    subject_id: str | None = None
    user_id: str | None = None
    text: Text | None = None


def reason(text: str) -> Text:
    """Return the reason of an act.

    Raises:
        MarketError: `invalid_field`.
    """
    return Text(TextKind.REASON, checked_text(text, "reason", REASON_MAX_CHARACTERS))


def checked_text(text: str, name: str, most: int, *, field: str = "") -> str:
    """Return a text without the spaces around it, if it is one that a log can show.

    Args:
        text: the text.
        name: the text in words.
        most: its characters at most.
        field: the field of a request that has it, if that is not `name`.

    Raises:
        MarketError: `invalid_field`.
    """
    text, field = text.strip(), field or name
    if not 1 <= len(text) <= most:
        raise MarketError(
            Code.INVALID_FIELD, f"The {name} has 1 to {most} characters.", field=field
        )
    if not all(each.isprintable() or each == "\n" for each in text):
        raise MarketError(
            Code.INVALID_FIELD, f"The {name} has characters that cannot be shown.", field=field
        )
    return text


def require_name(text: str, what: str = "A name") -> None:
    """Check that a text can be a name, an e-mail address or an identifier; `what` is its name.

    Raises:
        MarketError: `invalid_field`.
    """
    if not (1 <= len(text) <= NAME_MAX_CHARACTERS and text.isprintable()):
        raise MarketError(
            Code.INVALID_FIELD,
            f"{what} has 1 to {NAME_MAX_CHARACTERS} characters that can be shown.",
        )


async def act(tx: Transaction, context: Context, new: Act, change: Change[_Result]) -> _Result:
    """Carry out an act of the staff: check the matrix, change, and write the row of the log.

    Args:
        tx: the transaction; an exception of the change rolls all of it back.
        context: gives identifiers and the time.
        new: the act.
        change: makes the change, and returns its result and the changed values. It may not change
            the log. A change of an account (`ON_LIVING`) finds its user locked.

    Raises:
        MarketError: `not_permitted`, `idempotency_key_reused`, or an error of `change`;
            `account_closed`, for a change of an erased account.
        Replayed: a request with this Idempotency-Key was answered before.
    """
    require(new.author, new.action)
    await writes.lock_head(tx)
    await permit(tx, new.author, new.action)
    receipt = new.author.receipt if isinstance(new.author, Member) else None
    if receipt is not None:
        await answers.replay(tx, receipt)
    if isinstance(new.author, Member):
        is_own = new.subject_kind == STAFF and new.subject_id == new.author.staff_id
        if is_own != (new.action in ON_ONESELF):
            raise MarketError(Code.NOT_PERMITTED, "Another member has to do this.")
        if new.action is not Action.STAFF_DECLARE:
            await require_stranger(tx, new.author, new.user_id)
    if new.user_id is not None and new.action in ON_LIVING:
        # As an erasure and a purchase do: each is before or after this act.
        await lock_user(tx, new.user_id)
        if await closures.is_erased(tx, new.user_id):
            raise MarketError(Code.ACCOUNT_CLOSED, ERASED)
    result, changes = await change(tx)
    before = await log_queries.head(tx)
    now, number = context.now(), before.number + 1
    text_id = text_hash = None
    if new.text is not None:
        text_id, salt = context.identifiers.new(), secrets.token_hex(SALT_BYTES)
        text_hash = text_digest(salt, new.text.body)
        is_done = changes.keys().isdisjoint((REPEATED, WAITING))
        kind = new.text.kind if is_done else _KIND_BEFORE.get(new.text.kind, new.text.kind)
        await writes.insert_text(
            tx,
            TextRow(text_id, kind, number, new.user_id, new.text.body, salt, now),
        )
    member = new.author if isinstance(new.author, Member) else None
    row = LogRow(
        number=number,
        at=now,
        via=new.author.via,
        staff_id=member.staff_id if member else None,
        unix_user=new.author.unix_user,
        role=member.role if member else None,
        action=new.action,
        subject_kind=new.subject_kind,
        subject_id=new.subject_id,
        user_id=new.user_id,
        text_id=text_id,
        text_hash=text_hash,
        changes=encoded(changes),
        hash="",
    )
    await writes.append(tx, row._replace(hash=digest(row, before.hash)))
    if receipt is not None:
        await answers.keep(tx, receipt, result)
    return result


def encoded(changes: Changes) -> str:
    """Return changes as the log stores them: equal changes are equal texts."""
    return json.dumps(changes, sort_keys=True, separators=(",", ":"))


async def require_stranger(tx: Transaction, author: Author, user_id: str | None) -> None:
    """Check that a user is not the author: by the e-mail address, or declared as the author's own.

    Raises:
        MarketError: `not_permitted`.
    """
    if not isinstance(author, Member) or user_id is None:
        return
    if await queries.owns(tx, author.staff_id, user_id):
        raise MarketError(
            Code.NOT_PERMITTED, "This is an account of your own; another member has to do this."
        )


async def permit(tx: Transaction, author: Author, action: Action) -> None:
    """Check that an author may do an operation now, also one that only reads.

    Raises:
        MarketError: `not_permitted`: by the matrix, or the member is locked or has another role.
    """
    require(author, action)
    if isinstance(author, Member):
        found = await queries.find(tx, author.staff_id)
        if found is None or found.locked_at is not None or found.role != author.role:
            raise MarketError(Code.NOT_PERMITTED, "The member is locked or has another role.")

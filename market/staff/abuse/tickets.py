"""Tickets: complaints about traffic, from the first letter to the answer.

Each change of a ticket is an act of the staff, so its history is its rows in the log.
"""

import json
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.base.acts import TICKET, Act, Changes, Text, TextKind, act, checked_text, permit
from market.staff.base.roles import Action, Author, require
from storage.engines.store import Transaction
from storage.staff.abuse import ticket_writes as writes
from storage.staff.abuse import tickets as queries
from storage.staff.abuse.tickets import TicketRow
from storage.staff.base import log
from storage.staff.base.log import ShownLogRow
from storage.staff.base.writes import lock_head

TEXT_MAX_CHARACTERS = 4_000
OPEN_MAX = 10_000
HISTORY_MAX = 100
DUE_SECONDS = 24 * 3600
URGENT_SECONDS = 2 * 3600


class Category(StrEnum):
    """Kind of a complaint."""

    ABUSE = "abuse"
    SCAN = "scan"
    SPAM = "spam"
    BREAK_IN = "break_in"
    PHISHING = "phishing"
    CHILD_ABUSE = "child_abuse"


class State(StrEnum):
    """The states of a ticket."""

    NEW = "new"
    LOOKED_UP = "looked_up"
    CONTACTED = "contacted"
    SUSPENDED = "suspended"
    ANSWERED = "answered"
    LEGAL = "legal"
    CLOSED = "closed"


class Outcome(StrEnum):
    """The result of a closed ticket."""

    NO_MATCH = "no_match"
    NOT_OURS = "not_ours"
    UNFOUNDED = "unfounded"
    CUSTOMER_WARNED = "customer_warned"
    CUSTOMER_CLOSED = "customer_closed"


URGENT = frozenset((Category.PHISHING, Category.CHILD_ABUSE))
_LATER = frozenset((State.CONTACTED, State.SUSPENDED, State.ANSWERED, State.LEGAL, State.CLOSED))
TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.NEW: _LATER | {State.LOOKED_UP},
    State.LOOKED_UP: _LATER,
    State.CONTACTED: _LATER - {State.CONTACTED},
    State.SUSPENDED: _LATER - {State.SUSPENDED},
    State.ANSWERED: _LATER - {State.ANSWERED},  # the reporter may write again
    State.LEGAL: frozenset((State.ANSWERED, State.CLOSED)),
    State.CLOSED: frozenset(),
}


class Facts(Struct, frozen=True, omit_defaults=True):
    """The figures of a complaint; "" and 0 are missing."""

    exit_address: str = ""
    at: int = 0
    host: str = ""
    port: int = 0
    source_port: int = 0


class TicketPage(Struct, frozen=True):
    """A ticket, its facts, and the acts about it, the latest first."""

    row: TicketRow
    facts: Mapping[str, str | int]
    history: list[ShownLogRow]


async def open_ticket(
    context: Context, author: Author, category: Category, facts: Facts, complaint: str
) -> TicketRow:
    """Open a ticket with the text of a complaint.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `too_many_tickets`.
    """
    text = _text(complaint, "complaint", "text")
    seconds = URGENT_SECONDS if category in URGENT else DUE_SECONDS
    new = NewTicket(author, category, _shown(facts), text, seconds)
    return await context.store.write(open_in, context, new)


class NewTicket(Struct, frozen=True):
    """A ticket to open; its author has to answer it within `due_seconds`.

    `changes` are figures for the log.
    """

    author: Author
    category: Category
    facts: Mapping[str, str | int]
    text: Text
    due_seconds: int = DUE_SECONDS
    user_id: str | None = None
    changes: Changes = {}


async def open_in(tx: Transaction, context: Context, new: NewTicket) -> TicketRow:
    """Open a ticket as an act of a transaction, which takes the next number.

    Raises:
        MarketError: `not_permitted`, `too_many_tickets`.
    """
    require(new.author, Action.TICKET_OPEN)
    await lock_head(tx)  # as each act does; so no other act takes the number
    number = await queries.last_number(tx) + 1

    async def change(tx: Transaction) -> tuple[TicketRow, Changes]:
        row = await _insert(tx, context, number, new)
        return row, {
            "state": (None, row.state),
            "category": (None, row.category),
            **new.changes,
        }

    made = Act(new.author, Action.TICKET_OPEN, TICKET, str(number), new.user_id, new.text)
    return await act(tx, context, made, change)


async def _insert(tx: Transaction, context: Context, number: int, new: NewTicket) -> TicketRow:
    if await queries.count_open(tx, most=OPEN_MAX) >= OPEN_MAX:
        raise MarketError(Code.TOO_MANY_TICKETS)
    now = context.now()
    row = TicketRow(
        number=number,
        category=new.category,
        state=State.NEW,
        opened_at=now,
        due_at=now + new.due_seconds,
        user_id=new.user_id,
        facts=json.dumps(new.facts, sort_keys=True),
        closed_at=None,
        outcome=None,
    )
    await writes.insert(tx, row)
    return row


async def listed(
    context: Context, author: Author, *, state: State | None, limit: int
) -> list[TicketRow]:
    """Return the open tickets, the first due one first; or the newest ones in a state.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_listed, author, state, limit)


async def _listed(
    tx: Transaction, author: Author, state: State | None, limit: int
) -> list[TicketRow]:
    await permit(tx, author, Action.TICKET_READ)
    if state is None:
        return await queries.open_tickets(tx, limit=limit)
    return await queries.in_state(tx, state, limit=limit)


async def show(context: Context, author: Author, number: int) -> TicketPage:
    """Return a ticket with its history.

    Raises:
        MarketError: `not_permitted`, `ticket_not_found`.
    """
    return await context.store.read(_show, author, number)


async def _show(tx: Transaction, author: Author, number: int) -> TicketPage:
    await permit(tx, author, Action.TICKET_READ)
    row = await found(tx, number)
    return TicketPage(
        row, json.loads(row.facts), await log.of_subject(tx, TICKET, str(number), limit=HISTORY_MAX)
    )


async def move(context: Context, author: Author, number: int, state: State, note: str) -> TicketRow:
    """Bring a ticket into another state, with a note for the staff.

    Only an operator gives a ticket to the authorities (`legal`). `close` closes a ticket.

    Raises:
        MarketError: `not_permitted`, `ticket_not_found`, `ticket_state`, `invalid_field`.
    """
    if state is State.CLOSED:
        raise MarketError(Code.INVALID_FIELD, "A ticket is closed with an outcome.")
    action = {State.LEGAL: Action.TICKET_LEGAL, State.ANSWERED: Action.TICKET_ANSWER}
    words = ("answer", "text") if state is State.ANSWERED else ("note", "reason")
    text = _text(note, *words)
    return await _change(
        context, author, action.get(state, Action.TICKET_MOVE), number, text, state, None
    )


async def answer(context: Context, author: Author, number: int, body: str) -> TicketRow:
    """Record the answer to the reporter; it never names the customer.

    Raises:
        MarketError: `not_permitted`, `ticket_not_found`, `ticket_state`, `invalid_field`.
    """
    return await move(context, author, number, State.ANSWERED, body)


async def close(
    context: Context, author: Author, number: int, outcome: Outcome, note: str
) -> TicketRow:
    """Close a ticket with its outcome.

    Raises:
        MarketError: `not_permitted`, `ticket_not_found`, `ticket_state`, `invalid_field`.
    """
    text = _text(note, "note", "reason")
    return await _change(context, author, Action.TICKET_CLOSE, number, text, State.CLOSED, outcome)


async def _change(
    context: Context,
    author: Author,
    action: Action,
    number: int,
    text: Text,
    state: State,
    outcome: Outcome | None,
) -> TicketRow:
    before = await context.store.read(found, number)

    async def change(tx: Transaction) -> tuple[TicketRow, Changes]:
        row = await found(tx, number)
        if state not in TRANSITIONS[State(row.state)]:
            words = f"is {row.state} already"
            if state != row.state:
                words = f"is {row.state}; it cannot become {state}"
            raise MarketError(Code.TICKET_STATE, f"The ticket {words}.")
        closed_at = context.now() if state is State.CLOSED else None
        changed = row._replace(state=state, closed_at=closed_at, outcome=outcome)
        await writes.change(tx, changed)
        changes: Changes = {"state": (row.state, state)}
        return changed, changes if outcome is None else {**changes, "outcome": (None, outcome)}

    new = Act(author, action, TICKET, str(number), before.user_id, text)
    return await context.store.write(act, context, new, change)


async def found(tx: Transaction, number: int) -> TicketRow:
    """Return a ticket.

    Raises:
        MarketError: `ticket_not_found`.
    """
    row = await queries.find(tx, number)
    if row is None:
        raise MarketError(Code.TICKET_NOT_FOUND)
    return row


def _shown(facts: Facts) -> dict[str, str | int]:
    return {name: value for name in facts.__struct_fields__ if (value := getattr(facts, name))}


def _text(body: str, name: str, field: str) -> Text:
    return Text(TextKind.TICKET, checked_text(body, name, TEXT_MAX_CHARACTERS, field=field))

"""Rules against scans and spam: each finding about a session is a ticket.

`market.staff.rule_stops` has the rules that also stop the session.
"""

import json
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from market.events.context import Context
from market.staff.abuse import tickets
from market.staff.abuse.tickets import Category, NewTicket
from market.staff.base.acts import TICKET, Act, Changes, Text, TextKind, act
from market.staff.base.roles import Action, Rule
from storage.engines.store import Transaction
from storage.staff.abuse import ticket_writes as writes
from storage.staff.abuse import tickets as queries
from storage.staff.abuse.tickets import CountRow, OwnerRow, TicketRow
from storage.staff.base.writes import lock_head

DAY_SECONDS: Final = 86_400
COUNTED_DAYS: Final = 30

CATEGORIES: Final = {
    "scan": Category.SCAN,
    "mail": Category.SPAM,
    "login": Category.BREAK_IN,
}


class Found(Struct, frozen=True):
    """A session that a rule has found at a time, with the counts of that minute.

    `rule` is a key of `CATEGORIES`.
    """

    rule: str
    session_id: str
    at: int
    figures: Mapping[str, int]

    @property
    def words(self) -> str:
        """The rule and its figures, as the staff and the buyer read them."""
        figures = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        return f"Rule {self.rule}, in a minute: {figures}."


class Peak(Struct, frozen=True):
    """The figure of a session in a minute, and the share of failed dials of that port."""

    rule: str
    session_id: str
    at: int
    amount: int
    failed_percent: int


class RuleSetting(Struct, frozen=True):
    """A rule by the settings.

    `mode` is "act", "observe" or "off". The rule finds a session above `more_than`, and above
    `failed_percent` of failed dials. One that acts halts the session for `halt_seconds`.
    """

    name: str
    mode: str
    more_than: int
    of: str
    failed_percent: int
    halt_seconds: int | None


async def report(context: Context, found: Found) -> TicketRow | None:
    """Open a ticket about a session that a rule has found.

    Return None if its user has an open ticket of this category, or no such session exists.

    Raises:
        MarketError: `too_many_tickets`.
    """
    owner = await context.store.read(owner_of, found.session_id)
    if owner is None:
        return None
    ticket = await context.store.read(queries.open_of, owner.user_id, CATEGORIES[found.rule])
    if ticket is not None:
        return None
    return await context.store.write(_report, context, owner.user_id, found)


async def _report(
    tx: Transaction, context: Context, user_id: str, found: Found
) -> TicketRow | None:
    await lock_head(tx)
    if await queries.open_of(tx, user_id, CATEGORIES[found.rule]) is not None:
        return None
    return await open_in(tx, context, user_id, found)


async def owner_of(tx: Transaction, session_id: str) -> OwnerRow | None:
    """Return the user of a session."""
    owners = await queries.owners(tx, [session_id])
    return owners[0] if owners else None


async def open_in(
    tx: Transaction, context: Context, user_id: str, found: Found, **facts: int
) -> TicketRow:
    """Open the ticket of a finding in a transaction.

    Raises:
        MarketError: `too_many_tickets`.
    """
    new = NewTicket(
        Rule(found.rule),
        CATEGORIES[found.rule],
        {
            "rule": found.rule,
            "session": found.session_id,
            "at": found.at,
            **found.figures,
            **facts,
        },
        Text(TextKind.TICKET, found.words),
        user_id=user_id,
        changes={
            "rule": (None, found.rule),
            **{name: (None, value) for name, value in found.figures.items()},
        },
    )
    return await tickets.open_in(tx, context, new)


async def open_or_extend(
    tx: Transaction, context: Context, user_id: str, found: Found
) -> TicketRow:
    """Open the ticket of a stop, or add the stop to the open one of its user and category.

    Raises:
        MarketError: `too_many_tickets`.
    """
    row = await queries.open_of(tx, user_id, CATEGORIES[found.rule])
    if row is None:
        return await open_in(tx, context, user_id, found, stops=1)
    ticket = row

    async def change(tx: Transaction) -> tuple[TicketRow, Changes]:
        facts = json.loads(ticket.facts)
        before = int(facts.get("stops", 0))
        facts |= {"stops": before + 1, "stopped_at": found.at}
        extended = ticket._replace(facts=json.dumps(facts, sort_keys=True))
        await writes.change(tx, extended)
        return extended, {"stops": (before, before + 1)}

    made = Act(
        Rule(found.rule),
        Action.TICKET_MOVE,
        TICKET,
        str(ticket.number),
        user_id,
        Text(TextKind.TICKET, found.words),
    )
    return await act(tx, context, made, change)


async def opened(tx: Transaction, since: int) -> list[CountRow]:
    """Return the number of tickets that rules have opened since a time, by category."""
    return await queries.opened_by_rules(tx, since=since)

"""Rules against scans and spam: each finding about a session is a ticket.

The rules observe: a ticket shows what a threshold would have stopped, and a person decides.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.abuse import tickets
from market.staff.abuse.tickets import DUE_SECONDS, Category
from market.staff.base.acts import TICKET, Act, Changes, Text, TextKind, act, permit
from market.staff.base.roles import Action, Author, Rule
from storage.engines.store import Transaction
from storage.staff.abuse import tickets as queries
from storage.staff.abuse.tickets import CountRow, TicketRow

DAY_SECONDS: Final = 86_400
COUNTED_DAYS: Final = 30

CATEGORIES: Final = {
    "scan": Category.SCAN,
    "mail": Category.SPAM,
    "login": Category.BREAK_IN,
}


class RuleSetting(Struct, frozen=True):
    """A rule by the settings: `mode` is "observe" or "off"; above `more_than` it opens a ticket."""

    name: str
    mode: str
    more_than: int
    of: str


async def report(
    context: Context, rule: str, session_id: str, at: int, figures: Mapping[str, int]
) -> TicketRow | None:
    """Open a ticket about a session that a rule has found.

    Return None if its user has an open ticket of this category, or no such session exists. This is
    the one place that acts on a finding: a halt of the session belongs here.

    Args:
        context: the open store.
        rule: the name of the rule, a key of `CATEGORIES`.
        session_id: the session.
        at: the time of the finding.
        figures: the counts of the minute.

    Raises:
        MarketError: `too_many_tickets`; `ticket_state`, if another ticket was opened at the same
            time: a repetition finds it, or opens the next one.
    """
    category = CATEGORIES[rule]
    owners = await context.store.read(queries.owners, [session_id])
    if not owners:
        return None
    user_id = owners[0].user_id
    if await context.store.read(queries.has_open, user_id, category):
        return None
    number = await tickets.next_number(context)

    async def change(tx: Transaction) -> tuple[TicketRow, Changes]:
        if await queries.has_open(tx, user_id, category):
            raise MarketError(Code.TICKET_STATE, "Another node has opened a ticket meanwhile.")
        facts: dict[str, str | int] = {"rule": rule, "session": session_id, "at": at, **figures}
        row = await tickets.insert(
            tx, context, number, category, facts, due_seconds=DUE_SECONDS, user_id=user_id
        )
        changes: dict[str, tuple[int | str | None, int | str | None]] = {
            "state": (None, row.state),
            "rule": (None, rule),
        }
        return row, changes | {name: (None, value) for name, value in figures.items()}

    words = ", ".join(f"{name} {value}" for name, value in figures.items())
    text = Text(TextKind.TICKET, f"Rule {rule}, in a minute: {words}.")
    new = Act(Rule(rule), Action.TICKET_OPEN, TICKET, str(number), user_id, text)
    return await context.store.write(act, context, new, change)


async def counts(context: Context, author: Author) -> list[CountRow]:
    """Return the number of tickets that rules have opened in the last days, by category.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_counts, author, context.now() - COUNTED_DAYS * DAY_SECONDS)


async def _counts(tx: Transaction, author: Author, since: int) -> list[CountRow]:
    await permit(tx, author, Action.RULE_READ)
    return await queries.opened_by_rules(tx, since=since)

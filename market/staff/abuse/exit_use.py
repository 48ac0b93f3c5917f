"""The customer who used an exit at a time towards an address.

The records of connections come from outside, without the names of users. The best matches with the
complaint count, and so does each other TCP connection whose record shows no destination: a buyer
who uses a name for an address must not make an innocent user the only match. The answer names a
user only if all of them have the same user.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.base.networks import counted_network
from market.devices.origins import GAP_SECONDS
from market.events.context import Context
from market.staff.abuse import tickets
from market.staff.abuse.tickets import State
from market.staff.base import masks
from market.staff.base.acts import SEARCH, TICKET, Act, Changes, Text, TextKind, act, permit
from market.staff.base.roles import Action, Author, Member, Role
from storage.devices import origins
from storage.engines.store import Transaction
from storage.staff.abuse import ticket_writes
from storage.staff.abuse import tickets as queries
from storage.staff.abuse.tickets import OwnerRow, TicketRow

SHOWN_MAX: Final = 20
SESSIONS_MAX: Final = 200
DEVICES_MAX: Final = 50  # each is searched for: 50 cost two seconds in a full hour of records
# A search reads hours of records, in one of the few threads of the daemon for its disks.
SEARCHES_MAX: Final = 3


class Question(Struct, frozen=True):
    """The figures of a complaint; "" and 0 are unknown.

    `exit_address` is the source of the traffic, `at` its time (UTC seconds), `within` the error of
    the complainant's clock in seconds. `devices` were seen at this address at this time.
    """

    exit_address: str
    at: int
    host: str = ""
    port: int = 0
    source_port: int = 0
    within: int = 60
    devices: tuple[str, ...] = ()


class Destination(IntEnum):
    """The destination of a record compared with that of a question."""

    EQUAL = 1
    UNKNOWN = 2  # of some datagrams; of a name, looked up by the exit, compared with an address
    DIFFERENT = 3


class Match(IntEnum):
    """The match of a connection with a complaint, the best first."""

    DESTINATION_AND_PORT = 1
    DESTINATION = 2
    PORT = 3
    SOURCE_PORT = 4
    TIME = 5


WORDS: Final = {
    Match.DESTINATION_AND_PORT: "destination and port",
    Match.DESTINATION: "destination",
    Match.PORT: "port",
    Match.SOURCE_PORT: "source port",
    Match.TIME: "time alone",
}


class Use(Struct, frozen=True):
    """One recorded connection; `ended` is absent (None) if its end is not recorded.

    `name` identifies the connection among those of all processes and machines.
    """

    session_id: str
    exit: str
    started: int
    ended: int | None
    protocol: str
    port: int
    source_port: int
    destination: Destination
    bytes_up: int
    bytes_down: int
    reason: str
    name: str = ""


class Found(Struct, frozen=True):
    """The connections in the records of a time, and the reasons for gaps, one sentence each.

    `has_more`: the connections are too many, and some are missing. `nothing` is the reason why no
    connection is found, "" if some are.
    """

    uses: Sequence[Use]
    gaps: Sequence[str]
    has_more: bool = False
    nothing: str = ""


class RankedUse(Struct, frozen=True):
    """A connection, and its match with a complaint."""

    use: Use
    match: Match


class Answer(Struct, frozen=True):
    """The answer to a complaint.

    `customer` is the user of all possible connections, if they have one user. `uses` are the best
    matches, and without a customer all possible ones, `SHOWN_MAX` at most; `others` is the number
    of other connections at that time. `devices` were seen at the address at that time.
    """

    customer: OwnerRow | None
    users: int
    uses: tuple[RankedUse, ...]
    has_more: bool
    others: int
    ask: str
    gaps: tuple[str, ...]
    devices: tuple[str, ...] = ()


class Searches:
    """The searches of the records that this node runs: one of a member, and few together.

    Args:
        search: returns the connections through the exit of a question.
        most: the number of searches at the same time.
    """

    def __init__(
        self,
        search: Callable[[Question], Coroutine[Any, Any, Found]],
        most: int = SEARCHES_MAX,
    ) -> None:
        self._search = search
        self._most = most
        self._running: dict[str, asyncio.Task[Found]] = {}

    async def run(self, staff_id: str, question: Question) -> Found:
        """Search for a member; a search whose caller has left counts until it ends.

        Raises:
            MarketError: `too_busy`.
        """
        if staff_id in self._running:
            raise MarketError(Code.TOO_BUSY, "Your last search of the records still runs.")
        if len(self._running) >= self._most:
            raise MarketError(
                Code.TOO_BUSY, f"{self._most} searches of the records run; try again in a minute."
            )
        task = asyncio.create_task(self._search(question))
        self._running[staff_id] = task

        def ended(task: asyncio.Task[Found]) -> None:
            del self._running[staff_id]
            if not task.cancelled():
                task.exception()  # its caller may have left

        task.add_done_callback(ended)
        return await asyncio.shield(task)


async def look_up(
    context: Context,
    author: Author,
    question: Question,
    ticket: int | None,
    search: Callable[[Question], Awaitable[Found]],
) -> Answer:
    """Return the customer who used an exit, or the reasons for an answer without a customer.

    The look-up is an act in the log, with the question as its text; a ticket becomes `looked_up`.

    Args:
        context: the open store.
        author: a member of the support needs a ticket.
        question: the figures of the complaint.
        ticket: the number of the ticket.
        search: returns the connections through the exit at that time.

    Raises:
        MarketError: `not_permitted`, `ticket_not_found`; `ticket_state`, if the ticket is closed.
    """
    await context.store.read(_permit, author, ticket)
    seen = await context.store.read(
        origins.at,
        question.exit_address,
        counted_network(question.exit_address),
        first=question.at - question.within - GAP_SECONDS,
        last=question.at + question.within,
        limit=DEVICES_MAX + 1,
    )
    question = replace(question, devices=tuple(seen[:DEVICES_MAX]))
    found = await search(question)
    ranked = rank(question, found.uses)
    best = [each for each in ranked if each.match == ranked[0].match]
    possible = [*best, *_rivals(question, ranked[len(best) :], best)]
    sessions = list(dict.fromkeys(each.use.session_id for each in possible))
    owners = await context.store.read(queries.owners, sessions[:SESSIONS_MAX])
    users = {each.user_id for each in owners}
    is_other_port = bool(question.port and best) and ranked[0].match is Match.DESTINATION
    is_whole = len(owners) == len(sessions) and not found.has_more
    is_one = len(users) == 1 and is_whole and not is_other_port
    customer = owners[0] if is_one else None
    shown = best if is_one else possible
    nothing = [found.nothing] if found.nothing and not found.uses else []
    gaps = [*found.gaps, *nothing, *_datagrams(ranked, sessions)]
    if len(seen) > DEVICES_MAX:
        gaps.append(f"More than {DEVICES_MAX} devices were seen at this address.")
    if is_other_port:
        gaps.append("The connections to this destination went to other ports of it.")
    if len(owners) < len(sessions):
        gaps.append(f"{len(sessions) - len(owners)} of {len(sessions)} sessions are not compared.")
    answer = Answer(
        customer=customer,
        users=len(users),
        uses=tuple(shown[:SHOWN_MAX]),
        has_more=len(shown) > SHOWN_MAX,
        others=len(found.uses) - len(shown),
        ask=_ask(question, ranked, is_one=is_one),
        gaps=tuple(gaps),
        devices=question.devices,
    )

    async def note(tx: Transaction) -> tuple[Answer, Changes]:
        changes: dict[str, tuple[str | int | None, str | int | None]] = {
            "connections": (None, len(shown)),
            "users": (None, len(users)),
        }
        if ticket is not None:
            row = await _open_ticket(tx, ticket)
            changed = _looked_up(row, customer)
            if changed != row:
                await ticket_writes.change(tx, changed)
                changes["state"] = (row.state, changed.state)
        return await _masked(tx, author, answer, context.now()), changes

    new = Act(
        author,
        Action.SEARCH_EXIT,
        SEARCH if ticket is None else TICKET,
        None if ticket is None else str(ticket),
        None if customer is None else customer.user_id,
        Text(TextKind.SEARCH, _words(question)),
    )
    return await context.store.write(act, context, new, note)


async def _masked(tx: Transaction, author: Author, answer: Answer, now: int) -> Answer:
    """Mask the e-mail address of the customer, unless the author has revealed it."""
    customer = answer.customer
    if customer is None or await masks.revealed(tx, author, (customer.user_id,), now=now):
        return answer
    email = masks.masked_email(customer.email)
    return replace(answer, customer=customer._replace(email=email))


def _words(question: Question) -> str:
    """Return a question as the text in the log: the fields that are known."""
    at = datetime.fromtimestamp(question.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = f"exit {question.exit_address} at {at}, within {question.within} s"
    if question.host:
        text += f", to {question.host}"
    if question.port:
        text += f", port {question.port}"
    if question.source_port:
        text += f", source port {question.source_port}"
    return text


def shown_destination(question: Question) -> str | None:
    """Return the destination of a question as HOST or HOST:PORT; None if it is unknown."""
    if not question.host:
        return None
    host = f"[{question.host}]" if ":" in question.host else question.host
    return f"{host}:{question.port}" if question.port else host


def rank(question: Question, uses: Sequence[Use]) -> list[RankedUse]:
    """Return the connections that match a question, the best match first, then the oldest."""
    ranked = [RankedUse(use, match) for use in uses if (match := _match(question, use)) is not None]
    return sorted(ranked, key=lambda each: (each.match, each.use.started))


def _rivals(
    question: Question, worse: Sequence[RankedUse], best: Sequence[RankedUse]
) -> list[RankedUse]:
    """Return the worse matches that can be the cause all the same: TCP without a known destination.

    The right source port of all best matches excludes them.
    """
    if not question.host or (
        question.source_port and all(each.use.source_port == question.source_port for each in best)
    ):
        return []
    return [
        each
        for each in worse
        if each.use.destination is Destination.UNKNOWN and each.use.protocol != "udp"
    ]


def _datagrams(ranked: Sequence[RankedUse], sessions: Sequence[str]) -> list[str]:
    """Return a sentence about datagrams of other sessions, which match by time alone."""
    others = sum(
        each.use.protocol == "udp" and each.use.session_id not in sessions for each in ranked
    )
    if not others:
        return []
    return [f"{others} connections of other sessions carried datagrams to unknown destinations."]


def _match(question: Question, use: Use) -> Match | None:
    """Return the match of a connection; None if it went to another destination."""
    is_port = bool(question.port) and use.port == question.port
    if question.host:
        if use.destination is Destination.EQUAL:
            return Match.DESTINATION_AND_PORT if is_port else Match.DESTINATION
        if use.destination is Destination.DIFFERENT:
            return None
    if is_port:
        return Match.PORT
    if question.port and use.port:  # TCP to another port
        return None
    if question.source_port and use.source_port == question.source_port:
        return Match.SOURCE_PORT
    return Match.TIME


def _ask(question: Question, ranked: Sequence[RankedUse], *, is_one: bool) -> str:
    """Return the sentence for the complainant; "" if no question is left."""
    if is_one:
        return ""
    if not question.host:
        return "Please send the destination address and port, and the time to the second in UTC."
    if not ranked:
        return "Please check the source address, the destination, and the time in UTC."
    if not question.port:
        return "Please send the destination port, and the time to the second in UTC."
    return "Please send the exact second in UTC, and the source port."


def _looked_up(row: TicketRow, customer: OwnerRow | None) -> TicketRow:
    state = State.LOOKED_UP if row.state == State.NEW else row.state
    user_id = row.user_id if customer is None else customer.user_id
    return row._replace(state=state, user_id=user_id)


async def _permit(tx: Transaction, author: Author, ticket: int | None) -> None:
    await permit(tx, author, Action.SEARCH_EXIT)
    if ticket is not None:
        await _open_ticket(tx, ticket)
    elif isinstance(author, Member) and author.role is Role.SUPPORT:
        raise MarketError(
            Code.NOT_PERMITTED, "The role support looks up an exit for a ticket only."
        )


async def _open_ticket(tx: Transaction, number: int) -> TicketRow:
    row = await tickets.found(tx, number)
    if row.state == State.CLOSED:
        raise MarketError(Code.TICKET_STATE, "The ticket is closed.")
    return row

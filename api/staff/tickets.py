"""Routes about complaints: tickets, the customer behind an exit, and the rules against abuse."""

from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from api.routing.listing import Limit, Listing, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.words import PREFIX, ActItem, act_item, author, moment
from market.base.errors import Code, MarketError
from market.staff import rule_stops
from market.staff.abuse import exit_use, questions, tickets
from market.staff.abuse.exit_use import WORDS, Answer, Question, RankedUse
from market.staff.abuse.questions import (
    PORT_MAX,
    WITHIN_MAX_SECONDS,
    WITHIN_SECONDS,
    Figures,
    Names,
)
from market.staff.abuse.tickets import TEXT_MAX_CHARACTERS, Category, Facts, Outcome, State
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.rule_stops import thresholds
from storage.staff.abuse.tickets import TicketRow

ALL = f"{PREFIX}/tickets"
ONE = f"{ALL}/{{ticket}}"
NUMBER_MAX_DIGITS = 18
NAMES = Names()

Address = Annotated[str, Meta(max_length=64)]
Moment = Annotated[str, Meta(max_length=40)]
Target = Annotated[str, Meta(max_length=320)]
Port = Annotated[int, Meta(ge=0, le=PORT_MAX)]
Body = Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS)]


class TicketsQuery(Listing, Struct):
    """The open tickets, or the newest ones in a state."""

    state: State | None = None
    limit: Limit = 50


class TicketRequest(Struct):
    """A complaint, with the figures that it has; `exit_address` needs `at`."""

    text: Body
    category: Category = Category.ABUSE
    exit_address: Address = ""
    at: Moment = ""
    to: Target = ""
    source_port: Port = 0


class MoveTicketRequest(Struct):
    """Another state of a ticket; `close` closes it."""

    state: State
    reason: Body


class AnswerTicketRequest(Struct):
    """The answer that the complainant got; it never names the customer."""

    text: Body


class CloseTicketRequest(Struct):
    """The outcome of a ticket."""

    outcome: Outcome
    reason: Body


class ExitUseRequest(Struct):
    """The source of traffic at a time with its zone, and its destination as HOST or HOST:PORT.

    `within` is the error of the complainant's clock in seconds. The support needs a `ticket`.
    """

    exit_address: Address
    at: Moment
    to: Target = ""
    source_port: Port = 0
    within: Annotated[int, Meta(ge=0, le=WITHIN_MAX_SECONDS)] = WITHIN_SECONDS
    ticket: Annotated[int, Meta(ge=1, le=10**NUMBER_MAX_DIGITS)] | None = None


class TicketItem(Struct):
    """A ticket."""

    number: int
    category: Category
    state: State
    opened_at: Timestamp
    due_at: Timestamp
    is_overdue: bool
    user_id: str | None
    closed_at: Timestamp | None
    outcome: Outcome | None


class TicketsReply(Reply, kw_only=True):
    """Tickets: open ones with the first due one first, others with the newest first."""

    tickets: list[TicketItem]


class TicketReply(Reply, kw_only=True):
    """A ticket after an act."""

    ticket: TicketItem


class TicketPageReply(Reply, kw_only=True):
    """A ticket, its figures, and the acts about it, the latest first."""

    ticket: TicketItem
    facts: dict[str, str | int]
    history: list[ActItem]


class CustomerItem(Struct):
    """The customer who used an exit."""

    id: str
    username: str
    email: str


class ConnectionItem(Struct):
    """A recorded connection, and its match with the complaint."""

    match: str
    started_at: Timestamp
    ended_at: Timestamp | None
    session: str
    device: str
    protocol: str
    port: int
    source_port: int | None
    bytes_up: int
    bytes_down: int
    reason: str


class ExitUseReply(Reply, kw_only=True):
    """The customer, if all possible connections have one; otherwise the question to ask back.

    `users` is the number of their users, `others` that of other connections at that time.
    """

    customer: CustomerItem | None
    users: int
    connections: list[ConnectionItem]
    has_more: bool
    others: int
    ask: str
    gaps: list[str]


class RuleItem(Struct):
    """A rule against scans and spam, with its tickets and stops of 30 days.

    `would_stop_…` count what its present figures would have stopped.
    """

    rule: str
    mode: str
    more_than: int
    of: str
    halts_for_seconds: int | None
    tickets_30_days: int
    stops_30_days: int
    would_stop_sessions: int
    would_stop_users: int


class RulesReply(Reply, kw_only=True):
    """The rules."""

    rules: list[RuleItem]


class TicketRoutes:
    """The routes of complaints."""

    def __init__(self, desk: StaffDesk) -> None:
        self._desk = desk
        self._context = desk.context

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        figures = {
            "exit_address": "203.0.113.9",
            "at": "2026-11-23T14:03:22Z",
            "to": "198.51.100.7:22",
        }
        return [
            StaffRoute(
                "GET",
                ALL,
                "Tickets",
                self.all,
                TicketsReply,
                action=Action.TICKET_READ,
                query=TicketsQuery,
            ),
            StaffRoute(
                "POST",
                ALL,
                "Open a ticket",
                self.open,
                TicketReply,
                action=Action.TICKET_OPEN,
                body=TicketRequest,
                idempotent=True,
                errors=(Code.TICKET_STATE, Code.TOO_MANY_TICKETS),
                example={"text": "Report 4711: scan of port 22", "category": "scan", **figures},
            ),
            StaffRoute(
                "GET",
                ONE,
                "One ticket with its history",
                self.show,
                TicketPageReply,
                action=Action.TICKET_READ,
                errors=(Code.TICKET_NOT_FOUND,),
            ),
            *self._changes(),
            StaffRoute(
                "POST",
                f"{PREFIX}/exit-use",
                "The customer who used an exit at a time; the log records the question",
                self.look_up,
                ExitUseReply,
                action=Action.SEARCH_EXIT,
                body=ExitUseRequest,
                errors=(Code.TICKET_NOT_FOUND, Code.TICKET_STATE, Code.TOO_BUSY),
                example={**figures, "ticket": 17},
            ),
            StaffRoute(
                "GET",
                f"{PREFIX}/rules",
                "Rules against scans and spam",
                self.rules,
                RulesReply,
                action=Action.RULE_READ,
            ),
        ]

    def _changes(self) -> list[StaffRoute]:
        why = {"reason": "wrote to the customer"}
        return [
            StaffRoute(
                "POST",
                f"{ONE}/{word}",
                summary,
                handler,
                TicketReply,
                action=action,
                body=body,
                idempotent=True,
                errors=(Code.TICKET_NOT_FOUND, Code.TICKET_STATE),
                example=example,
            )
            for word, summary, handler, action, body, example in (
                (
                    "move",
                    "Bring a ticket into another state",
                    self.move,
                    Action.TICKET_MOVE,
                    MoveTicketRequest,
                    {"state": "contacted", **why},
                ),
                (
                    "answer",
                    "Record the answer to the complainant",
                    self.answer,
                    Action.TICKET_ANSWER,
                    AnswerTicketRequest,
                    {"text": "We have stopped the traffic."},
                ),
                (
                    "close",
                    "Close a ticket",
                    self.close,
                    Action.TICKET_CLOSE,
                    CloseTicketRequest,
                    {"outcome": "customer_warned", **why},
                ),
            )
        ]

    async def all(self, call: Call[Nothing, TicketsQuery]) -> TicketsReply:
        """List tickets."""
        query = call.query
        rows = await tickets.listed(
            self._context, author(call), state=query.state, limit=query.limit
        )
        return TicketsReply(tickets=[self._item(row) for row in rows])

    async def open(self, call: Call[TicketRequest, Any]) -> TicketReply:
        """Open a ticket."""
        body, facts = call.body, Facts()
        if body.exit_address:
            facts = questions.facts(self._question(body, WITHIN_SECONDS))
        elif body.at or body.to or body.source_port:
            message = "The other figures of a complaint need the address of the exit."
            raise MarketError(Code.INVALID_FIELD, message, field="exit_address")
        by = author(call, self._reply)
        return self._reply(
            await tickets.open_ticket(self._context, by, body.category, facts, body.text)
        )

    async def show(self, call: Call[Nothing, Any]) -> TicketPageReply:
        """Return a ticket."""
        page = await tickets.show(self._context, author(call), _number(call))
        facts = dict(page.facts)
        if "at" in facts:
            facts["at"] = timestamp(int(facts["at"]))
        return TicketPageReply(
            ticket=self._item(page.row),
            facts=facts,
            history=[act_item(row) for row in page.history],
        )

    async def move(self, call: Call[MoveTicketRequest, Any]) -> TicketReply:
        """Bring a ticket into another state."""
        by, body = author(call, self._reply), call.body
        if call.staff.scopes is not None and body.state is State.LEGAL:
            raise MarketError(Code.SCOPE_MISSING, "No staff key gives a ticket to authorities.")
        return self._reply(
            await tickets.move(self._context, by, _number(call), body.state, body.reason)
        )

    async def answer(self, call: Call[AnswerTicketRequest, Any]) -> TicketReply:
        """Record the answer to the complainant."""
        by = author(call, self._reply)
        return self._reply(await tickets.answer(self._context, by, _number(call), call.body.text))

    async def close(self, call: Call[CloseTicketRequest, Any]) -> TicketReply:
        """Close a ticket."""
        by, body = author(call, self._reply), call.body
        return self._reply(
            await tickets.close(self._context, by, _number(call), body.outcome, body.reason)
        )

    async def look_up(self, call: Call[ExitUseRequest, Any]) -> ExitUseReply:
        """Look up the customer who used an exit."""
        body, by = call.body, author(call)
        question = self._question(body, body.within)
        search = partial(self._desk.searches.run, by.staff_id)
        return _answer(await exit_use.look_up(self._context, by, question, body.ticket, search))

    async def rules(self, call: Call[Nothing, Any]) -> RulesReply:
        """List the rules."""
        settings = self._desk.rules
        trials = await rule_stops.trial(self._context, author(call), thresholds(settings))
        return RulesReply(
            rules=[
                RuleItem(
                    rule.name,
                    rule.mode,
                    rule.more_than,
                    rule.of,
                    rule.halt_seconds,
                    trial.tickets,
                    trial.stops,
                    trial.would.sessions,
                    trial.would.users,
                )
                for rule, trial in zip(settings, trials, strict=True)
            ]
        )

    def _question(self, body: TicketRequest | ExitUseRequest, within: int) -> Question:
        figures = Figures(body.exit_address, body.at, body.to, body.source_port, within)
        return questions.question(figures, self._context.now(), NAMES)

    def _reply(self, row: TicketRow) -> TicketReply:
        return TicketReply(ticket=self._item(row))

    def _item(self, row: TicketRow) -> TicketItem:
        return TicketItem(
            number=row.number,
            category=Category(row.category),
            state=State(row.state),
            opened_at=timestamp(row.opened_at),
            due_at=timestamp(row.due_at),
            is_overdue=row.closed_at is None and row.due_at < self._context.now(),
            user_id=row.user_id,
            closed_at=moment(row.closed_at),
            outcome=None if row.outcome is None else Outcome(row.outcome),
        )


def _number(call: Call[Any, Any]) -> int:
    """Return the number of a ticket in a path.

    Raises:
        MarketError: `ticket_not_found`.
    """
    text = call.path["ticket"]
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_MAX_DIGITS):
        raise MarketError(Code.TICKET_NOT_FOUND)
    return int(text)


def _answer(answer: Answer) -> ExitUseReply:
    customer = answer.customer
    return ExitUseReply(
        customer=None
        if customer is None
        else CustomerItem(customer.user_id, customer.username, customer.email),
        users=answer.users,
        connections=[_connection(each) for each in answer.uses],
        has_more=answer.has_more,
        others=answer.others,
        ask=answer.ask,
        gaps=list(answer.gaps),
    )


def _connection(ranked: RankedUse) -> ConnectionItem:
    use = ranked.use
    return ConnectionItem(
        match=WORDS[ranked.match],
        started_at=timestamp(use.started),
        ended_at=moment(use.ended),
        session=use.session_id,
        device=use.exit,
        protocol=use.protocol,
        port=use.port,
        source_port=use.source_port or None,
        bytes_up=use.bytes_up,
        bytes_down=use.bytes_down,
        reason=use.reason,
    )

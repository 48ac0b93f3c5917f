"""Commands about complaints: the customer who used an exit, and tickets."""

import asyncio
import re
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

from msgspec.structs import replace

from config.settings import Settings
from market.base.errors import Code, MarketError
from market.base.networks import plain
from market.staff import rule_stops
from market.staff.abuse import exit_use, looks, tickets
from market.staff.abuse.exit_use import WORDS, Answer, Found, Question
from market.staff.abuse.tickets import Category, Facts, Outcome, State
from market.staff.rule_stops import RuleTrial, Threshold
from proxyd.cli.staff.base.desk import Command, Desk, Report, Row, act_row, when
from proxyd.ops.access_answers import find
from proxyd.ops.access_lines import timestamp
from proxyd.ops.access_place import access_folder
from proxyd.slices import abuse_halt_seconds
from storage.bandwidth import nodes
from storage.engines.place import is_sqlite
from storage.staff.abuse.tickets import TicketRow

DAY_SECONDS: Final = 86_400
PORT_MAX: Final = 65_535
FAILED, AMBIGUOUS = 1, 2
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


async def who_exit(desk: Desk, options: Namespace) -> Report:
    """Return the customer who used an exit at a time towards an address."""
    question = _question(options)
    if question.at > desk.context.now():
        raise MarketError(Code.INVALID_FIELD, "The time of --at is in the future.")

    async def find(asked: Question) -> Found:
        return await _find(desk, asked)

    answer = await exit_use.look_up(desk.context, desk.author, question, options.ticket, find)
    return _answer(question, answer)


async def _open(desk: Desk, options: Namespace) -> Report:
    question = _question(options) if options.exit_ip else Question("", 0)
    facts = Facts(
        question.exit_address, question.at, question.host, question.port, question.source_port
    )
    row = await tickets.open_ticket(
        desk.context, desk.author, Category(options.category), facts, options.text
    )
    return {"opened": _ticket(row)}


async def _list(desk: Desk, options: Namespace) -> Report:
    state = None if options.state is None else State(options.state)
    rows = await tickets.listed(desk.context, desk.author, state=state, limit=options.limit)
    now = desk.context.now()
    return {
        "tickets": [
            {**_ticket(row), "overdue": row.closed_at is None and row.due_at < now} for row in rows
        ]
    }


async def _show(desk: Desk, options: Namespace) -> Report:
    page = await tickets.show(desk.context, desk.author, options.ticket)
    facts = dict(page.facts)
    if "at" in facts:
        facts["at"] = timestamp(int(facts["at"]))
    return {
        "ticket": _ticket(page.row),
        "facts": facts,
        "history": [act_row(row) for row in page.history],
    }


async def _move(desk: Desk, options: Namespace) -> Report:
    row = await tickets.move(
        desk.context, desk.author, options.ticket, State(options.state), options.reason
    )
    return {"moved": _ticket(row)}


async def _answer_ticket(desk: Desk, options: Namespace) -> Report:
    row = await tickets.answer(desk.context, desk.author, options.ticket, options.text)
    return {"answered": _ticket(row)}


async def _close(desk: Desk, options: Namespace) -> Report:
    row = await tickets.close(
        desk.context, desk.author, options.ticket, Outcome(options.outcome), options.reason
    )
    return {"closed": _ticket(row)}


async def _rules(desk: Desk, _options: Namespace) -> Report:
    abuse = desk.settings.abuse
    halts, is_on = abuse_halt_seconds(desk.settings), access_folder(desk.settings) is not None
    modes = {"scan": abuse.scan_mode, "mail": abuse.mail_mode, "login": abuse.login_mode}
    return {
        "rules": [
            {
                "rule": each.rule,
                "mode": modes[each.rule] if is_on and each.threshold.more_than else "off",
                "more_than": each.threshold.more_than,
                "of": _of_rule(each.rule, each.threshold.failed_percent),
                "halts_for_seconds": halts.get(each.rule),
                "tickets_30_days": each.tickets,
                "stops_30_days": each.stops,
                "would_stop_sessions": each.would.sessions,
                "would_stop_users": each.would.users,
            }
            for each in await _trials(desk, desk.settings)
        ],
        "stops_to_suspend": abuse.stops_to_suspend,
    }


async def _trial(desk: Desk, options: Namespace) -> Report:
    abuse = desk.settings.abuse
    given = {
        name: value
        for name in ("scan_targets", "scan_failed_percent", "mail_refusals", "login_connections")
        if (value := getattr(options, name)) is not None
    }
    settings = replace(desk.settings, abuse=replace(abuse, **given))
    return {
        "trial": [
            {
                "rule": each.rule,
                "more_than": each.threshold.more_than,
                "of": _of_rule(each.rule, each.threshold.failed_percent),
                "hours": each.would.hours,
                "sessions": each.would.sessions,
                "users": each.would.users,
                "stopped": each.stops,
            }
            for each in await _trials(desk, settings)
        ]
    }


async def _trials(desk: Desk, settings: Settings) -> list[RuleTrial]:
    abuse = settings.abuse
    thresholds = {
        "scan": Threshold(abuse.scan_targets, abuse.scan_failed_percent),
        "mail": Threshold(abuse.mail_refusals),
        "login": Threshold(abuse.login_connections),
    }
    return await rule_stops.trial(desk.context, desk.author, thresholds)


def _of_rule(rule: str, failed_percent: int) -> str:
    """Return the words for the counts of a rule in a minute."""
    words = {
        "scan": f"targets on one port, more than {failed_percent} % failed",
        "mail": "refused dials to mail ports",
        "login": "connections to one host's login port",
    }
    return words[rule]


def _ticket(row: TicketRow) -> Row:
    return {
        "number": row.number,
        "category": row.category,
        "state": row.state,
        "opened": when(row.opened_at),
        "due": when(row.due_at),
        "user": row.user_id,
        "closed": when(row.closed_at),
        "outcome": row.outcome,
    }


# --- the question ------------------------------------------------------------------------------


def _question(options: Namespace) -> Question:
    """Return the question of a command line.

    Raises:
        MarketError: `invalid_field`.
    """
    if not options.at:
        raise MarketError(Code.INVALID_FIELD, "--exit-ip needs --at, the time in UTC.")
    host, port = _destination(options.to) if options.to else ("", 0)
    return Question(
        exit_address=_address(options.exit_ip, "--exit-ip"),
        at=_moment(options.at),
        host=host,
        port=port,
        source_port=options.source_port or 0,
        within=options.within,
    )


def _address(text: str, option: str) -> str:
    try:
        return str(plain(ip_address(text)))
    except ValueError:
        raise MarketError(
            Code.INVALID_FIELD, f"{option} is an IP address, such as 203.0.113.9."
        ) from None


def _moment(text: str) -> int:
    """Return a time; one without a zone would be guessed, so it is refused."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        seconds = int(found.astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        raise MarketError(
            Code.INVALID_FIELD, "--at is a time with its zone, such as 2026-11-23T14:03:22Z."
        ) from None
    if seconds < 0:
        raise MarketError(Code.INVALID_FIELD, "--at is after 1970.")
    return seconds


def _destination(text: str) -> tuple[str, int]:
    """Return the host and the port of a destination; the port is 0 if it is missing."""
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        host = str(plain(ip_address(host)))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise _bad_destination() from None
    if not port:
        return host, 0
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(PORT_MAX))):
        raise _bad_destination()
    if not 1 <= int(port) <= PORT_MAX:
        raise _bad_destination()
    return host, int(port)


def _bad_destination() -> MarketError:
    return MarketError(
        Code.INVALID_FIELD, "--to is HOST, HOST:PORT or [IPv6]:PORT, such as 198.51.100.7:22."
    )


# --- the records -------------------------------------------------------------------------------


async def _find(desk: Desk, question: Question) -> Found:
    """Return the connections in the records of all machines, and the reasons for gaps."""
    settings, now = desk.settings, desk.context.now()
    try:
        found = await asyncio.to_thread(find, settings, question, now)
    except OSError as error:
        raise MarketError(Code.INVALID_FIELD, f"The access log: {error.strerror}.") from None
    if is_sqlite(settings.storage.url):
        return found
    names = [each.id for each in await desk.context.store.read(nodes.seen)]
    if len(names) < 2:
        return found
    return await looks.ask(desk.context, question, names, found)


def _answer(question: Question, answer: Answer) -> Report:
    customer = answer.customer
    match = answer.uses[0].match if answer.uses else None
    return {
        "asked": {
            "exit": question.exit_address,
            "at": timestamp(question.at),
            "within": question.within,
            "to": _shown(question.host, question.port),
            "source_port": question.source_port or None,
        },
        "customer": None
        if customer is None
        else {"user": customer.user_id, "username": customer.username, "email": customer.email},
        "users": answer.users,
        "match": None if match is None else WORDS[match],
        "connections": _connections(answer),
        "more_than": len(answer.uses) if answer.has_more else None,
        "others": answer.others,
        "ask": answer.ask or None,
        "gaps": list(answer.gaps),
    }


def _shown(host: str, port: int) -> str | None:
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}" if port else shown


def _connections(answer: Answer) -> Sequence[Row]:
    return [
        {
            "started": timestamp(use.started),
            "ended": None if use.ended is None else timestamp(use.ended),
            "session": use.session_id,
            "device": use.exit,
            "protocol": use.protocol,
            "port": use.port,
            "source_port": use.source_port or None,
            "bytes_up": use.bytes_up,
            "bytes_down": use.bytes_down,
            "reason": use.reason,
        }
        for use in (each.use for each in answer.uses)
    ]


COMMANDS: dict[str, Command] = {
    "ticket open": _open,
    "ticket list": _list,
    "ticket show": _show,
    "ticket move": _move,
    "ticket answer": _answer_ticket,
    "ticket close": _close,
    "rule list": _rules,
    "rule trial": _trial,
}

"""Commands about complaints: the customer who used an exit, and tickets."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.staff import rule_stops
from market.staff.abuse import exit_use, questions, tickets
from market.staff.abuse.exit_use import WORDS, Answer, Question, shown_destination
from market.staff.abuse.questions import Figures, Names
from market.staff.abuse.tickets import Category, Facts, Outcome, State
from market.staff.rule_stops import thresholds
from proxyd.cli.staff.base.desk import (
    FAILED,
    MISUSED,
    Command,
    Desk,
    Ended,
    Report,
    Row,
    act_row,
    when,
)
from proxyd.ops.access_log import exit_records
from proxyd.ops.access_log.access_lines import timestamp
from proxyd.wiring.abuse_settings import rules_of
from storage.staff.abuse.tickets import TicketRow

NAMES: Final = Names("--exit-ip", "--at", "--to")


async def who_exit(desk: Desk, options: Namespace) -> Report | Ended:
    """Return the customer who used an exit at a time towards an address."""
    question = _question(desk, options)
    find = partial(exit_records.find, desk.settings, desk.context)
    answer = await exit_use.look_up(desk.context, desk.author, question, options.ticket, find)
    report = _answer(question, answer)
    if answer.customer is not None:
        return report
    return Ended(report, MISUSED if answer.users > 1 else FAILED)


async def _open(desk: Desk, options: Namespace) -> Report:
    facts = questions.facts(_question(desk, options)) if options.exit_ip else Facts()
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
    settings = rules_of(desk.settings)
    trials = await rule_stops.trial(desk.context, desk.author, thresholds(settings))
    return {
        "rules": [
            {
                "rule": rule.name,
                "mode": rule.mode,
                "more_than": rule.more_than,
                "of": rule.of,
                "halts_for_seconds": rule.halt_seconds,
                "tickets_30_days": trial.tickets,
                "stops_30_days": trial.stops,
                "would_stop_sessions": trial.would.sessions,
                "would_stop_users": trial.would.users,
            }
            for rule, trial in zip(settings, trials, strict=True)
        ],
        "stops_to_suspend": desk.settings.abuse.stops_to_suspend,
    }


async def _trial(desk: Desk, options: Namespace) -> Report:
    given = {
        name: value
        for name in ("scan_targets", "scan_failed_percent", "mail_refusals", "login_connections")
        if (value := getattr(options, name)) is not None
    }
    abuse = replace(desk.settings.abuse, **given)
    settings = rules_of(replace(desk.settings, abuse=abuse))
    trials = await rule_stops.trial(desk.context, desk.author, thresholds(settings))
    return {
        "trial": [
            {
                "rule": rule.name,
                "more_than": rule.more_than,
                "of": rule.of,
                "hours": trial.would.hours,
                "sessions": trial.would.sessions,
                "users": trial.would.users,
                "stopped": trial.stops,
            }
            for rule, trial in zip(settings, trials, strict=True)
        ]
    }


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


def _question(desk: Desk, options: Namespace) -> Question:
    """Return the question of a command line.

    Raises:
        MarketError: `invalid_field`.
    """
    if not options.at:
        raise MarketError(Code.INVALID_FIELD, "--exit-ip needs --at, the time in UTC.")
    figures = Figures(
        options.exit_ip, options.at, options.to or "", options.source_port or 0, options.within
    )
    return questions.question(figures, desk.context.now(), NAMES)


def _answer(question: Question, answer: Answer) -> Report:
    customer = answer.customer
    match = answer.uses[0].match if answer.uses else None
    return {
        "asked": {
            "exit": question.exit_address,
            "at": timestamp(question.at),
            "within": question.within,
            "to": shown_destination(question),
            "source_port": question.source_port or None,
        },
        "customer": None
        if customer is None
        else {"user": customer.user_id, "username": customer.username, "email": customer.email},
        "users": answer.users,
        "devices": list(answer.devices),
        "match": None if match is None else WORDS[match],
        "connections": _connections(answer),
        "more_than": len(answer.uses) if answer.has_more else None,
        "others": answer.others,
        "ask": answer.ask or None,
        "gaps": list(answer.gaps),
    }


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

"""Commands that stop things at once, on all nodes: suspend and resume a user."""

import re
from argparse import Namespace
from datetime import UTC, datetime

from market.accounts.letters import Letters
from market.accounts.outbox import Outbox
from market.accounts.suspensions import Part
from market.bandwidth import halts
from market.bandwidth.halts import Answered
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.staff import suspending
from market.staff.suspending import Ordered
from proxyd.cli.staff.desk import Command, Desk, Report, Row, when
from proxyd.ops.signing_key import signing_key
from proxyd.slices import app_url
from storage.engines.claim import is_claimed
from storage.engines.place import is_sqlite

_SPAN = re.compile(r"([1-9]\d{0,4})([mhd])")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}


async def _suspend(desk: Desk, options: Namespace) -> Report:
    ordered = await suspending.suspend(
        desk.context,
        _letters(desk),
        desk.author,
        options.user,
        parts=[Part(each) for each in options.parts],
        ends_at=_end(options.until, desk.context.now()),
        shown=options.shown,
        why=options.reason,
    )
    return {"suspended": _parts_row(ordered), **await _cut(desk, ordered, options)}


async def _resume(desk: Desk, options: Namespace) -> Report:
    ordered = await suspending.resume(
        desk.context,
        _letters(desk),
        desk.author,
        options.user,
        parts=[Part(each) for each in options.parts],
        why=options.reason,
    )
    row = {name: value for name, value in _parts_row(ordered).items() if name != "until"}
    return {"resumed": row, **await _nodes(desk, ordered, options, "effective")}


async def _cut(desk: Desk, ordered: Ordered, options: Namespace) -> Report:
    """Wait for the nodes, and return what they have cut."""
    return await _nodes(desk, ordered, options, "cut")


async def _nodes(desk: Desk, ordered: Ordered, options: Namespace, verb: str) -> Report:
    """Wait for the acknowledgements of the nodes; return them, and the nodes that are silent."""
    url = desk.settings.storage.url
    names = ordered.nodes
    if is_sqlite(url) and not names:
        # One daemon has no name among nodes.
        names = ("",) if is_claimed(url) else ()
    answer = await halts.answered(desk.context, ordered.number, names)
    report: Report = {verb: _numbers(answer) if options.json else _words(answer)}
    if answer.silent:
        report["silent"] = [each or "the daemon" for each in answer.silent]
    return report


def _numbers(answer: Answered) -> Row:
    return {
        "nodes": answer.nodes,
        "answered": answer.nodes - len(answer.silent),
        "connections": answer.connections,
        "seconds": answer.seconds,
    }


def _words(answer: Answered) -> str:
    if not answer.nodes:
        return "no daemon runs"
    answered = answer.nodes - len(answer.silent)
    return (
        f"on {answered} of {answer.nodes} nodes, {answer.connections} connections, "
        f"{answer.seconds:.2f} s"
    )


def _parts_row(ordered: Ordered) -> Row:
    return {
        "user": ordered.user_id,
        "parts": " ".join(ordered.parts),
        "until": when(ordered.ends_at),
    }


def _end(text: str | None, now: int) -> int | None:
    """Return a time in UTC seconds: of a span from now, or of a date and time.

    Raises:
        MarketError: `invalid_field`.
    """
    if text is None:
        return None
    span = _SPAN.fullmatch(text)
    if span is not None:
        return now + int(span[1]) * _SECONDS[span[2]]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp())
    except (ValueError, OverflowError):
        raise MarketError(
            Code.INVALID_FIELD,
            f"--until {text!r} is neither a span such as 90m, 24h or 7d, nor a UTC time such as "
            "2030-01-31T12:00.",
            field="until",
        ) from None


def _letters(desk: Desk) -> Letters:
    """Return the letters of the service; the daemon sends them."""
    settings = desk.settings
    emails = Outbox(desk.context, Sealing(signing_key(settings), b"outbox"), "mail")
    return Letters(emails, app_url(settings, settings.api.port))


COMMANDS: dict[str, Command] = {"user suspend": _suspend, "user resume": _resume}

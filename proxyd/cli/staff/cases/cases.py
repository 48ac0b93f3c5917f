"""Commands about cases: failed canaries, failed samples, rewards for photos, and appeals."""

from argparse import Namespace

from market.base.errors import Code, MarketError
from market.money.money import as_decimal
from market.staff.cases.base import Decision, Kind
from market.staff.cases.cases import WHOLE, Cases, JudgedCase
from proxyd.cli.staff.base.desk import Command, Desk, Ended, Report, when
from proxyd.cli.staff.money.money import report
from proxyd.ops.base.books import approval_limits


def _cases_of(desk: Desk) -> Cases:
    # Here, so that other commands do not wait for the libraries of the service.
    from proxyd.cli.staff.base.letters import letters_of  # noqa: PLC0415

    return Cases(desk.context, letters_of(desk))


async def _list(desk: Desk, options: Namespace) -> Report:
    cases, kind = _cases_of(desk), Kind(options.kind)
    if options.open and options.before:
        # They are in the order of their due times, and each decision makes room for the next one.
        message = "--before continues a list of all cases, and not the list of --open."
        raise MarketError(Code.INVALID_FIELD, message, field="before")
    if options.open:
        rows = await cases.first_due(
            desk.author, kind, user=options.user or "", limit=options.limit
        )
    else:
        rows = await cases.listed(
            desk.author,
            kind,
            user=options.user,
            before=options.before or "",
            limit=options.limit,
        )
    return {"cases": [_row(row) for row in rows]}


async def _show(desk: Desk, options: Namespace) -> Report:
    shown = await _cases_of(desk).shown(desk.author, Kind(options.kind), options.case)
    return {
        "case": _row(shown.judged),
        "facts": [{"name": each.name, "value": each.value} for each in shown.evidence.facts],
        "history": [
            {"at": when(each.at), "what": each.what, "detail": each.detail}
            for each in shown.evidence.history
        ],
    }


async def _decide(desk: Desk, options: Namespace) -> Report | Ended:
    decision = Decision.UPHELD if options.command == "case uphold" else Decision.VOIDED
    outcome = await _cases_of(desk).decide(
        desk.author,
        Kind(options.kind),
        options.case,
        decision,
        approval_limits(desk.settings),
        options.reason,
        percent=options.percent if decision is Decision.VOIDED else WHOLE,
    )
    return report(outcome, decision.value)


def _row(row: JudgedCase) -> Report:
    case, decision = row.case, row.decision
    return {
        "id": case.id,
        "kind": case.kind.value,
        "user": case.user_id,
        "device": case.device_id,
        "at": when(case.at),
        "summary": case.summary,
        "amount": as_decimal(case.void_amount),
        "currency": case.currency,
        "due": when(case.due_at),
        "open": case.is_open and decision is None,
        "decision": None if decision is None else decision.decision,
    }


COMMANDS: dict[str, Command] = {
    "case list": _list,
    "case show": _show,
    "case uphold": _decide,
    "case void": _decide,
}

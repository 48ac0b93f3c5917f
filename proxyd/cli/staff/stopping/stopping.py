"""Commands that stop users, sessions, keys, devices and jobs on all nodes."""

from argparse import Namespace

from market.accounts.suspensions import Part
from market.bandwidth import halts
from market.bandwidth.halts import Answered
from market.jobs.outcomes import Outcomes
from market.money.money import as_decimal
from market.staff.cases import clawing
from market.staff.stopping import stopping, suspending
from market.staff.stopping.suspending import Ordered
from proxyd.cli.staff.base.desk import FAILED, WAITS, Command, Desk, Ended, Report, Row, when
from proxyd.cli.staff.base.ends import end_of
from proxyd.cli.staff.base.letters import letters_of
from proxyd.cli.staff.money.money import row_of
from proxyd.ops.base.books import approval_limits
from proxyd.wiring.slices import bounds, job_terms
from storage.engines.claim import is_claimed
from storage.engines.place import is_sqlite


async def _suspend(desk: Desk, options: Namespace) -> Report | Ended:
    ordered = await suspending.suspend(
        desk.context,
        letters_of(desk),
        desk.author,
        options.user,
        parts=[Part(each) for each in options.parts],
        ends_at=end_of(options.until, desk.context.now()),
        shown=options.shown,
        why=options.reason,
    )
    return await _ended("suspended", _parts_row(ordered), desk, ordered, options, "cut")


async def _resume(desk: Desk, options: Namespace) -> Report | Ended:
    ordered = await suspending.resume(
        desk.context,
        letters_of(desk),
        desk.author,
        options.user,
        parts=[Part(each) for each in options.parts],
        why=options.reason,
    )
    row = {name: value for name, value in _parts_row(ordered).items() if name != "until"}
    return await _ended("resumed", row, desk, ordered, options)


async def _show_session(desk: Desk, options: Namespace) -> Report:
    shown = await stopping.show_session(desk.context, desk.author, options.session)
    row = shown.row
    return {
        "session": {
            "id": row.id,
            "user": row.user_id,
            "status": row.status,
            "state": shown.state,
            "halted": when(shown.halted_at),
            "used_bytes": row.bytes_used,
            "quota_bytes": row.quota_bytes,
            "created": when(row.created_at),
            "expires": when(row.expires_at),
            "nodes_with_a_lease": shown.leases,
        }
    }


async def _halt(desk: Desk, options: Namespace) -> Report | Ended:
    ordered = await stopping.halt_session(
        desk.context, desk.author, options.session, options.reason
    )
    return await _ended("halted", _session_row(ordered), desk, ordered, options, "cut")


async def _go(desk: Desk, options: Namespace) -> Report | Ended:
    ordered = await stopping.let_session_go(
        desk.context, desk.author, options.session, options.reason
    )
    return await _ended("resumed", _session_row(ordered), desk, ordered, options)


async def _end_session(desk: Desk, options: Namespace) -> Report | Ended:
    context = desk.context
    ordered = await stopping.begin_end(context, desk.author, options.session, options.reason)
    ended = await _ended("ended", _session_row(ordered), desk, ordered, options, "cut")
    await stopping.finish_end(context, ordered.session_id or "")
    return ended


async def _revoke(desk: Desk, options: Namespace) -> Report:
    name = await stopping.revoke_key(
        desk.context, letters_of(desk), desk.author, options.key, options.reason
    )
    return {"revoked": {"key": options.key, "name": name}}


async def _bar(desk: Desk, options: Namespace) -> Report | Ended:
    ordered = await stopping.bar_device(desk.context, desk.author, options.device, options.reason)
    row = {"device": options.device, "user": ordered.user_id}
    return await _ended("barred", row, desk, ordered, options)


async def _claw_back(desk: Desk, options: Namespace) -> Report | Ended:
    done = await clawing.claw_back(
        desk.context,
        desk.author,
        approval_limits(desk.settings),
        options.device,
        options.reason,
        with_owner=options.owner,
    )
    amount, refunded = as_decimal(done.amount), as_decimal(done.refunded)
    barred = options.device
    if options.owner:
        barred = f"{barred} and all exits of its owner, {len(done.devices)}"
    report: Report = {
        "clawed_back": {
            "devices": list(done.devices),
            "earnings": done.earnings,
            "usd": amount,
            "refunded": refunded,
        },
        "words": f"barred {barred}; {done.earnings} earnings reversed, {amount} usd; refunded to "
        f"buyers: {refunded} usd",
    }
    if not done.waiting:
        return report
    waits = "".join(
        f"; {as_decimal(-each.amount)} usd wait: approval {each.id}" for each in done.waiting
    )
    rows = [row_of(each) for each in done.waiting]
    return Ended({**report, "words": f"{report['words']}{waits}", "waits": rows}, WAITS)


async def _pardon(desk: Desk, options: Namespace) -> Report | Ended:
    ordered = await stopping.pardon_device(
        desk.context, desk.author, options.device, options.reason
    )
    row = {"device": options.device, "user": ordered.user_id}
    return await _ended("pardoned", row, desk, ordered, options)


async def _cancel(desk: Desk, options: Namespace) -> Report | Ended:
    settings = desk.settings
    outcomes = Outcomes(desk.context, job_terms(settings), lambda: bounds(settings))
    ordered = await stopping.cancel_job(
        desk.context, outcomes, desk.author, options.job, options.reason
    )
    row = {"job": options.job, "user": ordered.user_id}
    return await _ended("cancelled", row, desk, ordered, options)


def _session_row(ordered: Ordered) -> Row:
    return {"session": ordered.session_id, "user": ordered.user_id}


async def _ended(
    word: str,
    row: Row,
    desk: Desk,
    ordered: Ordered,
    options: Namespace,
    verb: str = "effective",
) -> Report | Ended:
    """Wait for the acknowledgements of the nodes, and return the report.

    Args:
        word: the name of the row in the report.
        row: the changed thing.
        desk: the services of the command.
        ordered: the order to the nodes.
        options: the command line.
        verb: the name of the nodes' answers in the report.
    """
    url = desk.settings.storage.url
    names = ordered.nodes
    if is_sqlite(url) and not names:
        # One daemon has no name among nodes.
        names = ("",) if is_claimed(url) else ()
    answer = await halts.answered(desk.context, ordered.number, names)
    report: Report = {word: row, verb: _numbers(answer) if options.json else _words(answer)}
    if not answer.silent:
        return report
    return Ended({**report, "silent": [each or "the daemon" for each in answer.silent]}, FAILED)


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
    nodes = "node" if answer.nodes == 1 else "nodes"
    connections = "connection" if answer.connections == 1 else "connections"
    return (
        f"on {answered} of {answer.nodes} {nodes}, {answer.connections} {connections}, "
        f"{answer.seconds:.2f} s"
    )


def _parts_row(ordered: Ordered) -> Row:
    return {
        "user": ordered.user_id,
        "parts": " ".join(ordered.parts),
        "until": when(ordered.ends_at),
    }


COMMANDS: dict[str, Command] = {
    "user suspend": _suspend,
    "user resume": _resume,
    "session show": _show_session,
    "session halt": _halt,
    "session go": _go,
    "session end": _end_session,
    "key revoke": _revoke,
    "exits bar": _bar,
    "exits clawback": _claw_back,
    "exits pardon": _pardon,
    "jobs cancel": _cancel,
}

"""Commands about jobs that are disputed: the evidence, and the decision."""

import asyncio
from argparse import Namespace

from market.money.money import as_decimal
from market.staff.money import job_logs, judging
from market.staff.money.approvals import State
from market.staff.money.evidence import TABLES
from market.staff.money.judging import Evidence, Verdict
from proxyd.cli.staff.base.desk import LOGS, Command, Desk, Ended, Report, Row, table, when
from proxyd.cli.staff.money.money import report
from proxyd.ops.base.books import approval_limits
from proxyd.wiring import slices
from storage.jobs.reviews import DisputesRow, ReviewRow
from storage.logs.files import Attempt


async def _show(desk: Desk, options: Namespace) -> Report:
    found = await judging.evidence(desk.context, desk.author, options.job)
    number = job_logs.attempt_of(found.job, options.attempt)
    streams = (options.stream,) if options.stream else tuple(job_logs.STREAMS)
    logs = []
    if number:
        attempt = Attempt(found.job.id, number)
        lines = {each: await _lines(desk, attempt, each, options.search) for each in streams}
        logs.append({"attempt": number, **lines})
    return {**_page(found), LOGS: logs}


async def _lines(desk: Desk, attempt: Attempt, stream: str, search: str) -> list[Row]:
    lines = await asyncio.to_thread(
        job_logs.shown,
        slices.log_terms(desk.settings).folder,
        desk.settings.work.log_keep_bytes,
        attempt,
        stream,
        search,
    )
    return [
        {"line": line.number, "hit": "*" if line.is_hit else "", "text": line.text}
        for line in lines
    ]


async def _decide(desk: Desk, options: Namespace) -> Report | Ended:
    percent = {"jobs uphold": 0, "jobs reverse": 100}.get(options.command)
    verdict = Verdict(options.percent if percent is None else percent)
    limits = approval_limits(desk.settings)
    decided = await judging.decide(
        desk.context, desk.author, options.job, verdict, limits, options.reason
    )
    outcome, rows = decided.outcome, decided.rows
    if outcome.state is State.WAITS:
        return report(outcome, "decided")
    job_id = outcome.id
    price, earned = sum(row.price for row in rows), sum(row.earned for row in rows)
    words = _words(verdict, rows, price, earned)
    return {
        "decided": {
            "job": job_id,
            "decision": verdict.word,
            "buyer_percent": verdict.buyer_percent,
            "price": as_decimal(price),
            "currency": rows[0].currency,
        },
        "words": f"{job_id}: {words}",
    }


def _words(verdict: Verdict, rows: list[ReviewRow], price: int, earned: int) -> str:
    currency = rows[0].currency
    if verdict.word == judging.REVERSE:
        return f"the buyer has {as_decimal(price)} {currency} back"
    back = sum(row.price * verdict.buyer_percent // 100 for row in rows)
    kept = sum(row.earned * (100 - verdict.buyer_percent) // 100 for row in rows)
    workers = "worker has" if len({row.user_id for row in rows}) == 1 else "workers have"
    if verdict.word == judging.UPHOLD:
        return f"the {workers} {as_decimal(earned)} credit"
    return (
        f"the buyer has {as_decimal(back)} {currency} back, the {workers} {as_decimal(kept)} credit"
    )


def _page(found: Evidence) -> Report:
    job = found.job
    return {
        "job": {
            "id": job.id,
            "title": job.title,
            "type": job.job_type,
            "status": job.status,
            "buyer": job.user_id,
            "price": as_decimal(job.price_held),
            "currency": job.currency,
            "hours": job.duration_hrs,
            "created": when(job.created_at),
            "finished": when(job.finished_at),
        },
        "order": {
            "description": job.description,
            "requirements": job.requirements,
            "payload": found.payload,
        },
        "result": {"text": job.result, "failure": job.failure_reason},
        "statements": table(found.reviews, TABLES["reviews"]),
        "answers": table(found.answers, TABLES["answers"]),
        "attempts": table(found.attempts, TABLES["attempts"]),
        "files": table(found.artifacts, TABLES["artifacts"]),
        "devices": table(found.devices, TABLES["devices"]),
        "buyer": _disputes(found.buyer_disputes),
    }


def _disputes(row: DisputesRow) -> Row:
    return {"disputes": row.disputed, "reversed": row.reversed, "split": row.split}


COMMANDS: dict[str, Command] = {
    "jobs show": _show,
    "jobs uphold": _decide,
    "jobs reverse": _decide,
    "jobs split": _decide,
}

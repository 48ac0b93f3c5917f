"""Bookkeeping by the operator, also beside a running daemon: accounts, deposits, the audit."""

import json

from config.settings import Settings
from market.accounts import accounts
from market.accounts.passwords import Passwords
from market.base.ids import Identifiers
from market.events.context import Context
from market.exits import canaries as exit_canaries
from market.jobs import reviews
from market.money.audit import Report
from market.money.money import Currency, as_decimal
from market.staff.audit import audit_all
from market.staff.base.roles import Machine
from market.staff.money import deposits
from market.staff.money.approvals import Outcome, State
from market.staff.site.alerts import AUDIT
from proxyd.cli.output import moment, printable
from proxyd.cli.staff.base.desk import unix_user
from proxyd.cli.staff.money.money import in_words
from proxyd.loop import clock
from proxyd.ops.base.books import AUDIT_STATEMENT_SECONDS, approval_limits, context_of, opened
from storage.accounts.users import UserRow
from storage.engines.errors import StoreError
from storage.engines.place import place
from storage.engines.store import Store, Transaction
from storage.jobs.reviews import ReviewRow
from storage.site.alerts import note_upkeep

Amounts = dict[Currency, int]


async def create_user(
    settings: Settings, *, email: str, username: str, password: str, amounts: Amounts
) -> tuple[str, bool]:
    """Open an account, with the amounts as its first deposit; create a missing database.

    Returns:
        a report for the operator, and whether an amount waits for a second person.

    Raises:
        MarketError: why there is no account.
        StoreError: the database cannot be used.
    """
    identifiers = Identifiers(clock.milliseconds)
    passwords = Passwords(
        time_cost=settings.auth.argon2_time_cost, memory_kib=settings.auth.argon2_memory_kib
    )
    try:
        user = await accounts.prepared_user(
            passwords,
            user_id=identifiers.new(),
            username=username,
            email=email,
            password=password,
            now=clock.seconds(),
        )
    finally:
        passwords.close()
    async with opened(settings, create=True) as store:
        outcomes, balance = await store.write(
            _add_funded, settings, context_of(store), user, amounts
        )
    lines = [f"created {email} ({user.id}) in {place(settings.storage.url)}: {in_words(balance)}"]
    waiting = [each for each in outcomes if each.state is State.WAITS]
    lines += [
        f"{as_decimal(each.amount)} {each.currency} waits: approval {each.id}" for each in waiting
    ]
    return "\n".join(lines), bool(waiting)


async def list_exits(settings: Settings, *, as_json: bool) -> str:
    """Return the exits that are barred, in words or as JSON.

    Raises:
        StoreError: the database cannot be used.
    """
    async with opened(settings) as store:
        rows = await exit_canaries.barred(context_of(store))
    if as_json:
        exits = [
            {
                "device": row.device_id,
                "barred": moment(row.barred_at),
                "finding": row.barred_for or None,
            }
            for row in rows
        ]
        return json.dumps({"exits": exits})
    lines = [
        f"{row.device_id}  {moment(row.barred_at)}  {row.barred_for or 'by the operator'}"
        for row in rows
    ]
    return "\n".join(lines) or "no exit is barred"


async def show_exit(settings: Settings, *, device_id: str) -> str:
    """Return the history and the findings of an exit, in words.

    Raises:
        MarketError: there is no such exit.
        StoreError: the database cannot be used.
    """
    async with opened(settings) as store:
        record = await exit_canaries.record(context_of(store), device_id)
    row = record.row
    state = f"barred since {moment(row.barred_at)}" if row.barred_at is not None else "not barred"
    lines = [f"{row.device_id} of {row.user_id}, {row.country or 'unknown country'}: {state}"]
    events = [(each.created_at, f"{each.event} {each.reason}".rstrip()) for each in record.history]
    for each in record.findings:
        pardoned = " (pardoned)" if each.pardoned_at is not None else ""
        events.append((each.found_at, f"found {each.kind}{pardoned}: {each.evidence}"))
    lines += [f"{moment(when)}  {what}" for when, what in sorted(events)]
    return "\n".join(lines)


async def list_disputes(settings: Settings, *, as_json: bool) -> str:
    """Return the jobs whose buyers dispute the result, in words or as JSON.

    Raises:
        StoreError: the database cannot be used.
    """
    async with opened(settings) as store:
        rows = await reviews.disputes(context_of(store))
    if as_json:
        return json.dumps({"disputes": [_dispute(row) for row in rows]})
    lines = []
    for row in rows:
        price = f"{as_decimal(row.price)} {row.currency}"
        since = moment(row.disputed_at or row.created_at)
        lines.append(f"{row.job_id}  {since}  {price}, by {row.user_id} for {row.buyer_id}:")
        lines += [f"    {printable(line)}" for line in (row.reason or "").splitlines()]
    return "\n".join(lines) or "nobody disputes a result"


def _dispute(row: ReviewRow) -> dict[str, str | None]:
    return {
        "job": row.job_id,
        "disputed": moment(row.disputed_at or row.created_at),
        "price": as_decimal(row.price),
        "currency": row.currency,
        "buyer": row.buyer_id,
        "worker": row.user_id,
        "reason": row.reason,
    }


async def audit(settings: Settings) -> tuple[bool, str]:
    """Recompute the ledger and the log of the staff.

    Return whether both agree with the database, and a report.
    """
    async with opened(settings, statement_seconds=AUDIT_STATEMENT_SECONDS) as store:
        report = await audit_all(store)
        note = await noted(store, AUDIT, has_passed=report.passed)
    return report.passed, f"{report_in_words(report)}{note}"


async def noted(store: Store, name: str, *, has_passed: bool) -> str:
    """Record the outcome of a command for the alerts. Return a line if it cannot be recorded."""
    try:
        await store.write(note_upkeep, name, clock.seconds(), has_passed=has_passed)
    except StoreError as error:
        return f"\nthis outcome is not recorded for alerts: {error}"
    return ""


async def _add_funded(
    tx: Transaction, settings: Settings, context: Context, user: UserRow, amounts: Amounts
) -> tuple[list[Outcome], Amounts]:
    """Add a user, and pay the amounts in: an act, which may wait for a second person."""
    await accounts.add_user(tx, user)
    outcomes: list[Outcome] = []
    if any(amounts.values()):
        outcomes = await deposits.deposit_in(
            tx,
            context,
            Machine(unix_user()),
            user.id,
            approval_limits(settings),
            amounts,
            f"opening:{user.id}",
        )
    _, balance = await accounts.spendable(tx, user.id)
    return outcomes, balance


def report_in_words(report: Report) -> str:
    """Return the outcome of an audit, with a line for each check."""
    lines = [f"{report.transfers} transfers over {report.accounts} accounts"]
    for check in report.checks:
        lines.append(f"{'ok  ' if not check.differences else 'FAIL'} {check.promise}")
        lines.extend(f"       {difference}" for difference in check.differences)
    lines.append("the ledger agrees" if report.passed else "the ledger does not agree")
    return "\n".join(lines)

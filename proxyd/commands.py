"""What each command of the command line does."""

import asyncio
import os
import secrets
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from config.settings import Settings
from market import accounts
from market.audit import Report, audit_ledger
from market.errors import Code, MarketError
from market.ids import Identifiers
from market.money import Currency, shown
from market.passwords import Passwords
from proxyd import clock, daemon, demo
from proxyd.activation import inherited
from proxyd.notify import ServiceManager
from proxyd.reload import reload
from storage.backup import back_up
from storage.open import open_store, place
from storage.postgres import STATEMENT_TIMEOUT_SECONDS
from storage.store import Store, Transaction
from storage.users import UserRow

Run = Callable[[Settings, Namespace], Coroutine[Any, Any, int]]
Amounts = dict[Currency, int]

# A statement of the audit reads a whole table, and holds nobody up: three seconds per million rows
# here, and as long as it takes where there are hundreds of millions.
AUDIT_STATEMENT_SECONDS = 3_600.0
DIFFERENCES_FOUND = 1
FAILED = 1


async def serve(settings: Settings, path: Path | None, *, with_demo: bool) -> int:
    """Run the daemon until it is told to stop; `path` is where its settings are read again."""
    if with_demo:
        settings = demo.settings_for(settings)
    built = await daemon.build(settings, inherited(os.environ))

    async def introduce() -> None:
        if with_demo:
            print(await demo.prepare(built), flush=True)  # noqa: T201 - what a person came for

    await daemon.serve(built, introduce, lambda: reload(built, path), ServiceManager(os.environ))
    return FAILED if built.has_failed else 0


async def create_user(
    settings: Settings, *, email: str, username: str, password: str, amounts: Amounts
) -> int:
    """Open an account, with money in it if any is given; makes the database if there is none."""
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
    async with _store(settings, create=True) as store:
        balance = await store.write(_add_funded, user, amounts, identifiers)
    say(f"created {email} ({user.id}) in {place(settings.storage.url)}: {_in_words(balance)}")
    return 0


async def deposit(
    settings: Settings, *, email: str, amounts: Amounts, reference: str | None
) -> int:
    """Pay money into an account."""
    if not any(amounts.values()):
        raise MarketError(Code.INVALID_FIELD, "Nothing to deposit: give --usd or --credits.")
    identifiers = Identifiers(clock.milliseconds)
    named = reference or secrets.token_hex(16)
    async with _store(settings) as store:
        new, balance = await store.write(_deposit_all, email, amounts, named, identifiers)
    say(f"{'deposited' if new else 'was deposited before'}; {email} has {_in_words(balance)}")
    return 0


async def audit(settings: Settings) -> int:
    """Recompute the ledger and compare; 0 when everything agrees."""
    async with _store(settings, statement_seconds=AUDIT_STATEMENT_SECONDS) as store:
        report = await audit_ledger(store)
    say(_report_in_words(report))
    return 0 if report.passed else DIFFERENCES_FOUND


async def backup(settings: Settings, target: Path) -> int:
    """Copy the database while it is served."""
    size = await asyncio.to_thread(back_up, settings.storage.url, target)
    say(f"{target}: {size} bytes, a copy of {place(settings.storage.url)}")
    return 0


async def config_check(path: Path | None) -> int:
    """Say that the settings are right; whoever gets here has read them without a mistake."""
    say(f"{path or 'the defaults and the environment'}: the settings are right")
    return 0


def say(text: str) -> None:
    """Print what a command has to say."""
    print(text, flush=True)  # noqa: T201 - the answer of a command


@asynccontextmanager
async def _store(
    settings: Settings,
    *,
    create: bool = False,
    statement_seconds: float = STATEMENT_TIMEOUT_SECONDS,
) -> AsyncIterator[Store]:
    store = await open_store(
        settings.storage.url, pool_size=1, create=create, statement_seconds=statement_seconds
    )
    try:
        yield store
    finally:
        await store.close()


async def _add_funded(
    tx: Transaction, user: UserRow, amounts: Amounts, identifiers: Identifiers
) -> Amounts:
    await accounts.add_user(tx, user)
    _, balance = await _deposit_all(tx, user.email, amounts, f"opening:{user.id}", identifiers)
    return balance


async def _deposit_all(
    tx: Transaction, email: str, amounts: Amounts, reference: str, identifiers: Identifiers
) -> tuple[bool, Amounts]:
    new = False
    for currency, amount in amounts.items():
        if amount:
            new |= await accounts.deposit(
                tx,
                email=email,
                currency=currency,
                amount=amount,
                reference=reference,
                transfer_id=identifiers.new(),
                now=clock.seconds(),
            )
    return new, await accounts.spendable(tx, email)


def _in_words(amounts: Amounts) -> str:
    return ", ".join(f"{shown(amount)} {currency}" for currency, amount in amounts.items())


def _report_in_words(report: Report) -> str:
    lines = [f"{report.transfers} transfers over {report.accounts} accounts"]
    for check in report.checks:
        lines.append(f"{'ok  ' if not check.differences else 'FAIL'} {check.promise}")
        lines.extend(f"       {difference}" for difference in check.differences)
    lines.append("the ledger agrees" if report.passed else "the ledger does not agree")
    return "\n".join(lines)

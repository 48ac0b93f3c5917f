"""The database at the start of a run: users with money, keys, devices and exits."""

import secrets
import sqlite3
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from market.base.ids import Identifiers
from market.events.context import Context
from market.money.ledger import open_accounts, pending
from market.money.money import Currency
from market.staff.base.roles import Rule
from market.staff.money.deposits import deposit_in
from storage.accounts.keys import KeyRow
from storage.accounts.keys import insert as insert_key
from storage.engines import sqlite as engine
from storage.engines.store import Transaction
from storage.exits.exits import LimitsRow, consent, open_pending_account
from tests.sim.deploys import DEPLOY_KEY, DEPLOY_KEY_LIMIT, POOR_MONEY
from tests.sim.exit_plans import DEVICES_MOST, device_id_of, hashed, owner_of, token_of
from tests.sim.jobs import BUYERS, DEVICES, KEY_LIMIT, device_name, key_name, owner_name
from tests.sim.relays import EXITS, exit_name
from tests.sim.store import EPOCH

# The last two have little money.
USERS, POOR_USERS = 6, 2
MONEY = 1_000_000_000_000


async def _insert_device(tx: Transaction, device_id: str, user_id: str) -> None:
    await tx.run(
        "INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)"
        " VALUES (:id, :user_id, :id, :id, '', 'mini_pc', :now)",
        id=device_id,
        user_id=user_id,
        now=EPOCH - 10,
    )


async def _insert_key(tx: Transaction, key_id: str, user_id: str, limit: int) -> None:
    row = KeyRow(
        key_id,
        user_id,
        key_id,
        key_id,
        "",
        "",
        "",
        None,
        limit,
        "lifetime",
        key_id,
        "",
        EPOCH - 10,
        None,
        None,
        None,
        None,
    )
    await insert_key(tx, row)


async def _insert_exit(tx: Transaction, device_id: str, user_id: str) -> None:
    await _insert_device(tx, device_id, user_id)
    limits = LimitsRow(16, 0, 10**15, "443", 0)
    await open_pending_account(tx, pending(user_id), user_id)
    await consent(
        tx, device_id=device_id, user_id=user_id, terms_hash="", limits=limits, now=EPOCH - 10
    )


async def _insert_links(tx: Transaction) -> None:
    """Insert the devices that attach over lines, and their owners' accounts."""
    for owner in sorted({owner_of(number) for number in range(DEVICES_MOST)}):
        await open_pending_account(tx, pending(owner), owner)
    for number in range(DEVICES_MOST):
        await tx.run(
            "INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)"
            " VALUES (:id, :user_id, :token_hash, :id, '', 'mini_pc', :now)",
            id=device_id_of(number),
            user_id=owner_of(number),
            token_hash=hashed(token_of(number)),
            now=EPOCH - 10,
        )


def opened(content: bytes) -> sqlite3.Connection:
    """Return a connection to a database in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(content)
    engine._configure(connection)
    return connection


def written(connection: sqlite3.Connection, unit: Callable[[Transaction], Any]) -> None:
    """Run a unit, and commit it."""
    (outcome,) = engine._write_group([unit], connection)
    if outcome.error is not None:
        raise outcome.error


@cache
def template(*, has_exits: bool) -> bytes:
    """Return a database with users and their money, as bytes.

    Args:
        has_exits: whether there are also devices that attach as exits.
    """
    if has_exits:
        connection = opened(template(has_exits=False))
        written(connection, _insert_links)
        return connection.serialize()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    engine._configure(connection)
    engine._prepare(connection)
    draw = Random("template")
    before = secrets.token_bytes
    secrets.token_bytes = draw.randbytes
    try:
        identifiers = Identifiers(lambda: EPOCH * 1_000 - 10_000)
        context = Context(None, identifiers, lambda: EPOCH - 10)  # type: ignore[arg-type]

        async def unit(tx: Transaction) -> None:
            for number in range(USERS + POOR_USERS):
                money = MONEY if number < USERS else POOR_MONEY
                name = f"user{number}"
                await tx.run(
                    "INSERT INTO users (id, username, username_key, email, email_key,"
                    " password_hash, email_verified_at, created_at)"
                    " VALUES (:name, :name, :name, :email, :email, '', :now, :now)",
                    name=name,
                    email=f"{name}@example.com",
                    now=EPOCH - 10,
                )
                await open_accounts(tx, name)
                # A rule of the daemon has no limit.
                await deposit_in(
                    tx,
                    context,
                    Rule("simulation"),
                    name,
                    {},
                    {Currency.USD: money, Currency.CREDIT: money},
                    name,
                )
            for number in range(BUYERS):
                await _insert_key(tx, key_name(number), f"user{number}", KEY_LIMIT)
            await _insert_key(tx, DEPLOY_KEY, "user0", DEPLOY_KEY_LIMIT)
            for number in range(DEVICES):
                await _insert_device(tx, device_name(number), owner_name(number))
            for number in range(EXITS):
                await _insert_exit(tx, exit_name(number), f"user{number + 2}")

        written(connection, unit)
    finally:
        secrets.token_bytes = before
    return connection.serialize()

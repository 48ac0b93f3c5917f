"""The database at the start of a run with money: also users who pay."""

from functools import cache

from market.money.ledger import open_accounts
from storage.engines.store import Transaction
from tests.sim.money.plans import PAYERS, payer_name
from tests.sim.store import EPOCH
from tests.sim.template import opened, template, written

# Older than a new account.
AGE_SECONDS = 40 * 86_400


async def insert_user(tx: Transaction, user_id: str) -> None:
    """Insert a user without money, with a confirmed address."""
    await tx.run(
        "INSERT INTO users (id, username, username_key, email, email_key,"
        " password_hash, email_verified_at, created_at)"
        " VALUES (:name, :name, :name, :email, :email, '', :now, :now)",
        name=user_id,
        email=f"{user_id}@example.com",
        now=EPOCH - AGE_SECONDS,
    )
    await open_accounts(tx, user_id)


async def _insert(tx: Transaction) -> None:
    for number in range(PAYERS):
        await insert_user(tx, payer_name(number))


@cache
def with_money(*, has_exits: bool) -> bytes:
    """Return the database of `template` with users who pay."""
    connection = opened(template(has_exits=has_exits))
    written(connection, _insert)
    return connection.serialize()

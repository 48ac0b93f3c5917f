"""The database at the start of a run with money: it also has payers, and users with earnings."""

from functools import cache

from market.money import ledger
from market.money.ledger import open_accounts
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money.ledger import HoldRow
from tests.sim.money.plans import EARNED, EARNERS, PAYERS, earner_name, payer_name
from tests.sim.store import EPOCH
from tests.sim.template import opened, template, written

# Older than a new account.
AGE_SECONDS = 40 * 86_400
# Has paid for the work that was done before.
BUYER = "user0"


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
    for number in range(EARNERS):
        await insert_user(tx, earner_name(number))
        for currency, amount in ((Currency.CREDIT, EARNED), (Currency.USD, EARNED // 100)):
            await _earn(tx, earner_name(number), currency, amount)


async def _earn(tx: Transaction, user_id: str, currency: Currency, amount: int) -> None:
    """Pay a user for work that is over."""
    now, hold_id = EPOCH - AGE_SECONDS, f"job:of {user_id} in {currency}"
    await ledger.hold(
        tx, HoldRow(hold_id, BUYER, currency, amount, None), transfer_id=f"{hold_id} 1", now=now
    )
    await ledger.capture(
        tx,
        hold_id,
        [ledger.Payment(ledger.available(user_id, currency), amount, amount)],
        transfer_ids=ledger.TransferIds(f"{hold_id} 2", f"{hold_id} 3"),
        now=now,
    )


@cache
def with_money(*, has_exits: bool) -> bytes:
    """Return the database of `template`, with users who pay or have earned."""
    connection = opened(template(has_exits=has_exits))
    written(connection, _insert)
    return connection.serialize()

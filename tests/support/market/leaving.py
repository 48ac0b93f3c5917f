"""A user with rows in many tables, every text of them with a marker, and a look for the marker."""

from typing import Any, NamedTuple

from market.accounts.keys import NewKey
from market.accounts.letters import Letters
from market.accounts.scopes import Scope
from market.erasure.erasing import Tools
from market.jobs.postings import NewJob
from market.money.money import GB, MICRO, Currency
from market.staff.base.roles import Machine
from market.staff.finding import users
from storage.accounts import users as user_queries
from storage.engines.errors import StoreError
from storage.engines.store import Transaction
from storage.erasure.column import How
from storage.erasure.treatment import TREATMENT
from support.market.jobs import device_of
from support.market.market import SEALING, Market

MARKER = "zebrafish"
PASSWORD = "a long password"
EMAIL = f"{MARKER}@{MARKER}.example"
ROOT = Machine("root")
# Tables whose texts `person` writes: other columns of them belong to others, or name the user.
OWN_WORDS = ("users", "job_attempts")


class Person(NamedTuple):
    """User with many rows, and another user whose device has done their jobs."""

    id: str
    other: str
    session: str


def tools(market: Market) -> Tools:
    """Return the tools of an erasure."""
    return Tools(Letters(market.emails, "https://app.example.com"), SEALING)


async def person(market: Market) -> Person:
    """Register a user whose every name is the marker, and let them do things."""
    login, _ = await market.accounts.register(
        username=MARKER, email=EMAIL, password=PASSWORD, user_agent=MARKER, client="203.0.113.7"
    )
    user = login.profile.user_id
    await market.store.write(user_queries.set_email_verified, user, market.clock.now)
    for currency in Currency:
        await market.deposit(EMAIL, 20 * MICRO, currency=currency)
    other = await market.person()
    await market.keys.create(user, NewKey(name=MARKER, scopes=(Scope.USAGE_READ,)))
    await market.webhooks.create(
        user, url=f"https://{MARKER}.example/", types=["*"], description=MARKER
    )
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    new = NewJob(MARKER, "script", 1, 1, MARKER, MARKER)
    for end in ("complete", "fail"):
        job = await market.jobs.create(user, new)
        device = await device_of(market, other)
        await market.jobs.accept(device, job)
        if end == "complete":
            await market.jobs.complete(device, job, MARKER)
        else:
            await market.jobs.fail(device, job, MARKER)
            await market.jobs.cancel(user, job)
    mine = await device_of(market, user)
    theirs = await market.jobs.create(other, NewJob("theirs", "script", 0, 1, "", ""))
    await market.jobs.accept(mine, theirs)
    await market.jobs.fail(mine, theirs, MARKER)
    await users.note(market.context, ROOT, user, MARKER)
    return Person(user, other, bought.session_id)


async def fill(market: Market, user: str) -> int:
    """Write the marker into each text column of the user that is erased. Return their number."""
    filled = 0
    for table, rows in TREATMENT.items():
        for name, column in rows.columns.items():
            if not rows.of or table in OWN_WORDS or column.how not in (How.ERASED, How.DELETED):
                continue
            if name in rows.key or name.endswith(("_id", "_at", "_key", "hash")):
                continue
            filled += await _fill(market, user, table, name)
    return filled


async def _fill(market: Market, user: str, table: str, name: str) -> bool:
    async def unit(tx: Transaction) -> int:
        values: dict[str, Any] = {"user": user, "mail_hash": "", "marker": f'"{MARKER}"'}
        sql = f"UPDATE {table} SET {name} = :marker WHERE {TREATMENT[table].of}"
        return await tx.run(sql, **{key: values[key] for key in values if f":{key}" in sql})

    try:
        return await market.store.write(unit) > 0
    except (StoreError, ValueError, TypeError):
        return False  # a number, or one of some words


async def hits(market: Market) -> dict[str, list[Any]]:
    """Return the rows with the marker, by table."""
    found: dict[str, list[Any]] = {}

    async def unit(tx: Transaction) -> None:
        for table in TREATMENT:
            rows = await tx.all(lambda *columns: columns, f"SELECT * FROM {table}")
            with_marker = [row for row in rows if MARKER in repr(row).lower()]
            if with_marker:
                found[table] = with_marker

    await market.store.read(unit)
    return found

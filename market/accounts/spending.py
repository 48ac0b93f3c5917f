"""Spending limits of API keys, enforced where money is held.

Each hold counts in its own transaction, so any number of purchases at the same moment stays within
a limit. Unused money that is released does not lower the count: the limit bounds the money that a
key may commit, not the final cost.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from market.base.errors import Code, MarketError
from market.events.catalogue import KeyLimitReached, amount
from market.events.context import Context
from market.events.recording import record
from market.money.money import Currency, as_decimal
from storage.accounts import keys as queries
from storage.accounts.keys import KeyRow
from storage.engines.store import Transaction

Period = Literal["day", "month", "lifetime"]
ENDED = "The API key has ended meanwhile."


class SpendLimits(Struct, frozen=True):
    """How much a key may spend within each period, in micro-units; None is no limit."""

    usd: int | None = None
    credit: int | None = None
    period: Period = "month"

    def of(self, currency: str) -> int | None:
        """Return the limit in one currency."""
        return self.usd if currency == Currency.USD else self.credit


NO_LIMITS = SpendLimits()


class LimitsChange(Struct, frozen=True):
    """Changes to a key's limits; an unset field stays."""

    usd: int | UnsetType | None = UNSET
    credit: int | UnsetType | None = UNSET
    period: Period | UnsetType = UNSET

    def of(self, before: SpendLimits) -> SpendLimits:
        """Return the limits after the change."""
        return SpendLimits(
            before.usd if isinstance(self.usd, UnsetType) else self.usd,
            before.credit if isinstance(self.credit, UnsetType) else self.credit,
            before.period if isinstance(self.period, UnsetType) else self.period,
        )


class Spender(Struct, frozen=True):
    """Key that pays; its limits are read at the payment, so later changes by the owner count."""

    key_id: str
    user_id: str


def limits_of(row: KeyRow) -> SpendLimits:
    """Return the spending limits of a key."""
    period = row.limit_period
    assert period in ("day", "month", "lifetime")  # noqa: S101 - the schema's own check
    return SpendLimits(row.limit_usd, row.limit_credit, period)  # type: ignore[arg-type]


def beginning(period: Period, now: int) -> int:
    """Return the beginning of the period of `now`, in UTC seconds; a lifetime began at 0."""
    if period == "lifetime":
        return 0
    moment = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0)
    if period == "month":
        moment = moment.replace(day=1)
    return int(moment.timestamp())


async def spend(
    tx: Transaction, spender: Spender | None, currency: str, micro_units: int, now: int
) -> None:
    """Count a key's spending; do nothing for an owner without a key.

    Call this in the transaction of the hold, after the lock on the user. A key and its successors
    share one purse.

    Raises:
        MarketError: `spend_limit_reached`; `unauthorized` once the key has ended, which may be
            after the request began.
    """
    if spender is None or not micro_units:
        return  # a change without a cost is allowed beyond a limit, such as fewer replicas
    row = await queries.find_live(tx, spender.key_id, now)
    if row is None:
        raise MarketError(Code.UNAUTHORIZED, ENDED)
    limits = limits_of(row)
    # Each period's sum is kept: a limit of another period that is set later counts all of it.
    spent = await queries.spend(
        tx,
        purse_id=row.purse_id,
        currency=currency,
        amount=micro_units,
        day=beginning("day", now),
        month=beginning("month", now),
    )
    limit = limits.of(currency)
    if limit is not None and spent[limits.period] > limit:
        raise MarketError(Code.SPEND_LIMIT_REACHED, _refusal(limits, currency, limit))


@asynccontextmanager
async def reporting_limits(context: Context, spender: Spender | None) -> AsyncIterator[None]:
    """Notify the owner of a key, once in a period, if a unit in the block is beyond its limit.

    The unit has been rolled back by then, so the notice is a unit of its own.

    Raises:
        MarketError: the error of the block.
    """
    try:
        yield
    except MarketError as error:
        if spender is not None and error.code is Code.SPEND_LIMIT_REACHED:
            await context.store.write(_tell, context, spender)
        raise


async def _tell(tx: Transaction, context: Context, spender: Spender) -> None:
    row = await queries.find_live(tx, spender.key_id, context.now())
    if row is None:
        return
    limits = limits_of(row)
    begins_at = beginning(limits.period, context.now())
    if await queries.note_limit_told(tx, spender.key_id, begins_at):
        data = KeyLimitReached(
            row.id,
            row.name,
            None if limits.usd is None else amount(limits.usd),
            None if limits.credit is None else amount(limits.credit),
        )
        await record(tx, context, spender.user_id, data, subject_id=spender.key_id)


def _refusal(limits: SpendLimits, currency: str, limit: int) -> str:
    of = {"day": "a day (UTC)", "month": "a calendar month (UTC)", "lifetime": "its lifetime"}
    unit = "USD" if currency == Currency.USD else "credits"
    return (
        f"This key may spend {as_decimal(limit)} {unit} in {of[limits.period]}, and this would be "
        "more; its owner can raise the limit."
    )

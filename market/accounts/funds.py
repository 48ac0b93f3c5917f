"""The refusal of a purchase that costs more than its buyer has available.

It names both amounts. An API key that may read no balance does not learn the available amount.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from market.accounts.scopes import Scope
from market.accounts.spending import Spender
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.money.ledger import ShortfallError
from market.money.money import Currency, as_decimal
from storage.accounts import keys

# Each of these reads the balances: GET /auth/me and GET /api/wallet.
_READS_BALANCES = frozenset((Scope.ACCOUNT_READ, Scope.WALLET_READ))


@asynccontextmanager
async def naming_funds(
    context: Context,
    spender: Spender | None,
    price: int | None = None,
    field: str | None = None,
) -> AsyncIterator[None]:
    """Name the amounts in the refusal of a purchase of the caller within the block.

    Args:
        context: the store and the time.
        spender: the API key that pays; None where its owner does so by hand.
        price: the price in micro-units; None where the caller does not know it.
        field: the field of the request that decides the price.

    Raises:
        MarketError: the error of the block.
    """
    try:
        yield
    except ShortfallError as error:
        has = error.available if await _reads_balances(context, spender) else None
        raise MarketError(error.code, _words(error.currency, price, has), field=field) from error


async def _reads_balances(context: Context, spender: Spender | None) -> bool:
    if spender is None:
        return True
    row = await context.store.read(keys.find_live, spender.key_id, context.now())
    return row is not None and not _READS_BALANCES.isdisjoint(row.scopes.split())


def _words(currency: Currency, price: int | None, has: int | None) -> str:
    unit = "USD" if currency is Currency.USD else "credits"
    if has is None:
        if price is None:
            return Code.INSUFFICIENT_FUNDS.meaning
        return f"This costs {as_decimal(price)} {unit}, more than is available."
    cost = "more" if price is None else f"{as_decimal(price)} {unit}"
    return f"This costs {cost}, and {as_decimal(has)} {unit} are available."

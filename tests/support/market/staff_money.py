"""Refunds, corrections and approvals by the staff in a marketplace of a test."""

from collections.abc import Mapping

from market.money.money import MICRO, Currency
from market.staff.base.roles import Author, Machine
from market.staff.money import approvals, money
from market.staff.money.approvals import Outcome
from storage.accounts import users
from support.market.market import Market

USD, CREDIT = Currency.USD, Currency.CREDIT
LIMITS = {USD: 50 * MICRO, CREDIT: 5000 * MICRO}
NOTHING = {USD: 0, CREDIT: 0}
ASKER, SECOND = Machine("asker"), Machine("second")


async def deposited(market: Market, user: str, whole: int, currency: Currency = USD) -> str:
    """Pay whole units into a user's wallet, and return the reference."""
    row = await market.store.read(users.find, user)
    assert row is not None
    reference = market.identifiers.new()
    assert await market.deposit(row.email, whole * MICRO, reference, currency)
    return reference


async def corrected(
    market: Market,
    author: Author,
    user: str,
    whole: int,
    *,
    currency: Currency = USD,
    reference: str = "",
    limits: Mapping[Currency, int] = LIMITS,
) -> Outcome:
    """Correct a user's balance by whole units."""
    return await money.correct(
        market.context,
        author,
        user,
        limits,
        amount=whole * MICRO,
        currency=currency,
        reference=reference or market.identifiers.new(),
        why="asked",
    )


async def refunded(
    market: Market,
    author: Author,
    user: str,
    whole: int,
    *,
    deposit: str,
    currency: Currency = USD,
    reference: str = "",
    limits: Mapping[Currency, int] = LIMITS,
) -> Outcome:
    """Refund whole units of a deposit."""
    return await money.refund(
        market.context,
        author,
        user,
        limits,
        amount=whole * MICRO,
        currency=currency,
        deposit=deposit,
        reference=reference or market.identifiers.new(),
        why="asked",
    )


async def newest_request(market: Market) -> str:
    """Return the newest request that waits."""
    [shown] = await approvals.listed(market.context, ASKER, limit=1)
    return shown.approval.id

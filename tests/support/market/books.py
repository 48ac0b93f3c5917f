"""Balances of a market's accounts in millionths, and the reasons of refusals."""

from collections.abc import Awaitable
from typing import Any

import pytest

from market.accounts.accounts import Caller
from market.base.errors import Code, MarketError
from market.money import ledger
from market.money.money import Currency
from storage.accounts import users
from storage.jobs import jobs
from storage.jobs.jobs import JobRow
from storage.money import ledger as ledger_queries
from support.market.market import Market


async def balance(market: Market, account: str) -> int:
    """Return the balance of an account, 0 if nothing was ever entered."""
    return await market.store.read(ledger_queries.balance, account) or 0


async def available(market: Market, user: str, currency: Currency = Currency.USD) -> int:
    """Return the available balance of a user."""
    return await balance(market, ledger.available(user, currency))


async def payable(market: Market, user: str, currency: Currency = Currency.CREDIT) -> int:
    """Return a user's earned money that is available, which a payout may take."""
    account = ledger.available(user, currency)
    return (await market.store.read(ledger_queries.balances, account)).earned


async def held(market: Market, user: str, currency: Currency = Currency.USD) -> int:
    """Return the held money of a user, for work that is not over yet."""
    return await balance(market, ledger.held(user, currency))


async def earned(market: Market, user: str) -> int:
    """Return the earnings of a worker without other credits, in review or not."""
    in_review = await held(market, user, Currency.CREDIT)
    return await available(market, user, Currency.CREDIT) + in_review


async def revenue(market: Market, currency: Currency = Currency.USD) -> int:
    """Return the earnings of the operator."""
    return await balance(market, ledger.revenue(currency))


async def stored_job(market: Market, job_id: str) -> JobRow:
    """Return the stored row of a job."""
    job = await market.store.read(jobs.find, job_id)
    assert job is not None
    return job


async def caller_of(market: Market, user: str) -> Caller:
    """Return a user as the caller of a request."""
    profile = await market.store.read(users.profile, user)
    assert profile is not None
    return Caller(profile, "session")


async def refusal(attempt: Awaitable[Any]) -> Code:
    """Return why something is refused; it must be."""
    with pytest.raises(MarketError) as caught:
        await attempt
    return caught.value.code

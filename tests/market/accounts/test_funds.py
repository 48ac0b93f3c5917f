"""A refused purchase names its price, and the available amount unless its key reads no balance."""

import pytest
from support.market.jobs import wanted
from support.market.market import Market

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.accounts.spending import Spender, SpendLimits
from market.base.errors import Code, MarketError
from market.money.money import GB, MICRO
from tests.market.accounts.test_spending import spender
from tests.market.jobs.test_copies import copied


async def refused(market: Market, user_id: str, pays: Spender | None = None) -> MarketError:
    """Buy a GB for five dollars. Return the refusal."""
    with pytest.raises(MarketError) as caught:
        await market.bandwidth.buy(user_id, quota_bytes=GB, price_per_gb=5 * MICRO, spender=pays)
    assert caught.value.code is Code.INSUFFICIENT_FUNDS
    return caught.value


async def test_a_refused_session_names_what_its_buyer_has(market: Market) -> None:
    rich = await market.person(usd="3.000001", credit="900")
    error = await refused(market, rich)
    assert error.message == "This costs 5.00 USD, and 3.000001 USD are available."
    assert error.field == "gb"


async def test_refused_copies_name_what_their_buyer_had_before_the_first(market: Market) -> None:
    buyer = await market.person(usd="900", credit="35")
    with pytest.raises(MarketError) as caught:
        await copied(market, buyer, 4)
    assert caught.value.message == "This costs 40.00 credits, and 35.00 credits are available."
    with pytest.raises(MarketError) as caught:
        await market.jobs.create(buyer, wanted(price=36 * MICRO))
    assert caught.value.message == "This costs 36.00 credits, and 35.00 credits are available."


@pytest.mark.parametrize(
    ("scope", "is_named"),
    [
        (Scope.WALLET_READ, True),
        (Scope.ACCOUNT_READ, True),
        (Scope.SESSIONS_READ, False),
    ],
)
async def test_a_key_learns_the_available_amount_only_if_it_may_read_balances(
    market: Market, scope: Scope, is_named: bool
) -> None:
    user = await market.person(usd="3")
    scopes = (Scope.SESSIONS_WRITE, scope)
    new = NewKey(name="buyer", scopes=scopes, spend_limits=SpendLimits(usd=9 * MICRO))
    pays = await spender(market, await market.keys.create(user, new))
    message = (await refused(market, user, pays)).message
    if is_named:
        assert message == "This costs 5.00 USD, and 3.00 USD are available."
    else:
        assert message == "This costs 5.00 USD, more than is available."

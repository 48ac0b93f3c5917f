"""Keys of the staff: made, ended and bounded on both engines."""

import asyncio

import pytest
from msgspec import structs
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code, MarketError
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role
from market.staff.members import accounts, keys
from market.staff.members.keys import DAY_SECONDS, KEYS_MAX, NewStaffKey, StaffKeys

NEW = NewStaffKey(
    name="reports", scopes=(StaffScope.READ,), allow_ips=("192.0.2.0/24", "2001:db8::7")
)


async def refusal(market: Market, text: str, address: str = "192.0.2.7") -> Code | None:
    try:
        await StaffKeys(market.context).authenticate(text, address)
    except MarketError as error:
        return error.code
    return None


@pytest.mark.both_engines
async def test_a_key_ends_by_time_revocation_or_a_lock(market: Market) -> None:
    ada = await member(market, Role.SUPPORT, "ada")
    first, second = [
        await keys.create(market.context, ROOT, ada.email, NEW, "reports") for _ in range(2)
    ]
    assert await refusal(market, first.text) is None
    assert await refusal(market, first.text, "2001:db8::7") is None
    assert await refusal(market, first.text, "192.0.3.7") is Code.KEY_ADDRESS
    assert await refusal(market, first.text, "") is Code.KEY_ADDRESS
    await accounts.lock(market.context, ROOT, ada.id, "left")
    assert await refusal(market, first.text) is Code.UNAUTHORIZED
    await accounts.unlock(market.context, ROOT, ada.id, "came back")
    caller = await StaffKeys(market.context).authenticate(first.text, "192.0.2.7")
    await keys.revoke(market.context, ROOT, first.row.id, "over")
    assert not await StaffKeys(market.context).is_current(caller)
    assert await refusal(market, first.text) is Code.UNAUTHORIZED
    market.clock.now += 90 * DAY_SECONDS - 1
    assert await refusal(market, second.text) is None
    market.clock.now += 1
    assert await refusal(market, second.text) is Code.UNAUTHORIZED
    states = [
        keys.state_of(each.key, market.clock.now)
        for each in await keys.listed(market.context, ROOT)
    ]
    assert states == ["expired", "revoked"]


async def test_a_member_has_a_bounded_number_of_keys(market: Market) -> None:
    ada = await member(market, Role.SUPPORT, "ada")
    made = await asyncio.gather(
        *(keys.create(market.context, ROOT, ada.id, NEW, "x") for _ in range(KEYS_MAX + 3)),
        return_exceptions=True,
    )
    refused = [each.code for each in made if isinstance(each, MarketError)]
    assert refused == [Code.TOO_MANY_KEYS] * 3


async def test_no_operator_makes_a_key_for_themselves(market: Market) -> None:
    olga = await member(market, Role.OPERATOR)
    for name in (olga.email, olga.id):
        with pytest.raises(MarketError) as error:
            await keys.create(market.context, acting(olga), name, NEW, "x")
        assert error.value.code is Code.NOT_PERMITTED
    made = await keys.create(market.context, ROOT, olga.id, NEW, "x")
    await keys.revoke(market.context, acting(olga), made.row.id, "stolen")  # its member may end it


@pytest.mark.parametrize("days", [0, 91, -1])
async def test_a_key_lives_ninety_days_at_most(market: Market, days: int) -> None:
    ada = await member(market, Role.SUPPORT, "ada")
    with pytest.raises(MarketError) as error:
        await keys.create(market.context, ROOT, ada.id, structs.replace(NEW, days=days), "x")
    assert error.value.field == "expires_in_days"


async def test_a_key_to_revoke_has_an_identifier_that_can_be_shown(market: Market) -> None:
    with pytest.raises(MarketError) as refused:
        await keys.revoke(market.context, ROOT, "a\0b", "leaked")
    assert refused.value.code is Code.INVALID_FIELD

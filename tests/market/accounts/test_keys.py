"""API keys: the callers, their addresses, the expiry, and the end of a key."""

import asyncio

import pytest
from support.base.cases import cases
from support.market.events import types_of
from support.market.market import Market

from market.accounts.keys import (
    KEPT_SECONDS,
    KEYS_MAX,
    LIFETIME_DEFAULT_DAYS,
    USED_SECONDS,
    WARNED_SECONDS,
    IssuedKey,
    KeyChange,
    NewKey,
    is_well_formed,
    new_text,
)
from market.accounts.scopes import Scope
from market.accounts.spending import LimitsChange, SpendLimits, spend
from market.base.errors import Code, MarketError

DAY = 86_400
HERE = "192.0.2.7"


async def made(market: Market, user_id: str, **what: object) -> IssuedKey:
    new = NewKey(**{"name": "script", "scopes": (Scope.USAGE_READ,), **what})  # type: ignore[arg-type]
    return await market.keys.create(user_id, new)


async def refusal(market: Market, key: str, address: str = HERE) -> Code:
    with pytest.raises(MarketError) as raised:
        await market.keys.authenticate(key, address)
    return raised.value.code


async def test_a_key_is_its_owner_within_its_scopes(market: Market) -> None:
    ada = await market.person()
    issued = await made(market, ada, scopes=(Scope.JOBS_READ, Scope.USAGE_READ))
    caller = await market.keys.authenticate(issued.key, HERE)
    assert caller.profile.user_id == ada
    assert caller.key is not None
    assert caller.key.scopes == {"jobs:read", "usage:read"}
    assert await market.accounts.is_current(caller)
    assert issued.key not in repr(await market.keys.all_of(ada)), "it is shown once"


def test_a_key_that_was_mistyped_is_seen_without_a_look() -> None:
    key = new_text()
    assert is_well_formed(key)
    for place in range(len(key)):
        other = "a" if key[place] != "a" else "b"
        assert not is_well_formed(key[:place] + other + key[place + 1 :])
    for wrong in ("", "pxd_", key[:-1], key + "a", key.replace("pxd_", "pxe_"), "pxd_" + "é" * 49):
        assert not is_well_formed(wrong)


async def test_a_key_that_was_never_given_opens_nothing(market: Market) -> None:
    assert await refusal(market, new_text()) is Code.UNAUTHORIZED


async def test_a_key_ends_when_it_is_revoked_and_when_it_expires(market: Market) -> None:
    ada, eve = await market.person(), await market.person()
    first, second = await made(market, ada), await made(market, ada, expires_in_days=1)
    caller = await market.keys.authenticate(first.key, HERE)
    with pytest.raises(MarketError) as raised:
        await market.keys.revoke(eve, first.row.id)
    assert raised.value.code is Code.KEY_NOT_FOUND
    await market.keys.revoke(ada, first.row.id)
    await market.keys.revoke(ada, first.row.id)
    assert await refusal(market, first.key) is Code.UNAUTHORIZED
    assert not await market.accounts.is_current(caller)
    await market.keys.authenticate(second.key, HERE)
    market.clock.jump(DAY)
    assert await refusal(market, second.key) is Code.UNAUTHORIZED
    assert [each.status for each in await market.keys.all_of(ada)] == ["expired", "revoked"]
    assert (await types_of(market, ada)).count("key.revoked") == 1
    market.clock.jump(KEPT_SECONDS + 1)
    await made(market, ada)
    assert [each.status for each in await market.keys.all_of(ada)] == ["active"]


async def test_a_key_is_used_only_from_its_addresses(market: Market) -> None:
    ada = await market.person()
    issued = await made(market, ada, allow_ips=("192.0.2.0/28", "2001:db8::1"))
    for address in (HERE, "2001:db8::1", "::ffff:192.0.2.8"):
        await market.keys.authenticate(issued.key, address)
    for address in ("192.0.2.16", "2001:db8::2", ""):
        assert await refusal(market, issued.key, address) is Code.KEY_ADDRESS
    await market.keys.change(ada, issued.row.id, KeyChange(allow_ips=()))
    await market.keys.authenticate(issued.key, "198.51.100.1")


async def test_its_owner_sees_when_and_whence_it_was_used_to_the_hour(market: Market) -> None:
    ada = await market.person()
    issued = await made(market, ada)
    began = market.clock.seconds()

    async def last() -> int | None:
        return (await market.keys.one(ada, issued.row.id)).row.last_used_at

    assert await last() is None
    await market.keys.authenticate(issued.key, HERE)
    assert await last() == began
    market.clock.jump(USED_SECONDS - 1)
    await market.keys.authenticate(issued.key, HERE)
    assert await last() == began
    market.clock.jump(1)
    await market.keys.authenticate(issued.key, "198.51.100.1")
    assert await last() == began + USED_SECONDS
    assert (await market.keys.one(ada, issued.row.id)).row.last_used_network == "198.51.100.1"


async def test_a_rolled_key_goes_on_for_a_while(market: Market) -> None:
    ada = await market.person()
    old = await made(market, ada, allow_ips=(HERE,))
    new = await market.keys.roll(ada, old.row.id, overlap_hours=2)
    assert new.row.allow_ips == old.row.allow_ips
    for key in (old.key, new.key):
        await market.keys.authenticate(key, HERE)
    market.clock.jump(2 * 3_600)
    assert await refusal(market, old.key) is Code.UNAUTHORIZED
    await market.keys.authenticate(new.key, HERE)
    newest = await market.keys.roll(ada, new.row.id, overlap_hours=0)
    assert await refusal(market, new.key) is Code.UNAUTHORIZED
    await market.keys.authenticate(newest.key, HERE)
    with pytest.raises(MarketError) as raised:
        await market.keys.roll(ada, old.row.id, overlap_hours=1)
    assert raised.value.code is Code.KEY_NOT_FOUND


async def test_no_user_has_more_keys_than_the_bound(market: Market) -> None:
    ada = await market.person()
    for _ in range(KEYS_MAX):
        last = await made(market, ada)
    with pytest.raises(MarketError) as raised:
        await made(market, ada)
    assert raised.value.code is Code.TOO_MANY_KEYS
    await market.keys.revoke(ada, last.row.id)
    await made(market, ada)


async def test_ended_keys_hide_none_that_is_valid(market: Market) -> None:
    market.keys.listed_max = 3
    ada = await market.person()
    valid = (await made(market, ada)).row.id
    ended = [(await made(market, ada)).row.id for _ in range(3)]
    for each in ended:
        await market.keys.revoke(ada, each)
    listed = [each.row.id for each in await market.keys.all_of(ada)]
    assert listed == [ended[2], ended[1], valid]


@pytest.mark.both_engines
async def test_its_owner_is_notified_once_before_a_key_expires(market: Market) -> None:
    ada = await market.person()
    await made(market, ada)
    await made(market, ada, expires_in_days=None)
    assert await market.keys.warn() == 0
    market.clock.jump(LIFETIME_DEFAULT_DAYS * DAY - WARNED_SECONDS)
    assert [await market.keys.warn(), await market.keys.warn()] == [1, 0]
    assert (await types_of(market, ada)).count("key.expiring") == 1


@cases(
    ("field", "what"),
    [
        ("name", {"name": " "}),
        ("name", {"name": "two\nlines"}),
        ("name", {"name": "x" * 101}),
        ("scopes", {"scopes": ()}),
        ("expires_in_days", {"expires_in_days": 0}),
        ("expires_in_days", {"expires_in_days": 366}),
        ("allow_ips", {"allow_ips": ("example.com",)}),
        ("allow_ips", {"allow_ips": ("192.0.2.1",) * 21}),
        ("allow_ips", {"allow_ips": ("fe80::1%a b",)}),
    ],
)
async def test_values_that_no_key_can_have_are_refused(
    market: Market, field: str, what: dict[str, object]
) -> None:
    with pytest.raises(MarketError) as raised:
        await made(market, await market.person(), **what)
    assert (raised.value.code, raised.value.field) == (Code.INVALID_FIELD, field)


async def test_a_caller_by_login_has_no_key(market: Market) -> None:
    await market.accounts.register(username="ada", email="ada@example.com", password="12345678")
    login = await market.accounts.login(email="ada@example.com", password="12345678")
    caller = await market.accounts.authenticate(login.token)
    assert caller.key is None


async def test_the_spending_of_a_key_counts_for_any_period_that_is_limited_later(
    market: Market,
) -> None:
    ada = await market.person()
    issued = await made(market, ada, spend_limits=SpendLimits(usd=5, period="month"))

    async def pay(micro_units: int) -> None:
        caller = await market.keys.authenticate(issued.key, HERE)
        assert caller.key is not None
        now = market.clock.seconds()
        await market.store.write(spend, caller.key.spender, "usd", micro_units, now)

    await pay(4)
    for period in ("day", "lifetime", "month"):
        limits = SpendLimits(usd=5, period=period)
        change = KeyChange(spend_limits=LimitsChange(limits.usd, limits.credit, limits.period))
        assert (await market.keys.change(ada, issued.row.id, change)).spent_usd == 4
        with pytest.raises(MarketError) as raised:
            await pay(2)
        assert raised.value.code is Code.SPEND_LIMIT_REACHED
    await market.keys.change(ada, issued.row.id, KeyChange(spend_limits=LimitsChange(usd=1)))
    await pay(0)
    assert (await market.keys.one(ada, issued.row.id)).spent_usd == 4


@pytest.mark.both_engines
async def test_a_key_that_is_rolled_twice_at_once_has_one_successor(market: Market) -> None:
    ada = await market.person()
    issued = await made(market, ada)
    rolls = (market.keys.roll(ada, issued.row.id, overlap_hours=0) for _ in range(4))
    done = await asyncio.gather(*rolls, return_exceptions=True)
    assert sum(isinstance(each, IssuedKey) for each in done) == 1


@pytest.mark.both_engines
async def test_changes_at_the_same_moment_are_both_made(market: Market) -> None:
    ada = await market.person()
    issued = await made(market, ada)
    changes = [KeyChange(spend_limits=LimitsChange(usd=1))]
    changes += [KeyChange(name=f"script {number}") for number in range(8)]
    await asyncio.gather(*(market.keys.change(ada, issued.row.id, each) for each in changes))
    row = (await market.keys.one(ada, issued.row.id)).row
    assert (row.limit_usd, row.name == "script") == (1, False)


async def test_a_login_that_has_ended_meanwhile_makes_no_key(market: Market) -> None:
    await market.accounts.register(username="ada", email="ada@example.com", password="12345678")
    login = await market.accounts.login(email="ada@example.com", password="12345678")
    caller = await market.accounts.authenticate(login.token)
    ada, login_id = caller.profile.user_id, caller.session_id
    new = NewKey(name="script", scopes=(Scope.USAGE_READ,))
    issued = await market.keys.create(ada, new, login_id=login_id)
    await market.accounts.logout(caller)
    for late in (
        market.keys.create(ada, new, login_id=login_id),
        market.keys.roll(ada, issued.row.id, overlap_hours=0, login_id=login_id),
    ):
        with pytest.raises(MarketError) as raised:
            await late
        assert raised.value.code is Code.UNAUTHORIZED
    assert [each.status for each in await market.keys.all_of(ada)] == ["active"]

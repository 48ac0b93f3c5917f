"""Programs that ask to be let in, and people who answer them, on both engines."""

import asyncio
import re

import pytest
from support.market.market import Market

from market.accounts.accounts import Caller
from market.accounts.device_codes import (
    BEGUN_MAX,
    FRESH_SECONDS,
    INTERVAL_SECONDS,
    KEPT_SECONDS,
    LIFETIME_SECONDS,
    SLOWER_SECONDS,
    TRIES_MAX,
    TRIES_SECONDS,
    USER_CODE_LETTERS,
    Begun,
    DeviceCodes,
)
from market.accounts.keys import KEYS_MAX, NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from storage.accounts import device_codes as queries
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction

SCOPES = (Scope.SESSIONS_READ, Scope.SESSIONS_WRITE)
NETWORK = "198.51.100.7"


async def ada(market: Market) -> Caller:
    """Register a user, and return the user with a new login."""
    login, _ = await market.accounts.register(
        username="ada", email="ada@example.com", password="long enough"
    )
    return await market.accounts.authenticate(login.token)


async def again(market: Market) -> Caller:
    login = await market.accounts.login(email="ada@example.com", password="long enough")
    return await market.accounts.authenticate(login.token)


async def begun(codes: DeviceCodes) -> Begun:
    return await codes.begin("proxyd on attic", SCOPES, client=NETWORK)


async def refusal(codes: DeviceCodes, device_code: str) -> Code:
    with pytest.raises(MarketError) as refused:
        await codes.redeem(device_code)
    return refused.value.code


async def test_a_program_is_let_in_once(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    assert re.fullmatch(f"[{USER_CODE_LETTERS}]{{4}}-[{USER_CODE_LETTERS}]{{4}}", asked.user_code)
    assert await refusal(codes, asked.device_code) is Code.AUTHORIZATION_PENDING

    row = await codes.find(person, asked.user_code)
    assert (row.client_name, row.network) == ("proxyd on attic", NETWORK)
    assert row.created_at == market.clock.seconds()
    await codes.answer(person, asked.user_code.lower().replace("-", " "), is_approved=True)

    issued = await codes.redeem(asked.device_code)
    (kept,) = await market.keys.all_of(person.profile.user_id)
    assert (kept.row.id, kept.row.name) == (issued.row.id, "proxyd on attic")
    assert kept.row.created_by == "device"
    caller = await market.keys.authenticate(issued.key, NETWORK)
    assert caller.profile.user_id == person.profile.user_id
    assert await refusal(codes, asked.device_code) is Code.EXPIRED_TOKEN


@pytest.mark.both_engines
async def test_one_of_many_requests_at_once_has_the_key(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    await codes.answer(person, asked.user_code, is_approved=True)
    came = await asyncio.gather(
        *(codes.redeem(asked.device_code) for _ in range(10)), return_exceptions=True
    )
    refused = [each.code for each in came if isinstance(each, MarketError)]
    assert refused == [Code.EXPIRED_TOKEN] * 9
    assert len(await market.keys.all_of(person.profile.user_id)) == 1


@pytest.mark.both_engines
async def test_one_answer_counts(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    came = await asyncio.gather(
        *(codes.answer(person, asked.user_code, is_approved=n % 2 == 0) for n in range(4)),
        return_exceptions=True,
    )
    refused = [each.code for each in came if isinstance(each, MarketError)]
    assert refused == [Code.USER_CODE_NOT_FOUND] * 3


async def test_a_refusal_is_returned(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    await codes.answer(person, asked.user_code, is_approved=False)
    assert await refusal(codes, asked.device_code) is Code.ACCESS_DENIED
    with pytest.raises(MarketError) as refused:
        await codes.answer(person, asked.user_code, is_approved=True)
    assert refused.value.code is Code.USER_CODE_NOT_FOUND
    assert await market.keys.all_of(person.profile.user_id) == []


async def test_a_login_of_long_ago_may_deny_and_not_approve(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    market.clock.now += FRESH_SECONDS
    asked = await begun(codes)
    with pytest.raises(MarketError) as refused:
        await codes.answer(person, asked.user_code, is_approved=True)
    assert refused.value.code is Code.FRESH_LOGIN_NEEDED
    assert await refusal(codes, asked.device_code) is Code.AUTHORIZATION_PENDING
    await codes.answer(await again(market), asked.user_code, is_approved=True)
    await codes.redeem(asked.device_code)

    other = await begun(codes)
    await codes.answer(person, other.user_code, is_approved=False)
    assert await refusal(codes, other.device_code) is Code.ACCESS_DENIED


async def test_a_login_that_was_ended_approves_nothing(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    await market.accounts.logout(person)
    with pytest.raises(MarketError) as refused:
        await codes.answer(person, asked.user_code, is_approved=True)
    assert refused.value.code is Code.FRESH_LOGIN_NEEDED


@pytest.mark.parametrize("how", ["logout", "ended", "others", "password"])
async def test_a_login_that_ends_takes_back_the_grants_of_programs(
    market: Market, how: str
) -> None:
    codes, accounts = market.device_codes, market.accounts
    owner, thief = await ada(market), await again(market)
    asked = await begun(codes)
    await codes.answer(thief, asked.user_code, is_approved=True)
    if how == "logout":
        await accounts.logout(thief)
    elif how == "ended":
        await accounts.end_login(owner, thief.session_id)
    elif how == "others":
        await accounts.end_other_logins(owner)
    else:
        await accounts.change_password(owner, old="long enough", new="another one")
    assert await refusal(codes, asked.device_code) is Code.ACCESS_DENIED
    assert await market.keys.all_of(owner.profile.user_id) == []


@pytest.mark.both_engines
async def test_a_key_that_is_taken_while_logins_end_comes_before_that_or_never(
    market: Market,
) -> None:
    codes, owner = market.device_codes, await ada(market)
    for _ in range(5):
        asked = await begun(codes)
        await codes.answer(await again(market), asked.user_code, is_approved=True)
        came, _ = await asyncio.gather(
            codes.redeem(asked.device_code),
            market.accounts.end_other_logins(owner),
            return_exceptions=True,
        )
        if isinstance(came, BaseException):
            assert isinstance(came, MarketError)
            assert came.code in (Code.ACCESS_DENIED, Code.EXPIRED_TOKEN)
        assert await refusal(codes, asked.device_code) in (Code.ACCESS_DENIED, Code.EXPIRED_TOKEN)


async def test_a_login_that_does_not_end_takes_nothing_back(market: Market) -> None:
    codes = market.device_codes
    owner, other = await ada(market), await market.person()
    asked = await begun(codes)
    await codes.answer(owner, asked.user_code, is_approved=True)
    login = await market.accounts.login(email="person1@example.com", password="long enough")
    await market.accounts.logout(await market.accounts.authenticate(login.token))
    with pytest.raises(MarketError):
        await market.accounts.end_login(owner, other)
    await codes.redeem(asked.device_code)


@pytest.mark.both_engines
async def test_a_program_that_asks_too_often_waits_longer_each_time(market: Market) -> None:
    codes = market.device_codes
    asked = await begun(codes)
    assert await refusal(codes, asked.device_code) is Code.AUTHORIZATION_PENDING
    market.clock.now += INTERVAL_SECONDS
    assert await refusal(codes, asked.device_code) is Code.AUTHORIZATION_PENDING
    market.clock.now += INTERVAL_SECONDS - 1
    assert await refusal(codes, asked.device_code) is Code.SLOW_DOWN
    market.clock.now += INTERVAL_SECONDS
    assert await refusal(codes, asked.device_code) is Code.SLOW_DOWN
    market.clock.now += INTERVAL_SECONDS + 2 * SLOWER_SECONDS
    assert await refusal(codes, asked.device_code) is Code.AUTHORIZATION_PENDING


@pytest.mark.parametrize("is_approved", [True, False])
async def test_codes_run_out(market: Market, is_approved: bool) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    if is_approved:
        await codes.answer(person, asked.user_code, is_approved=True)
    market.clock.now += LIFETIME_SECONDS
    assert await refusal(codes, asked.device_code) is Code.EXPIRED_TOKEN
    with pytest.raises(MarketError) as refused:
        await codes.find(person, asked.user_code)
    assert refused.value.code is Code.USER_CODE_NOT_FOUND
    assert await refusal(codes, "nonsense") is Code.EXPIRED_TOKEN


async def test_codes_are_not_to_be_guessed(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    asked = await begun(codes)
    for _ in range(TRIES_MAX):
        with pytest.raises(MarketError) as refused:
            await codes.answer(person, "BBBB-BBBB", is_approved=True)
        assert refused.value.code is Code.USER_CODE_NOT_FOUND
    for guess in (codes.find(person, asked.user_code), codes.find(person, "BBBB-BBBC")):
        with pytest.raises(MarketError) as refused:
            await guess
        assert refused.value.code is Code.TOO_MANY_ATTEMPTS
    market.clock.now += TRIES_SECONDS
    for _ in range(2 * TRIES_MAX):  # right ones do not count
        await codes.find(person, asked.user_code)


async def test_the_beginnings_of_a_network_are_bounded(market: Market) -> None:
    codes = market.device_codes
    for _ in range(BEGUN_MAX):
        await begun(codes)
    with pytest.raises(MarketError) as refused:
        await begun(codes)
    assert refused.value.code is Code.TOO_MANY_ATTEMPTS
    await codes.begin("x", SCOPES, client="203.0.113.9")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 65, "evil\u202egpj"])
async def test_a_program_has_a_name_that_can_be_seen(market: Market, name: str) -> None:
    with pytest.raises(MarketError) as refused:
        await market.device_codes.begin(name, SCOPES, client=NETWORK)
    assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, "client_name")


async def test_a_user_with_all_keys_makes_room_and_goes_on(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    user_id = person.profile.user_id
    asked = await begun(codes)
    await codes.answer(person, asked.user_code, is_approved=True)
    made = []
    for _ in range(KEYS_MAX):
        new = NewKey(name="one of many", scopes=SCOPES)
        made.append(await market.keys.create(user_id, new))
    assert await refusal(codes, asked.device_code) is Code.TOO_MANY_KEYS
    await market.keys.revoke(user_id, made[0].row.id)
    assert (await codes.redeem(asked.device_code)).key.startswith("pxd_")


async def test_the_store_has_no_usable_code_and_ended_codes_go(market: Market) -> None:
    async def rows(tx: Transaction) -> list[str]:
        return await tx.all(lambda *each: " ".join(map(str, each)), "SELECT * FROM device_codes")

    codes = market.device_codes
    asked = await begun(codes)
    (row,) = await market.store.read(rows)
    assert asked.device_code not in row
    assert asked.user_code not in row
    assert asked.user_code.replace("-", "") not in row
    market.clock.now += LIFETIME_SECONDS + KEPT_SECONDS
    await begun(codes)
    assert len(await market.store.read(rows)) == 1


@pytest.mark.both_engines
async def test_the_schema_requires_the_user_that_has_answered(market: Market) -> None:
    async def approve(tx: Transaction) -> None:
        await tx.run("UPDATE device_codes SET status = 'approved'")

    await begun(market.device_codes)
    with pytest.raises(ConstraintError):
        await market.store.write(approve)


@pytest.mark.both_engines
async def test_a_network_that_fills_all_places_takes_them_from_itself(
    market: Market,
) -> None:
    codes = market.device_codes
    codes.waiting_max = 6
    honest = await begun(codes)
    # A provider's /32: each /64 of it is another client.
    flood = [f"2001:db8:{number:x}::/64" for number in range(20)]
    asked = [await codes.begin("x", SCOPES, client=each) for each in flood]
    other = await codes.begin("x", SCOPES, client="203.0.113.9")
    for each in (honest, other, asked[-1]):
        assert await refusal(codes, each.device_code) is Code.AUTHORIZATION_PENDING
    assert await refusal(codes, asked[0].device_code) is Code.EXPIRED_TOKEN
    assert await market.store.read(queries.count_waiting, market.clock.now) == 6


async def test_expired_and_answered_codes_take_no_place(market: Market) -> None:
    codes, person = market.device_codes, await ada(market)
    codes.waiting_max = 2
    approved = await begun(codes)
    await codes.answer(person, approved.user_code, is_approved=True)
    first, second = await begun(codes), await begun(codes)
    assert await refusal(codes, first.device_code) is Code.AUTHORIZATION_PENDING
    market.clock.now += LIFETIME_SECONDS
    third, fourth = await begun(codes), await begun(codes)
    assert await refusal(codes, second.device_code) is Code.EXPIRED_TOKEN
    for each in (third, fourth):
        assert await refusal(codes, each.device_code) is Code.AUTHORIZATION_PENDING

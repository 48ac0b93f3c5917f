"""Registering, logging in and depositing, on both engines."""

import asyncio

import pytest
from support.base.cases import cases
from support.market.events import said
from support.market.market import Market

from market.accounts.accounts import LOGIN_MAX_SECONDS, NETWORKS_MAX
from market.base.errors import Code, MarketError
from storage.engines.store import Transaction


async def register(market: Market, **changes: str) -> str:
    given = {"username": "ada", "email": "Ada@Example.com", "password": "long enough", **changes}
    return (await market.accounts.register(**given))[0].token


async def refused(market: Market, **changes: str) -> MarketError:
    with pytest.raises(MarketError) as caught:
        await register(market, **changes)
    return caught.value


async def test_a_registered_user_is_logged_in_with_empty_wallets(market: Market) -> None:
    profile = (await market.accounts.authenticate(await register(market))).profile
    assert (profile.username, profile.email) == ("ada", "Ada@Example.com")
    assert (profile.usd_available, profile.credit_available) == (0, 0)
    assert profile.email_verified_at is None


@pytest.mark.both_engines
async def test_logins_that_ran_out_long_ago_are_forgotten(market: Market) -> None:
    async def kept(tx: Transaction) -> list[int]:
        return await tx.all(int, "SELECT created_at FROM login_sessions ORDER BY created_at")

    who = {"email": "ada@example.com", "password": "long enough"}

    async def log_in() -> str:
        return (await market.accounts.login(**who)).token

    await register(market)
    first = market.clock.now
    market.clock.now += 60 * 86_400 - 1
    await log_in()
    assert len(await market.store.read(kept)) == 2
    market.clock.now += 1
    newest = await log_in()
    assert first not in await market.store.read(kept)
    assert len(await market.store.read(kept)) == 2
    assert (await market.accounts.authenticate(newest)).profile.username == "ada"


async def test_an_address_is_taken_in_any_case_of_letters(market: Market) -> None:
    await register(market)
    error = await refused(market, username="other", email="ADA@example.COM")
    assert (error.code, error.field) == (Code.EMAIL_TAKEN, "email")


async def test_a_name_is_taken_in_any_case_of_letters(market: Market) -> None:
    await register(market)
    error = await refused(market, username="ADA", email="other@example.com")
    assert (error.code, error.field) == (Code.USERNAME_TAKEN, "username")


@pytest.mark.both_engines
async def test_of_twenty_concurrent_registrations_of_an_address_one_succeeds(
    market: Market,
) -> None:
    outcomes = await asyncio.gather(
        *(register(market, username=f"ada{number}") for number in range(20)),
        return_exceptions=True,
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(errors) == 19
    assert {getattr(error, "code", None) for error in errors} == {Code.EMAIL_TAKEN}


@cases(
    ("field", "value"),
    [
        ("username", ""),
        ("username", "x" * 51),
        ("username", "two words"),
        ("username", "bell\a"),
        ("email", "nobody"),
        ("email", "@example.com"),
        ("email", "a@b@c.com"),
        ("email", "a@example..com"),
        ("email", "a b@example.com"),
        ("email", "a" * 250 + "@example.com"),
        ("password", "short12"),
        ("password", "x" * 129),
    ],
)
async def test_impossible_values_are_refused_by_name(
    market: Market, field: str, value: str
) -> None:
    error = await refused(market, **{field: value})
    assert (error.code, error.field) == (Code.INVALID_FIELD, field)


async def test_the_right_password_lets_in_and_a_wrong_one_does_not(market: Market) -> None:
    await register(market)
    login = await market.accounts.login(email="ada@example.com", password="long enough")
    assert (await market.accounts.authenticate(login.token)).profile.username == "ada"
    for email, password in (
        ("ada@example.com", "long enougH"),
        ("nobody@example.com", "long enough"),
        ("ada@example.com", "x" * 100_000),
    ):
        with pytest.raises(MarketError) as caught:
            await market.accounts.login(email=email, password=password)
        assert caught.value.code is Code.INVALID_CREDENTIALS


async def test_a_token_ends_with_its_time(market: Market) -> None:
    token = await register(market)
    market.clock.now += 86_400 - 1
    await market.accounts.authenticate(token)
    market.clock.now += 1
    with pytest.raises(MarketError) as caught:
        await market.accounts.authenticate(token)
    assert caught.value.code is Code.UNAUTHORIZED


async def test_callers_are_remembered_only_where_the_store_shows_its_changes(
    market: Market,
) -> None:
    login, _ = await market.accounts.register(
        username="ada", email="ada@example.com", password="long enough"
    )
    await market.accounts.authenticate(login.token)
    remembered = market.store.version() is not None
    assert len(market.accounts._known) == remembered


async def test_a_remembered_caller_is_none_any_more_once_the_login_session_has_ended(
    market: Market,
) -> None:
    accounts, token = market.accounts, await register(market)
    ends_at = market.clock.now + LOGIN_MAX_SECONDS
    while market.clock.now < ends_at - 1:
        market.clock.now = min(market.clock.now + 86_400 - 1, ends_at - 1)
        token = await accounts.refresh(await accounts.authenticate(token))
    await accounts.authenticate(token)
    version = market.store.version()
    market.clock.now += 1
    with pytest.raises(MarketError, match="login session has ended"):
        await accounts.authenticate(token)
    assert market.store.version() == version  # nothing was committed that had it forgotten


async def test_a_login_from_a_new_network_is_notified_once(market: Market) -> None:
    login, _ = await market.accounts.register(
        username="ada", email="ada@example.com", password="long enough", client="8.8.8.8"
    )
    user = login.profile.user_id
    for client in ("8.8.8.9", "1.1.1.1", "1.1.1.7", "8.8.8.8", "", "2600:1f18::/64"):
        await market.accounts.login(email="ada@example.com", password="long enough", client=client)
    networks = [each["network"] for each in await said(market, user, "login.new_network")]
    assert networks == ["1.1.1.0/24", "2600:1f18::/64"]


@pytest.mark.both_engines
async def test_networks_that_are_known_are_bounded(market: Market) -> None:
    numbers = (*range(2, NETWORKS_MAX + 2), 1)
    login, _ = await market.accounts.register(
        username="ada", email="ada@example.com", password="long enough", client="8.8.1.1"
    )
    user = login.profile.user_id
    for number in numbers:
        market.clock.now += 1
        client = f"8.8.{number}.1"
        await market.accounts.login(email="ada@example.com", password="long enough", client=client)
    networks = [each["network"] for each in await said(market, user, "login.new_network")]
    assert networks == [f"8.8.{number}.0/24" for number in numbers]

    async def count(tx: Transaction) -> int | None:
        return await tx.one(int, "SELECT COUNT(*) FROM login_networks")

    assert await market.store.read(count) == NETWORKS_MAX


@pytest.mark.both_engines
async def test_logins_are_told_apart_and_ended(market: Market) -> None:
    await register(market)
    who = {"email": "ada@example.com", "password": "long enough"}
    token = (
        await market.accounts.login(**who, client="192.0.2.1", user_agent="Firefox, Linux")
    ).token
    caller = await market.accounts.authenticate(token)
    first, *others = sorted(
        await market.accounts.logins(caller), key=lambda row: row.id != caller.session_id
    )
    assert (first.user_agent, bool(first.network)) == ("Firefox, Linux", True)
    assert len(others) == 1
    await market.accounts.end_login(caller, others[0].id)
    with pytest.raises(MarketError) as failure:
        await market.accounts.end_login(caller, others[0].id)
    assert failure.value.code is Code.LOGIN_NOT_FOUND
    await market.accounts.login(**who)
    await market.accounts.end_other_logins(caller)
    assert [row.id for row in await market.accounts.logins(caller)] == [caller.session_id]

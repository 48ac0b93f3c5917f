"""Secrets that go out by mail: single use, for a while, and they end logins, on both engines."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from support.market import Market
from support.waiting import until

from market.accounts import Caller
from market.errors import Code, MarketError
from market.mail import Message
from market.recovery import Recovery
from storage.store import Transaction

EMAIL = "ada@example.com"
LINK = re.compile(r"https://app\.example\.com/(verify|reset)\?token=(\S+)")


class Letters:
    """An outbox that keeps what is put."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def put(self, message: Message) -> None:
        self.sent.append(message)

    def secret(self) -> str:
        """Return the secret in the last letter."""
        found = LINK.search(self.sent[-1].text)
        assert found is not None
        return found[2]


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
async def recovery(market: Market, letters: Letters) -> AsyncIterator[Recovery]:
    made = Recovery(
        market.store, market.passwords, letters, "https://app.example.com", market.clock.seconds
    )
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def token(market: Market) -> str:
    login, _ = await market.accounts.register(username="ada", email=EMAIL, password="long enough")
    return login.token


async def caller(market: Market, token: str) -> Caller:
    return await market.accounts.authenticate(token)


async def refused(market: Market, token: str) -> bool:
    try:
        await market.accounts.authenticate(token)
    except MarketError as error:
        return error.code is Code.UNAUTHORIZED
    return False


async def forgotten(recovery: Recovery, letters: Letters, email: str = EMAIL) -> str:
    before = len(letters.sent)
    recovery.forgot(email)
    await until(lambda: len(letters.sent) > before)
    return letters.secret()


async def fails(coroutine: object, code: Code) -> MarketError:
    with pytest.raises(MarketError) as caught:
        await coroutine  # type: ignore[misc]
    assert caught.value.code is code
    return caught.value


async def test_a_letter_confirms_an_address_once(
    market: Market, recovery: Recovery, letters: Letters, token: str
) -> None:
    await recovery.resend_verification(await caller(market, token))
    assert letters.sent[0].to == EMAIL
    secret = letters.secret()
    await recovery.verify(secret)
    assert (await caller(market, token)).profile.email_verified_at == market.clock.now
    await fails(recovery.verify(secret), Code.INVALID_MAIL_TOKEN)
    await recovery.resend_verification(await caller(market, token))
    assert len(letters.sent) == 1


async def test_a_later_letter_voids_the_one_before(
    market: Market, recovery: Recovery, letters: Letters, token: str
) -> None:
    await recovery.resend_verification(await caller(market, token))
    first = letters.secret()
    await recovery.resend_verification(await caller(market, token))
    await fails(recovery.verify(first), Code.INVALID_MAIL_TOKEN)
    await recovery.verify(letters.secret())


async def test_a_secret_is_good_for_its_time_and_its_purpose(
    market: Market, recovery: Recovery, letters: Letters, token: str
) -> None:
    secret = await forgotten(recovery, letters)
    await fails(recovery.verify(secret), Code.INVALID_MAIL_TOKEN)
    market.clock.now += 3_600
    await fails(recovery.reset(secret, "another password"), Code.INVALID_MAIL_TOKEN)
    await recovery.resend_verification(await caller(market, token))
    market.clock.now += 2 * 86_400
    await fails(recovery.verify(letters.secret()), Code.INVALID_MAIL_TOKEN)
    await fails(recovery.verify("nonsense"), Code.INVALID_MAIL_TOKEN)


async def test_only_the_hash_of_a_secret_is_kept(
    market: Market, recovery: Recovery, letters: Letters, token: str
) -> None:
    secret = await forgotten(recovery, letters)

    async def kept(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT token_hash FROM mail_tokens")

    assert secret not in await market.store.read(kept)


async def test_a_reset_replaces_the_password_and_ends_every_login(
    market: Market, recovery: Recovery, letters: Letters, token: str
) -> None:
    other = (await market.accounts.login(email=EMAIL, password="long enough")).token
    secret = await forgotten(recovery, letters, EMAIL.upper())
    await recovery.reset(secret, "another password")
    assert await refused(market, token)
    assert await refused(market, other)
    await fails(
        market.accounts.login(email=EMAIL, password="long enough"), Code.INVALID_CREDENTIALS
    )
    login = await market.accounts.login(email=EMAIL, password="another password")
    assert login.profile.email_verified_at is not None
    await fails(recovery.reset(secret, "yet another one"), Code.INVALID_MAIL_TOKEN)


async def test_of_ten_who_use_a_secret_at_once_one_succeeds(
    market: Market, recovery: Recovery, letters: Letters, token: str
) -> None:
    secret = await forgotten(recovery, letters)
    outcomes = await asyncio.gather(
        *(recovery.reset(secret, f"password {number}") for number in range(10)),
        return_exceptions=True,
    )
    assert outcomes.count(None) == 1


async def test_nobody_learns_whether_an_address_is_known(
    recovery: Recovery, letters: Letters, token: str
) -> None:
    recovery.forgot("nobody@example.com")
    await forgotten(recovery, letters)
    assert [message.to for message in letters.sent] == [EMAIL]


async def test_a_password_that_is_too_short_uses_no_secret_up(
    recovery: Recovery, letters: Letters, token: str
) -> None:
    secret = await forgotten(recovery, letters)
    error = await fails(recovery.reset(secret, "short"), Code.INVALID_FIELD)
    assert error.field == "password"
    await recovery.reset(secret, "another password")


async def test_an_address_is_not_flooded_with_letters(recovery: Recovery, token: str) -> None:
    for _ in range(5):
        recovery.forgot(EMAIL)
    with pytest.raises(MarketError) as caught:
        recovery.forgot(EMAIL.upper())
    assert caught.value.code is Code.TOO_MANY_ATTEMPTS
    recovery.forgot("other@example.com")


async def test_a_logout_bites_at_once_and_here_alone(market: Market, token: str) -> None:
    other = (await market.accounts.login(email=EMAIL, password="long enough")).token
    await market.accounts.logout(await caller(market, token))
    assert await refused(market, token)
    assert not await refused(market, other)


async def test_a_refreshed_token_belongs_to_the_same_login(market: Market, token: str) -> None:
    market.clock.now += 86_000
    fresh = await market.accounts.refresh(await caller(market, token))
    market.clock.now += 500
    assert await refused(market, token)
    kept = await caller(market, fresh)
    await market.accounts.logout(kept)
    assert await refused(market, fresh)


async def test_a_login_is_refreshed_for_thirty_days(market: Market, token: str) -> None:
    for _ in range(30):
        market.clock.now += 86_399
        token = await market.accounts.refresh(await caller(market, token))
    market.clock.now += 86_399
    assert await refused(market, token)


async def test_a_changed_password_ends_the_other_logins(market: Market, token: str) -> None:
    other = (await market.accounts.login(email=EMAIL, password="long enough")).token
    change = market.accounts.change_password
    me = await caller(market, token)
    await fails(change(me, old="wrong", new="another password"), Code.WRONG_PASSWORD)
    error = await fails(change(me, old="long enough", new="short"), Code.INVALID_FIELD)
    assert error.field == "new_password"
    assert not await refused(market, other)
    await change(me, old="long enough", new="another password")
    assert await refused(market, other)
    assert not await refused(market, token)
    await market.accounts.login(email=EMAIL, password="another password")


async def test_failed_logins_are_throttled_by_address(market: Market, token: str) -> None:
    login = market.accounts.login
    for _ in range(10):
        await fails(login(email=EMAIL, password="wrong"), Code.INVALID_CREDENTIALS)
    error = await fails(login(email=EMAIL.upper(), password="long enough"), Code.TOO_MANY_ATTEMPTS)
    assert error.retry_after_seconds == 15 * 60
    await fails(login(email="other@example.com", password="wrong"), Code.INVALID_CREDENTIALS)
    market.clock.now += 15 * 60
    await login(email=EMAIL, password="long enough")


async def test_failed_logins_are_throttled_by_client(market: Market, token: str) -> None:
    login = market.accounts.login
    for number in range(100):
        email = f"{number}@example.com"
        await fails(
            login(email=email, password="wrong", client="192.0.2.1"), Code.INVALID_CREDENTIALS
        )
    await fails(
        login(email=EMAIL, password="long enough", client="192.0.2.1"), Code.TOO_MANY_ATTEMPTS
    )
    await login(email=EMAIL, password="long enough", client="192.0.2.2")


async def test_registrations_are_throttled_by_client(market: Market) -> None:
    async def register(number: int, client: str) -> None:
        await market.accounts.register(
            username=f"u{number}",
            email=f"u{number}@example.com",
            password="long enough",
            client=client,
        )

    for number in range(30):
        await register(number, "192.0.2.1")
    await fails(register(30, "192.0.2.1"), Code.TOO_MANY_ATTEMPTS)
    await register(31, "192.0.2.2")
    market.clock.now += 3_600
    await register(32, "192.0.2.1")

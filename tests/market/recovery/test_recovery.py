"""Secrets that go out by mail: single use, for a while, and they end logins, on both engines."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.waiting import until
from support.database.statements import counted
from support.market.events import said
from support.market.leaving import tools
from support.market.market import SEALING, Market
from support.market.work import posted

from market.accounts.accounts import Caller, LoginLimits
from market.accounts.keys import NewKey
from market.accounts.letters import Letters
from market.accounts.mail import Message, decoded
from market.accounts.outbox import Outbox
from market.accounts.scopes import Maker, Scope
from market.base.errors import Code, MarketError
from market.base.slots import SlotBounds, Slots
from market.erasure import erasing
from market.money.money import MICRO, Currency
from market.recovery.made_by_keys import revoke_made
from market.recovery.recovery import Recovery
from storage.accounts import users
from storage.accounts.users import UserRow
from storage.engines.errors import StoreError
from storage.engines.store import Transaction

EMAIL = "ada@example.com"
PASSWORD_CHANGED = "Your password was changed"
LINK = re.compile(r"https://app\.example\.com/(verify|reset)\?token=(\S+)")


class Inbox:
    """Reader of the waiting e-mails in the place of their recipients."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._seen: set[str] = set()
        self.sent: list[Message] = []

    async def look(self) -> int:
        """Read the new e-mails since the last look. Return the number of all so far."""
        waiting = await self._market.emails.due(again=False, limit=1_000)
        for row in sorted(waiting, key=lambda row: row.id):
            if row.id not in self._seen:
                self._seen.add(row.id)
                payload = self._market.emails.opened(row)
                assert payload is not None
                self.sent.append(decoded(payload))
        return len(self.sent)

    async def secret(self, purpose: str = "") -> str:
        """Return the secret in the last e-mail, or in the last for a purpose."""
        await self.look()
        found = [LINK.search(message.text) for message in self.sent]
        return next(link[2] for link in reversed(found) if link and purpose in link[1])


@pytest.fixture
def letters(market: Market) -> Inbox:
    return Inbox(market)


def opened(market: Market) -> Recovery:
    """Return the proof service of one daemon."""
    return Recovery(
        market.context,
        market.passwords,
        market.recovery._proofs,
        Outbox(market.context, SEALING, "forgotten password"),
        Letters(market.emails, "https://app.example.com"),
        market.accounts,
        LoginLimits(),
        market.made_by_keys.ended,
    )


@pytest.fixture
async def recovery(market: Market) -> AsyncIterator[Recovery]:
    made = opened(market)
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


async def forgotten(recovery: Recovery, letters: Inbox, email: str = EMAIL) -> str:
    before = await letters.look()
    await recovery.forgot(email)

    async def has_come() -> bool:
        return await letters.look() > before

    await until(has_come)
    return await letters.secret("reset")


@pytest.mark.both_engines
async def test_secrets_that_ran_out_long_ago_are_forgotten(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    async def kept(tx: Transaction) -> list[int]:
        return await tx.all(
            int, "SELECT created_at FROM mail_tokens WHERE purpose = 'reset' ORDER BY created_at"
        )

    assert token
    await forgotten(recovery, letters)
    market.clock.now += 20 * 86_400
    await forgotten(recovery, letters)
    assert len(await market.store.read(kept)) == 2
    market.clock.now += 20 * 86_400
    await forgotten(recovery, letters)
    assert await market.store.read(kept) == [market.clock.now - 20 * 86_400, market.clock.now]


def after(
    market: Market,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    happens: Callable[[], Awaitable[Any]],
) -> None:
    """Have something happen, once, after a password was hashed or verified."""
    real = getattr(market.passwords, name)

    async def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        outcome = await real(*args, **kwargs)
        await happens()
        return outcome

    monkeypatch.setattr(market.passwords, name, interrupted)


async def live_logins(tx: Transaction) -> int | None:
    return await tx.one(int, "SELECT COUNT(*) FROM login_sessions WHERE ended_at IS NULL")


async def fails(coroutine: object, code: Code) -> MarketError:
    with pytest.raises(MarketError) as caught:
        await coroutine  # type: ignore[misc]
    assert caught.value.code is code
    return caught.value


async def test_a_letter_confirms_an_address_once(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    await recovery.resend_verification(await caller(market, token))
    secret = await letters.secret()
    assert [message.to for message in letters.sent] == [EMAIL]
    await recovery.verify(secret)
    assert (await caller(market, token)).profile.email_verified_at == market.clock.now
    await fails(recovery.verify(secret), Code.INVALID_MAIL_TOKEN)
    await recovery.resend_verification(await caller(market, token))
    assert await letters.look() == 1


@pytest.mark.both_engines
async def test_a_registration_that_fails_leaves_neither_an_account_nor_an_email(
    market: Market, letters: Inbox
) -> None:
    async def rename(tx: Transaction, old: str, new: str) -> None:
        await tx.run(f"ALTER TABLE {old} RENAME TO {new}")

    async def count(tx: Transaction) -> list[int]:
        tables = ("users", "accounts", "mail_tokens", "outbox", "login_sessions")
        return [await tx.one(int, f"SELECT COUNT(*) FROM {each}") or 0 for each in tables]

    ada = {"username": "ada", "email": EMAIL, "password": "long enough"}
    before = await market.store.read(count)
    await market.store.write(rename, "outbox", "outbox_away")
    with pytest.raises(StoreError):
        await market.accounts.register(**ada)
    await market.store.write(rename, "outbox_away", "outbox")
    assert await market.store.read(count) == before
    await market.accounts.register(**ada)
    assert await letters.look() == 1
    assert letters.sent[0].to == EMAIL


@pytest.mark.both_engines
async def test_a_waiting_email_holds_no_secret_in_the_open(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    async def kept(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT item_key || share || sealed_payload FROM outbox")

    secrets = [await forgotten(recovery, letters), await letters.secret("verify")]
    waiting = "".join(await market.store.read(kept))
    assert waiting
    assert not any(secret in waiting for secret in (*secrets, EMAIL))


async def test_an_email_whose_secret_is_void_by_a_later_one_is_not_sent_any_more(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    first = await letters.secret("verify")
    await recovery.resend_verification(await caller(market, token))
    [row] = await market.emails.due(again=False, limit=100)
    assert first.encode() not in (market.emails.opened(row) or b"")


async def test_a_later_letter_voids_the_one_before(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    await recovery.resend_verification(await caller(market, token))
    first = await letters.secret()
    await recovery.resend_verification(await caller(market, token))
    await fails(recovery.verify(first), Code.INVALID_MAIL_TOKEN)
    await recovery.verify(await letters.secret())


async def test_a_secret_is_good_for_its_time_and_its_purpose(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    secret = await forgotten(recovery, letters)
    await fails(recovery.verify(secret), Code.INVALID_MAIL_TOKEN)
    market.clock.now += 3_600
    await fails(recovery.reset(secret, "another password"), Code.INVALID_MAIL_TOKEN)
    await recovery.resend_verification(await caller(market, token))
    market.clock.now += 2 * 86_400
    await fails(recovery.verify(await letters.secret()), Code.INVALID_MAIL_TOKEN)
    await fails(recovery.verify("nonsense"), Code.INVALID_MAIL_TOKEN)


@pytest.mark.both_engines
async def test_only_the_hash_of_a_secret_is_kept(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    secret = await forgotten(recovery, letters)

    async def kept(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT token_hash FROM mail_tokens")

    assert secret not in await market.store.read(kept)


async def test_a_reset_replaces_the_password_and_ends_every_login(
    market: Market, recovery: Recovery, letters: Inbox, token: str
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


async def test_a_reset_takes_back_the_grants_of_programs(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    asked = await market.device_codes.begin("a thief", [Scope.WALLET_READ], client="192.0.2.1")
    me = await caller(market, token)
    await market.device_codes.answer(me, asked.user_code, is_approved=True)
    await recovery.reset(await forgotten(recovery, letters), "another password")
    await fails(market.device_codes.redeem(asked.device_code), Code.ACCESS_DENIED)


async def test_a_reset_ends_the_receivers_of_events(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    me, other = (await caller(market, token)).profile.user_id, await market.person()

    async def endpoint(user_id: str, number: int) -> str:
        url = f"https://example.com/{number}"
        made = await market.webhooks.create(user_id, url=url, types=["*"], description="")
        return made.endpoint.id

    ids = [await endpoint(me, number) for number in range(3)]
    await market.webhooks.change(me, ids[0], is_enabled=False)
    await endpoint(other, 4)
    await recovery.reset(await forgotten(recovery, letters), "another password")
    rows = await market.webhooks.all_of(me)
    assert [row.disabled_reason for row in rows] == ["user", "reset", "reset"]
    assert [row.disabled_reason for row in await market.webhooks.all_of(other)] == [None]
    told = await said(market, me, "webhook.disabled")
    assert [each["webhook_id"] for each in told] == ids[1:]
    assert {each["reason"] for each in told} == {"reset"}
    assert await market.webhooks.due(but=(), limit=10) == []


@pytest.mark.both_engines
async def test_a_reset_revokes_worker_tokens_that_keys_have_made(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    me = (await caller(market, token)).profile.user_id
    issued = await market.keys.create(me, NewKey(name="x", scopes=(Scope.DEVICES_WRITE,)))
    grant = (await market.keys.authenticate(issued.key, "")).key
    tokens = []
    for key in (grant, None):
        made = await market.devices.create(
            me, name="rig", device_type="server", min_price_usd=None, maker=Maker(key=key)
        )
        await market.devices.authenticate(made.token)  # it is in memory now
        tokens.append(made.token)
    await recovery.reset(await forgotten(recovery, letters), "another password")
    await fails(market.devices.authenticate(tokens[0]), Code.WORKER_UNAUTHORIZED)
    await market.devices.authenticate(tokens[1])


async def test_a_password_that_changes_causes_an_event_and_an_email(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    me = await caller(market, token)
    user_id = me.profile.user_id

    async def subjects() -> list[str]:
        await letters.look()
        return [each.subject for each in letters.sent if each.subject == PASSWORD_CHANGED]

    await market.accounts.change_password(me, old="long enough", new="longer than it")
    assert await subjects() == [], "nobody has confirmed the address"
    await recovery.reset(await forgotten(recovery, letters), "another password")
    assert await subjects() == [PASSWORD_CHANGED]
    told = await said(market, user_id, "password.changed")
    assert [each["by_email"] for each in told] == [False, True]


async def test_a_strong_key_causes_an_email(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    me = (await caller(market, token)).profile.user_id
    await recovery.reset(await forgotten(recovery, letters), "another password")
    weak = NewKey(name="weak", scopes=(Scope.WALLET_READ,))
    for new in (weak, replace(weak, name="endless", expires_in_days=None)):
        await market.keys.create(me, new)
    await market.keys.create(me, NewKey(name="everything", scopes=tuple(Scope)))
    await letters.look()
    texts = [each.text for each in letters.sent if each.subject == "A strong API key was made"]
    assert len(texts) == 2
    assert "endless" in texts[0]
    assert "everything" in texts[1]


async def test_a_successor_of_a_strong_key_causes_an_email(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    me = (await caller(market, token)).profile.user_id
    await recovery.reset(await forgotten(recovery, letters), "another password")
    weak = NewKey(name="weak", scopes=(Scope.WALLET_READ,))
    endless = replace(weak, name="endless", expires_in_days=None)
    everything = NewKey(name="everything", scopes=tuple(Scope))
    made = [await market.keys.create(me, new) for new in (weak, endless, everything)]
    await letters.look()
    before = len(letters.sent)
    for overlap_hours, key in enumerate(made):
        await market.keys.roll(me, key.row.id, overlap_hours=overlap_hours)
    await letters.look()
    told = [(each.subject, each.text) for each in letters.sent[before:]]
    assert [subject for subject, _ in told] == ["A strong API key was made"] * 2
    assert "endless" in told[0][1]
    assert "everything" in told[1][1]


async def test_a_reset_ends_the_keys_of_apps(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    me, other = (await caller(market, token)).profile.user_id, await market.person()
    apps = {}
    for person, email in ((me, EMAIL), (other, "person1@example.com")):
        await market.deposit(email, 10 * MICRO, currency=Currency.CREDIT)
        payload = {"script": "serve()", "ports": [{"name": "web", "port": 8888}]}
        job_id = await posted(market, person, payload=payload)
        apps[person] = await market.apps.of_job(person, job_id)
    await recovery.reset(await forgotten(recovery, letters), "another password")
    assert await market.apps.find(apps[me].id) is None
    assert (await market.apps.of_job(me, apps[me].id)).key != apps[me].key
    assert await market.apps.of_job(other, apps[other].id) == apps[other]


@pytest.mark.both_engines
@pytest.mark.parametrize(
    "what", ["key", "rolled key", "approved program", "app key", "another app key"]
)
async def test_an_object_that_is_made_in_the_moment_of_a_reset_does_not_survive_it(
    market: Market,
    recovery: Recovery,
    letters: Inbox,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    thief = await caller(market, token)
    me, login_id = thief.profile.user_id, thief.session_id
    await market.deposit(EMAIL, 10 * MICRO, currency=Currency.CREDIT)
    payload = {"script": "serve()", "ports": [{"name": "web", "port": 8888}]}
    job_id = await posted(market, me, payload=payload)
    new = NewKey(name="x", scopes=(Scope.WALLET_READ,))
    old = await market.keys.create(me, new)
    asked = await market.device_codes.begin("a thief", [Scope.WALLET_READ], client="192.0.2.1")
    makers: dict[str, Callable[[], Awaitable[object]]] = {
        "key": lambda: market.keys.create(me, new, login_id=login_id),
        "rolled key": lambda: market.keys.roll(me, old.row.id, overlap_hours=1, login_id=login_id),
        "approved program": lambda: market.device_codes.answer(
            thief, asked.user_code, is_approved=True
        ),
        "app key": lambda: market.apps.of_job(me, job_id, thief.maker),
        "another app key": lambda: market.apps.new_job_key(me, job_id, thief.maker),
    }
    loop = asyncio.get_running_loop()
    making: list[asyncio.Task[object]] = []

    def begin() -> None:
        making.append(loop.create_task(ask()))

    async def ask() -> object:
        return await makers[what]()

    async def meanwhile(*args: Any, **kwargs: Any) -> Any:
        """Have the thief ask for something while the reset is not committed yet.

        A request that waits for this transaction comes as far as it can; others are done.
        """
        found = await revoke_made(*args, **kwargs)
        loop.call_soon_threadsafe(begin)
        if market.store.version() is None:
            await asyncio.sleep(0.3)
        else:  # the unit runs in the thread of SQLite, where nothing else can be awaited
            time.sleep(0.3)
        return found

    monkeypatch.setattr("market.recovery.recovery.revoke_made", meanwhile)
    await recovery.reset(await forgotten(recovery, letters), "another password")
    came = await asyncio.gather(*making, return_exceptions=True)
    refusals = {Code.UNAUTHORIZED, Code.FRESH_LOGIN_NEEDED}
    assert [isinstance(each, MarketError) and each.code in refusals for each in came] == [True]
    assert [each.status for each in await market.keys.all_of(me)] == ["revoked"]
    assert await market.apps.find(job_id) is None
    with pytest.raises(MarketError) as refused_key:
        await market.device_codes.redeem(asked.device_code)
    assert refused_key.value.code is not Code.EXPIRED_TOKEN


async def test_a_change_does_not_undo_a_reset_that_was_faster(
    market: Market,
    recovery: Recovery,
    letters: Inbox,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret, me = await forgotten(recovery, letters), await caller(market, token)
    after(market, monkeypatch, "hash", lambda: recovery.reset(secret, "the owner's new one"))
    change = market.accounts.change_password(me, old="long enough", new="a thief's new one")
    await fails(change, Code.UNAUTHORIZED)
    await market.accounts.login(email=EMAIL, password="the owner's new one")


async def test_of_two_changes_from_one_login_the_faster_counts(
    market: Market, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, change = await caller(market, token), market.accounts.change_password
    after(market, monkeypatch, "hash", lambda: change(me, old="long enough", new="the faster one"))
    error = await fails(change(me, old="long enough", new="the slower"), Code.WRONG_PASSWORD)
    assert error.field == "old_password"
    await market.accounts.login(email=EMAIL, password="the faster one")


@pytest.mark.both_engines
async def test_a_login_under_way_does_not_survive_a_change(
    market: Market, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, change = await caller(market, token), market.accounts.change_password
    after(market, monkeypatch, "verify", lambda: change(me, old="long enough", new="another one"))
    login = market.accounts.login(email=EMAIL, password="long enough")
    await fails(login, Code.INVALID_CREDENTIALS)
    assert await market.store.read(live_logins) == 1


async def test_a_changed_password_voids_the_link_to_replace_it(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    secret, me = await forgotten(recovery, letters), await caller(market, token)
    await market.accounts.change_password(me, old="long enough", new="another password")
    await fails(recovery.reset(secret, "yet another one"), Code.INVALID_MAIL_TOKEN)


async def test_a_letter_to_replace_a_password_leaves_the_other_letter_good(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    await recovery.resend_verification(await caller(market, token))
    to_verify = await letters.secret()
    to_reset = await forgotten(recovery, letters)
    await recovery.verify(to_verify)
    await recovery.reset(to_reset, "another password")


async def test_a_reset_forgives_earlier_failures(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    login = market.accounts.login
    for _ in range(10):
        await fails(login(email=EMAIL, password="wrong"), Code.INVALID_CREDENTIALS)
    await recovery.reset(await forgotten(recovery, letters), "another password")
    await login(email=EMAIL, password="another password")


async def test_a_wrong_secret_is_refused_before_anything_is_hashed(
    market: Market,
    recovery: Recovery,
    letters: Inbox,
    token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = await forgotten(recovery, letters)
    with monkeypatch.context() as patched:
        patched.setattr(market.passwords, "hash", None)
        for number in range(100):
            wrong = recovery.reset(f"wrong {number}", "another password", client="192.0.2.1")
            await fails(wrong, Code.INVALID_MAIL_TOKEN)
    late = recovery.reset(secret, "another password", client="192.0.2.1")
    await fails(late, Code.TOO_MANY_ATTEMPTS)
    await recovery.reset(secret, "another password", client="192.0.2.2")


@pytest.mark.both_engines
async def test_of_ten_concurrent_uses_of_a_secret_one_succeeds(
    market: Market, recovery: Recovery, letters: Inbox, token: str
) -> None:
    secret = await forgotten(recovery, letters)
    outcomes = await asyncio.gather(
        *(recovery.reset(secret, f"password {number}") for number in range(10)),
        return_exceptions=True,
    )
    assert outcomes.count(None) == 1


async def test_no_caller_learns_whether_an_address_is_known(
    recovery: Recovery, letters: Inbox, token: str
) -> None:
    await recovery.forgot("nobody@example.com")
    await forgotten(recovery, letters)
    assert {message.to for message in letters.sent} == {EMAIL}


async def test_a_known_address_costs_the_answer_the_time_of_an_unknown_one(
    market: Market, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_looks = opened(market)
    reads = counted(market.store, "read", monkeypatch)
    writes = counted(market.store, "write", monkeypatch)
    for email in (EMAIL, "bob@example.com"):
        await nobody_looks.forgot(email)
    assert (reads, writes) == ([], [1, 1])


@pytest.mark.both_engines
async def test_a_request_is_answered_by_one_daemon_if_two_look(
    market: Market, letters: Inbox, token: str
) -> None:
    requests, daemons = (
        Outbox(market.context, SEALING, "forgotten password"),
        [opened(market), opened(market)],
    )
    before = await letters.look()
    await daemons[0].forgot(EMAIL)
    running = [asyncio.create_task(each.run()) for each in daemons]

    async def are_answered() -> bool:
        return not await requests.due(again=False, limit=1)

    await until(are_answered)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert await letters.look() == before + 1


@pytest.mark.both_engines
async def test_no_secret_goes_to_a_user_who_is_erased_meanwhile(
    market: Market, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, daemon = await caller(market, token), opened(market)
    found = await market.store.read(users.find, who.profile.user_id)

    async def find_before_the_erasure(*_: object) -> UserRow | None:
        return found

    await market.store.write(
        erasing.erase, market.context, tools(market), who.profile.user_id, waives=False
    )
    await daemon.resend_verification(who)
    assert await market.emails.due(again=False, limit=9) == []
    monkeypatch.setattr(users, "find_by_email", find_before_the_erasure)
    await daemon.forgot(EMAIL)
    assert await daemon._answer_some() == 1
    assert await daemon._answer_some() == 0
    assert await market.emails.due(again=False, limit=9) == []


async def test_a_password_that_is_too_short_uses_no_secret_up(
    recovery: Recovery, letters: Inbox, token: str
) -> None:
    secret = await forgotten(recovery, letters)
    error = await fails(recovery.reset(secret, "short"), Code.INVALID_FIELD)
    assert error.field == "password"
    await recovery.reset(secret, "another password")


async def test_an_address_is_not_flooded_with_letters(recovery: Recovery, token: str) -> None:
    for _ in range(5):
        await recovery.forgot(EMAIL)
    with pytest.raises(MarketError) as caught:
        await recovery.forgot(EMAIL.upper())
    assert caught.value.code is Code.TOO_MANY_ATTEMPTS
    await recovery.forgot("other@example.com")


@pytest.mark.both_engines
async def test_a_logout_bites_at_once_and_only_here(market: Market, token: str) -> None:
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
    assert error.message.endswith(" in 900 s.")
    await fails(login(email="other@example.com", password="wrong"), Code.INVALID_CREDENTIALS)
    market.clock.now += 15 * 60
    await login(email=EMAIL, password="long enough")


@pytest.mark.both_engines
async def test_of_thirty_guesses_at_once_ten_are_looked_at(market: Market, token: str) -> None:
    login = market.accounts.login
    guesses = (login(email=EMAIL, password=f"wrong {number}") for number in range(30))
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    codes = [outcome.code for outcome in outcomes if isinstance(outcome, MarketError)]
    assert codes.count(Code.INVALID_CREDENTIALS) == 10
    assert codes.count(Code.TOO_MANY_ATTEMPTS) == 20


async def test_a_login_that_succeeds_starts_the_count_anew(market: Market, token: str) -> None:
    login = market.accounts.login
    for _ in range(3):
        for _ in range(9):
            await fails(login(email=EMAIL, password="wrong"), Code.INVALID_CREDENTIALS)
        await login(email=EMAIL, password="long enough")


async def test_logins_that_succeed_are_no_failures_of_their_client(
    market: Market, token: str
) -> None:
    for _ in range(101):
        await market.accounts.login(email=EMAIL, password="long enough", client="192.0.2.1")


async def test_wrong_old_passwords_are_throttled_by_user(market: Market, token: str) -> None:
    me, change = await caller(market, token), market.accounts.change_password
    for _ in range(10):
        await fails(market.accounts.login(email=EMAIL, password="x"), Code.INVALID_CREDENTIALS)
    await change(me, old="long enough", new="another password")
    for _ in range(10):
        await fails(change(me, old="wrong", new="long enough"), Code.WRONG_PASSWORD)
    late = change(me, old="another password", new="long enough")
    await fails(late, Code.TOO_MANY_ATTEMPTS)
    market.clock.now += 15 * 60
    await change(me, old="another password", new="long enough")


@pytest.mark.both_engines
async def test_of_thirty_wrong_old_passwords_at_once_ten_are_looked_at(
    market: Market, token: str
) -> None:
    me, change = await caller(market, token), market.accounts.change_password
    tries = (change(me, old=f"wrong {number}", new="another one") for number in range(30))
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    codes = [outcome.code for outcome in outcomes if isinstance(outcome, MarketError)]
    assert codes.count(Code.WRONG_PASSWORD) == 10


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


@pytest.mark.both_engines
async def test_of_forty_registrations_at_once_thirty_are_done(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The queue of one client does not stop them.
    monkeypatch.setattr(market.passwords, "_slots", Slots(SlotBounds(total=2, queue=40)))
    outcomes = await asyncio.gather(
        *(
            market.accounts.register(
                username=f"u{number}",
                email=f"u{number}@example.com",
                password="long enough",
                client="192.0.2.1",
            )
            for number in range(40)
        ),
        return_exceptions=True,
    )
    codes = [outcome.code for outcome in outcomes if isinstance(outcome, MarketError)]
    assert codes == [Code.TOO_MANY_ATTEMPTS] * 10


async def test_a_taken_address_is_refused_before_anything_is_hashed(
    market: Market, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def register(username: str, email: str) -> None:
        await market.accounts.register(
            username=username, email=email, password="long enough", client="192.0.2.1"
        )

    with monkeypatch.context() as patched:
        patched.setattr(market.passwords, "hash", None)
        for _ in range(50):
            await fails(register("other", EMAIL.upper()), Code.EMAIL_TAKEN)
            await fails(register("ADA", "other@example.com"), Code.USERNAME_TAKEN)
    await fails(register("other", "other@example.com"), Code.TOO_MANY_ATTEMPTS)
    market.clock.now += 15 * 60
    await register("other", "other@example.com")

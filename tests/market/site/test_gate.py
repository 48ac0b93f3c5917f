"""The conditions of an account: invitations, and consents to the texts that are valid."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from support.market.market import Market
from support.market.site import ADA, admit, invite, publish

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.site.gate import KEYS_GO_ON_SECONDS, Papers, SiteTerms, code_hash
from market.staff.site.site import NOTICE_DAYS, TextKind
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction

DAY = 86_400


async def refusal(work: Awaitable[Any]) -> Code:
    with pytest.raises(MarketError) as caught:
        await work
    return caught.value.code


async def register(market: Market, number: int = 0, **papers: Any) -> str:
    given = {**ADA, "username": f"ada{number}", "email": f"ada{number}@example.com"}
    login, _ = await market.accounts.register(**given, papers=Papers(**papers))
    return login.profile.user_id


async def log_in(market: Market, **papers: Any) -> str:
    papers_shown = Papers(**papers)
    login = await market.accounts.login(
        email="ada0@example.com", password=ADA["password"], papers=papers_shown
    )
    return login.token


async def consents(market: Market) -> list[tuple[str, int]]:
    async def read(tx: Transaction) -> list[tuple[str, int]]:
        return await tx.all(
            lambda *row: row, "SELECT kind, version FROM consents ORDER BY kind, version"
        )

    return await market.store.read(read)


async def test_a_closed_service_opens_no_account(market: Market) -> None:
    admit(market, "closed")
    assert await refusal(register(market)) is Code.REGISTRATION_CLOSED
    made = await invite(market)
    assert await refusal(register(market, invitation=made.code)) is Code.REGISTRATION_CLOSED


@pytest.mark.both_engines
async def test_an_invitation_opens_as_many_accounts_as_it_has_uses(market: Market) -> None:
    admit(market, "invited")
    assert await refusal(register(market)) is Code.INVITATION_REQUIRED
    made = await invite(market, uses=2)
    written = made.code.lower().replace("-", " ").replace("0", "o").replace("1", "l")
    await register(market, 1, invitation=written)
    done = await asyncio.gather(
        *(register(market, number, invitation=made.code) for number in range(2, 6)),
        return_exceptions=True,
    )
    codes = [each.code for each in done if isinstance(each, MarketError)]
    assert codes == [Code.INVITATION_INVALID] * 3
    assert await refusal(register(market, 9, invitation=made.code)) is Code.INVITATION_INVALID


async def test_a_registration_that_fails_uses_no_invitation(market: Market) -> None:
    made = await invite(market)
    await register(market)
    admit(market, "invited")
    assert await refusal(register(market, invitation=made.code)) is Code.EMAIL_TAKEN
    await register(market, 1, invitation=made.code)


@pytest.mark.parametrize("code", ["x", "AAAA-AAAA-AAAA-AAAU", "A" * 16, "é" * 16, "A" * 64, " -"])
async def test_a_wrong_code_is_refused_in_one_way(market: Market, code: str) -> None:
    admit(market, "invited")
    assert await refusal(register(market, invitation=code)) is Code.INVITATION_INVALID


async def test_an_invitation_expires(market: Market) -> None:
    admit(market, "invited")
    made = await invite(market, days=1)
    market.clock.now += DAY
    assert await refusal(register(market, invitation=made.code)) is Code.INVITATION_INVALID


async def test_the_database_has_no_code(market: Market) -> None:
    made = await invite(market)

    async def read(tx: Transaction) -> list[Any]:
        return await tx.all(lambda *row: row, "SELECT * FROM invitations")

    kept = repr(await market.store.read(read))
    assert code_hash(made.code) in kept
    assert made.code not in kept
    assert made.code.replace("-", "") not in kept


async def test_a_new_user_agrees_to_the_texts_that_are_valid(market: Market) -> None:
    await publish(market)
    await publish(market, TextKind.PRIVACY)
    await publish(market, TextKind.IMPRINT)
    for accepted in ({}, {"terms": 1}, {"privacy": 1}, {"terms": 0, "privacy": 1}):
        assert await refusal(register(market, accepted=accepted)) is Code.TERMS_NOT_ACCEPTED
    await register(market, accepted={"terms": 1, "privacy": 1})
    assert await consents(market) == [("privacy", 1), ("terms", 1)]
    await log_in(market)


async def test_a_version_that_was_never_published_is_refused(market: Market) -> None:
    assert await refusal(register(market, accepted={"terms": 1})) is Code.INVALID_FIELD
    await publish(market)
    assert await refusal(register(market, accepted={"terms": 2})) is Code.INVALID_FIELD
    await register(market, accepted={"terms": 1})
    assert await refusal(log_in(market, accepted={"terms": 2})) is Code.INVALID_FIELD
    await publish(market, days=NOTICE_DAYS)
    await log_in(market, accepted={"terms": 2})  # published, and not valid yet


@pytest.mark.both_engines
async def test_a_login_needs_a_consent_from_the_day_of_a_new_version(market: Market) -> None:
    await register(market)
    running = await log_in(market)
    await publish(market)
    assert await refusal(log_in(market)) is Code.TERMS_NOT_ACCEPTED
    await log_in(market, accepted={"terms": 1})
    await publish(market, days=NOTICE_DAYS)
    await log_in(market)
    market.clock.now += NOTICE_DAYS * DAY
    assert await refusal(log_in(market, accepted={"terms": 1})) is Code.TERMS_NOT_ACCEPTED
    refreshed = await market.accounts.authenticate(await log_in(market, accepted={"terms": 2}))
    assert refreshed.profile.username == "ada0"
    assert await consents(market) == [("terms", 1), ("terms", 2)]
    del running


async def test_a_wrong_password_learns_nothing_of_consents(market: Market) -> None:
    await register(market)
    await publish(market)
    login = market.accounts.login(email="ada0@example.com", password="wrong enough")
    assert await refusal(login) is Code.INVALID_CREDENTIALS


async def test_keys_go_on_for_thirty_days_without_a_consent(market: Market) -> None:
    user_id = await register(market)
    key = (await market.keys.create(user_id, NewKey(name="a", scopes=(Scope.ACCOUNT_READ,)))).key
    await publish(market)
    market.clock.now += KEYS_GO_ON_SECONDS - 1
    assert (await market.keys.authenticate(key, "")).profile.user_id == user_id
    market.clock.now += 11
    for _ in range(2):
        use = market.keys.authenticate(key, "")
        assert await refusal(use) is Code.TERMS_NOT_ACCEPTED
    await log_in(market, accepted={"terms": 1})
    for _ in range(2):
        assert (await market.keys.authenticate(key, "")).profile.user_id == user_id


async def test_a_check_of_a_key_that_overlaps_a_new_version_is_repeated(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_id, other = await register(market), await register(market, 1)
    await publish(market)
    await log_in(market, accepted={"terms": 1})
    second = await publish(market, days=NOTICE_DAYS)
    market.clock.now = second.valid_from + KEYS_GO_ON_SECONDS - 5
    read = market.store.read

    async def meanwhile(work: Any, *args: Any) -> Any:
        found = await read(work, *args)
        if args[:1] == (user_id,):
            monkeypatch.setattr(market.store, "read", read)
            market.clock.now += 10
            assert await refusal(market.gate.check_key(other)) is Code.TERMS_NOT_ACCEPTED
        return found

    monkeypatch.setattr(market.store, "read", meanwhile)
    await market.gate.check_key(user_id)
    assert await refusal(market.gate.check_key(user_id)) is Code.TERMS_NOT_ACCEPTED


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("UPDATE site_texts SET body = 'other'", "site_texts_are_never_changed"),
        ("DELETE FROM site_texts", "site_texts_are_never_changed"),
        ("UPDATE consents SET version = 9", "consents_are_never_changed"),
        ("UPDATE consents SET network = 'other'", "consents_are_never_changed"),
        ("DELETE FROM consents", "consents_are_never_changed"),
    ],
)
async def test_texts_and_consents_never_change(
    market: Market, statement: str, constraint: str
) -> None:
    await publish(market)
    await register(market, accepted={"terms": 1})

    async def run(tx: Transaction, sql: str) -> int:
        return await tx.run(sql)

    with pytest.raises(ConstraintError) as caught:
        await market.store.write(run, statement)
    assert caught.value.constraint == constraint
    await market.store.write(run, "UPDATE consents SET network = ''")  # by an erasure


def test_a_service_with_a_name_signs_its_letters() -> None:
    assert SiteTerms().signature == ""
    assert SiteTerms("Ada's").signature == "\n-- \nAda's\n"
    assert SiteTerms(support="a@b.example").signature == "\n-- \nproxyd\nHelp: a@b.example\n"

"""The search: each text finds the rows that it names, and no others."""

import json

import pytest
from support.base.cases import cases
from support.market.jobs import device_of
from support.market.market import Market
from support.market.staff import ROOT

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.jobs.postings import NewJob
from market.money.money import GB, MICRO
from market.staff.finding import history, search
from market.staff.finding.search import HITS_MAX
from storage.accounts import users as user_queries
from storage.engines.store import Transaction
from storage.money import ledger


async def hits(market: Market, text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the kind and the identifier of each hit, by field."""
    found = await search.who(market.context, ROOT, text)
    return {each.by: [(hit.kind, hit.id) for hit in each.hits] for each in found}


@pytest.mark.both_engines
async def test_each_thing_is_found_by_its_identifier(market: Market) -> None:
    user = await market.person(usd="20", credit="10")
    await market.person(usd="1")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    job = await market.jobs.create(user, NewJob("a title", "script", MICRO, 1, "", ""))
    device = await device_of(market, user)
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    moved = await market.store.read(
        ledger.moved, usd=f"user:{user}:available:usd", credit="", before="", limit=1
    )
    for kind, identifier in (
        ("user", user),
        ("session", bought.session_id),
        ("job", job),
        ("device", device.id),
        ("key", key.row.id),
        ("transfer", moved[0].id),
    ):
        assert await hits(market, identifier) == {"identifier": [(kind, identifier)]}
        [found] = await search.who(market.context, ROOT, identifier.upper())
        assert (found.hits[0].user_id, found.hits[0].email) == (user, "p…@e…")


async def test_a_user_is_found_by_an_address_a_domain_and_a_name(market: Market) -> None:
    users = [await market.person() for _ in range(12)]
    first = ("user", users[0])
    assert await hits(market, "Person1@example.com") == {"e-mail": [first]}
    assert len((await hits(market, "person1@"))["e-mail"]) == 1
    assert len((await hits(market, "PERSON1"))["user name"]) == 4  # 1, 10, 11 and 12
    assert (await hits(market, "person12")) == {"user name": [("user", users[11])]}
    domain = (await hits(market, "@EXAMPLE.com"))["e-mail domain"]
    assert domain == [("user", each) for each in reversed(users)]
    assert await hits(market, "@example.co") == {}
    assert await hits(market, "person1@example.comx") == {}


@cases(
    ("text", "logged"),
    [
        ("@example.com", "@example.com"),
        ("person1@e", None),
        ("person1@example.com", None),
        ("@", "@"),
        ("nobody@", None),
        ("@person1@example.com", None),
    ],
)
async def test_a_search_for_an_email_address_is_in_the_log_and_masked(
    market: Market, text: str, logged: str | None
) -> None:
    await market.person()
    found = await search.who(market.context, ROOT, text)
    hits = [hit for each in found for hit in each.hits]
    assert {hit.email for hit in hits} <= {"p…@e…"}
    [act, *_] = await history.read(market.context, ROOT, limit=1)
    assert (act.action, act.text, act.user_id) == ("search.email", logged, None)
    assert json.loads(act.changes) == {"hits": [None, len(hits)]}


@pytest.mark.both_engines
async def test_a_session_is_found_by_its_proxy_name_and_its_client_address(
    market: Market,
) -> None:
    user = await market.person(usd="20")
    bought = await market.bandwidth.buy(
        user, quota_bytes=GB, price_per_gb=None, allow_ips=["203.0.113.9"]
    )
    other = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    hit = ("session", other.session_id)
    assert await hits(market, other.username) == {"proxy user name": [hit]}
    assert (await hits(market, other.username[:6]))["proxy user name"] == [hit]
    assert await hits(market, other.username[:5]) == {}

    async def admit(tx: Transaction) -> None:
        sql = "INSERT INTO session_addresses (address, slot, session_id) VALUES (:a, 9, :s)"
        await tx.run(sql, a="203.0.113.7", s=bought.session_id)

    await market.store.write(admit)
    found = await hits(market, "203.0.113.7")
    assert found == {"client address of a session": [("session", bought.session_id)]}


async def test_logins_and_keys_are_found_by_a_network(market: Market) -> None:
    user = await market.person()
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    await market.keys.authenticate(key.key, "93.184.216.34")
    now = market.clock.now
    await market.store.write(
        user_queries.insert_login,
        session_id="a login",
        user_id=user,
        created_at=now,
        expires_at=now + 60,
        network="93.184.216.0/24",
    )
    assert await hits(market, "93.184.216.34") == {
        "network of a login": [("login", "a login")],
        "network of a key": [("key", key.row.id)],
    }
    assert await hits(market, "93.184.216.0/24") == {"network of a login": [("login", "a login")]}
    assert await hits(market, key.row.prefix) == {"key": [("key", key.row.id)]}
    assert await hits(market, key.key) == {"key": [("key", key.row.id)]}
    assert await hits(market, key.row.prefix[:9]) == {}


async def test_a_deposit_is_found_by_its_whole_reference(market: Market) -> None:
    user = await market.person()
    for reference in ("INV-7", "order:7/1"):
        await market.deposit("person1@example.com", MICRO, reference)
        [found] = await search.who(market.context, ROOT, reference)
        assert (found.by, found.hits[0].user_id) == ("payment reference", user)
    assert await hits(market, "INV") == {}


@pytest.mark.both_engines
async def test_of_many_hits_the_first_are_shown_and_none_counted(market: Market) -> None:
    async def fill(tx: Transaction) -> None:
        await tx.run(
            f"""
            INSERT INTO users (id, username, username_key, email, email_key, password_hash,
                created_at)
            SELECT called, called, called, called || '@many.example', called || '@many.example',
                '', 1
            FROM {tx.table("filled", called="TEXT")}
            """,
            filled=json.dumps([{"called": f"many{number:03}"} for number in range(25)]),
        )

    await market.store.write(fill)
    for text in ("many", "@many.example", "many0"):
        [found] = await search.who(market.context, ROOT, text)
        assert (len(found.hits), found.has_more) == (HITS_MAX, True)
    [found] = await search.who(market.context, ROOT, "many01")
    assert (len(found.hits), found.has_more) == (10, False)


async def test_only_a_search_for_an_address_is_in_the_log(market: Market) -> None:
    await market.person()
    for text in ("person1", "x", "010.1.2.3", "1.2.3"):
        await search.who(market.context, ROOT, text)
    assert await history.read(market.context, ROOT, limit=9) == []
    for text in ("203.0.113.9", "2001:db8::1", "198.51.100.0/24"):
        await search.who(market.context, ROOT, text)
    rows = await history.read(market.context, ROOT, limit=9)
    assert [row.text for row in rows] == ["198.51.100.0/24", "2001:db8::1", "203.0.113.9"]
    assert {row.changes for row in rows} == {'{"hits":[null,0]}'}


@cases("text", ["", " ", "\x00", "a\x00b", "\ud800", "x" * 255, "a\nb", "\x1b[2J", "\U0010ffff"])
async def test_a_text_that_nothing_can_have_is_refused(market: Market, text: str) -> None:
    with pytest.raises(MarketError) as refused:
        await search.who(market.context, ROOT, text)
    assert refused.value.code is Code.INVALID_FIELD


@pytest.mark.both_engines
@cases(
    "text",
    [
        "'; DROP TABLE users; --",
        "%",
        "_",
        "@",
        "@@",
        "😀" * 200,
        "ß",
        "::",
        "/",
        "0/0",
    ],
)
async def test_a_hostile_text_finds_nothing(market: Market, text: str) -> None:
    await market.person()
    assert await hits(market, text) == {}

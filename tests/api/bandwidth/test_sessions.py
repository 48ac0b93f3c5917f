"""Promises of the routes of bandwidth: buy a session, list sessions, end one."""

import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.clients.socks import Client, tunnel
from support.clients.story import reached, refused
from support.daemons.service import Answer, Person, Service, running_in
from support.targets import targets

from market.staff.base.roles import Machine
from market.staff.money import user_limits
from market.staff.money.user_limits import NewLimits
from proxyd.ops.processes.listening import bound_port

CREATE = "/api/bandwidth/create"
SESSIONS = "/api/bandwidth/sessions"
END = "/api/bandwidth/end"
PROXY_FIELDS = {"host", "port", "username", "password", "protocol"}
LISTED_FIELDS = {"id", "port", "bytes_used", "gb_used", "status", "price_per_gb"}
ADDED_FIELDS = {"quota_bytes", "bytes_left", "created_at", "expires_at"}


async def create(service: Service, person: Person, body: str) -> Answer:
    """Buy with a body written as a client would, digit for digit."""
    return await service.call("POST", CREATE, raw=body.encode(), token=person.token)


async def listed(service: Service, person: Person, query: str = "") -> list[dict[str, Any]]:
    answer = await service.call("GET", SESSIONS + query, token=person.token)
    assert answer.status == 200, answer.body
    return list(answer.body["sessions"])


async def end(service: Service, person: Person, session_id: Any) -> Answer:
    return await service.call("POST", END, {"session_id": session_id}, token=person.token)


async def nothing_was_bought(service: Service, person: Person, usd: float) -> None:
    assert await service.balance(person) == usd
    assert await service.sessions(person) == []
    await service.assert_audit()


async def test_a_purchase_has_the_fields_of_the_specification(service: Service) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, '{"gb": 2.5, "price_per_gb": 1.5}')
    assert answer.status == 200
    assert answer.body.keys() == {"ok", "session_id", "proxy", "cost_usd"}
    assert answer.body["ok"] is True
    session_id = answer.body["session_id"]
    assert str(uuid.UUID(session_id)) == session_id
    assert isinstance(answer.body["cost_usd"], float)
    assert answer.body["cost_usd"] == 3.75
    proxy = answer.body["proxy"]
    assert proxy.keys() == PROXY_FIELDS
    assert (proxy["host"], proxy["port"]) == ("127.0.0.1", service.proxy_port)
    assert proxy["protocol"] == "socks5"
    for secret in (proxy["username"], proxy["password"]):
        assert secret
        assert all(each.isascii() and (each.isalnum() or each in "-_") for each in secret)
    assert len(proxy["password"]) >= 22  # 128 bits in base 64


async def test_a_purchase_may_name_addresses_that_need_no_password(service: Service) -> None:
    buyer = await service.person(usd="10")
    body = '{"gb": 1, "allow_ips": ["2001:DB8::7", "::ffff:192.0.2.1", "192.0.2.1"]}'
    answer = await create(service, buyer, body)
    assert answer.status == 200, answer.body
    proxy = answer.body["proxy"]
    assert proxy.keys() == PROXY_FIELDS | {"passwordless_port", "pending_ips"}
    (door,) = service.daemon.listeners.passwordless
    assert proxy["passwordless_port"] == bound_port(door) != proxy["port"]
    (session,) = await listed(service, buyer)
    named = {"allow_ips", "pending_ips", "passwordless_port"}
    assert session.keys() == LISTED_FIELDS | ADDED_FIELDS | named
    assert session["allow_ips"] == ["192.0.2.1", "2001:db8::7"]
    assert session["pending_ips"] == proxy["pending_ips"] == session["allow_ips"]
    assert session["passwordless_port"] == proxy["passwordless_port"]
    assert session["port"] == proxy["port"]
    await end(service, buyer, session["id"])
    (session,) = await listed(service, buyer, "?status=all")
    assert session.keys() == LISTED_FIELDS | ADDED_FIELDS | {"ended_at", "paid"}


async def test_a_purchase_without_addresses_returns_no_other_port(service: Service) -> None:
    buyer = await service.person(usd="10")
    for body in ('{"gb": 1}', '{"gb": 1, "allow_ips": null}'):
        answer = await create(service, buyer, body)
        assert answer.body["proxy"].keys() == PROXY_FIELDS
    for session in await listed(service, buyer):
        assert session.keys() == LISTED_FIELDS | ADDED_FIELDS


@cases(
    "allow_ips",
    [
        *("[]", '"192.0.2.1"', '["192.0.2.1", "localhost"]', '["192.0.2.0/24"]'),
        *('["0.0.0.0"]', '["ff02::1"]', '[""]', "{}", "true", str(["192.0.2.1"] * 17)),
    ],
)
async def test_a_list_without_addresses_is_refused(service: Service, allow_ips: str) -> None:
    buyer = await service.person(usd="10")
    allow_ips = allow_ips.replace("'", '"')
    answer = await create(service, buyer, f'{{"gb": 1, "allow_ips": {allow_ips}}}')
    refused(answer, "invalid_field", "allow_ips")
    await nothing_was_bought(service, buyer, 10)


@pytest.mark.parametrize(
    ("allow_ips", "got"),
    [
        ("[]", "an empty one"),
        ("17", "a number"),
        ('"192.0.2.1"', "a string"),
        (str(["192.0.2.1"] * 17).replace("'", '"'), "a longer one"),
    ],
)
async def test_a_list_of_addresses_is_refused_for_its_mistake(
    service: Service, allow_ips: str, got: str
) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, f'{{"gb": 1, "allow_ips": {allow_ips}}}')
    message = answer.body["error"]["message"]
    assert message == f"allow_ips must be a list of 1 to 16 strings, got {got}."


@pytest.mark.parametrize("item", ["1", "null", "{}"])
async def test_an_address_is_a_text(service: Service, item: str) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, f'{{"gb": 1, "allow_ips": ["192.0.2.1", {item}]}}')
    refused(answer, "invalid_field", "allow_ips[1]")
    await nothing_was_bought(service, buyer, 10)


async def test_an_address_that_another_session_has_is_refused(service: Service) -> None:
    buyer, other = await service.person(usd="10"), await service.person(usd="10")
    body = '{"gb": 1, "allow_ips": ["127.0.0.1"]}'
    first = await create(service, buyer, body)
    refused(await create(service, other, body), "addresses_taken", "allow_ips")
    await nothing_was_bought(service, other, 10)
    await end(service, buyer, first.body["session_id"])
    assert (await create(service, other, body)).status == 200


async def test_an_address_that_another_session_only_waits_for_is_given(service: Service) -> None:
    squatter, owner = await service.person(usd="10"), await service.person(usd="10")
    addresses = "127.0.0.1", "192.0.2.1"
    waits = await create(service, squatter, '{"gb": 1, "allow_ips": ["192.0.2.1"]}')
    assert waits.body["proxy"]["pending_ips"] == ["192.0.2.1"]
    given = await service.buy(owner, allow_ips=addresses)
    (session,) = await listed(service, owner)
    assert (session["id"], session["pending_ips"]) == (given.id, ["192.0.2.1"])


async def test_a_request_from_an_address_proves_it(tmp_path: Path) -> None:
    path, home, office = "/api/bandwidth/allow", "192.0.2.1", "192.0.2.2"
    async with running_in(tmp_path, api={"trusted_proxies": ["127.0.0.1/32"]}) as service:
        buyer, stranger = await service.person(usd="10"), await service.person()
        bought = await service.buy(buyer, allow_ips=[home])
        body = {"session_id": bought.id}

        async def ask(who: Person, client: str, wanted: Any = body) -> Answer:
            headers = {"X-Forwarded-For": client}
            return await service.call("POST", path, wanted, token=who.token, headers=headers)

        refused(await ask(buyer, office), "address_not_pending", None)
        refused(await ask(stranger, home), "session_not_found", "session_id", 404)
        refused(await ask(buyer, home, {"session_id": "7"}), "invalid_field", "session_id")
        for _ in range(2):
            answer = await ask(buyer, home)
            assert answer.status == 200, answer.body
            assert (answer.body["address"], answer.body["passwordless_port"]) == (
                home,
                bought.passwordless_port,
            )
        (session,) = await listed(service, buyer)
        assert session["allow_ips"] == [home]
        assert "pending_ips" not in session
        await service.assert_audit()


async def test_addresses_may_be_named_only_where_there_is_a_port_for_them(tmp_path: Path) -> None:
    async with running_in(tmp_path, proxy={"passwordless_ports": []}) as service:
        buyer = await service.person(usd="10")
        answer = await create(service, buyer, '{"gb": 1, "allow_ips": ["192.0.2.1"]}')
        refused(answer, "passwordless_not_offered", "allow_ips")
        await nothing_was_bought(service, buyer, 10)
        assert (await create(service, buyer, '{"gb": 1}')).status == 200


async def test_a_buyer_gets_the_public_port_without_passwords(tmp_path: Path) -> None:
    proxy = {"passwordless_ports": [0, 0], "public_passwordless_ports": [4001, 0]}
    async with running_in(tmp_path, proxy=proxy) as service:
        buyer = await service.person(usd="10")
        bought = [await service.buy(buyer, allow_ips=["192.0.2.1"]) for _ in range(2)]
        bound = bound_port(service.daemon.listeners.passwordless[1])
        assert [each.passwordless_port for each in bought] == [4001, bound]


async def test_two_purchases_share_nothing(service: Service) -> None:
    buyer = await service.person(usd="10")
    first, second = await service.buy(buyer), await service.buy(buyer)
    assert first.id != second.id
    assert first.username != second.username
    assert first.password != second.password


async def test_a_buyer_gets_the_public_address(tmp_path: Path) -> None:
    proxy = {"public_host": "proxy.example.com", "public_port": 4000}
    async with running_in(tmp_path, proxy=proxy) as service:
        buyer = await service.person(usd="10")
        answer = await create(service, buyer, '{"gb": 1}')
        told = answer.body["proxy"]
        assert (told["host"], told["port"]) == ("proxy.example.com", 4000)
        assert (await listed(service, buyer))[0]["port"] == 4000


async def test_a_listed_session_has_the_fields_of_the_specification(service: Service) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, '{"gb": 2.5}')
    listing = await service.call("GET", SESSIONS, token=buyer.token)
    assert listing.body.keys() == {"ok", "sessions", "total"}
    assert listing.body["ok"] is True
    (session,) = listing.body["sessions"]
    assert session.keys() == LISTED_FIELDS | ADDED_FIELDS
    assert session["id"] == answer.body["session_id"]
    assert session["port"] == service.proxy_port
    assert type(session["bytes_used"]) is int
    assert session["bytes_used"] == 0
    assert type(session["gb_used"]) is float
    assert session["gb_used"] == 0
    assert session["status"] == "active"
    assert type(session["price_per_gb"]) is float
    assert session["price_per_gb"] == 1.0
    assert (session["quota_bytes"], session["bytes_left"]) == (2_500_000_000, 2_500_000_000)
    created, expires = (
        datetime.strptime(session[name], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        for name in ("created_at", "expires_at")
    )
    assert expires - created == timedelta(days=30)


async def test_a_session_that_was_used_shows_its_bytes_in_both_units(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer, quota=1000)
    async with targets.echo() as target:
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await client.send(b"x" * 100)
        await client.receive(100)
        session = await service.session(buyer, bought)
        assert (session["bytes_used"], session["bytes_left"]) == (200, 800)
        assert session["gb_used"] == 0.0000002
        await client.close()


async def test_the_cost_is_held_and_released(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer, quota=4_000_000_000, price=2.0)
    assert bought.cost_usd == 8
    assert await service.balance(buyer) == 2
    answer = await end(service, buyer, bought.id)
    assert (answer.status, answer.body) == (200, {"ok": True})
    assert await service.balance(buyer) == 10


async def test_the_used_bytes_are_captured_and_the_rest_released(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer, quota=1_000_000, price=1000.0)
    assert await service.balance(buyer) == 9
    async with targets.echo() as target:
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await client.send(b"x" * 5000)
        client.end()
        assert len(await client.rest()) == 5000
        await client.close()
    assert (await end(service, buyer, bought.id)).status == 200
    assert await service.balance(buyer) == 9.99
    session = await service.session(buyer, bought)
    assert (session["status"], session["bytes_used"]) == ("ended", 10_000)


async def test_ending_cuts_connections_and_captures_the_amount_of_the_list(
    service: Service,
) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer, quota=1_000_000, price=1000.0)
    async with targets.source(5000) as target:
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        assert await client.receive(5000) == targets.pattern(5000)
        assert (await end(service, buyer, bought.id)).status == 200
        with suppress(ConnectionResetError):
            assert await client.rest() == b""
        await client.close()
    session = await service.session(buyer, bought)
    assert session["status"] == "ended"
    assert 0 <= session["bytes_used"] <= 5000
    assert await service.balance(buyer) == round(10 - session["bytes_used"] / 1e6, 6)


@cases(
    ("gb", "quota_bytes", "cost_usd"),
    [
        ("1", 1_000_000_000, 1.0),
        ("1.0", 1_000_000_000, 1.0),
        ("0.5", 500_000_000, 0.5),
        ("1e0", 1_000_000_000, 1.0),
        ("1E-3", 1_000_000, 0.001),
        ("1e-9", 1, 0.000001),
        ("0.000000001", 1, 0.000001),
        ("0.000001001", 1001, 0.000002),
        ("1.123456789", 1_123_456_789, 1.123457),
        ("0.30000000000000004", 300_000_000, 0.3),
        ("0.1000000005", 100_000_000, 0.1),  # half to even
        ("0.1000000015", 100_000_002, 0.100001),
        ("0.000000000500000000000000000001", 1, 0.000001),
        ("9999.999999999", 9_999_999_999_999, 10_000.0),
        ("10000", 10_000_000_000_000, 10_000.0),
        ("10000.0000000004", 10_000_000_000_000, 10_000.0),
        ("1e4", 10_000_000_000_000, 10_000.0),
    ],
)
async def test_gb_is_taken_to_the_byte(
    service: Service, gb: str, quota_bytes: int, cost_usd: float
) -> None:
    buyer = await service.person(usd="10000")
    answer = await create(service, buyer, f'{{"gb": {gb}}}')
    assert answer.status == 200, answer.body
    assert answer.body["cost_usd"] == cost_usd
    (session,) = await listed(service, buyer)
    assert session["quota_bytes"] == quota_bytes
    assert await service.balance(buyer) == round(10_000 - cost_usd, 6)


@cases(
    "gb",
    [
        "0",
        "0.0",
        "-0.0",
        "0e5",
        "1e-10",
        "0.0000000005",  # half to even is nothing
        "1e-400",
        "1e-999999999",
        "-1",
        "-1e-9",
        "-1e-400",
        "10000.000000001",
        "10001",
        "1e5",
        "1e18",
        "1e400",
        "-1e400",
        "1e999999999",
        "9" * 400,
        "18446744073709551616",
        '"1"',
        '""',
        '"NaN"',
        "true",
        "false",
        "null",
        "[]",
        "[1]",
        "{}",
    ],
)
async def test_any_other_gb_is_refused_by_name(service: Service, gb: str) -> None:
    buyer = await service.person(usd="10")
    refused(await create(service, buyer, f'{{"gb": {gb}}}'), "invalid_field", "gb")
    await nothing_was_bought(service, buyer, 10)


@cases("gb", ["NaN", "Infinity", "-Infinity", "nan", "+1", "01", "1.", ".5", "0x1"])
async def test_a_number_that_json_does_not_know_is_refused(service: Service, gb: str) -> None:
    buyer = await service.person(usd="10")
    for name in ("gb", "price_per_gb"):
        answer = await create(service, buyer, f'{{"{name}": {gb}}}')
        assert (answer.status, answer.code) == (400, "invalid_field")
    await nothing_was_bought(service, buyer, 10)


async def test_gb_is_required(service: Service) -> None:
    buyer = await service.person(usd="10")
    for body in ("{}", '{"price_per_gb": 1}', '{"GB": 1}'):
        refused(await create(service, buyer, body), "invalid_field", "gb")
    await nothing_was_bought(service, buyer, 10)


@cases(
    ("price", "shown"),
    [
        ("0.1", 0.1),
        ("0.10", 0.1),
        ("1", 1.0),
        ("5", 5.0),
        ("0.30000000000000004", 0.3),
        ("0.1000005", 0.1),  # half to even
        ("0.1000015", 0.100002),
        ("0.0999995", 0.1),
        ("1e1", 10.0),
        ("1000000", 1_000_000.0),
    ],
)
async def test_a_price_is_taken_to_the_millionth(
    service: Service, price: str, shown: float
) -> None:
    buyer = await service.person(usd="1000000")
    answer = await create(service, buyer, f'{{"gb": 1, "price_per_gb": {price}}}')
    assert answer.status == 200, answer.body
    assert answer.body["cost_usd"] == shown
    (session,) = await listed(service, buyer)
    assert session["price_per_gb"] == shown


@pytest.mark.parametrize("body", ['{"gb": 2}', '{"gb": 2, "price_per_gb": null}'])
async def test_the_price_of_the_operator_is_the_default(service: Service, body: str) -> None:
    buyer = await service.person(usd="10")
    assert (await create(service, buyer, body)).body["cost_usd"] == 2.0
    (session,) = await listed(service, buyer)
    assert session["price_per_gb"] == 1.0


async def test_the_operator_sets_default_and_floor(tmp_path: Path) -> None:
    market = {"price_per_gb_default_usd": 3, "price_per_gb_floor_usd": 2.5}
    async with running_in(tmp_path, market=market) as service:
        buyer = await service.person(usd="10")
        assert (await create(service, buyer, '{"gb": 1}')).body["cost_usd"] == 3.0
        answer = await create(service, buyer, '{"gb": 1, "price_per_gb": 2.499999}')
        refused(answer, "price_below_floor", "price_per_gb")
        answer = await create(service, buyer, '{"gb": 1, "price_per_gb": 2.5}')
        assert answer.body["cost_usd"] == 2.5
        await service.assert_audit()


@pytest.mark.parametrize("price", ["0", "0.0", "0.099999", "0.0999994999", "1e-6"])
async def test_a_price_below_the_floor_is_refused(service: Service, price: str) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, f'{{"gb": 1, "price_per_gb": {price}}}')
    refused(answer, "price_below_floor", "price_per_gb")
    await nothing_was_bought(service, buyer, 10)


@cases(
    "price",
    ["-1", "-0.000001", "1000000.000001", "1e7", "1e400", "1e999999999", '"1"', "true", "[]", "{}"],
)
async def test_any_other_price_is_refused_by_name(service: Service, price: str) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, f'{{"gb": 1e-6, "price_per_gb": {price}}}')
    refused(answer, "invalid_field", "price_per_gb")
    await nothing_was_bought(service, buyer, 10)


async def test_the_dearest_of_all_sessions_can_be_bought(service: Service) -> None:
    buyer = await service.person(usd="10000000000")
    answer = await create(service, buyer, '{"gb": 10000, "price_per_gb": 1000000}')
    assert answer.body["cost_usd"] == 10_000_000_000
    assert await service.balance(buyer) == 0
    await end(service, buyer, answer.body["session_id"])
    assert await service.balance(buyer) == 10_000_000_000


async def test_without_the_money_nothing_is_left_behind(service: Service) -> None:
    buyer = await service.person(usd="0.999999", credit="1000")
    answer = await create(service, buyer, '{"gb": 1}')
    assert (answer.status, answer.code) == (400, "insufficient_funds")
    message = "This costs 1.00 USD, and 0.999999 USD are available."
    assert answer.body["error"]["message"] == message
    await nothing_was_bought(service, buyer, 0.999999)


async def test_the_last_cent_can_be_spent_but_not_one_more(service: Service) -> None:
    buyer = await service.person(usd="1")
    assert (await create(service, buyer, '{"gb": 1}')).status == 200
    assert await service.balance(buyer) == 0
    answer = await create(service, buyer, '{"gb": 1e-9}')
    assert (answer.status, answer.code) == (400, "insufficient_funds")
    assert len(await listed(service, buyer)) == 1


async def test_a_user_without_money_cannot_spend_that_of_others(service: Service) -> None:
    rich, poor = await service.person(usd="100"), await service.person()
    assert (await create(service, poor, '{"gb": 1}')).code == "insufficient_funds"
    assert await service.balance(rich) == 100


async def test_unknown_fields_are_ignored(service: Service) -> None:
    buyer = await service.person(usd="10")
    body = '{"cost_usd": 0, "gb": 1, "user_id": "x", "status": null, "deep": [[{}]]}'
    assert (await create(service, buyer, body)).body["cost_usd"] == 1.0
    (session,) = await listed(service, buyer, "?unknown=1&user_id=x")
    answer = await service.call(
        "POST", END, {"session_id": session["id"], "refund": 1000}, token=buyer.token
    )
    assert answer.status == 200
    assert await service.balance(buyer) == 10


async def test_sessions_are_listed_newest_first(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = [(await service.buy(buyer)).id for _ in range(5)]
    assert [each["id"] for each in await listed(service, buyer)] == bought[::-1]


async def test_a_list_holds_only_the_sessions_of_its_caller(service: Service) -> None:
    first, second = await service.person(usd="10"), await service.person(usd="10")
    mine = await service.buy(first)
    theirs = await service.buy(second)
    assert [each["id"] for each in await listed(service, first, "?status=all")] == [mine.id]
    assert await listed(service, first, f"?cursor={theirs.id}&status=all") != []
    assert [each["id"] for each in await listed(service, second)] == [theirs.id]


async def test_a_list_without_sessions_is_empty(service: Service) -> None:
    person = await service.person()
    answer = await service.call("GET", SESSIONS, token=person.token)
    assert (answer.status, answer.body) == (200, {"ok": True, "sessions": [], "total": 0})


async def test_pages_join_into_the_whole_list(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = [(await service.buy(buyer)).id for _ in range(5)]
    pages, cursor = [], ""
    while True:
        answer = await service.call("GET", f"{SESSIONS}?limit=2&cursor={cursor}", token=buyer.token)
        assert answer.body.get("total") == (None if cursor else 5)
        pages.append([each["id"] for each in answer.body["sessions"]])
        if "next_cursor" not in answer.body:
            break
        cursor = answer.body["next_cursor"]
        assert isinstance(cursor, str)
        assert len(pages) < 5
    newest_first = bought[::-1]
    assert pages == [newest_first[:2], newest_first[2:4], newest_first[4:]]


async def test_a_last_page_that_is_full_has_no_next(service: Service) -> None:
    buyer = await service.person(usd="10")
    for _ in range(2):
        await service.buy(buyer)
    for limit in (2, 3, 1000):
        answer = await service.call("GET", f"{SESSIONS}?limit={limit}", token=buyer.token)
        assert len(answer.body["sessions"]) == 2
        assert "next_cursor" not in answer.body
    answer = await service.call("GET", f"{SESSIONS}?limit=1", token=buyer.token)
    assert "next_cursor" in answer.body


async def test_a_page_holds_100_sessions_without_a_limit(service: Service) -> None:
    buyer = await service.person(usd="1000")
    for _ in range(101):
        await service.buy(buyer, quota=1)
    answer = await service.call("GET", SESSIONS, token=buyer.token)
    assert len(answer.body["sessions"]) == 100
    rest = await listed(service, buyer, f"?cursor={answer.body['next_cursor']}")
    assert len(rest) == 1
    assert len(await listed(service, buyer, "?limit=1000")) == 101


@cases("limit", ["0", "-1", "1001", "x", "", "1.5", "true", "null", "9" * 30, "%00", "%ff"])
async def test_a_limit_out_of_range_is_refused_by_name(service: Service, limit: str) -> None:
    person = await service.person()
    answer = await service.call("GET", f"{SESSIONS}?limit={limit}", token=person.token)
    refused(answer, "invalid_field", "limit")


@cases(
    "cursor",
    [
        "x",
        "0",
        "-1",
        "%00",
        "%ff",
        "'",
        "' OR 1=1 --",
        "a" * 5000,
        "{00000000-0000-0000}",
        "0" * 32,
    ],
)
async def test_a_cursor_that_no_list_returned_is_refused_by_name(
    service: Service, cursor: str
) -> None:
    person = await service.person()
    answer = await service.call("GET", f"{SESSIONS}?cursor={cursor}", token=person.token)
    refused(answer, "invalid_field", "cursor")


async def test_a_list_shows_the_active_ones_or_those_of_a_status_or_all(service: Service) -> None:
    buyer = await service.person(usd="10")
    active = await service.buy(buyer)
    ended = await service.buy(buyer)
    exhausted = await service.buy(buyer, quota=10)
    await end(service, buyer, ended.id)
    async with targets.source(None) as target:
        client = await Client.open(service.proxy_port)
        assert await client.log_in(exhausted.username, exhausted.password) == 0
        assert await client.connect(target.host, target.port) == 0
        assert len(await client.rest()) == 10
        await client.close()

    async def was_exhausted() -> bool:
        return (await service.session(buyer, exhausted))["status"] == "exhausted"

    await until(was_exhausted)

    async def found(query: str) -> list[str]:
        return [each["id"] for each in await listed(service, buyer, query)]

    assert await found("") == [active.id]
    assert await found("?status=active") == [active.id]
    assert await found("?status=ended") == [ended.id]
    assert await found("?status=exhausted") == [exhausted.id]
    assert await found("?status=expired") == []
    assert await found("?status=all") == [exhausted.id, ended.id, active.id]
    assert await found("?status=all&limit=1") == [exhausted.id]
    for status, total in (("active", 1), ("all", 3), ("ended", None)):
        answer = await service.call("GET", f"{SESSIONS}?status={status}", token=buyer.token)
        assert answer.body.get("total") == total
    assert await found(f"?status=ended&cursor={exhausted.id}") == [ended.id]
    assert await found(f"?status=ended&cursor={ended.id}") == []


async def test_a_session_whose_time_is_over_is_expired(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        buyer = await service.person(usd="10")
        bought = await service.buy(buyer)

        async def age(tx: Any) -> None:
            await tx.run(
                "UPDATE bandwidth_sessions SET expires_at = 1 WHERE id = :id", id=bought.id
            )

        await service.daemon.store.write(age)
        assert await service.daemon.market.bandwidth.expire() == 1
        assert await listed(service, buyer) == []
        (session,) = await listed(service, buyer, "?status=expired")
        assert session["id"] == bought.id
        assert await service.balance(buyer) == 10
        await service.assert_audit()


@cases(
    "status", ["", "x", "ACTIVE", "active%20", "active,ended", "null", "%00", "active%00", "%ff"]
)
async def test_an_unknown_status_is_refused_by_name(service: Service, status: str) -> None:
    person = await service.person()
    answer = await service.call("GET", f"{SESSIONS}?status={status}", token=person.token)
    refused(answer, "invalid_field", "status")


async def test_an_ended_session_says_when(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    await end(service, buyer, bought.id)
    (session,) = await listed(service, buyer, "?status=all")
    assert session["status"] == "ended"
    assert session.keys() == LISTED_FIELDS | ADDED_FIELDS | {"ended_at", "paid"}
    assert session["paid"] == 0.0
    assert session["created_at"] <= session["ended_at"] <= session["expires_at"]


async def test_ending_twice_answers_as_the_first_time(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    for _ in range(3):
        answer = await end(service, buyer, bought.id)
        assert (answer.status, answer.body) == (200, {"ok": True})
        assert await service.balance(buyer) == 10


async def test_ending_takes_any_case_of_an_identifier(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    assert (await end(service, buyer, bought.id.upper())).status == 200
    assert await listed(service, buyer) == []


async def test_the_session_of_another_user_cannot_be_ended(service: Service) -> None:
    buyer, other = await service.person(usd="10"), await service.person(usd="10")
    bought = await service.buy(buyer)
    foreign = await end(service, other, bought.id)
    unknown = await end(service, other, str(uuid.uuid4()))
    for answer in (foreign, unknown):
        refused(answer, "session_not_found", "session_id", status=404)
    assert foreign.body == unknown.body
    assert (await service.session(buyer, bought))["status"] == "active"
    assert await service.balance(buyer) == 9
    assert await service.balance(other) == 10


async def test_an_ended_session_of_another_user_stays_unknown(service: Service) -> None:
    buyer, other = await service.person(usd="10"), await service.person()
    bought = await service.buy(buyer)
    await end(service, buyer, bought.id)
    answer = await end(service, other, bought.id)
    refused(answer, "session_not_found", "session_id", status=404)


@cases(
    "session_id",
    [
        "x",
        "",
        " ",
        "0",
        "' OR 1=1 --",
        "00000000000040008000000000000000",
        "{00000000-0000-4000-8000-000000000000}",
        "urn:uuid:00000000-0000-4000-8000-000000000000",
        "00000000-0000-4000-8000-00000000000g",
        "00000000-0000-4000-8000-0000000000000",
        " 00000000-0000-4000-8000-000000000000",
        "00000000-0000-4000-8000-00000000000\uff10",
        "a" * 100_000,
        None,
        5,
        1.5,
        True,
        [],
        ["00000000-0000-4000-8000-000000000000"],
        {},
    ],
)
async def test_a_malformed_identifier_is_refused_by_name(service: Service, session_id: Any) -> None:
    person = await service.person()
    refused(await end(service, person, session_id), "invalid_field", "session_id")


async def test_an_identifier_is_required(service: Service) -> None:
    person = await service.person()
    for body in ({}, {"id": str(uuid.uuid4())}):
        answer = await service.call("POST", END, body, token=person.token)
        refused(answer, "invalid_field", "session_id")


def database_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("proxyd.db*")))


async def test_a_password_is_shown_once_and_kept_nowhere(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    async with targets.echo() as target:
        client = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        await client.send(b"hello")
        await client.receive(5)
        await client.close()
    assert bought.password not in str(await service.sessions(buyer))
    await end(service, buyer, bought.id)
    assert bought.password not in str(await service.sessions(buyer))
    stored = database_bytes(tmp_path)
    assert bought.username.encode() in stored
    for secret in (bought.password, "long enough", buyer.token):
        assert secret.encode() not in stored
        assert secret not in caplog.text


async def test_one_session_is_shown_with_its_cost_if_it_ends_now(service: Service) -> None:
    buyer = await service.person(usd="10")
    bought = await service.buy(buyer, quota=10**6, price=0.7)
    path = f"{SESSIONS}/{bought.id}"
    first = await service.call("GET", path, token=buyer.token)
    (listed_,) = await listed(service, buyer)
    assert first.body["session"] == listed_
    assert first.body["username"] == bought.username
    assert (first.body["held_usd"], first.body["due_usd"]) == (0.0007, 0)
    assert "password" not in str(first.body)
    async with targets.echo() as target:
        client = await reached(service, bought, target)
        await client.send(b"x" * 5_000)
        await client.receive(5_000)
        await client.close()
    now = await service.call("GET", path, token=buyer.token)
    assert now.body["session"]["bytes_used"] == 10_000
    assert now.body["due_usd"] == 7e-06
    await end(service, buyer, bought.id)
    over = await service.call("GET", path, token=buyer.token)
    assert over.body["due_usd"] == over.body["session"]["paid"] == 7e-06
    stranger = await service.person()
    for asked in (path, f"{SESSIONS}/nobody", f"{SESSIONS}/{bought.id[:-1]}"):
        answer = await service.call("GET", asked, token=stranger.token)
        assert (answer.status, answer.code) == (404, "session_not_found")


async def test_every_caller_can_read_the_offers_and_their_prices(tmp_path: Path) -> None:
    market = {
        "price_per_gb_default_usd": Decimal("0.5"),
        "price_per_gb_floor_usd": Decimal("0.25"),
        "session_cost_floor_usd": Decimal("0.1"),
    }
    async with running_in(tmp_path, market=market) as service:
        answer = await service.call("GET", "/api/bandwidth/terms")
        assert answer.status == 200, answer.body
        told = answer.body
        assert (told["price_per_gb"], told["price_per_gb_floor"]) == (0.5, 0.25)
        assert (told["cost_floor_usd"], told["has_passwordless"]) == (0.1, True)
        buyer = await service.person(usd="10")
        bought = await create(service, buyer, '{"gb": 1}')
        assert bought.body["cost_usd"] == told["price_per_gb"]
        (session,) = await listed(service, buyer)
        begun, ends = (
            datetime.fromisoformat(session[name]) for name in ("created_at", "expires_at")
        )
        assert (ends - begun).total_seconds() == told["lifetime_seconds"]


async def test_a_caller_with_a_login_reads_and_pays_their_own_price(service: Service) -> None:
    buyer, other = await service.person(usd="10"), await service.person()
    new = NewLimits(sessions=1, price_percent=50)
    context = service.daemon.market.context
    await user_limits.change(context, Machine("root"), buyer.email, new, "agreed")
    terms = "/api/bandwidth/terms"
    full = (await service.call("GET", terms)).body["price_per_gb"]
    own = (await service.call("GET", terms, token=buyer.token)).body["price_per_gb"]
    assert own == full / 2
    assert (await service.call("GET", terms, token=other.token)).body["price_per_gb"] == full
    assert (await service.call("GET", terms, token="wrong")).status == 401
    bought = await create(service, buyer, '{"gb": 1}')
    assert bought.body["cost_usd"] == own
    refused = await create(service, buyer, '{"gb": 1}')
    assert (refused.status, refused.code) == (400, "too_many_sessions")

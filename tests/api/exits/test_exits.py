"""Promises of the routes of exits: terms, consent, limits, earnings, coverage."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.base.cases import cases
from support.daemons.service import Answer, Person, Service
from support.market.exits import SomeAttached

from market.bandwidth.leases import LeaseState, Usage
from market.exits.consents import Coverage, ExitTerms, NoneAttached
from market.money.money import GB, MICRO

CONSENT = "/api/worker/exit/consent"
LIMITS = "/api/worker/exit/limits"
PAUSE = "/api/worker/exit/pause"
RESUME = "/api/worker/exit/resume"
REVOKE = "/api/worker/exit/revoke"
ME = "/api/exits/me"
DEFAULTS = {
    "connections": 16,
    "bytes_per_second": 0,
    "bytes_per_day": 5 * GB,
    "ports": [80, 443, 8080, 8443],
    "min_price_per_gb": 0.0,
}


@pytest.fixture
def offered(service: Service) -> Service:
    """A daemon that has exits; their listener is the test's."""
    market = service.daemon.market
    floors = {"ca": MICRO // 2, "de": 2 * MICRO, "any": MICRO}
    market.exits.terms = ExitTerms(is_offered=True, price_floors=floors, session_price_floor=MICRO)
    market.bandwidth._exit_terms = market.exits.terms
    market.exits.join(SomeAttached())
    return service


async def device(service: Service, owner: Person) -> dict[str, Any]:
    """Register a device; returns its `token` and `token_id`."""
    answer = await service.call(
        "POST", "/api/worker/token/create", {"name": "box"}, token=owner.token
    )
    return dict(answer.body)


async def consent(service: Service, owner: Person, token_id: Any, **fields: Any) -> Answer:
    terms = await service.call("GET", "/api/exits/terms")
    body = {"token_id": token_id, "terms_hash": terms.body["terms_hash"], **fields}
    return await service.call("POST", CONSENT, body, token=owner.token)


async def exit_of(service: Service, owner: Person) -> dict[str, Any]:
    made = await device(service, owner)
    assert (await consent(service, owner, made["token_id"])).status == 200
    return made


async def mine(service: Service, owner: Person) -> list[dict[str, Any]]:
    answer = await service.call("GET", ME, token=owner.token)
    assert answer.status == 200, answer.body
    return list(answer.body["exits"])


async def through(service: Service, buyer: Person, **carried: int) -> str:
    """Buy a gigabyte that leaves through exits, and report the bytes that devices carried of it."""
    body = {"gb": 1, "price_per_gb": 1, "exit": {}}
    bought = await service.call("POST", "/api/bandwidth/create", body, token=buyer.token)
    assert bought.status == 200, bought.body
    session_id = str(bought.body["session_id"])
    leases = service.daemon.market.leases
    grant = await leases.open(session_id)
    assert grant is not None
    counts = tuple((name.replace("_", "-"), size) for name, size in carried.items())
    usage = Usage(session_id, grant.lease_id or "", sum(carried.values()), counts)
    assert await leases.report([usage]) == [LeaseState(GB, is_used_up=False)]
    return session_id


async def test_every_caller_can_read_the_terms_and_the_address_of_exits(offered: Service) -> None:
    answer = await offered.call("GET", "/api/exits/terms")
    assert answer.status == 200
    assert answer.body["text"] == offered.daemon.market.exits.text
    assert len(answer.body["terms_hash"]) == 64
    assert (answer.body["share_percent"], answer.body["payout_hold_days"]) == (60, 7)
    place = answer.body["host"], answer.body["port"], answer.body["certificate_sha256"]
    assert place == ("exits.example.com", 1090, "ab" * 32)


async def test_a_worker_gets_the_address_to_attach_for_its_jobs(
    offered: Service, service: Service
) -> None:
    made = await device(offered, await offered.person())
    headers = {"X-Worker-Token": made["token"]}
    answer = await offered.call("GET", "/api/worker/tunnel", headers=headers)
    place = answer.body["host"], answer.body["port"], answer.body["certificate_sha256"]
    assert place == ("exits.example.com", 1090, "ab" * 32)
    assert (await offered.call("GET", "/api/worker/tunnel")).status == 401
    service.daemon.market.exits.join(NoneAttached())
    answer = await service.call("GET", "/api/worker/tunnel", headers=headers)
    assert (answer.status, answer.code) == (400, "tunnels_not_offered")


async def test_a_service_without_exits_says_so(service: Service) -> None:
    terms = await service.call("GET", "/api/exits/terms")
    assert "host" not in terms.body
    owner = await service.person(usd="5")
    made = await device(service, owner)
    answer = await consent(service, owner, made["token_id"])
    assert (answer.status, answer.code) == (400, "exits_not_offered")
    body = {"gb": 1, "exit": {}}
    answer = await service.call("POST", "/api/bandwidth/create", body, token=owner.token)
    assert (answer.status, answer.code, answer.field) == (400, "exits_not_offered", "exit")
    assert (await service.call("GET", "/api/exits/coverage")).body["countries"] == []


async def test_a_device_becomes_an_exit_and_stops_being_one(offered: Service) -> None:
    owner = await offered.person()
    made = await device(offered, owner)
    answer = await consent(offered, owner, made["token_id"], limits={"connections": 3})
    assert answer.body["limits"] == DEFAULTS | {"connections": 3}
    [shown] = await mine(offered, owner)
    assert shown["device_id"] == made["token_id"]
    assert (shown["state"], shown["limits"]["connections"]) == ("offline", 3)
    changes = {
        "token_id": made["token_id"],
        "limits": {"ports": [443], "min_price_per_gb": 0.5, "bytes_per_day": 0},
    }
    answer = await offered.call("POST", LIMITS, changes, token=owner.token)
    expected = DEFAULTS | {
        "connections": 3,
        "ports": [443],
        "min_price_per_gb": 0.5,
        "bytes_per_day": 0,
    }
    assert answer.body["limits"] == expected
    for limits in ({}, {"limits": {}}):  # to the same text, or to another one
        answer = await consent(offered, owner, made["token_id"], **limits)
        assert answer.body["limits"] == expected
    for path, state in ((PAUSE, "paused"), (RESUME, "offline"), (REVOKE, "revoked")):
        for _ in range(2):
            answer = await offered.call(
                "POST", path, {"token_id": made["token_id"]}, token=owner.token
            )
            assert answer.body == {"ok": True}
        assert [each["state"] for each in await mine(offered, owner)] == [state]
    answer = await offered.call("POST", PAUSE, {"token_id": made["token_id"]}, token=owner.token)
    assert (answer.status, answer.code) == (400, "consent_needed")


async def test_a_device_takes_its_own_consent_back(offered: Service) -> None:
    owner = await offered.person()
    made = await exit_of(offered, owner)
    headers = {"X-Worker-Token": made["token"]}
    assert (await offered.call("POST", REVOKE, headers=headers)).status == 200
    assert [each["state"] for each in await mine(offered, owner)] == ["revoked"]
    assert (await offered.call("POST", REVOKE)).status == 401
    answer = await offered.call("POST", REVOKE, {}, token=owner.token)
    assert (answer.status, answer.code, answer.field) == (400, "invalid_field", "token_id")


async def test_a_watcher_is_notified_of_a_revoked_token(offered: Service) -> None:
    owner = await offered.person()
    made, heard = await exit_of(offered, owner), list[str]()
    offered.daemon.market.exits.watch(heard.append)
    body = {"token_id": made["token_id"]}
    await offered.call("POST", "/api/worker/token/revoke", body, token=owner.token)
    assert heard == [made["token_id"]]
    assert [each["state"] for each in await mine(offered, owner)] == ["revoked"]


@cases(
    ("fields", "status", "code", "field"),
    [
        ({"terms_hash": "0" * 64}, 400, "terms_changed", "terms_hash"),
        ({"terms_hash": ""}, 400, "invalid_field", "terms_hash"),
        ({"token_id": "x"}, 400, "invalid_field", "token_id"),
        ({"token_id": str(uuid.uuid4())}, 404, "token_not_found", "token_id"),
        ({"limits": {"connections": 0}}, 400, "invalid_field", "limits.connections"),
        ({"limits": {"connections": 1_001}}, 400, "invalid_field", "limits.connections"),
        ({"limits": {"bytes_per_day": -1}}, 400, "invalid_field", "limits.bytes_per_day"),
        ({"limits": {"bytes_per_day": 2**62}}, 400, "invalid_field", "limits.bytes_per_day"),
        ({"limits": {"ports": []}}, 400, "invalid_field", "limits.ports"),
        ({"limits": {"ports": [25]}}, 400, "invalid_field", "limits.ports"),
        ({"limits": {"min_price_per_gb": -1}}, 400, "invalid_field", "limits.min_price_per_gb"),
        ({"limits": []}, 400, "invalid_field", "limits"),
    ],
)
async def test_a_wrong_consent_is_refused_by_name(
    offered: Service, fields: dict[str, Any], status: int, code: str, field: str
) -> None:
    owner = await offered.person()
    made = await device(offered, owner)
    answer = await consent(offered, owner, **{"token_id": made["token_id"], **fields})
    assert (answer.status, answer.code, answer.field) == (status, code, field)


@pytest.mark.parametrize("path", [CONSENT, LIMITS, PAUSE, RESUME, REVOKE])
async def test_no_user_decides_about_the_device_of_another(offered: Service, path: str) -> None:
    owner, other = await offered.person(), await offered.person()
    made = await exit_of(offered, owner)
    terms = (await offered.call("GET", "/api/exits/terms")).body["terms_hash"]
    body = {"token_id": made["token_id"], "terms_hash": terms, "limits": {}}
    answer = await offered.call("POST", path, body, token=other.token)
    assert (answer.status, answer.code) == (404, "token_not_found")
    assert [each["state"] for each in await mine(offered, owner)] == ["offline"]
    assert (await offered.call("POST", path, body)).status == 401


async def test_the_earnings_of_an_exit_are_shown_on_each_page_of_its_owner(
    offered: Service,
) -> None:
    owner, buyer = await offered.person(), await offered.person(usd="5")
    made = await exit_of(offered, owner)
    session_id = await through(offered, buyer, **{made["token_id"].replace("-", "_"): GB // 2})
    [shown] = await mine(offered, owner)
    assert (shown["bytes_today"], shown["bytes_total"]) == (GB // 2, GB // 2)
    assert (shown["earned_today_usd"], shown["earned_usd"]) == (0.3, 0.3)
    assert (shown["name"], shown["taken_back_usd"]) == ("box", 0.0)
    assert shown["pending_usd"] == 0.0
    devices = await offered.call("GET", "/api/worker/devices", token=owner.token)
    [listed] = devices.body["devices"]
    assert (listed["earn_today_usd"], listed["shared_bytes_today"]) == (0.3, GB // 2)
    body = {"session_id": session_id}
    await offered.call("POST", "/api/bandwidth/end", body, token=buyer.token)
    assert (await mine(offered, owner))[0]["pending_usd"] == 0.3
    answer = await offered.call("GET", "/api/worker/exit/earnings?by=day", token=owner.token)
    [day] = answer.body["earnings"]
    assert (day["bytes"], day["earned_usd"], answer.body["pending_usd"]) == (GB // 2, 0.3, 0.3)
    assert day["taken_back_usd"] == 0.0
    wallet = await offered.call("GET", "/api/wallet", token=owner.token)
    assert (wallet.body["usd_pending"], wallet.body["usd_balance"]) == (0.3, 0.0)
    held = datetime.fromisoformat(wallet.body["usd_payable_at"]) - datetime.now(UTC)
    assert timedelta(days=6.9) < held <= timedelta(days=7)
    assert await mine(offered, buyer) == []


async def test_a_device_that_is_attached_as_an_exit_is_online(offered: Service) -> None:
    owner = await offered.person()
    made = await exit_of(offered, owner)
    attached = offered.daemon.market.exits.attached
    assert isinstance(attached, SomeAttached)

    async def shown() -> list[tuple[bool, str, str]]:
        path = "/api/worker/devices"
        [listed] = (await offered.call("GET", path, token=owner.token)).body["devices"]
        one = await offered.call("GET", f"{path}/{made['token_id']}", token=owner.token)
        both = (listed, one.body["device"])
        return [(each["is_online"], each["work"], each["exit"]) for each in both]

    assert await shown() == [(False, "never_seen", "offline")] * 2
    for reason, state in (("", "online"), ("its quota is used up", "resting")):
        attached.states[made["token_id"]] = reason
        assert await shown() == [(True, "never_seen", state)] * 2
    await offered.call("POST", PAUSE, {"token_id": made["token_id"]}, token=owner.token)
    assert await shown() == [(False, "never_seen", "paused")] * 2


async def test_a_buyer_sees_where_a_session_left(offered: Service) -> None:
    owner, buyer = await offered.person(), await offered.person(usd="5")
    made = [await exit_of(offered, owner) for _ in range(2)]
    attached = offered.daemon.market.exits.attached
    assert isinstance(attached, SomeAttached)
    attached.come(made[0]["token_id"], "de")
    await offered.daemon.market.exits.look()
    carried = {each["token_id"].replace("-", "_"): 100 + at for at, each in enumerate(made)}
    session_id = await through(offered, buyer, **carried)
    path = f"/api/bandwidth/sessions/{session_id}/exits"
    answer = await offered.call("GET", path, token=buyer.token)
    assert answer.body["countries"] == [
        {"country": "", "exits": 1, "bytes": 101},
        {"country": "de", "exits": 1, "bytes": 100},
    ]
    for token, wrong in ((owner.token, path), (buyer.token, path.replace(session_id, "x"))):
        answer = await offered.call("GET", wrong, token=token)
        assert (answer.status, answer.code) == (404, "session_not_found")


async def test_coverage_is_shown_in_bands(offered: Service) -> None:
    attached = offered.daemon.market.exits.attached
    assert isinstance(attached, SomeAttached)
    counts = {"xx": 1, "fr": 9, "de": 10, "us": 999, "ca": 5_000, "jp": 0, "": 4}
    attached.places = [Coverage(country, exits) for country, exits in counts.items()]
    answer = await offered.call("GET", "/api/exits/coverage")
    assert answer.body["countries"] == [
        {"country": "ca", "exits": "1000+", "price_per_gb_floor": 1.0},
        {"country": "de", "exits": "10-99", "price_per_gb_floor": 2.0},
        {"country": "fr", "exits": "1-9", "price_per_gb_floor": 1.0},
        {"country": "us", "exits": "100-999", "price_per_gb_floor": 1.0},
        {"country": "xx", "exits": "1-9", "price_per_gb_floor": 1.0},
    ]
    assert answer.body["attribution"] == ["Places: somebody"]


async def test_a_sale_has_wishes_about_exits(offered: Service) -> None:
    buyer = await offered.person(usd="20")
    wanted = {
        "country": "DE_fr",
        "city": "Berlin",
        "asn": 3320,
        "kind": "residential",
        "session": "abc",
        "lifetime_seconds": 600,
        "strict": True,
        "rotate": None,
        "dns": "exit",
        "tls": "only",
    }
    body = {"gb": 1, "price_per_gb": 2, "exit": wanted}
    answer = await offered.call("POST", "/api/bandwidth/create", body, token=buyer.token)
    assert answer.status == 200, answer.body
    await offered.buy(buyer)
    plain, session = await offered.sessions(buyer)
    assert session["exit"] == (
        "country-de_fr-city-berlin-asn-3320-kind-residential-session-abc-lifetime-10"
        "-dns-exit-tls-only-strict"
    )
    assert "exit" not in plain


@cases(
    ("wanted", "code", "field"),
    [
        ({"country": "germany"}, "invalid_field", "exit.country"),
        ({"country": 49}, "invalid_field", "exit.country"),
        ({"city": "a-b"}, "invalid_field", "exit.city"),
        ({"city": ""}, "invalid_field", "exit.city"),
        ({"asn": 0}, "invalid_field", "exit.asn"),
        ({"kind": "house"}, "invalid_field", "exit.kind"),
        ({"session": "a b"}, "invalid_field", "exit.session"),
        ({"lifetime_seconds": 86_401}, "invalid_field", "exit.lifetime_seconds"),
        ({"strict": True, "rotate": True}, "invalid_field", "exit.rotate"),
        ({"strict": "yes"}, "invalid_field", "exit.strict"),
        ({"country": "de"}, "price_below_floor", "price_per_gb"),
        ("de", "invalid_field", "exit"),
    ],
)
async def test_an_impossible_wish_is_refused_by_name(
    offered: Service, wanted: Any, code: str, field: str
) -> None:
    buyer = await offered.person(usd="5")
    body = {"gb": 1, "price_per_gb": 1, "exit": wanted}
    answer = await offered.call("POST", "/api/bandwidth/create", body, token=buyer.token)
    assert (answer.status, answer.code, answer.field) == (400, code, field)
    assert await offered.balance(buyer) == 5.0

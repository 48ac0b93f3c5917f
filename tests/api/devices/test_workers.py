"""Routes of worker devices: tokens, heartbeats, the list (4.3 to 4.6)."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.clients.story import refused
from support.daemons.service import Answer, Person, Service

CREATE = "/api/worker/token/create"
TOKENS = "/api/worker/tokens"
REVOKE = "/api/worker/token/revoke"
HEARTBEAT = "/api/worker/heartbeat"
OFFLINE = "/api/worker/offline"
DEVICES = "/api/worker/devices"
DEVICE_FIELDS = {
    "id": str,
    "hostname": str,
    "device_type": str,
    "gpu_name": str,
    "cpu_cores": int,
    "ram_gb": float,
    "is_online": bool,
    "earn_today": float,
    "earn_today_usd": float,
    "shared_bytes_today": int,
    "reputation": dict,
    "work": str,
}
AS_USER = [("POST", CREATE), ("GET", TOKENS), ("POST", REVOKE), ("GET", DEVICES)]
AS_WORKER = [("POST", HEARTBEAT), ("POST", OFFLINE)]


async def create(service: Service, person: Person, **fields: Any) -> Answer:
    return await service.call("POST", CREATE, {"name": "rig", **fields}, token=person.token)


async def worker(service: Service, person: Person, **fields: Any) -> dict[str, Any]:
    """Make a device; returns its `token` and `token_id`."""
    answer = await create(service, person, **fields)
    assert answer.status == 200, answer.body
    return dict(answer.body)


async def heartbeat(
    service: Service, token: str, body: Any = None, *, raw: bytes | None = None
) -> Answer:
    headers = {"X-Worker-Token": token}
    return await service.call("POST", HEARTBEAT, body, raw=raw, headers=headers)


async def offline(service: Service, token: str) -> Answer:
    return await service.call("POST", OFFLINE, headers={"X-Worker-Token": token})


async def revoke(service: Service, person: Person, token_id: Any) -> Answer:
    return await service.call("POST", REVOKE, {"token_id": token_id}, token=person.token)


async def listed(service: Service, person: Person, path: str = DEVICES) -> list[dict[str, Any]]:
    answer = await service.call("GET", path, token=person.token)
    assert answer.status == 200, answer.body
    return list(answer.body["devices" if path.startswith(DEVICES) else "tokens"])


async def test_a_new_token_has_the_fields_of_the_specification(service: Service) -> None:
    owner = await service.person()
    answer = await create(service, owner, device_type="server", min_price_usd=0.25)
    assert answer.status == 200
    assert answer.body.keys() == {"ok", "token", "token_id"}
    assert answer.body["ok"] is True
    assert len(answer.body["token"]) >= 43
    assert str(uuid.UUID(answer.body["token_id"])) == answer.body["token_id"]


async def test_a_new_device_is_listed_offline_with_the_fields_of_the_specification(
    service: Service,
) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    answer = await service.call("GET", DEVICES, token=owner.token)
    assert (answer.status, answer.body.keys()) == (200, {"ok", "devices"})
    assert answer.body["ok"] is True
    [device] = answer.body["devices"]
    assert {name: type(value) for name, value in device.items()} == DEVICE_FIELDS
    assert device == {
        "id": made["token_id"],
        "hostname": "rig",
        "device_type": "desktop",
        "gpu_name": "",
        "cpu_cores": 0,
        "ram_gb": 0.0,
        "is_online": False,
        "earn_today": 0.0,
        "earn_today_usd": 0.0,
        "shared_bytes_today": 0,
        "reputation": {
            "score": 0.5,
            "reliability": 0.5,
            "correctness": 1.0,
            "attempts": 0,
            "checks": 0,
        },
        "work": "never_seen",
    }


async def test_a_heartbeat_may_be_empty_in_chunks(service: Service) -> None:
    made = await worker(service, await service.person())

    async def nothing() -> AsyncIterator[bytes]:
        return
        yield b""

    headers = {"X-Worker-Token": made["token"], "Content-Type": "application/json"}
    async with service.http.post(
        service.url + HEARTBEAT, data=nothing(), headers=headers
    ) as answer:
        assert answer.request_info.headers["Transfer-Encoding"] == "chunked"
        assert answer.status == 200


@cases("text", ["a\nb", "a\x1b[2J", "\x7f", "a\u2028b", "a\u202eb"])
@cases("field", ["hostname", "gpu_name"])
async def test_the_shown_fields_of_a_device_have_no_control_characters(
    service: Service, field: str, text: str
) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    refused(await heartbeat(service, made["token"], {field: text}), "invalid_field", field)
    [device] = await listed(service, owner)
    assert (device["hostname"], device["gpu_name"], device["is_online"]) == ("rig", "", False)


async def test_a_heartbeat_without_a_body_makes_the_device_online(service: Service) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    for body in (None, b"", b"{}"):
        answer = await heartbeat(service, made["token"], raw=body)
        assert (answer.status, answer.body) == (200, {"ok": True})
        [device] = await listed(service, owner)
        assert device["is_online"] is True
        answer = await offline(service, made["token"])
        assert (answer.status, answer.body) == (200, {"ok": True})
        [device] = await listed(service, owner)
        assert device["is_online"] is False


async def test_a_report_is_read_at_once_and_keeps_the_fields_that_the_next_leaves_out(
    service: Service,
) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    report = {
        "gpu_name": "RTX 4090",
        "cpu_cores": 16,
        "ram_gb": 64,
        "cpu_temp": 61.5,
        "gpu_temp": 70,
        "cpu_pct": 12.5,
        "ram_pct": 40.25,
    }
    assert (await heartbeat(service, made["token"], report)).body == {"ok": True}
    [device] = await listed(service, owner)
    reported = dict.fromkeys(("cpu_temp", "gpu_temp", "cpu_pct", "ram_pct"), float)
    fields = {**DEVICE_FIELDS, **reported, "last_heartbeat_at": str}
    assert {name: type(value) for name, value in device.items()} == fields
    assert (device["gpu_name"], device["cpu_cores"], device["ram_gb"]) == ("RTX 4090", 16, 64.0)
    later = {"hostname": "host", "cpu_cores": 8, "gpu_name": None, "unknown": [1]}
    assert (await heartbeat(service, made["token"], later)).status == 200
    [device] = await listed(service, owner)
    assert (device["hostname"], device["gpu_name"]) == ("host", "RTX 4090")
    assert (device["cpu_cores"], device["ram_gb"]) == (8, 64.0)


async def test_the_tokens_are_listed_without_their_secrets(service: Service) -> None:
    owner = await service.person()
    plain = await worker(service, owner)
    priced = await worker(service, owner, name="phone", device_type="phone", min_price_usd=0.1)
    await revoke(service, owner, plain["token_id"])
    answer = await service.call("GET", TOKENS, token=owner.token)
    assert (answer.status, answer.body.keys()) == (200, {"ok", "tokens"})
    first, second = answer.body["tokens"]
    times = {"created_at", "revoked_at"}
    assert {name: first[name] for name in first.keys() - times} == {
        "token_id": priced["token_id"],
        "name": "phone",
        "device_type": "phone",
        "min_price_usd": 0.1,
    }
    assert {name: second[name] for name in second.keys() - times} == {
        "token_id": plain["token_id"],
        "name": "rig",
        "device_type": "desktop",
    }
    assert "revoked_at" not in first
    for text in (first["created_at"], second["created_at"], second["revoked_at"]):
        at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=10)
    for made in (plain, priced):
        assert made["token"] not in msgspec.json.encode(answer.body).decode()


@cases(("method", "path"), AS_USER)
@cases("token", [None, "", "wrong", "a.b.c"])
async def test_without_a_valid_session_token_nothing_is_done(
    service: Service, method: str, path: str, token: str | None
) -> None:
    body = {"name": "rig"} if method == "POST" else None
    refused(await service.call(method, path, body, token=token), "unauthorized", None, 401)


@pytest.mark.parametrize(("method", "path"), AS_WORKER)
async def test_without_a_valid_worker_token_nothing_is_done(
    service: Service, method: str, path: str
) -> None:
    owner = await service.person()
    for headers in (
        {},
        {"X-Worker-Token": ""},
        {"X-Worker-Token": "wrong"},
        {"X-Worker-Token": "x" * 5_000},
        {"X-Worker-Token": "é"},
        {"X-Worker-Token": owner.token},
        {"Authorization": f"Bearer {(await worker(service, owner))['token']}"},
    ):
        answer = await service.call(method, path, headers=headers)
        refused(answer, "worker_unauthorized", None, 401)


async def test_a_worker_token_is_no_session_token(service: Service) -> None:
    made = await worker(service, await service.person())
    refused(await service.call("GET", DEVICES, token=made["token"]), "unauthorized", None, 401)
    answer = await service.call("GET", DEVICES, headers={"X-Worker-Token": made["token"]})
    refused(answer, "unauthorized", None, 401)


@pytest.mark.parametrize("header", [b"X-Worker-Token: \xff\xfe", b"X-Worker-Token: \xed\xa0\x80"])
async def test_a_worker_token_that_is_no_text_is_refused_like_any_other(
    service: Service, header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    connection = socket.socket()
    connection.setblocking(False)

    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", service.api_port))
    head = f"POST {OFFLINE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
    await loop.sock_sendall(connection, head + header + b"\r\nContent-Length: 0\r\n\r\n")
    received = b""
    while data := await loop.sock_recv(connection, 65_536):
        received += data
    connection.close()
    assert received.split(b" ", 2)[1] == b"401", received
    assert b"worker_unauthorized" in received
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_revoked_token_is_refused_at_once(service: Service) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    await heartbeat(service, made["token"])
    for _ in range(2):
        answer = await revoke(service, owner, made["token_id"])
        assert (answer.status, answer.body) == (200, {"ok": True})
    refused(await heartbeat(service, made["token"]), "worker_unauthorized", None, 401)
    refused(await offline(service, made["token"]), "worker_unauthorized", None, 401)
    assert not any(device["is_online"] for device in await listed(service, owner))


async def test_a_token_of_another_user_cannot_be_revoked(service: Service) -> None:
    owner, other = await service.person(), await service.person()
    made = await worker(service, owner)
    answer = await revoke(service, other, made["token_id"])
    refused(answer, "token_not_found", "token_id", 404)
    answer = await revoke(service, owner, str(uuid.uuid4()))
    refused(answer, "token_not_found", "token_id", 404)
    assert (await heartbeat(service, made["token"])).status == 200


@cases("token_id", ["", "x", 1, None, [], "0" * 32, "{" + "0" * 36 + "}"])
async def test_a_malformed_token_id_is_refused_by_name(service: Service, token_id: Any) -> None:
    owner = await service.person()
    refused(await revoke(service, owner, token_id), "invalid_field", "token_id")
    answer = await service.call("POST", REVOKE, {}, token=owner.token)
    refused(answer, "invalid_field", "token_id")


@cases(
    ("body", "field"),
    [
        ("{}", "name"),
        ('{"name": ""}', "name"),
        ('{"name": null}', "name"),
        ('{"name": 1}', "name"),
        ('{"name": "a\\nb"}', "name"),
        ('{"name": "%s"}' % ("x" * 201), "name"),
        ('{"name": "rig", "device_type": "laptop"}', "device_type"),
        ('{"name": "rig", "device_type": "Desktop"}', "device_type"),
        ('{"name": "rig", "device_type": ""}', "device_type"),
        ('{"name": "rig", "device_type": 1}', "device_type"),
        *(
            (f'{{"name": "rig", "min_price_usd": {price}}}', "min_price_usd")
            for price in ("-0.01", "1e400", '"1"', "true", "[]", "1e300")
        ),
        ('{"name": "rig", "min_price_usd": NaN}', None),
        ('{"name": "rig", "min_price_usd": Infinity}', None),
        ("", None),
        ("not JSON", None),
        ("[]", None),
        ('"rig"', None),
        ('{"name": "rig"', None),
    ],
)
async def test_a_token_that_cannot_be_made_is_refused_by_name(
    service: Service, body: str, field: str | None
) -> None:
    owner = await service.person()
    answer = await service.call("POST", CREATE, raw=body.encode(), token=owner.token)
    refused(answer, "invalid_field", field)
    assert await listed(service, owner) == []


@pytest.mark.parametrize("kind", ["desktop", "mini_pc", "server", "phone"])
async def test_every_type_of_device_is_taken(service: Service, kind: str) -> None:
    owner = await service.person()
    await worker(service, owner, device_type=kind, min_price_usd=0)
    assert [device["device_type"] for device in await listed(service, owner)] == [kind]


async def test_null_in_an_optional_field_means_absent(service: Service) -> None:
    owner = await service.person()
    made = await worker(service, owner, device_type=None, min_price_usd=None)
    [token] = await listed(service, owner, TOKENS)
    assert token["device_type"] == "desktop"
    assert "min_price_usd" not in token
    fields = (
        "hostname",
        "gpu_name",
        "cpu_cores",
        "ram_gb",
        "cpu_temp",
        "gpu_temp",
        "cpu_pct",
        "ram_pct",
    )
    assert (await heartbeat(service, made["token"], dict.fromkeys(fields))).status == 200
    [device] = await listed(service, owner)
    assert (device["hostname"], device["is_online"]) == ("rig", True)


@cases(
    ("field", "values"),
    [
        ("cpu_temp", ["-50.1", "150.1", "1e400", '"60"', "true"]),
        ("gpu_temp", ["-50.1", "150.1", "1e400", '"60"', "[]"]),
        ("cpu_pct", ["-0.1", "100.1", "1e400", '"60"', "{}"]),
        ("ram_pct", ["-0.1", "100.1", "1e400", '"60"', "false"]),
        ("cpu_cores", ["0", "-1", "1.5", "1.0", "100001", "1e2", '"4"', "true"]),
        ("ram_gb", ["0", "-1", "1e400", "1000001", '"16"', "true"]),
        ("gpu_name", ["1", "[]", '"%s"' % ("x" * 201)]),
        ("hostname", ["1", '""', '"%s"' % ("x" * 201)]),
    ],
)
async def test_a_report_out_of_range_is_refused_by_name_and_changes_nothing(
    service: Service, field: str, values: list[str]
) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    before = await listed(service, owner)
    for value in values:
        raw = f'{{"{field}": {value}}}'.encode()
        refused(await heartbeat(service, made["token"], raw=raw), "invalid_field", field)
    assert await listed(service, owner) == before


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
async def test_a_report_that_is_not_json_is_refused(service: Service, value: str) -> None:
    made = await worker(service, await service.person())
    for raw in (f'{{"cpu_temp": {value}}}', "hello", "[]", "1", "null", '{"cpu_temp": 1', " "):
        answer = await heartbeat(service, made["token"], raw=raw.encode())
        refused(answer, "invalid_field", None)


@pytest.mark.parametrize(
    "report",
    [
        {"cpu_temp": -50, "gpu_temp": -50, "cpu_pct": 0, "ram_pct": 0, "cpu_cores": 1},
        {"cpu_temp": 150, "gpu_temp": 150, "cpu_pct": 100, "ram_pct": 100, "ram_gb": 0.001},
        {"gpu_name": "", "hostname": "x" * 200},
    ],
)
async def test_a_report_at_the_ends_of_the_ranges_is_taken(
    service: Service, report: dict[str, Any]
) -> None:
    made = await worker(service, await service.person())
    assert (await heartbeat(service, made["token"], report)).body == {"ok": True}


async def test_devices_and_tokens_of_others_are_not_listed(service: Service) -> None:
    owner, other = await service.person(), await service.person()
    mine = await worker(service, owner)
    await worker(service, other)
    assert [device["id"] for device in await listed(service, owner)] == [mine["token_id"]]
    assert [token["token_id"] for token in await listed(service, owner, TOKENS)] == [
        mine["token_id"]
    ]


@pytest.mark.parametrize(
    ("path", "key", "name"), [(DEVICES, "devices", "id"), (TOKENS, "tokens", "token_id")]
)
async def test_pages_follow_each_other_newest_first(
    service: Service, path: str, key: str, name: str
) -> None:
    owner = await service.person()
    made = [(await worker(service, owner))["token_id"] for _ in range(5)]
    seen, cursor = [], ""
    for size in (2, 2, 1):
        answer = await service.call("GET", f"{path}?limit=2{cursor}", token=owner.token)
        assert len(answer.body[key]) == size
        seen += [item[name] for item in answer.body[key]]
        cursor = f"&cursor={answer.body.get('next_cursor')}"
    assert "next_cursor" not in answer.body
    assert seen == made[::-1]


@cases("path", [DEVICES, TOKENS])
@cases(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=1.5", "limit"),
        ("cursor=x", "cursor"),
    ],
)
async def test_a_page_that_cannot_be_is_refused_by_name(
    service: Service, path: str, query: str, field: str
) -> None:
    owner = await service.person()
    answer = await service.call("GET", f"{path}?{query}", token=owner.token)
    refused(answer, "invalid_field", field)


async def test_reports_reach_the_store_while_the_service_runs(service: Service) -> None:
    owner = await service.person()
    made = await worker(service, owner)
    await heartbeat(service, made["token"], {"gpu_name": "A100"})

    async def stored(tx: Any) -> str | None:
        return await tx.one(str, "SELECT gpu_name FROM devices")

    async def is_written() -> bool:
        return await service.daemon.store.read(stored) == "A100"

    await until(is_written)

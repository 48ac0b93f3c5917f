"""One held request brings work; its replies, its errors, and the effect of a daemon's end."""

import asyncio
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec.structs import replace
from support.base.cases import cases
from support.base.waiting import until
from support.daemons.service import Answer, Person, Service

from market.base.bus import DEVICES

CAPACITY = {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50}
CAPABILITIES = {"executors": ["bwrap"], "job_types": ["script", "docker"], "arch": "x86_64"}
ASKED = {"capacity": CAPACITY, "capabilities": CAPABILITIES}
JOB = {
    "title": "hello",
    "job_type": "script",
    "price_credit": 10,
    "duration_hrs": 2,
    "payload": {"script": "print('hello')", "secrets": {"TOKEN": "secret"}, "timeout_s": 60},
    "resources": {"cores": 2},
}


async def device_of(service: Service, **fields: Any) -> str:
    """Register a device of a new user, and return its token."""
    owner = await service.person()
    body = {"name": "rig", **fields}
    made = await service.call("POST", "/api/worker/token/create", body, token=owner.token)
    return str(made.body["token"])


async def post(service: Service, buyer: Person, **changes: Any) -> str:
    made = await service.call("POST", "/api/jobs", {**JOB, **changes}, token=buyer.token)
    assert made.status == 200, made.body
    return str(made.body["job_id"])


async def next_of(service: Service, token: str, **changes: Any) -> Answer:
    """Let a device ask."""
    headers = {"X-Worker-Token": token}
    return await service.call("POST", "/api/worker/next", {**ASKED, **changes}, headers=headers)


def later(service: Service, token: str, **changes: Any) -> "asyncio.Task[Answer]":
    return asyncio.create_task(next_of(service, token, wait_s=30, **changes))


async def held(service: Service, count: int = 1) -> None:
    dispatch = service.daemon.market.dispatch
    await until(lambda: dispatch.held == count, f"{count} requests are held")


async def test_devices_with_the_same_offer_share_one_object_unless_it_is_large(
    service: Service,
) -> None:
    devices = service.daemon.market.dispatch.devices
    for gpus, is_shared in ((8, True), (9, False)):
        capabilities = {**CAPABILITIES, "gpus": [{"name": "A100"}] * gpus}
        for _ in range(2):
            await next_of(service, await device_of(service), capabilities=capabilities)
        *_, first, second = map(devices.find, devices)
        assert first is not None
        assert second is not None
        assert first.offer == second.offer
        assert (first.offer is second.offer) == is_shared


async def test_the_body_of_a_held_request_counts_for_the_memory_until_it_is_answered(
    service: Service,
) -> None:
    token = await device_of(service)
    server = service.daemon.http._server
    assert server is not None
    answer = later(service, token)
    await held(service)
    assert server.memory.total == len(msgspec.json.encode({**ASKED, "wait_s": 30}))
    answer.cancel()
    await until(lambda: server.memory.total == 0, "the request is over")


async def test_a_job_that_no_device_runs_is_put_up_with_a_warning(service: Service) -> None:
    buyer = await service.person(credit="100")
    image = {"job_type": "docker", "payload": {"image": "a/b:c"}}

    async def warnings(**changes: Any) -> list[str]:
        body = {**JOB, **changes}
        return list(
            (await service.call("POST", "/api/jobs", body, token=buyer.token)).body["warnings"]
        )

    [warning] = await warnings(**image)
    assert warning.startswith("No device has asked for work")
    token = await device_of(service)
    await next_of(service, token, capacity={"slots": 0})  # it has nothing free, and still counts
    [warning] = await warnings(**image)
    assert warning.startswith("The only device")
    assert await warnings() == []
    can = {**CAPABILITIES, "executors": ["bwrap", "podman"]}
    await next_of(service, await device_of(service), capacity={"slots": 0}, capabilities=can)
    assert await warnings(**image) == []


async def test_copies_that_too_few_owners_can_take_are_put_up_with_a_warning(
    service: Service,
) -> None:
    buyer = await service.person(credit="100")
    copied = {**JOB, "trust": {"copies": 3}}
    busy = {"capacity": {"slots": 0}}

    async def warnings() -> list[str]:
        answer = await service.call("POST", "/api/jobs", copied, token=buyer.token)
        for job_id in answer.body["copies"]:
            await service.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
        return list(answer.body["warnings"])

    [warning] = await warnings()
    assert warning.startswith("No device has asked for work")
    first = await device_of(service)
    own = {"name": "rig"}
    made = await service.call("POST", "/api/worker/token/create", own, token=buyer.token)
    await next_of(service, first, **busy)
    await next_of(service, str(made.body["token"]), **busy)  # it gets none of its owner's jobs
    [warning] = await warnings()
    assert warning == (
        "3 copies wait, and each goes to a device of another owner, in another network: of the 2"
        " that asked last only those of 1 owner can take one."
    )
    second, third = await device_of(service), await device_of(service)
    await next_of(service, second, **busy)
    await next_of(service, third, **busy)
    answer = await service.call("POST", "/api/jobs", copied, token=buyer.token)
    assert answer.body["warnings"] == []
    [work] = (await next_of(service, first, wait_s=30)).body["jobs"]
    await next_of(service, third, **busy, capabilities={**CAPABILITIES, "job_types": []})
    waiting = next(each for each in answer.body["copies"] if each != work["job_id"])
    shown = await service.call("GET", f"/api/jobs/{waiting}", token=buyer.token)
    [warning] = shown.body["job"]["warnings"]  # the first one's owner has taken one already
    assert warning.startswith("2 copies wait,")
    assert warning.endswith("of the 4 that asked last only those of 1 owner can take one.")
    taken = await service.call("GET", f"/api/jobs/{work['job_id']}", token=buyer.token)
    assert taken.body["job"]["warnings"] == []
    await next_of(service, second, wait_s=30)
    open_jobs = [
        await service.call("GET", f"/api/jobs/{each}", token=buyer.token)
        for each in answer.body["copies"]
    ]
    [last] = [each for reply in open_jobs for each in reply.body["job"]["warnings"]]
    assert last.startswith("This copy goes to")


async def test_a_job_that_listens_waits_for_a_device_that_lets_its_buyer_in(
    service: Service,
) -> None:
    token, buyer = await device_of(service), await service.person(credit="100")
    await next_of(service, token)
    await next_of(service, await device_of(service), capabilities={**CAPABILITIES, "job_types": []})
    listening = {**JOB["payload"], "ports": [{"name": "web", "port": 8000}]}
    job_id = await post(service, buyer, payload=listening)

    async def shown() -> list[str]:
        answer = await service.call("GET", f"/api/jobs/{job_id}", token=buyer.token)
        return list(answer.body["job"]["warnings"])

    [warning] = await shown()
    words = (
        "None of the 2 devices that ask for work now runs such a job: 1 takes no jobs of this type"
        " and 1 cannot open the ports of a job; 2 of them lack nothing else."
    )
    assert words in warning
    serves = {**CAPABILITIES, "executors": ["bwrap", "podman"], "ports": ["podman"]}
    assert (await next_of(service, token, capabilities=serves)).body["jobs"] == []
    assert await shown() == [warning]  # under podman it could, which does not run this one
    serves["ports"] = ["bwrap"]
    await next_of(service, token, capabilities=serves, capacity={"slots": 0})
    assert await shown() == []
    [work] = (await next_of(service, token, capabilities=serves)).body["jobs"]
    assert work["job_id"] == job_id


async def test_a_job_with_archives_waits_for_a_device_that_can_unpack_them(
    service: Service,
) -> None:
    """An input to unpack, or a checkpoint: the device may go on with that of another one."""
    token, buyer = await device_of(service), await service.person(credit="100")
    walls = {**CAPABILITIES, "archives": False}
    url = {"name": "x", "url": "https://example.com/x.tar", "sha256": "0" * 64}
    for fields in (
        {"inputs": [{**url, "unpack": True}]},
        {"checkpoint": {"path": "ckpt", "every_s": 60}},
    ):
        await next_of(service, token, capabilities=walls)
        job_id = await post(service, buyer, payload={**JOB["payload"], **fields})
        answer = await service.call("GET", f"/api/jobs/{job_id}", token=buyer.token)
        [warning] = answer.body["job"]["warnings"]
        assert "cannot unpack archives safely" in warning
        assert (await next_of(service, token, capabilities=walls)).body["jobs"] == []
        [work] = (await next_of(service, token, wait_s=30)).body["jobs"]
        assert work["job_id"] == job_id
        await service.call(
            "POST", f"/api/jobs/{job_id}/fail", {"reason": "done"},
            headers={"X-Worker-Token": token},
        )  # fmt: skip
        await service.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
    plain = await post(service, buyer, payload={**JOB["payload"], "inputs": [url]})
    [work] = (await next_of(service, token, wait_s=30, capabilities=walls)).body["jobs"]
    assert work["job_id"] == plain


async def test_a_job_that_is_posted_reaches_a_device_that_waits_whole(service: Service) -> None:
    token, buyer = await device_of(service), await service.person(credit="100")
    asking = later(service, token)
    await held(service)
    job_id = await post(service, buyer)
    answer = (await asking).body
    assert answer.pop("seen") == 1
    [work] = answer.pop("jobs")
    assert answer == {"ok": True, "actions": [], "lease_s": 600}
    assert work == {
        "job_id": job_id,
        "attempt": 1,
        "title": "hello",
        "job_type": "script",
        "duration_hrs": 2,
        "price_credit": 10.0,
        "payload": JOB["payload"],
        "resources": {"cores": 2.0},
        "timeout_s": 60,
        "lease_s": 600,
        "prepare_s": 1_680,
        "inputs": [],
    }
    accepted = await service.call(
        "GET", f"/api/worker/jobs/{job_id}", headers={"X-Worker-Token": token}
    )
    assert accepted.body["job"]["attempt"] == 1


async def test_a_device_with_no_slot_gets_only_actions(service: Service) -> None:
    token, buyer = await device_of(service), await service.person(credit="100")
    job_id = await post(service, buyer)
    answer = await next_of(service, token, capacity={**CAPACITY, "slots": 0})
    assert (answer.body["jobs"], answer.body["actions"]) == ([], [])
    taken = await next_of(service, token, wait_s=30)
    assert [work["job_id"] for work in taken.body["jobs"]] == [job_id]
    attempts = [{"job_id": job_id, "attempt": 1}]
    asking = later(service, token, attempts=attempts, capacity={"slots": 0})
    await held(service)
    await service.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
    device = await service.daemon.market.devices.authenticate(token)
    service.daemon.core.bus.publish(DEVICES, [device.id])
    [action] = (await asking).body["actions"]
    assert (action["job_id"], action["attempt"], action["action"]) == (job_id, 1, "stop")


async def test_an_agent_of_an_earlier_version_gets_work(service: Service) -> None:
    token, job_id = await device_of(service), await post(service, await service.person(credit="10"))
    answer = await next_of(service, token, can_benchmark=True, wait_s=5)
    assert [work["job_id"] for work in answer.body["jobs"]] == [job_id]
    assert "benchmark" not in answer.body


async def test_the_least_price_is_of_the_request_or_of_the_token(service: Service) -> None:
    buyer = await service.person(credit="100")
    dear = await device_of(service, min_price_usd=1.0)  # the job pays 0.05 USD an hour
    job_id = await post(service, buyer)
    offered = await service.call("GET", "/api/worker/offers", headers={"X-Worker-Token": dear})
    assert offered.body["jobs"] == []
    assert (await next_of(service, dear)).body["jobs"] == []
    assert (await next_of(service, dear, min_price_usd=0.051)).body["jobs"] == []
    [work] = (await next_of(service, dear, min_price_usd=0.05, wait_s=5)).body["jobs"]
    assert work["job_id"] == job_id


async def test_offers_are_the_fitting_jobs_the_best_first(service: Service) -> None:
    token, buyer = await device_of(service), await service.person(credit="100")
    headers = {"X-Worker-Token": token}
    cheap = await post(service, buyer, price_credit=1)
    dear = await post(service, buyer, price_credit=2)
    await post(service, buyer, resources={"cores": 5})
    await until(lambda: len(service.daemon.market.dispatch.jobs) == 3)
    assert (await next_of(service, token, capacity={**CAPACITY, "slots": 0})).status == 200
    answer = await service.call("GET", "/api/worker/offers", headers=headers)
    assert [job["id"] for job in answer.body["jobs"]] == [dear, cheap]
    assert answer.body["jobs"][0] == {
        "id": dear,
        "title": "hello",
        "job_type": "script",
        "price_credit": 2.0,
        "price_usd_per_hour": 0.01,
        "duration_hrs": 2,
        "resources": {"cores": 2.0},
    }
    one = await service.call("GET", "/api/worker/offers?limit=1", headers=headers)
    assert [job["id"] for job in one.body["jobs"]] == [dear]


@cases(
    ("changes", "field"),
    [
        ({"wait_s": 301}, "wait_s"),
        ({"seen": -1}, "seen"),
        ({"capacity": {"slots": -1}}, "capacity.slots"),
        ({"capabilities": {"executors": []}}, "capabilities.job_types"),
        (
            {"capabilities": {**CAPABILITIES, "gpus": [{"name": str(n)} for n in range(9)]}},
            "capabilities.gpus",
        ),
        ({"attempts": [{"job_id": "x" * 37, "attempt": 1}]}, "attempts.job_id"),
        ({"attempts": [{"job_id": "x", "attempt": 0}]}, "attempts.attempt"),
        ({"min_price_usd": -1}, "min_price_usd"),
    ],
)
async def test_a_mistake_is_named(service: Service, changes: Any, field: str) -> None:
    answer = await next_of(service, await device_of(service), **changes)
    assert (answer.status, answer.code) == (400, "invalid_field"), answer.body
    assert answer.field is not None
    assert field.split(".", maxsplit=1)[0] in answer.field


async def test_a_client_that_goes_away_leaves_nothing_waiting(service: Service) -> None:
    token = await device_of(service)
    url = f"{service.url}/api/worker/next"
    async with aiohttp.ClientSession(headers={"X-Worker-Token": token}) as client:
        asking = asyncio.create_task(client.post(url, json={**ASKED, "wait_s": 300}))
        await held(service)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await held(service, 0)


async def test_a_daemon_that_ends_answers_its_held_requests(service: Service) -> None:
    asking = [later(service, await device_of(service)) for _ in range(3)]
    await held(service, 3)
    service.daemon.services.drain()
    answers = await asyncio.gather(*asking)
    assert [(each.status, each.body["jobs"]) for each in answers] == [(200, [])] * 3


async def asked_raw(service: Service, token: str, version: str) -> socket.socket:
    """Ask over a connection of one's own, and wait until the request is held."""
    body = msgspec.json.encode({**ASKED, "wait_s": 300})
    head = (
        f"POST /api/worker/next HTTP/{version}\r\nHost: x\r\nX-Worker-Token: {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    where = urlsplit(service.url)
    sock = socket.create_connection((where.hostname or "", where.port or 0))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(sock, head.encode() + body)
    await held(service)
    return sock


async def received(sock: socket.socket, mark: bytes) -> bytes:
    """Return the received bytes once `mark` is in them, or the connection has ended."""
    data = b""
    while mark not in data:
        more = await asyncio.get_running_loop().sock_recv(sock, 4096)
        if not more:
            break
        data += more
    return data


async def test_a_request_that_is_held_for_long_gets_spaces_and_then_its_answer(
    service: Service,
) -> None:
    buyer = await service.person(credit="100")
    dispatch = service.daemon.market.dispatch
    dispatch.terms = replace(dispatch.terms, sign_seconds=0.02)
    with await asked_raw(service, await device_of(service), "1.1") as sock:
        data = await received(sock, b"1\r\n \r\n1\r\n \r\n1\r\n \r\n")
        assert data.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nX-Accel-Buffering: no\r\n" in data
        assert b"\r\nX-Request-Id: " in data
        job_id = await post(service, buyer)
        data += await received(sock, b"\r\n0\r\n\r\n")
        assert job_id.encode() in data
    # A library reads it as it reads every other answer.
    asking = later(service, await device_of(service))
    await held(service)
    job_id = await post(service, buyer)
    assert [work["job_id"] for work in (await asking).body["jobs"]] == [job_id]


async def test_a_client_of_http_1_0_gets_its_answer_in_one_piece(service: Service) -> None:
    buyer, token = await service.person(credit="100"), await device_of(service)
    dispatch = service.daemon.market.dispatch
    dispatch.terms = replace(dispatch.terms, sign_seconds=0.02)
    with await asked_raw(service, token, "1.0") as sock:
        job_id = await post(service, buyer)
        data = await received(sock, job_id.encode())
        assert b"\r\nContent-Length: " in data
        assert b"\r\n\r\n{" in data


async def test_a_failure_after_a_space_does_not_look_whole(service: Service) -> None:
    token = await device_of(service)
    dispatch = service.daemon.market.dispatch
    dispatch.terms = replace(dispatch.terms, sign_seconds=0.02)
    with await asked_raw(service, token, "1.1") as sock:
        data = await received(sock, b"1\r\n \r\n")
        device = await service.daemon.market.devices.authenticate(token)
        await service.daemon.market.devices.revoke(device.user_id, device.id)
        service.daemon.core.bus.publish(DEVICES, [device.id])
        with suppress(ConnectionResetError):
            data += await received(sock, b"\r\n0\r\n\r\n")
        assert not data.endswith(b"0\r\n\r\n")

"""Routes of artifacts: for a buyer, for a device, and for no other caller."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.base.mounts import fill, small_disk
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Answer, Person, Service, running_in
from support.workers.artifacts import announced, as_device, as_person, put, upload

CONTENT = bytes(range(256)) * 8_000  # 2 MB
WANTED = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
UNKNOWN = "01890000-0000-7000-8000-000000000000"


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


async def fetch(
    service: Service, path: str, who: dict[str, str], method: str = "GET", **headers: str
) -> tuple[int, bytes, Any]:
    async with service.http.request(
        method, service.url + path, headers={**who, **headers}
    ) as response:
        return response.status, await response.read(), response.headers


async def running_job(service: Service, buyer: Person) -> tuple[str, dict[str, str]]:
    """Put a job up and accept it; returns it, and the headers of its device."""
    answer = await service.call("POST", "/api/jobs", WANTED, token=buyer.token)
    device = as_device(await worker_token(service, await service.person()))
    job_id = str(answer.body["job_id"])
    accepted = await service.call("POST", f"/api/jobs/{job_id}/accept", headers=device)
    assert accepted.status == 200
    return job_id, device


async def test_a_file_is_sent_listed_fetched_and_deleted(service: Service) -> None:
    buyer = await service.person()
    who = as_person(buyer)
    artifact_id = await upload(service, who, CONTENT, name='in/größe "1".tar')
    listed = (await service.call("GET", "/api/artifacts", headers=who)).body["artifacts"]
    assert [(each["id"], each["kind"], each["size_bytes"]) for each in listed] == [
        (artifact_id, "input", len(CONTENT))
    ]
    status, content, headers = await fetch(service, f"/api/artifacts/{artifact_id}", who)
    assert (status, content) == (200, CONTENT)
    assert headers["Content-Disposition"] == (
        "attachment; filename=\"gr__e _1_.tar\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%221%22.tar"
    )
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Type"] == "application/octet-stream"
    assert "sandbox" in headers["Content-Security-Policy"]
    where = await service.call("GET", f"/api/artifacts/{artifact_id}/address", headers=who)
    assert where.body["url"] == f"/api/artifacts/{artifact_id}"
    traffic = service.daemon.market.artifacts.traffic
    assert traffic.received_bytes == traffic.sent_bytes == len(CONTENT)
    assert (traffic.finished, traffic.mismatches) == (1, 0)
    deleted = await service.call("DELETE", f"/api/artifacts/{artifact_id}", headers=who)
    assert deleted.status == 200
    for path in (f"/api/artifacts/{artifact_id}", f"/api/artifacts/{artifact_id}/address"):
        assert (await fetch(service, path, who))[0] == 404


async def test_ranges_are_answered_as_http_says(service: Service) -> None:
    buyer = as_person(await service.person())
    path = f"/api/artifacts/{await upload(service, buyer, CONTENT)}"
    size = len(CONTENT)
    for asked, start, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=1999999-", 1_999_999, size),
        (f"bytes=10-{size * 2}", 10, size),
        ("bytes=-5", size - 5, size),
        (f"bytes=-{size * 2}", 0, size),
    ):
        status, content, headers = await fetch(service, path, buyer, Range=asked)
        assert content == CONTENT[start:end], asked
        assert status == (200 if (start, end) == (0, size) else 206), asked
        if status == 206:
            assert headers["Content-Range"] == f"bytes {start}-{end - 1}/{size}"
    for asked in (f"bytes={size}-", "bytes=-0"):
        status, _, headers = await fetch(service, path, buyer, Range=asked)
        assert (status, headers["Content-Range"]) == (416, f"bytes */{size}")
    for asked in ("bytes=5-4", "bytes=-", "bytes=0-1,5-6", "lines=1-2", f"bytes={'9' * 30}-"):
        status, content, _ = await fetch(service, path, buyer, Range=asked)
        assert (status, content) == (200, CONTENT), asked
    status, content, headers = await fetch(service, path, buyer, "HEAD")
    assert (status, content, headers["Content-Length"]) == (200, b"", str(size))
    same, other = headers["ETag"], '"other"'
    for condition, expected in ((same, 206), (other, 200)):
        status, _, _ = await fetch(
            service, path, buyer, **{"Range": "bytes=1-2", "If-Range": condition}
        )
        assert status == expected


async def test_an_empty_file_is_a_file(service: Service) -> None:
    buyer = as_person(await service.person())
    artifact_id = await upload(service, buyer, b"")
    assert (await fetch(service, f"/api/artifacts/{artifact_id}", buyer))[:2] == (200, b"")


async def test_an_upload_that_broke_off_goes_on(service: Service) -> None:
    buyer = as_person(await service.person())
    body = announced(CONTENT)
    answer = await service.call("POST", "/api/artifacts", body, headers=buyer)
    url = answer.body["upload"]["url"]
    arrived = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield CONTENT[:1_000_000]
        arrived.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(put(service, url, half(), buyer))
    await arrived.wait()

    async def stored() -> int:
        again = await service.call("POST", "/api/artifacts", body, headers=buyer)
        assert again.body["artifact_id"] == answer.body["artifact_id"]
        return int(again.body["offset"])

    sending.cancel()
    await until(lambda: _is(stored(), 1_000_000), "what has arrived is stored")
    behind = await put(service, url, CONTENT[1_000_001:], buyer, 1_000_001)
    assert refused(behind) == (400, "artifact_mismatch")
    sent = await put(service, url, CONTENT[1_000_000:], buyer, 1_000_000)
    assert sent.body["offset"] == len(CONTENT)
    done = await service.call("POST", url.replace("/content", "/done"), headers=buyer)
    assert done.status == 200, done.body
    assert await stored() == len(CONTENT)


async def _is(number: Any, expected: int) -> bool:
    return bool(await number == expected)


async def test_an_upload_that_differs_from_its_announcement_is_refused_in_words(
    service: Service,
) -> None:
    buyer = as_person(await service.person())
    answer = await service.call("POST", "/api/artifacts", announced(CONTENT), headers=buyer)
    url = answer.body["upload"]["url"]
    done = url.replace("/content", "/done")
    longer = await put(service, url, CONTENT + b"x", buyer)
    assert refused(longer) == (400, "artifact_mismatch")

    async def in_chunks() -> AsyncIterator[bytes]:
        yield CONTENT
        yield b"x"

    assert refused(await put(service, url, in_chunks(), buyer)) == (400, "artifact_mismatch")
    await put(service, url, CONTENT[:-1], buyer)
    short = await service.call("POST", done, {}, headers=buyer)
    assert refused(short) == (400, "artifact_mismatch")
    assert f"{len(CONTENT) - 1} of {len(CONTENT)} bytes" in short.body["error"]["message"]
    await put(service, url, CONTENT[:-1] + b"!", buyer)
    wrong = await service.call("POST", done, {}, headers=buyer)
    assert refused(wrong) == (400, "artifact_mismatch")
    assert "SHA-256" in wrong.body["error"]["message"]
    for field, value in (("sha256", "A" * 64), ("size_bytes", -1), ("name", "../x")):
        body = {**announced(CONTENT), field: value}
        answer = await service.call("POST", "/api/artifacts", body, headers=buyer)
        assert (answer.status, answer.code, answer.field) == (400, "invalid_field", field)


async def test_no_user_gets_at_the_files_of_others(service: Service) -> None:
    buyer, other = await service.person(credit="10"), as_person(await service.person())
    mine = await upload(service, as_person(buyer), CONTENT)
    device = as_device(await worker_token(service, buyer))
    for who, where in ((other, "/api/artifacts"), (device, "/api/worker/artifacts")):
        for method, path in (
            ("GET", f"{where}/{mine}"),
            ("POST", f"{where}/{mine}/done"),
            ("PUT", f"{where}/{mine}/content"),
            ("GET", f"{where}/{UNKNOWN}"),
            ("GET", f"{where}/x"),
        ):
            raw = b"" if method == "PUT" else None
            answer = await service.call(method, path, raw=raw, headers=who)
            assert refused(answer) == (404, "artifact_not_found"), (method, path)
    answer = await service.call("DELETE", f"/api/artifacts/{mine}", headers=other)
    assert refused(answer) == (404, "artifact_not_found")
    answer = await service.call("GET", f"/api/artifacts/{mine}", headers=device)
    assert answer.status == 401


async def test_a_device_sends_the_outputs_of_its_job_and_the_buyer_gets_them(
    service: Service,
) -> None:
    buyer = await service.person(credit="10")
    job_id, device = await running_job(service, buyer)
    where = f"/api/worker/jobs/{job_id}/artifacts"
    output = await upload(service, device, CONTENT, where, attempt=1, name="out/model.bin")
    saved = await upload(service, device, b"epoch 1", where, attempt=1, kind="checkpoint")
    path = f"/api/jobs/{job_id}/artifacts"
    listed = (await service.call("GET", path, token=buyer.token)).body["artifacts"]
    assert [(each["id"], each["kind"], each["attempt"]) for each in listed] == [
        (saved, "checkpoint", 1),
        (output, "output", 1),
    ]
    page = await service.call("GET", f"{path}?limit=1", token=buyer.token)
    assert page.body["next_cursor"] == saved
    status, content, _ = await fetch(service, f"/api/artifacts/{output}", as_person(buyer))
    assert (status, content) == (200, CONTENT)
    status, content, _ = await fetch(service, f"/api/worker/artifacts/{saved}", device)
    assert (status, content) == (200, b"epoch 1")
    status, _, _ = await fetch(service, f"/api/worker/artifacts/{output}", device)
    assert status == 404  # it has it already, and needs it no more
    late = announced(CONTENT, attempt=2)
    answer = await service.call("POST", where, late, headers=device)
    assert refused(answer) == (400, "attempt_not_current")
    stranger = as_device(await worker_token(service, await service.person()))
    answer = await service.call("POST", where, announced(b"x", attempt=1), headers=stranger)
    assert refused(answer) == (404, "job_not_found")


async def test_a_buyer_does_not_send_in_the_place_of_a_device(service: Service) -> None:
    """A slow request of the buyer would keep the device out until the time of the job is over."""
    buyer = await service.person(credit="10")
    job_id, device = await running_job(service, buyer)
    where = f"/api/worker/jobs/{job_id}/artifacts"
    answer = await service.call("POST", where, announced(CONTENT, attempt=1), headers=device)
    artifact_id, url = answer.body["artifact_id"], answer.body["upload"]["url"]
    mine = f"/api/artifacts/{artifact_id}"
    sent = await put(service, f"{mine}/content", CONTENT[:10], as_person(buyer))
    assert refused(sent) == (404, "artifact_not_found")
    sent = await put(service, url, CONTENT, device)
    assert sent.body["offset"] == len(CONTENT)
    done = await service.call("POST", f"{mine}/done", token=buyer.token)
    assert refused(done) == (404, "artifact_not_found")
    done = await service.call("POST", url.replace("/content", "/done"), headers=device)
    assert done.status == 200, done.body


async def test_a_full_disk_is_reported_and_keeps_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=400) as disk:
        async with running_in(tmp_path, work={"folder": str(disk / "work")}) as service:
            buyer = as_person(await service.person())
            artifact_id = await upload(service, buyer, CONTENT)
            filler = fill(disk)
            body = announced(b"more")
            answer = await service.call("POST", "/api/artifacts", body, headers=buyer)
            url = answer.body["upload"]["url"]
            assert refused(await put(service, url, b"more", buyer)) == (503, "files_full")
            status, content, _ = await fetch(service, f"/api/artifacts/{artifact_id}", buyer)
            assert (status, content) == (200, CONTENT)
            filler.unlink()
            assert (await put(service, url, b"more", buyer)).status == 200


async def test_limits_are_the_operators(tmp_path: Path) -> None:
    limits = {"artifact_max_bytes": 10, "user_artifacts_max": 1}
    async with running_in(tmp_path, work=limits) as service:
        buyer = as_person(await service.person())
        answer = await service.call("POST", "/api/artifacts", announced(b"x" * 11), headers=buyer)
        assert refused(answer) == (400, "artifact_too_large")
        await upload(service, buyer, b"x" * 10)
        answer = await service.call("POST", "/api/artifacts", announced(b"y"), headers=buyer)
        assert refused(answer) == (400, "artifact_quota_exceeded")
        assert (tmp_path / "work" / "blobs").is_dir()  # beside the database


async def test_a_file_that_is_lost_in_the_middle_never_looks_whole(
    service: Service, tmp_path: Path
) -> None:
    buyer = as_person(await service.person())
    artifact_id = await upload(service, buyer, CONTENT)
    path = next(path for path in (tmp_path / "work").rglob("*") if path.is_file())
    async with service.http.get(
        f"{service.url}/api/artifacts/{artifact_id}", headers=buyer
    ) as response:
        with path.open("r+b") as file:
            file.truncate(1_000)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_device_gets_the_list_of_inputs_of_a_job(service: Service) -> None:
    buyer = await service.person(credit="10")
    mine = await upload(service, as_person(buyer), CONTENT, name="data.tar")
    digest = announced(CONTENT)["sha256"]
    web = {"name": "web", "url": "https://example.com/x", "sha256": "1" * 64}
    payload = {
        "command": ["true"],
        "inputs": [{"name": "data", "artifact_id": mine, "path": "in/data", "unpack": True}, web],
        "checkpoint": {"path": "ckpt"},
    }
    foreign = {**payload, "inputs": [{"name": "x", "artifact_id": UNKNOWN}]}
    answer = await service.call(
        "POST", "/api/jobs", {**WANTED, "payload": foreign}, token=buyer.token
    )
    assert (answer.status, answer.field) == (400, "payload.inputs[0].artifact_id")
    answer = await service.call(
        "POST", "/api/jobs", {**WANTED, "payload": payload}, token=buyer.token
    )
    job_id = answer.body["job_id"]
    deleted = await service.call("DELETE", f"/api/artifacts/{mine}", token=buyer.token)
    assert refused(deleted) == (400, "artifact_needed")
    capabilities = {"executors": ["bwrap"], "job_types": ["script"], "arch": "x86_64"}
    asked = {
        "capacity": {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50},
        "capabilities": capabilities,
        "wait_s": 20,
    }
    for attempt in (1, 2):
        device = as_device(await worker_token(service, await service.person()))
        [work] = (await service.call("POST", "/api/worker/next", asked, headers=device)).body[
            "jobs"
        ]
        assert work["inputs"] == [
            {
                "name": "data",
                "path": "in/data",
                "sha256": digest,
                "size_bytes": len(CONTENT),
                "unpack": True,
                "artifact_id": mine,
            },
            {**web, "path": "web", "unpack": False},
        ]
        assert (await fetch(service, f"/api/worker/artifacts/{mine}", device))[1] == CONTENT
        assert ("checkpoint" in work) == (attempt == 2)
        if attempt == 1:
            where = f"/api/worker/jobs/{job_id}/artifacts"
            saved = await upload(service, device, b"saved", where, attempt=1, kind="checkpoint")
            failed = {"reason": "x", "kind": "host", "attempt": 1}
            path = f"/api/worker/jobs/{job_id}/fail"
            answer = await service.call("POST", path, failed, headers=device)
            assert answer.status == 200, answer.body
    assert (work["checkpoint"]["artifact_id"], work["checkpoint"]["size_bytes"]) == (saved, 5)

"""Logs over HTTP: sent by devices by offset, read, followed and downloaded by buyers."""

import asyncio
import gzip
import io
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from support.base.waiting import until
from support.clients.story import refused, worker_token
from support.daemons.service import Answer, Person, Service, running_in

from market.logs import logs
from market.logs.logs import CHUNK_MAX_BYTES, ReadPace
from market.logs.readers import ReaderBounds

MIB = 1024 * 1024


class Rig(NamedTuple):
    """A device that runs a job."""

    service: Service
    buyer: Person
    job_id: str
    token: str

    async def send(self, offset: int, data: Any, *, attempt: int = 1, **more: Any) -> Answer:
        stream = more.pop("stream", "out")
        path = f"/api/worker/jobs/{self.job_id}/log?attempt={attempt}&offset={offset}"
        headers = {"X-Worker-Token": self.token, **more.pop("headers", {})}
        body = io.BytesIO(data)  # aiohttp warns of large bytes
        return await self.service.call("POST", f"{path}&stream={stream}", raw=body, headers=headers)

    async def sent(self, offset: int, data: bytes, **more: Any) -> int:
        """Send bytes, and return the number of stored bytes."""
        answer = await self.send(offset, data, **more)
        assert answer.status == 200, answer.body
        return int(answer.body["offset"])

    async def read(self, query: str = "", person: Person | None = None) -> Answer:
        path = f"/api/jobs/{self.job_id}/log{query}"
        return await self.service.call("GET", path, token=(person or self.buyer).token)

    async def bytes_of(self, query: str = "") -> bytes:
        answer = await self.read(query)
        assert answer.status == 200, answer.body
        return b64decode(answer.body["data"])

    async def report(self, what: str, body: Any = None) -> None:
        path, headers = f"/api/worker/jobs/{self.job_id}/{what}", {"X-Worker-Token": self.token}
        answer = await self.service.call("POST", path, body, headers=headers)
        assert answer.status == 200, answer.body

    async def accept(self, token: str = "") -> None:
        answer = await self.service.call(
            "POST",
            f"/api/jobs/{self.job_id}/accept",
            headers={"X-Worker-Token": token or self.token},
        )
        assert answer.status == 200, answer.body

    async def cancel(self) -> None:
        path = f"/api/jobs/{self.job_id}/cancel"
        assert (await self.service.call("POST", path, token=self.buyer.token)).status == 200


async def rig_of(service: Service) -> Rig:
    """Put a job up, and let a device accept it."""
    buyer, owner = await service.person(credit="10"), await service.person()
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", job, token=buyer.token)
    rig = Rig(service, buyer, answer.body["job_id"], await worker_token(service, owner))
    await rig.accept()
    return rig


@pytest.fixture
async def service(service: Service) -> Service:
    """A daemon that pushes: the look of a reader that finds missed events is far away."""
    service.daemon.market.logs.pace = ReadPace(look_seconds=3_600.0)
    return service


@pytest.fixture
async def rig(service: Service) -> Rig:
    return await rig_of(service)


class Reader:
    """Follower of a log."""

    def __init__(self, rig: Rig, response: aiohttp.ClientResponse) -> None:
        self._rig = rig
        self._response = response
        self.status = response.status
        self.last_id = ""

    async def next(self) -> tuple[str, Any] | None:
        """Return the next event, None at the end."""
        name, data = "", ""
        async with asyncio.timeout(20):
            async for line in self._response.content:
                text = line.decode().removesuffix("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("id: "):
                    self.last_id = text.removeprefix("id: ")
                elif text.startswith("data: "):
                    data = text.removeprefix("data: ")
                elif not text and name:
                    event = name, msgspec.json.decode(data)
                    self._rig.service._declared.check_event("/api/jobs/x/log", *event, "GET")
                    return event
        return None

    async def text(self, stream: str, size: int) -> str:
        """Return `size` characters of a stream."""
        text = ""
        while len(text) < size:
            event = await self.next()
            assert event is not None, text
            if event[0] == "log" and event[1]["stream"] == stream:
                text += event[1]["text"]
        return text


@asynccontextmanager
async def following(
    rig: Rig, query: str = "", last_id: str = "", person: Person | None = None
) -> AsyncIterator[Reader]:
    headers = {
        "Authorization": f"Bearer {(person or rig.buyer).token}",
        "Accept": "text/event-stream",
    }
    if last_id:
        headers["Last-Event-ID"] = last_id
    url = f"{rig.service.url}/api/jobs/{rig.job_id}/log{query}"
    async with rig.service.http.get(url, headers=headers) as response:
        yield Reader(rig, response)


async def test_bytes_that_a_device_sends_are_read_by_offset(rig: Rig) -> None:
    answer = await rig.send(0, b"first\n")
    assert answer.status == 200
    assert answer.body == {"ok": True, "offset": 6, "next_after_ms": 0, "is_full": False}
    assert await rig.sent(6, b"second\n") == 13
    assert await rig.sent(0, b"oops\n", stream="err") == 5
    answer = await rig.read("?offset=3&limit=5")
    assert answer.body == {
        "ok": True,
        "attempt": 1,
        "stream": "out",
        "offset": 3,
        "next_offset": 8,
        "size": 13,
        "is_over": False,
        "data": "c3QKc2U=",
    }
    assert await rig.bytes_of("?stream=err&attempt=1") == b"oops\n"
    await rig.report("complete")
    assert (await rig.read()).body["is_over"] is True


async def test_overlaps_are_passed_over_and_gaps_are_not_taken(rig: Rig) -> None:
    assert await rig.sent(5, b"a gap") == 0
    assert await rig.sent(0, b"0123456789") == 10
    assert await rig.sent(0, b"0123456789") == 10
    assert await rig.sent(4, b"456789ABCDEF") == 16
    assert await rig.sent(17, b"H") == 16
    assert await rig.sent(16, b"") == 16
    assert await rig.bytes_of() == b"0123456789ABCDEF"
    many = await asyncio.gather(*(rig.sent(16, b"G" * 100_000) for _ in range(3)))
    assert set(many) == {100_016}
    assert await rig.bytes_of("?offset=16&limit=200000") == b"G" * 100_000


async def test_chunks_are_bounded_and_may_be_compressed(rig: Rig) -> None:
    content = bytes(range(256)) * (CHUNK_MAX_BYTES // 256)
    packed = {"Content-Encoding": "gzip"}
    assert await rig.sent(0, gzip.compress(content, 1), headers=packed) == CHUNK_MAX_BYTES
    too_large = await rig.send(CHUNK_MAX_BYTES, content + b"x")
    assert (too_large.status, too_large.code) == (413, "body_too_large")
    bomb = await rig.send(CHUNK_MAX_BYTES, gzip.compress(bytes(50 * MIB)), headers=packed)
    assert (bomb.status, bomb.code) == (413, "body_too_large")
    assert (await rig.read()).body["size"] >= CHUNK_MAX_BYTES
    assert (await rig.bytes_of("?limit=262144")) == content[:262144]


async def test_the_arrived_bytes_of_a_broken_chunk_are_kept(rig: Rig) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", rig.service.api_port)
    path = f"/api/worker/jobs/{rig.job_id}/log?attempt=1&offset=0"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Worker-Token: {rig.token}\r\n"
    writer.write(head.encode() + b"Content-Length: 100\r\n\r\n" + b"y" * 60)
    await writer.drain()

    async def has_some() -> bool:
        return bool((await rig.read()).body["size"])

    await until(lambda: bool(rig.service.daemon.market.logs._open))
    writer.close()
    await until(has_some)
    size = await rig.sent(0, b"y" * 100)
    assert size == 100
    assert await rig.bytes_of() == b"y" * 100


async def test_only_the_current_attempt_of_the_device_is_taken(rig: Rig) -> None:
    service = rig.service
    stranger = rig._replace(token=await worker_token(service, await service.person()))
    refused(await stranger.send(0, b"x"), "job_not_found", None, 404)
    refused(await rig.send(0, b"x", attempt=2), "attempt_not_current", None)
    assert await rig.sent(0, b"first attempt") == 13
    await rig.report("fail", {"reason": "broken"})

    async def is_refused() -> bool:
        return (await rig.send(13, b"")).status == 400

    await until(is_refused)  # the device is checked now and then
    refused(await rig.send(13, b"late"), "attempt_not_current", None)
    await stranger.accept()
    assert await stranger.sent(0, b"second", attempt=2) == 6
    refused(await rig.send(0, b"x", attempt=2), "attempt_not_current", None)
    assert await rig.bytes_of("?attempt=1") == b"first attempt"
    assert await rig.bytes_of() == b"second"
    for method, path in (
        ("POST", f"/api/worker/jobs/{rig.job_id}/log?attempt=0&offset=0"),
        ("POST", f"/api/worker/jobs/{rig.job_id}/log?offset=0"),
        ("POST", f"/api/worker/jobs/{rig.job_id}/log?attempt=1"),
        ("POST", f"/api/worker/jobs/{rig.job_id}/log?attempt=1&offset=0&stream=in"),
    ):
        answer = await service.call(method, path, raw=b"", headers={"X-Worker-Token": rig.token})
        refused(answer, "invalid_field", answer.field)


async def test_only_its_buyer_reads_a_log(rig: Rig) -> None:
    await rig.sent(0, b"mine")
    other = await rig.service.person()
    refused(await rig.read(person=other), "job_not_found", None, 404)
    async with following(rig, person=other) as reader:
        assert reader.status == 404
    refused(await rig.read("?attempt=2"), "invalid_field", "attempt")
    answer = await rig.service.call("GET", f"/api/jobs/{rig.job_id}/log/raw", token=other.token)
    refused(answer, "job_not_found", None, 404)


async def test_a_log_is_followed_as_it_comes_until_the_end(rig: Rig) -> None:
    await rig.sent(0, b"before\n")
    async with following(rig) as reader:
        assert await reader.next() == ("attempt", {"attempt": 1})
        assert await reader.text("out", 7) == "before\n"
        for number in range(5):
            at = 7 + 7 * number
            assert await rig.sent(at, b"line %d\n" % number) == at + 7
            name, data = await reader.next() or ("", {})
            assert (name, data["text"]) == ("log", f"line {number}\n")
            assert (data["offset"], data["next_offset"]) == (at, at + 7)
        await rig.sent(0, b"oops\n", stream="err")
        assert await reader.text("err", 5) == "oops\n"
        await rig.report("complete")
        assert await reader.next() == ("end", {"attempt": 1, "status": "completed"})
        assert await reader.next() is None
        assert reader.last_id == "1.42.5"


async def test_a_reader_goes_on_where_it_was(rig: Rig) -> None:
    await rig.sent(0, b"0123456789")
    async with following(rig) as reader:
        await reader.next()
        assert await reader.text("out", 10) == "0123456789"
        seen = reader.last_id
    await rig.sent(10, b"ABC")
    async with following(rig, last_id=seen) as reader:
        assert await reader.next() == (
            "log",
            {"attempt": 1, "stream": "out", "offset": 10, "next_offset": 13, "text": "ABC"},
        )
    for wrong in ("x", "1.2", "1.2.3.4", "-1.0.0", "2.0.0"):
        async with following(rig, last_id=wrong) as reader:
            assert reader.status == 400, wrong


async def test_a_new_attempt_is_an_event(rig: Rig) -> None:
    service = rig.service
    await rig.sent(0, b"first")
    async with following(rig) as all_of_it, following(rig, "?attempt=1") as one_of_it:
        for reader in (all_of_it, one_of_it):
            await reader.next()
            assert await reader.text("out", 5) == "first"
        await rig.report("fail", {"reason": "broken"})
        assert await one_of_it.next() == ("end", {"attempt": 1, "status": "waiting"})
        second = rig._replace(token=await worker_token(service, await service.person()))
        await second.accept()
        assert await all_of_it.next() == ("attempt", {"attempt": 2})
        await second.sent(0, b"second", attempt=2)
        assert await all_of_it.text("out", 6) == "second"
        await rig.cancel()
        assert await all_of_it.next() == ("end", {"attempt": 2, "status": "cancelled"})


async def test_a_log_can_be_followed_before_there_is_an_attempt(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", job, token=buyer.token)
    rig = Rig(service, buyer, answer.body["job_id"], await worker_token(service, owner))
    assert (await rig.read()).body["size"] == 0
    async with following(rig) as reader:
        await rig.accept()
        assert await reader.next() == ("attempt", {"attempt": 1})
        await rig.sent(0, b"now")
        assert await reader.text("out", 3) == "now"


async def test_text_is_safe_to_show_and_bytes_are_as_they_are(rig: Rig) -> None:
    content = b"\x1b[31mred\x1b[0m \xff\x00 caf\xc3\xa9\n"
    async with following(rig) as as_text, following(rig, "?encoding=base64") as as_bytes:
        for each in (as_text, as_bytes):
            await each.next()
        for at in range(len(content)):  # a character and a sequence arrive in parts
            await rig.sent(at, content[at : at + 1])
        expected = "red \ufffd café\n"
        assert await as_text.text("out", len(expected)) == expected
        got = b""
        while len(got) < len(content):
            name, data = await as_bytes.next() or ("", {})
            assert name == "log"
            assert "text" not in data
            got += b64decode(data["data"])
        assert got == content


async def raw(rig: Rig, query: str = "", **headers: str) -> tuple[int, bytes, Any]:
    url = f"{rig.service.url}/api/jobs/{rig.job_id}/log/raw{query}"
    sent = {"Authorization": f"Bearer {rig.buyer.token}", **headers}
    async with rig.service.http.get(url, headers=sent) as response:
        return response.status, await response.read(), response.headers


async def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    async with running_in(
        tmp_path, work={"log_keep_bytes": MIB, "log_bytes_per_second": 0}
    ) as service:
        rig = await rig_of(service)
        size = 10 * MIB
        piece = b"".join(b"%15d\n" % number for number in range(MIB // 16))
        async with following(rig, "?encoding=base64") as slow:
            await slow.next()
            for at in range(0, size, MIB):
                assert await rig.sent(at, piece) == at + MIB
            cuts, received = [], 0
            while received + sum(cuts) < size:
                name, data = await slow.next() or ("", {})
                length = data["next_offset"] - data["offset"]
                if name == "cut":
                    cuts.append(length)
                else:
                    assert b64decode(data["data"]) == (piece * 2)[data["offset"] % MIB :][:length]
                    received += length
        answer = await rig.read(f"?offset={3 * MIB}&limit=16")
        assert answer.body["offset"] == 8 * MIB
        assert b64decode(answer.body["data"]) == piece[:16]
        status, content, headers = await raw(rig)
        assert status == 200
        line = b"\n[%d bytes of this log are not kept]\n" % (7 * MIB)
        assert content == piece + line + piece * 2
        assert headers["Content-Disposition"].startswith("attachment")
        assert headers["X-Content-Type-Options"] == "nosniff"
        status, content, _ = await raw(rig, Range="bytes=-5")
        assert (status, content) == (206, piece[-5:])


async def test_a_fast_sender_is_slowed_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []

    async def hold(seconds: float) -> None:
        held.append(seconds)

    monkeypatch.setattr("market.logs.pace.sleep", hold)
    async with running_in(tmp_path, work={"log_bytes_per_second": 65_536}) as service:
        rig = await rig_of(service)
        first = await rig.send(0, bytes(CHUNK_MAX_BYTES))
        assert first.body["offset"] == CHUNK_MAX_BYTES
        # A burst of 8 seconds is free; this was one of 16.
        assert 4_000 < first.body["next_after_ms"] <= 8_000
        assert held == []
        second = await rig.send(CHUNK_MAX_BYTES, bytes(CHUNK_MAX_BYTES))
        assert second.body["offset"] == 2 * CHUNK_MAX_BYTES
        assert len(held) == 1
        assert 4 < held[0] <= 8


async def test_a_full_disk_ends_the_log_and_not_the_job(tmp_path: Path) -> None:
    async with running_in(tmp_path, work={"disk_reserve_bytes": 2**62}) as service:
        rig = await rig_of(service)
        answer = await rig.send(0, b"x" * 1000)
        assert answer.body == {"ok": True, "offset": 1000, "next_after_ms": 60_000, "is_full": True}
        assert await service.daemon.market.logs.stored(rig.job_id, 1) == {
            "out": logs.FULL,
            "err": logs.FULL,
        }
        await rig.report("complete")
        assert service.daemon.market.logs.totals.refused_bytes == 1000
        assert (await rig.read()).body["size"] == 0


async def test_a_report_waits_for_the_log_that_it_announces(rig: Rig) -> None:
    await rig.sent(0, b"12345")
    path = f"/api/worker/jobs/{rig.job_id}/complete"
    headers = {"X-Worker-Token": rig.token}
    said = {"attempt": 1, "log_bytes": {"out": 5, "err": 2}}
    early = await rig.service.call("POST", path, said, headers=headers)
    refused(early, "log_incomplete", "log_bytes")
    await rig.sent(0, b"ok", stream="err")
    await rig.report("complete", said)


async def test_a_log_is_a_sign_of_life(rig: Rig) -> None:
    await rig.sent(0, b"alive")
    renewals = rig.service.daemon.market.renewals
    assert (rig.job_id, 1) in renewals._unwritten


async def test_a_connection_is_used_after_a_silence(
    rig: Rig,
) -> None:
    rig.service.daemon.market.logs.pace = ReadPace(look_seconds=0.01)
    url = f"{rig.service.url}/api/jobs/{rig.job_id}/log"
    headers = {"Authorization": f"Bearer {rig.buyer.token}", "Accept": "text/event-stream"}
    async with rig.service.http.get(url, headers=headers) as response:
        lines = [await response.content.readline() for _ in range(10)]
    assert lines[0] == b"event: attempt\n"
    assert lines[-2:] == [b":\n", b"\n"]


async def test_readers_are_bounded(rig: Rig) -> None:
    readers = rig.service.daemon.market.logs.readers
    readers.bounds = ReaderBounds(per_user=2)
    async with following(rig), following(rig):
        async with following(rig) as third:
            assert third.status == 429
        assert len(readers) == 2
    await until(lambda: len(readers) == 0)
    async with following(rig) as again:
        assert again.status == 200


async def test_a_daemon_that_stops_ends_its_readers_and_another_goes_on(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        rig = await rig_of(service)
        await rig.sent(0, b"kept")
        async with following(rig) as reader:
            await reader.next()
            assert await reader.text("out", 4) == "kept"
            stopping = asyncio.create_task(service.daemon.services.stop_serving())
            assert await reader.next() is None
            await stopping
    async with running_in(tmp_path) as service:
        rig = rig._replace(service=service)
        assert await rig.sent(2, b"pt on") == 7
        async with following(rig, last_id=reader.last_id) as reader:
            assert await reader.text("out", 3) == " on"

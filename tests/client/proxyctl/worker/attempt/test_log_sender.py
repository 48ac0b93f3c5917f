"""Sending logs: whatever is lost on the way, or by the daemon, it has all of them in the end."""

import asyncio
import random
import threading
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.clients.story import worker_token
from support.daemons.service import Service

from proxyctl.worker.attempt import log_sender
from proxyctl.worker.attempt.log_sender import CHUNK_MAX_BYTES, LogSender
from proxyctl.worker.base.link import Link, LinkError, RefusedError

MIB = 1 << 20


class Daemon:
    """Takes logs by offset as the API does; it can lose what it has, and answers."""

    def __init__(self) -> None:
        self.stored = {"out": b"", "err": b""}
        self.requests: list[tuple[str, int, int]] = []
        self.answer: dict[str, Any] = {}
        self.failures: list[Exception | None] = []

    def post(self, stream: str, offset: int, data: bytes) -> dict[str, Any]:
        assert len(data) <= CHUNK_MAX_BYTES
        self.requests.append((stream, offset, len(data)))
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, ConnectionError):  # before it arrived
            raise LinkError("lost")
        stored = self.stored[stream]
        if offset <= len(stored):
            self.stored[stream] = stored + data[len(stored) - offset :]
        if failure is not None:  # the answer
            raise failure
        return {"ok": True, "offset": len(self.stored[stream]), "next_after_ms": 0, **self.answer}


def write(folder: Path, stream: str, data: bytes) -> None:
    with (folder / f"{stream}.log").open("ab") as file:
        file.write(data)


def send_all(sender: LogSender, *, calls: int = 1_000) -> int:
    for number in range(calls):
        if not sender.send():
            return number + 1
    raise AssertionError("it never ends")


def test_present_and_later_output_is_sent(tmp_path: Path) -> None:
    daemon = Daemon()
    sender = LogSender(tmp_path, daemon.post)
    assert not sender.send()  # nothing was printed
    assert daemon.requests == []
    write(tmp_path, "out", b"one")
    write(tmp_path, "err", b"oops")
    assert sender.send()
    assert not sender.send()
    assert daemon.stored == {"out": b"one", "err": b"oops"}
    write(tmp_path, "out", b" two")
    assert not sender.send()
    assert daemon.requests == [("out", 0, 3), ("err", 0, 4), ("out", 3, 4)]
    assert sender.sent == {"out": 7, "err": 4}


def test_long_logs_go_in_chunks_and_the_streams_take_turns(tmp_path: Path) -> None:
    daemon = Daemon()
    sender = LogSender(tmp_path, daemon.post)
    write(tmp_path, "out", b"o" * (2 * MIB + 1))
    write(tmp_path, "err", b"e" * (MIB + 1))
    send_all(sender)
    assert daemon.stored == {"out": b"o" * (2 * MIB + 1), "err": b"e" * (MIB + 1)}
    assert [stream for stream, _, size in daemon.requests if size][:4] == ["out", "err"] * 2


def test_a_sender_that_knows_nothing_asks_before_it_sends_a_lot(tmp_path: Path) -> None:
    daemon = Daemon()
    content = random.Random(1).randbytes(3 * MIB)
    daemon.stored["out"] = content[: 2 * MIB]
    write(tmp_path, "out", content)
    send_all(LogSender(tmp_path, daemon.post))
    assert daemon.requests == [("out", 3 * MIB, 0), ("out", 2 * MIB, MIB)]
    assert daemon.stored["out"] == content


def test_a_daemon_that_lost_something_gets_it_again(tmp_path: Path) -> None:
    daemon = Daemon()
    sender = LogSender(tmp_path, daemon.post)
    content = random.Random(2).randbytes(100_000)
    write(tmp_path, "out", content[:50_000])
    send_all(sender)
    daemon.stored["out"] = content[:10]
    write(tmp_path, "out", content[50_000:])
    send_all(sender)
    assert daemon.stored["out"] == content


def test_a_daemon_that_wants_a_pause_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(log_sender.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log_sender.time, "sleep", sleep)
    daemon = Daemon()
    daemon.answer = {"next_after_ms": 2_500}
    sender = LogSender(tmp_path, daemon.post)
    write(tmp_path, "out", b"first")
    assert not sender.send()
    write(tmp_path, "out", b"second")
    assert sender.send()  # whoever calls may stop between two waits
    assert len(daemon.requests) == 1
    send_all(sender)
    assert daemon.stored["out"] == b"firstsecond"
    assert slept == [1.0, 1.0, 0.5]


def test_a_daemon_without_room_is_left_in_peace(tmp_path: Path) -> None:
    daemon = Daemon()
    daemon.answer = {"is_full": True}
    sender = LogSender(tmp_path, daemon.post)
    for _ in range(3):
        write(tmp_path, "out", b"x")
        assert not sender.send()
    assert len(daemon.requests) == 1


@pytest.mark.parametrize("answer", [{"offset": None}, {"offset": -1}, {"offset": "3"}])
def test_an_answer_that_says_nothing_is_asked_for_again(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    daemon = Daemon()
    daemon.answer = answer
    sender = LogSender(tmp_path, daemon.post)
    write(tmp_path, "out", b"x")
    with pytest.raises(LinkError):
        sender.send()
    daemon.answer = {}
    send_all(sender)
    assert daemon.stored["out"] == b"x"


def test_a_daemon_that_takes_nothing_is_not_besieged(tmp_path: Path) -> None:
    daemon = Daemon()
    daemon.answer = {"offset": 0}
    sender = LogSender(tmp_path, daemon.post)
    write(tmp_path, "out", b"x")
    assert not sender.send()


def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    daemon = Daemon()
    daemon.failures = [RefusedError("gone", "attempt_not_current", 400)]
    sender = LogSender(tmp_path, daemon.post)
    write(tmp_path, "out", b"x")
    with pytest.raises(RefusedError):
        sender.send()


@pytest.mark.parametrize("seed", range(20))
def test_all_output_arrives_after_any_loss(tmp_path: Path, seed: int) -> None:
    """Requests, answers, the memory of the agent, and what the daemon had."""
    chance = random.Random(seed)
    daemon = Daemon()
    sender = LogSender(tmp_path, daemon.post)
    content = {"out": b"", "err": b""}
    for _ in range(60):
        what = chance.random()
        if what < 0.5:
            stream = chance.choice(["out", "err"])
            data = chance.randbytes(chance.choice([1, 100, 70_000, MIB + 5]))
            content[stream] += data
            write(tmp_path, stream, data)
        elif what < 0.6:
            sender = LogSender(tmp_path, daemon.post)
        elif what < 0.7:
            stream = chance.choice(["out", "err"])
            kept = chance.randrange(len(daemon.stored[stream]) + 1)
            daemon.stored[stream] = daemon.stored[stream][:kept]
        daemon.failures = [
            chance.choice([None, None, ConnectionError(), LinkError("answer")]) for _ in range(3)
        ]
        with suppress(LinkError):
            sender.send()
    daemon.failures = []
    send_all(LogSender(tmp_path, daemon.post))
    assert daemon.stored == content


async def test_a_real_daemon_has_it_all(service: Service, tmp_path: Path) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", job, token=buyer.token)
    job_id, token = answer.body["job_id"], await worker_token(service, owner)
    path = f"/api/jobs/{job_id}/accept"
    await service.call("POST", path, headers={"X-Worker-Token": token})
    link = Link(service.url, token)

    def post(stream: str, offset: int, data: bytes) -> dict[str, Any]:
        query = {"attempt": 1, "stream": stream, "offset": offset}
        return link.post_raw(f"/api/worker/jobs/{job_id}/log", query, data)

    sender = LogSender(tmp_path, post)
    content = random.Random(3).randbytes(2 * MIB + 77)
    is_over = threading.Event()

    def pump() -> None:
        while sender.send() or not is_over.is_set():
            pass

    pumping = asyncio.create_task(asyncio.to_thread(pump))
    for start in range(0, len(content), 300_000):
        write(tmp_path, "out", content[start : start + 300_000])
        await asyncio.sleep(0)
    write(tmp_path, "err", b"done\n")
    is_over.set()
    await pumping
    link.close()
    assert await service.daemon.market.logs.stored(job_id, 1) == {"out": len(content), "err": 5}
    for offset in range(0, len(content), 262_144):
        query = f"?offset={offset}&limit=262144"
        answer = await service.call("GET", f"/api/jobs/{job_id}/log{query}", token=buyer.token)
        assert b64decode(answer.body["data"]) == content[offset : offset + 262_144]

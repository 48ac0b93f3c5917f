"""Logs while the daemon is killed, and while its machine loses its power: all of them arrive.

A device continues to send from the offset of the last answer, and a buyer continues to read from
the last event. Answered bytes survive a kill; the answers show the losses of a power failure.
"""

import http.client
import json
import os
import random
import signal
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Process

from proxyctl.worker.attempt.log_sender import LogSender
from proxyctl.worker.base.link import Link, LinkError

MIB = 1 << 20
SIZE = 6 * MIB
SETTINGS = {"PROXYD_WORK__LOG_BYTES_PER_SECOND": "0", "PROXYD_WORK__LOG_KEEP_BYTES": str(4 * MIB)}


class Machine:
    """A daemon that is killed and started again, a job, and the device that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/proxyd.db"
        email, password = process.funded(self.url)
        process.run(self.url, "wallet", "deposit", email, "--credits", "10")
        self.daemon = self._started()
        self.token = self.daemon.log_in(email, password)
        _, made = self.daemon.call("POST", "/api/worker/token/create", {"name": "rig"}, self.token)
        self.device = {"X-Worker-Token": made["token"]}
        job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
        self.job_id = self.daemon.call("POST", "/api/jobs", job, self.token)[1]["job_id"]
        path = f"/api/jobs/{self.job_id}/accept"
        assert self.daemon.call("POST", path, headers=self.device)[0] == 200
        self.answered = {"out": 0, "err": 0}
        self.losses = 0

    def _started(self) -> Process:
        return Process(self.url, **SETTINGS).wait_ready()

    def kill(self) -> None:
        self.daemon.stop(signal.SIGKILL)

    def restart(self) -> None:
        self.daemon = self._started()

    def lose_power(self, chance: random.Random) -> None:
        """Take the ends of files that were not synced, as a power failure does."""
        self.kill()
        for file in sorted((self.folder / "work" / "logs").rglob("out-*")):
            if chance.random() < 0.5:
                os.truncate(file, chance.randrange(file.stat().st_size + 1))
        self.restart()

    def post(self, stream: str, offset: int, data: bytes) -> dict[str, Any]:
        """Send as the agent does; the bytes of earlier answers are there."""
        link = Link(self.daemon.api, self.device["X-Worker-Token"])
        query = {"attempt": 1, "stream": stream, "offset": offset}
        try:
            answer = link.post_raw(f"/api/worker/jobs/{self.job_id}/log", query, data)
        finally:
            link.close()
        if answer["offset"] < self.answered[stream]:
            self.losses += 1
        self.answered[stream] = answer["offset"]
        return answer

    def complete(self) -> tuple[int, Any]:
        said = {"attempt": 1, "log_bytes": {"out": SIZE}}
        path = f"/api/worker/jobs/{self.job_id}/complete"
        return self.daemon.call("POST", path, said, headers=self.device)

    def log(self) -> bytes:
        content = b""
        while True:
            query = f"?offset={len(content)}&limit=262144"
            _, answer = self.daemon.call(
                "GET", f"/api/jobs/{self.job_id}/log{query}", None, self.token
            )
            if not answer["data"]:
                return content
            content += b64decode(answer["data"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.daemon.stop()
    process.assert_audit(made.url)


class Reader(threading.Thread):
    """A buyer who follows a log over lost connections, and keeps its content."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.content = b""
        self.ended = False
        self.connections = 0
        self.last_id = ""

    def run(self) -> None:
        while not self.ended:
            with suppress(OSError, http.client.HTTPException):
                self._follow()

    def _follow(self) -> None:
        headers = {"Authorization": f"Bearer {self.machine.token}", "Accept": "text/event-stream"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        address = urlsplit(self.machine.daemon.api).netloc
        with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
            path = f"/api/jobs/{self.machine.job_id}/log?encoding=base64"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            assert response.status == 200
            self.connections += 1
            name, data, last_id = "", "", ""
            for line in response:
                field, _, value = line.decode().removesuffix("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    last_id = value
                elif field == "data":
                    data = value
                elif not field and data:  # a whole event
                    self._take(name, json.loads(data))
                    self.last_id, data = last_id, ""

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name == "log":
            assert data["offset"] == len(self.content)
            self.content += b64decode(data["data"])
        self.ended = name == "end"


@contextmanager
def printing(folder: Path, content: bytes) -> Iterator[threading.Thread]:
    """Append to a file as a supervisor does, within the block and to the end of it."""

    def append() -> None:
        with (folder / "out.log").open("ab", buffering=0) as file:
            for start in range(0, len(content), 50_000):
                file.write(content[start : start + 50_000])

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def send_until(sender: LogSender, is_over: threading.Event) -> None:
    while not is_over.is_set():
        with suppress(LinkError):
            if not sender.send():
                is_over.wait(0.01)


def test_a_killed_daemon_loses_nothing_that_it_answered(machine: Machine, tmp_path: Path) -> None:
    content = random.Random(1).randbytes(SIZE)
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    is_over = threading.Event()
    sending = threading.Thread(target=send_until, args=(LogSender(attempt, machine.post), is_over))
    reader = Reader(machine)
    with printing(attempt, content[: SIZE // 2]):
        sending.start()
        reader.start()
    for start in range(SIZE // 2, SIZE, MIB):
        until_true(lambda start=start: machine.answered["out"] >= start - MIB, "it is sent")
        with (attempt / "out.log").open("ab") as file:
            file.write(content[start : start + MIB])
        machine.kill()
        machine.restart()
    until_true(lambda: machine.answered["out"] == SIZE, "all of it is sent")
    is_over.set()
    sending.join()
    assert machine.losses == 0
    assert machine.complete()[0] == 200
    reader.join(timeout=20)
    assert reader.ended
    assert reader.connections >= 2
    assert reader.content == content
    assert machine.log() == content


@pytest.mark.long
def test_bytes_that_a_power_failure_takes_are_sent_again(machine: Machine, tmp_path: Path) -> None:
    chance = random.Random(0)
    content = chance.randbytes(SIZE)
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    sender = LogSender(attempt, machine.post)
    for start in range(0, SIZE, 2 * MIB):
        with (attempt / "out.log").open("ab") as file:
            file.write(content[start : start + 2 * MIB])
        while sender.send():
            pass
        machine.lose_power(chance)
    status, answer = machine.complete()
    if status != 200:  # the answer shows the device the last loss
        assert answer["error"]["code"] == "log_incomplete"
        sender = LogSender(attempt, machine.post)
        while sender.send():
            pass
        assert machine.complete()[0] == 200
    assert machine.losses > 0
    assert machine.log() == content
    machine.kill()
    machine.restart()
    assert machine.log() == content

"""Events over daemons that are killed, and over several that share a database."""

import asyncio
import json
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from support.base.waiting import until_true
from support.daemons import process
from support.daemons.process import Member, Process, running, serving
from support.daemons.service import running as running_in_here
from support.daemons.service import settings_for
from support.database import postgres

from market.notify.feed import STREAMS_PER_LOGIN_MAX, FeedPace

TOGETHER = 40
STREAMS = 1_000
MB = 1_000_000


class Curl:
    """curl, following events as a program would, its output in a file.

    Args:
        daemon: the daemon to connect to.
        token: of the user.
        file: gets the received events.
        last_id: the last event received before.
    """

    def __init__(self, daemon: Process, token: str, file: Path, last_id: str = "") -> None:
        self._file = file
        again = ["-H", f"Last-Event-ID: {last_id}"] if last_id else []
        self._program = subprocess.Popen(
            [
                *("curl", "--silent", "--no-buffer", "--output", str(file)),
                *("-H", f"Authorization: Bearer {token}", *again),
                f"{daemon.api}/api/events/stream?types=job.created,job.cancelled",
            ]
        )

    def lines(self, field: str) -> list[str]:
        """Return the values of a field so far."""
        text = self._file.read_text() if self._file.exists() else ""
        begin = f"{field}: "
        whole = text[: text.rfind("\n\n") + 1]
        return [line.removeprefix(begin) for line in whole.split("\n") if line.startswith(begin)]

    def heard(self) -> set[str]:
        """Return the jobs whose creation was received."""
        events = [json.loads(line) for line in self.lines("data")]
        return {each["subject_id"] for each in events if each["type"] == "job.created"}

    def begun(self) -> bool:
        return self._file.exists() and self._file.stat().st_size > 0

    def end(self) -> None:
        self._program.kill()
        self._program.wait()


@contextmanager
def following(daemon: Process, token: str, file: Path, last_id: str = "") -> Iterator[Curl]:
    curl = Curl(daemon, token, file, last_id)
    try:
        until_true(curl.begun, "the stream")
        yield curl
    finally:
        curl.end()


def post(daemon: Process, token: str) -> str:
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    status, body = daemon.call("POST", "/api/jobs", job, token)
    assert status == 200, body
    return str(body["job_id"])


def test_nothing_is_lost_over_a_daemon_that_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    email, password = process.funded(url, credit="1000")
    key = {"PROXYD_AUTH__SIGNING_KEY": "k" * 40}
    posted = set()
    with serving(url, **key) as daemon:
        token = daemon.log_in(email, password)
        with following(daemon, token, tmp_path / "first") as curl:
            for _ in range(5):
                posted.add(post(daemon, token))
            until_true(lambda: curl.heard() == posted, "what was posted")
            last_id = curl.lines("id")[-1]
        for _ in range(TOGETHER):  # no program reads these
            posted.add(post(daemon, token))
        daemon.stop(signal.SIGKILL)
    with (
        serving(url, **key) as daemon,
        following(daemon, token, tmp_path / "second", last_id) as again,
    ):
        posted.add(post(daemon, token))
        until_true(lambda: curl.heard() | again.heard() == posted, "everything")
    process.assert_audit(url)


@pytest.mark.both_engines
async def test_daemons_on_one_database_notify_each_other(empty_url: str, tmp_path: Path) -> None:
    email, password = process.funded(empty_url, credit="1000")
    with running(Member(empty_url)) as one, running(Member(empty_url)) as other:
        for daemon in (one, other):
            daemon.wait_ready()
        token = one.log_in(email, password)
        with following(one, token, tmp_path / "heard") as curl:
            posted = {post(other, token) for _ in range(TOGETHER)}
            until_true(lambda: curl.heard() == posted, "what the other daemon has recorded")
            posted |= {post(one, token)}
            until_true(lambda: curl.heard() == posted, "and this one")
    process.assert_audit(empty_url)


async def test_a_daemon_notifies_the_others_at_once(postgres_server: str) -> None:
    async with (
        postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as url,
        running_in_here(settings_for(url)) as one,
        running_in_here(settings_for(url)) as other,
    ):
        one.daemon.market.event_feed.pace = FeedPace(heartbeat_seconds=3_600.0)  # only notices
        person = await one.person(credit="10")
        headers = {"Authorization": f"Bearer {person.token}"}
        path = "/api/events/stream?types=job.created"
        async with one.http.get(one.url + path, headers=headers) as stream:
            assert stream.status == 200
            job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
            answer = await other.call("POST", "/api/jobs", job, token=person.token)
            async with asyncio.timeout(60):
                async for line in stream.content:
                    if line.startswith(b"data: "):
                        break
            assert answer.body["job_id"].encode() in line


@pytest.mark.long
def test_a_thousand_streams_take_little_memory(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/proxyd.db"
    settings = {
        "PROXYD_LIMITS__API_CONNECTIONS_TOTAL": "3000",
        "PROXYD_LIMITS__API_CONNECTIONS_PER_NETWORK": "3000",
        "PROXYD_LIMITS__LOGIN_FAILURES_PER_EMAIL": "0",
        "PROXYD_LIMITS__REQUESTS_PER_SECOND": "0",
    }
    people = [process.funded(url, name=f"user{number}") for number in range(STREAMS // 32 + 1)]
    with serving(url, **settings) as daemon, ExitStack() as stack:
        tokens = [
            daemon.log_in(*person) for person in people for _ in range(32 // STREAMS_PER_LOGIN_MAX)
        ]
        resident = psutil.Process(daemon.process.pid).memory_info
        before, address = resident().rss, daemon.api.removeprefix("http://").split(":")
        streams = []
        for number in range(STREAMS):
            token = tokens[number // STREAMS_PER_LOGIN_MAX]
            sock = stack.enter_context(socket.create_connection((address[0], int(address[1]))))
            head = f"GET /api/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}"
            sock.sendall(f"{head}\r\n\r\n".encode())
            streams.append(sock)
        for sock in streams:
            sock.settimeout(60)
            heard = b""
            while b":\n\n" not in heard:
                heard += sock.recv(4096)
            assert heard.startswith(b"HTTP/1.1 200")
        grown = resident().rss - before
        print(f"{STREAMS} streams: {grown / MB:.1f} MB")  # noqa: T201 - for docs/reference/benchmarks.md
        assert grown < 50 * MB

"""proxyctl.worker.executors.bwrap.egress: real sandboxes whose way out leads to servers of the
test."""

import asyncio
import http.server
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import PATIENCE_SECONDS, until, until_true
from support.workers import battery

from proxyctl.attach.network.lan import Guard, make_guard
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap import netns
from proxyctl.worker.executors.bwrap.bwrap import BwrapExecutor
from proxyctl.worker.executors.bwrap.egress import Egress, Rules, _Job
from proxyctl.worker.executors.limits.choose import choose
from proxyctl.worker.network.outward import Outward

PAGE = b"x" * 300_000

# Reports the outcome of each wish as JSON: for SOCKS the code of the reply, for HTTP the status.
CLIENT = """
import http.client, json, os, socket, struct, sys, urllib.request
def socks(host, port):
    with socket.create_connection(("127.0.0.1", 1080)) as sock:
        sock.settimeout(30)
        sock.sendall(b"\\x05\\x01\\x00")
        assert sock.recv(2) == b"\\x05\\x00"
        name = host.encode()
        sock.sendall(b"\\x05\\x01\\x00\\x03" + bytes([len(name)]) + name + struct.pack("!H", port))
        return sock.recv(10)[1]
def connect(host, port):
    with socket.create_connection(("127.0.0.1", 1080)) as sock:
        sock.settimeout(30)
        sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
        return int(sock.recv(100).split()[1])
def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return len(response.read())
    except urllib.error.HTTPError as error:
        return -error.code
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
def garbage(_):
    with socket.create_connection(("127.0.0.1", 1080)) as sock:
        sock.settimeout(30)
        sock.sendall(b"\\x00\\xff" * 40_000)
        try:
            return len(sock.recv(100))
        except ConnectionError:
            return 0
def descriptors(_):
    return [each for each in range(1000) if is_open(each)]
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
told = {}
for kind, *arguments in json.loads(sys.argv[1]):
    told[" ".join(map(str, (kind, *arguments)))] = globals()[kind](*arguments)
print(json.dumps(told), flush=True)
"""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with a page, and says nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server outside of all sandboxes."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made.server_address[1]
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def guard() -> Iterator[Guard]:
    """The judges of this device, who let everybody reach the server of the tests."""
    made, routes = make_guard([ip_network("127.0.0.1/32")])
    yield made
    if routes:
        routes.close()


@pytest.fixture
def strict() -> Iterator[Guard]:
    """The judges as they are."""
    made, routes = make_guard()
    yield made
    if routes:
        routes.close()


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder for attempts."""
    folder = Path(tempfile.mkdtemp(prefix="proxyctl-egress-"))
    yield folder
    battery.remove(folder)


def run(folder: Path, wishes: list[tuple[Any, ...]], guard: Guard, **rules: int) -> dict[str, Any]:
    """Have a job make requests, and return their results."""
    limits, findings = choose()
    battery.require("" if limits else str(findings))
    assert limits is not None
    egress = Egress(Outward(guard), Rules(**rules))
    executor = BwrapExecutor(limits, egress)
    battery.require(battery.lacking(executor))
    try:
        # Addresses on the job's own loopback are exempt by default.
        env = {"NO_PROXY": "", "no_proxy": ""}
        job = battery.python_task(folder, CLIENT, network="egress", env=env)
        job = battery.replace(job, command=(*job.command, json.dumps(wishes)))
        result = battery.run(executor, job)
        assert result.status == 0, result
        return dict(json.loads(result.out))
    finally:
        executor.close()
        egress.stop()


def test_an_allowed_target_is_reached_both_ways(top: Path, server: int, guard: Guard) -> None:
    """By HTTP with the variables that every program knows, and by SOCKS5."""
    wishes = [
        ("fetch", f"http://127.0.0.1:{server}/"),
        ("connect", "127.0.0.1", server),
        ("socks", "127.0.0.1", server),
        ("garbage", 0),
        ("descriptors", 0),
        ("connect", "127.0.0.1", server + 1 if server < 65535 else 1),
    ]
    told = list(run(top / "allowed", wishes, guard).values())
    assert told[:3] == [len(PAGE), 200, 0]
    assert told[3] == 0
    assert told[4] == [0, 1, 2]  # the gate is not the job's
    assert told[5] in (502, 504)


NOT_ALLOWED = [
    ("127.0.0.1", 80),
    ("169.254.169.254", 80),
    ("10.0.0.1", 80),
    ("192.168.1.1", 443),
    ("[::1]", 80),
    ("[::ffff:127.0.0.1]", 80),
    ("[64:ff9b::a00:1]", 80),
    ("0.0.0.0", 80),
    ("1.1.1.1", 25),
    ("1.1.1.1", 465),
    ("1.1.1.1", 587),
    ("localhost", 80),
    ("router.lan", 80),
    ("metadata.internal", 80),
    ("0x7f.1", 80),
    ("127.1", 80),
    ("2130706433", 80),
    ("a-name-of-the-test.org", 80),
]


def test_an_address_that_is_not_public_is_refused_in_words(
    top: Path, strict: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses in every spelling, mail, names of the home, and names that lead there."""
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.168.1.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    told = run(top / "refused", [("connect", *each) for each in NOT_ALLOWED], strict)
    # A name of the home is answered as one that does not exist.
    name = "connect a-name-of-the-test.org 80"
    assert told == {f"connect {host} {port}": 403 for host, port in NOT_ALLOWED} | {name: 502}
    assert asked == ["a-name-of-the-test.org."]  # looked up once; the others not at all


def test_bytes_are_counted_and_end(top: Path, server: int, guard: Guard) -> None:
    """A job that has used up its bytes is cut, and refused from then on."""
    wishes = [("fetch", f"http://127.0.0.1:{server}/"), ("connect", "127.0.0.1", server)]
    told = list(run(top / "counted", wishes, guard, max_bytes=100_000).values())
    assert told[0] != len(PAGE)
    assert told[1] == 403


def test_a_new_agent_serves_a_job_that_runs(top: Path, server: int, guard: Guard) -> None:
    """The new agent makes the port anew, and the gate opens once."""
    limits, findings = choose()
    battery.require("" if limits else str(findings))
    assert limits is not None
    first, second = Egress(Outward(guard)), Egress(Outward(guard))
    program = f"""
import socket, time
def ask():
    try:
        with socket.create_connection(("127.0.0.1", 1080)) as sock:
            sock.settimeout(15)
            sock.sendall(b"CONNECT 127.0.0.1:{server} HTTP/1.1\\r\\n\\r\\n")
            return sock.recv(12)
    except OSError:  # refused, cut, or never answered
        return b""
print(ask(), flush=True)
while ask():
    time.sleep(0.01)
print("alone", flush=True)
while not ask():
    time.sleep(0.01)
print("served again", flush=True)
"""
    job = battery.python_task(top / "adopted", program, network="egress")
    executor = BwrapExecutor(limits, first)
    started = battery.launch(executor, job)
    until_true(lambda: b"200" in started.out, lambda: str(started.err))
    executor.close()
    first.stop()
    until_true(lambda: b"alone" in started.out, lambda: str(started.out))
    again = BwrapExecutor(limits, second)
    again.attach(job, started.pid)
    assert started.wait() == 0
    assert b"served again" in started.out
    assert second.used(job.attempt_id) == 0
    again.clean(job.attempt_id)
    second.stop()


def test_a_job_that_is_gone_cannot_be_served(strict: Guard) -> None:
    """A word, and no thread that waits for ever."""
    egress = Egress(Outward(strict))
    with pytest.raises(TaskError) as error:
        egress.open("gone-1", os.getpid())
    assert error.value.kind == "host"
    egress.close("gone-1")
    egress.stop()


async def test_a_connection_that_came_just_before_the_end_is_closed(guard: Guard) -> None:
    """Its task is cancelled before its first step, so nothing of that closes the connection."""
    loop = asyncio.get_running_loop()
    job = _Job(guard, Rules(), loop)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        job._accept(reader, writer)
        for task in job._tasks:
            task.cancel()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.read() == b""
    writer.close()
    server.close()
    await until(lambda: not job._tasks)
    await job.close()


async def test_a_connection_that_is_just_being_taken_is_closed(guard: Guard) -> None:
    """The job is closed in the turn of the loop that accepts, before there is a transport."""
    loop = asyncio.get_running_loop()
    job = _Job(guard, Rules(), loop)
    listening = socket.create_server(("127.0.0.1", 0))
    await job.serve(listening)
    closing: list[asyncio.Task[None]] = []

    def close() -> None:
        work = job.close()
        work.send(None)  # its first step, here and now
        closing.append(loop.create_task(work))

    with socket.create_connection(listening.getsockname()) as client:
        loop.call_later(0, close)  # timers run after the events of sockets
        await until(lambda: bool(closing) and closing[0].done())
        client.setblocking(False)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await loop.sock_recv(client, 1) == b""
    await closing[0]


def test_a_way_out_that_could_not_be_opened_does_not_count_as_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError("no descriptor is left")

    guard, routes = make_guard()
    egress = Egress(Outward(guard))
    try:
        monkeypatch.setattr(netns, "listen_inside", lambda *_: socket.socket())
        with monkeypatch.context() as broken:
            broken.setattr(asyncio, "start_server", fail)
            for _ in range(2):
                with pytest.raises(TaskError, match="no descriptor is left"):
                    egress.open("one", os.getpid())
        egress.open("one", os.getpid())
        assert egress._jobs
    finally:
        egress.stop()
        if routes is not None:
            routes.close()

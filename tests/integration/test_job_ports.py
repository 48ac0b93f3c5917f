"""Ports of a job, all the way: from the daemon through the agent into a sandbox, and back."""

import asyncio
import hashlib
import itertools
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Person, Service, running_in
from support.exits.device import EXITS
from support.workers.market import WorkerMarket
from support.workers.process import WorkerAgent, require_sandbox

from proxyctl.worker.base.record import Lend
from proxyd.exits.dialling.orders import TunnelError
from proxyd.exits.dialling.tunnels import DeviceTunnels

SECONDS = 60.0  # 200 streams at once, on a machine that does much else
WEB, HELLO, SILENT, OTHER = 8001, 8002, 8003, 8004
PATTERN = bytes(range(256)) * 256
BUYERS = itertools.count()

# A client's first line decides the answer; on the port HELLO the server speaks first.
SERVER = """
import hashlib, socket, socketserver, threading

PATTERN = bytes(range(256)) * 256
sent = 0

class Web(socketserver.StreamRequestHandler):
    def handle(self):
        global sent
        words = self.rfile.readline().split()
        if words[0] == b"GET":
            said = str(sent).encode() if words[1] == b"/sent" else b"a page"
            self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + said)
        elif words[0] == b"SOURCE":
            for _ in range(int(words[1])):
                self.wfile.write(PATTERN)
                sent += len(PATTERN)
        elif words[0] == b"SINK":
            digest = hashlib.sha256()
            while data := self.rfile.read(65536):
                digest.update(data)
            self.wfile.write(digest.hexdigest().encode())  # behind the end of the other way
        else:
            self.wfile.write(words[1])
            self.rfile.read()

class Hello(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"hello from within")

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 512

for port, handler in ((8002, Hello), (8004, Hello)):
    threading.Thread(target=Server(("127.0.0.1", port), handler).serve_forever).start()
Server(("127.0.0.1", 8001), Web).serve_forever()
"""


@dataclass
class World:
    """A daemon, an agent, and a job that listens."""

    service: Service
    agent: WorkerAgent
    owner: Person
    buyer: Person
    job_id: str
    device_id: str

    @property
    def tunnels(self) -> DeviceTunnels:
        port = self.service.daemon.exit_port
        assert port is not None
        return port.tunnels

    async def open(self, port: int = WEB, **changes: Any) -> socket.socket:
        """Open a stream into the job; from elsewhere with changes."""
        wish = {"device_id": self.device_id, "job_id": self.job_id, "attempt": 1, **changes}
        buyer = f"buyer {next(BUYERS)}"  # each has a part of all streams
        return await self.tunnels.open(**wish, port=port, seconds=SECONDS, buyer_id=buyer)

    async def ask(self, words: bytes, port: int = WEB) -> bytes:
        """Open a stream, say something, and return the answer to its end."""
        with await self.open(port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, words)
            sock.shutdown(socket.SHUT_WR)
            return await rest(sock)

    async def page(self, path: bytes = b"/") -> bytes:
        return (await self.ask(b"GET " + path + b" HTTP/1.0\r\n")).rpartition(b"\r\n")[2]

    async def why_not(self, port: int = WEB, **changes: Any) -> str:
        with pytest.raises(TunnelError) as raised:
            (await self.open(port, **changes)).close()
        return raised.value.reason

    async def attempt(self) -> dict[str, Any]:
        """Return the job's only attempt, as its buyer is shown it."""
        path = f"/api/jobs/{self.job_id}/attempts"
        answer = await self.service.call("GET", path, token=self.buyer.token)
        [attempt] = answer.body["attempts"]
        return cast(dict[str, Any], attempt)

    async def until_attached(self) -> None:
        await until(lambda: self.tunnels.is_attached(self.device_id), f"it attaches: {self.log}")

    @property
    def log(self) -> str:
        return self.agent.log[-3000:]


async def rest(sock: socket.socket) -> bytes:
    """Read to the end."""
    data = bytearray()
    while more := await asyncio.get_running_loop().sock_recv(sock, 1 << 18):
        data += more
    return bytes(data)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A job that is ready."""
    require_sandbox(tmp_path)
    async with running_in(tmp_path, **EXITS) as service:
        owner, buyer = await service.person(), await service.person(credit="10")
        folder = tmp_path / "agent"
        folder.mkdir(mode=0o700)
        agent = WorkerAgent(folder, cast(WorkerMarket, SimpleNamespace(url=service.url, jobs={})))
        lend = Lend(cores=1, ram_gb=0.5, disk_gb=1, max_jobs=1)
        agent.agree(service.url, lend, await worker_token(service, owner))
        payload = {
            "script": SERVER,
            "ports": [
                {"name": "web", "port": WEB},
                {"name": "hello", "port": HELLO, "protocol": "tcp"},
                {"name": "silent", "port": SILENT, "protocol": "tcp"},
            ],
            "ready": {"port": WEB, "http": "/", "every_s": 1},
        }
        job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
        body = {**job, "payload": payload}
        made = await service.call("POST", "/api/jobs", body, token=buyer.token)
        listed = await service.call("GET", "/api/worker/devices", token=owner.token)
        [device] = listed.body["devices"]
        world = World(service, agent, owner, buyer, made.body["job_id"], device["id"])
        agent.start()
        try:

            async def is_ready() -> bool:
                path = f"/api/jobs/{world.job_id}/attempts"
                answer = await service.call("GET", path, token=buyer.token)
                return any("ready_at" in each for each in answer.body["attempts"])

            await until(is_ready, f"it is ready: {agent.log}", seconds=60)
            await world.until_attached()
            yield world
        finally:
            await asyncio.to_thread(agent.close)


async def test_streams_into_a_job(world: World) -> None:
    assert await world.page() == b"a page"
    with await world.open(HELLO) as sock:  # it speaks first
        assert await rest(sock) == b"hello from within"
    assert await world.why_not(SILENT) == "refused"  # a closed port
    # The server also listens on this one; its buyer has not declared it.
    assert await world.why_not(OTHER) == "refused"
    assert await world.why_not(22) == "refused"
    assert await world.why_not(attempt=2) == "gone"
    assert await world.why_not(job_id="01234567-89ab-cdef-0123-456789abcdef") == "gone"
    assert await world.why_not(device_id="another") == "away"
    assert (await world.attempt())["attempt"] == 1


@pytest.mark.long
async def test_many_streams_and_large_ones(world: World) -> None:
    pages = await asyncio.gather(*(world.page() for _ in range(200)))
    assert pages == [b"a page"] * 200
    # Both ways at once, to the last byte: a digest behind the end shows the bytes that went in.
    count = 320  # of 64 KiB: 20 MB
    whole = hashlib.sha256(PATTERN * count).hexdigest()
    source, sink = await asyncio.gather(
        world.ask(b"SOURCE %d\n" % count), world.ask(b"SINK\n" + PATTERN * count)
    )
    assert hashlib.sha256(source).hexdigest() == whole
    assert sink.decode() == whole
    await until(lambda: world.tunnels.streams == 0, "all are over")
    from_job, to_job = world.tunnels.moved
    assert from_job > 20_000_000
    assert to_job > 20_000_000
    # A client that does not read makes the job wait: the bytes under way are bounded.
    before = int(await world.page(b"/sent"))
    slow = await world.open()
    await asyncio.get_running_loop().sock_sendall(slow, b"SOURCE 1000\n")
    seen = [-1]

    async def stands_still() -> bool:
        seen.append(int(await world.page(b"/sent")) - before)
        return len(seen) > 3 and 0 < seen[-1] == seen[-2] == seen[-3]

    await until(stands_still)
    assert seen[-1] < 30_000_000
    slow.close()


async def test_streams_end_with_the_agent_and_come_again(world: World) -> None:
    with await world.open() as sock:
        await asyncio.get_running_loop().sock_sendall(sock, b"WAIT here\n")
        assert await asyncio.get_running_loop().sock_recv(sock, 4) == b"here"
        await asyncio.to_thread(world.agent.kill, signal.SIGKILL)
        with pytest.raises(ConnectionResetError):
            await rest(sock)
    await until(lambda: not world.tunnels.is_attached(world.device_id))
    assert await world.why_not() == "away"
    world.agent.start()
    await world.until_attached()
    assert await world.page() == b"a page"
    assert world.agent.log.count("ready") == 1  # that it is ready was known


async def test_a_job_that_is_stopped_takes_its_streams_along(world: World) -> None:
    with await world.open() as sock:
        await asyncio.get_running_loop().sock_sendall(sock, b"WAIT here\n")
        path = f"/api/jobs/{world.job_id}/cancel"
        answer = await world.service.call("POST", path, token=world.buyer.token)
        assert answer.status == 200
        with suppress(ConnectionResetError):  # or it ends in order: the job is quicker sometimes
            assert await rest(sock) == b"here"
    await until(lambda: not world.tunnels.is_attached(world.device_id), "nothing is left to reach")
    assert world.tunnels.streams == 0


async def test_a_revoked_device_admits_no_stream(world: World) -> None:
    with await world.open() as sock:
        body = {"token_id": world.device_id}
        path = "/api/worker/token/revoke"
        answer = await world.service.call("POST", path, body, token=world.owner.token)
        assert answer.status == 200
        with pytest.raises(ConnectionResetError):
            await rest(sock)
    await until(lambda: not world.tunnels.is_attached(world.device_id))
    assert await world.why_not() == "away"

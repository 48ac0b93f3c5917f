"""The door of apps beside jobs of the test's own, which are servers on loopback."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from api.http.limits import ApiLimits
from api.reverse.places import Places
from api.reverse.server import AppServer, Terms, UnreachedError
from market.bandwidth.credentials import hash_password
from market.deploys.apps import App
from market.deploys.rollouts import Serving
from proxyctl.protocol.jobspec import Port
from proxyd.acceptor import Acceptor
from proxyd.exits.attached.secure import reset_on_close

APP = "01998f00-0000-7000-8000-00000000000a"
KEY = "k" * 43
DOMAIN = "apps.test"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Job:
    """A server that is a job: the requests that it got, connection by connection."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[bytes] = []
        self.connections = 0
        self.answer: Handler = self.echo

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        """Read the head of a request, and keep it."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        return head

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer with the target of the request."""
        head = await self.head(reader)
        target = head.split(b" ")[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(target) + target)
        await writer.drain()

    async def keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request after the other, as `echo`."""
        while True:
            await self.echo(reader, writer)

    def says(self, *pieces: bytes) -> None:
        """Answer every request with these bytes, and close."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.head(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

        self.answer = answer

    def headers(self, index: int = -1) -> dict[str, str]:
        """Return the headers of a request, their names in lower case."""
        lines = self.asked[index].decode("latin-1").split("\r\n")[1:-2]
        pairs = (line.partition(": ") for line in lines)
        return {name.lower(): value for name, _, value in pairs}


class Door:
    """An `AppServer` that takes clients in on loopback, and knows the apps that a test gives it."""

    def __init__(self, domain: str, **terms: Any) -> None:
        self.apps: dict[str, App] = {}
        self.unreached: dict[str, str] = {}  # why a job cannot be reached
        self.ports: dict[str, int] = {}  # where the jobs listen in truth
        self.asked: list[tuple[str, str, int, int]] = []
        self.seconds: list[float] = []  # that each had
        self.streams: list[socket.socket] = []  # into jobs
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        url = terms.pop("public_url", f"http://127.0.0.1:{self.port}")
        limits = terms.pop("limits", ApiLimits())
        made = Terms(
            Places(url, domain),
            limits,
            terms.pop("streams_per_app", 100),
            terms.pop("idle_seconds", 3600.0),
        )
        self.server = AppServer(self._find, self._hashes, self, made)
        self.server.start(None)
        self._acceptor = Acceptor(
            asyncio.get_running_loop(),
            listener,
            self.server.welcome,
            self.server.shed,
            logging.getLogger("apps"),
            socket.socket,
        )

    def offer(self, *jobs: Job, key: str = KEY, stays: bool = False, app_id: str = APP) -> str:
        """Add an app with these jobs as its targets; return its host."""
        targets = []
        for number, job in enumerate(jobs, 1):
            job_id = f"job-{number}" if len(jobs) > 1 else app_id
            self.ports[job_id] = job.port
            web = (Port("web", 8888),)
            targets.append(Serving(job_id, 1, f"device-{number}", number, 1, web))
        self.apps[app_id] = App(app_id, hash_password(key.encode()), tuple(targets), stays)
        return f"{app_id}.{DOMAIN}"

    async def _find(self, app_id: str) -> App | None:
        return self.apps.get(app_id)

    async def _hashes(self, app_ids: Any) -> dict[str, str]:
        return {each: self.apps[each].key_hash for each in app_ids if each in self.apps}

    async def __call__(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        self.asked.append((device_id, job_id, attempt, port))
        self.seconds.append(seconds)
        if job_id in self.unreached:
            raise UnreachedError(self.unreached[job_id])
        sock = socket.socket()
        self.streams.append(sock)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[job_id]))
        except BaseException:  # the client has gone meanwhile
            sock.close()
            raise
        return sock

    def reset(self, sock: socket.socket) -> None:
        reset_on_close(sock)

    async def close(self) -> None:
        self._acceptor.close()
        await self.server.stop()


@asynccontextmanager
async def door(domain: str = DOMAIN, **terms: Any) -> AsyncIterator[Door]:
    """Close it with the test."""
    made = Door(domain, **terms)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def jobs(count: int = 1) -> AsyncIterator[list[Job]]:
    """Start jobs that listen."""
    made = [Job() for _ in range(count)]
    servers = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in made]
    for each, server in zip(made, servers, strict=True):
        each.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        for server in servers:
            server.close()
            await server.wait_closed()


async def say(port: int, request: bytes, *, until_end: bool = True) -> bytes:
    """Send bytes to a port, and return everything that it answers until the end."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return b""
    try:
        writer.write(request)
        await writer.drain()
        if until_end:
            return await reader.read()
        return await reader.readuntil(b"\r\n\r\n")
    except ConnectionError:
        return b""
    finally:
        writer.close()

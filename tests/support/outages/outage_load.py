"""Traffic of customers while the database fails over: writes, relays, dials and probes.

Every event is noted with its time. After an outage a test reads its figures between two moments
(`Load.seen`).
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple

import aiohttp

from support.base.waiting import until
from support.clients.socks import Client, tunnel
from support.daemons.process import Process
from support.targets import targets

WRITERS = 3
RELAYS_PER_DAEMON = 2
# A client's own patience, longer than a daemon needs to say that the database is away.
CLIENT_SECONDS = 20.0
WRITE_PAUSE_SECONDS = 0.1
REFUSED_PAUSE_SECONDS = 0.3
PROBE_PAUSE_SECONDS = 0.5
DIAL_PAUSE_SECONDS = 0.5
# The daemons have said by then that every stream is over.
END_SECONDS = 40.0
BLOCK = b"x" * 8192
BLOCK_PAUSE_SECONDS = 0.05
JOB = {"job_type": "script", "price_credit": 0.01, "duration_hrs": 1}


class Request(NamedTuple):
    """One request, or one connection through the proxy, and its answer."""

    began: float
    seconds: float
    status: int  # 0: no answer, or a refusal of the proxy
    daemon: int
    said: str = ""  # the answer to a request that failed


class Stall(NamedTuple):
    """A time in which a relay moved nothing."""

    ended: float
    seconds: float


@dataclass
class Relay:
    """A connection through the proxy that moves bytes until the load is over."""

    session: str
    daemon: int
    received: int = 0
    read_at: float = field(default_factory=monotonic)
    stalls: list[Stall] = field(default_factory=list)
    cut: str = ""


class Seen(NamedTuple):
    """Seconds and requests between two moments."""

    writes_stopped: float
    refused: int
    slowest: float
    not_ready: float  # the most of any daemon, from its first refusal to its last
    slowest_probe: float
    relay_stall: float
    dials_refused: int


class Load:
    """Traffic of some customers over several daemons.

    Args:
        daemons: they use all of them.
        email: the account that all of it is paid from.
        password: its password.
    """

    def __init__(self, daemons: Sequence[Process], email: str, password: str) -> None:
        self._daemons = daemons
        self._token = daemons[0].log_in(email, password)
        self._is_over = asyncio.Event()
        self.accepted: dict[str, str] = {}  # the title of each by the id of a job
        self.accepted_at: list[float] = []
        self.writes: list[Request] = []
        self.probes: list[Request] = []
        self.dials: list[Request] = []
        self.relays: list[Relay] = []
        self.surprises: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep it up; at the end every relay is read to its last byte."""
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(targets.serving(self._send))
            timeout = aiohttp.ClientTimeout(total=CLIENT_SECONDS)
            http = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
            bought = [
                self._daemons[0].buy(self._token, gb=5)
                for _ in range(RELAYS_PER_DAEMON * len(self._daemons))
            ]
            # Sessions of their own: bytes that a client leaves unread in its socket are billed.
            dialled = [self._daemons[0].buy(self._token, gb=5) for _ in self._daemons]
            each = list(enumerate(self._daemons))
            work = [
                *(self._write(http, index) for index in range(WRITERS)),
                *(self._probe(http, index) for index, _ in each),
                *(self._relay(one, n % len(each), target.port) for n, one in enumerate(bought)),
                *(self._dial(one, index, target.port) for index, one in enumerate(dialled)),
            ]
            tasks = [asyncio.create_task(one) for one in work]
            try:
                await until(lambda: len(self.accepted) >= WRITERS, "the first jobs are there")
                yield
            finally:
                self._is_over.set()
                _, late = await asyncio.wait(tasks, timeout=END_SECONDS)
                for each in late:
                    each.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                self.surprises += [repr(each) for each in results if each is not None]

    async def written_after(self, moment: float, *, seconds: float) -> None:
        """Wait until a write that began after a moment is acknowledged."""
        await until(
            lambda: any(one.began > moment and one.status == 200 for one in self.writes[-50:]),
            f"no write for {seconds} s",
            seconds=seconds,
        )

    def refusals(self, begin: float, end: float) -> list[str]:
        """Return the answers to requests and probes that failed between two moments."""
        return [
            f"{one.began - begin:.1f} + {one.seconds:.1f} s, daemon {one.daemon}: {one.said}"
            for one in (*_of(self.writes, begin, end), *_of(self.probes, begin, end))
            if one.status != 200
        ]

    def seen(self, begin: float, end: float) -> Seen:
        """Return the records between two moments."""
        writes = _of(self.writes, begin, end)
        probes = _of(self.probes, begin, end)
        acknowledged = [begin, *(at for at in self.accepted_at if begin <= at <= end), end]
        failed = [one for one in probes if one.status != 200]
        spans = [
            max(one.began + one.seconds for one in own) - min(one.began for one in own)
            for index in range(len(self._daemons))
            if (own := [one for one in failed if one.daemon == index])
        ]
        stalls = [
            one.seconds
            for relay in self.relays
            for one in [*relay.stalls, Stall(end, end - relay.read_at)]
            if begin <= one.ended <= end
        ]
        return Seen(
            max(b - a for a, b in pairwise(acknowledged)),
            sum(one.status != 200 for one in writes),
            max((one.seconds for one in writes), default=0.0),
            max(spans, default=0.0),
            max((one.seconds for one in probes), default=0.0),
            max(stalls, default=0.0),
            sum(one.status != 200 for one in _of(self.dials, begin, end)),
        )

    async def _write(self, http: aiohttp.ClientSession, index: int) -> None:
        """Post jobs, each until it is acknowledged, at one daemon after the other."""
        turn = index
        while not self._is_over.is_set():
            title = uuid.uuid4().hex
            while True:
                turn += 1
                status, body = await self._post(http, turn % len(self._daemons), title)
                if status == 200:
                    self.accepted[body["job_id"]] = title
                    self.accepted_at.append(monotonic())
                    break
                if status in (0, 500, 503):
                    await asyncio.sleep(REFUSED_PAUSE_SECONDS)
                    continue
                self.surprises.append(f"{status} {body}")
                break
            await asyncio.sleep(WRITE_PAUSE_SECONDS)

    async def _post(self, http: aiohttp.ClientSession, index: int, title: str) -> tuple[int, Any]:
        began, status, body = monotonic(), 0, None
        headers = {"Authorization": f"Bearer {self._token}", "Idempotency-Key": title}
        try:
            address = f"{self._daemons[index].api}/api/jobs"
            async with http.post(address, json={**JOB, "title": title}, headers=headers) as answer:
                body = await answer.json()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            body = repr(error)
        said = "" if status == 200 else str(body)
        self.writes.append(Request(began, monotonic() - began, status, index, said))
        return status, body

    async def _probe(self, http: aiohttp.ClientSession, index: int) -> None:
        while not self._is_over.is_set():
            began, status, said = monotonic(), 0, ""
            try:
                async with http.get(f"{self._daemons[index].api}/readyz") as answer:
                    said = await answer.text()
                    status = answer.status
            except (aiohttp.ClientError, TimeoutError) as error:
                said = repr(error)
            self.probes.append(Request(began, monotonic() - began, status, index, said))
            await asyncio.sleep(PROBE_PAUSE_SECONDS)

    async def _relay(self, bought: dict[str, Any], index: int, port: int) -> None:
        relay = Relay(bought["session_id"], index)
        self.relays.append(relay)
        proxy, proxy_port = bought["proxy"], self._daemons[index].proxy_port
        client = await tunnel(proxy_port, proxy["username"], proxy["password"], "127.0.0.1", port)
        try:
            while data := await client.reader.read(65_536):
                now = monotonic()
                if now - relay.read_at > 2 * BLOCK_PAUSE_SECONDS:
                    relay.stalls.append(Stall(now, now - relay.read_at))
                relay.received += len(data)
                relay.read_at = now
            if not self._is_over.is_set():
                relay.cut = "ended"
        except OSError as error:
            relay.cut = str(error)
        finally:
            client.writer.close()

    async def _dial(self, bought: dict[str, Any], index: int, port: int) -> None:
        """Open new connections of a known session, one after the other."""
        proxy = bought["proxy"]
        while not self._is_over.is_set():
            began, status = monotonic(), 0
            client = await Client.open(self._daemons[index].proxy_port)
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(CLIENT_SECONDS):
                    is_relayed = (
                        await client.log_in(proxy["username"], proxy["password"]) == 0
                        and await client.connect("127.0.0.1", port) == 0
                    )
                    status = 200 if is_relayed and await client.reader.read(1) else 0
            client.writer.close()
            self.dials.append(Request(began, monotonic() - began, status, index))
            await asyncio.sleep(DIAL_PAUSE_SECONDS)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send blocks until the client ends its stream, or the load is over."""
        while not (self._is_over.is_set() or reader.at_eof() or writer.is_closing()):
            writer.write(BLOCK)
            await writer.drain()
            await asyncio.sleep(BLOCK_PAUSE_SECONDS)


def _of(requests: Sequence[Request], begin: float, end: float) -> list[Request]:
    """Return the requests that were under way between two moments."""
    return [one for one in requests if one.began <= end and one.began + one.seconds >= begin]

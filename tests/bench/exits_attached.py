"""Many exits at one daemon: the time until they are attached, and the cost of an idle exit.

`python -m bench.exits_attached ORDER` are the devices: each attaches from an address of its own,
keeps a connection waiting on request, answers its frames, and reaches no target.
"""

import asyncio
import hashlib
import json
import re
import resource
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import uvloop
from support.base.ports import free_port
from support.daemons import process

from bench import usage
from bench.exit_ways import exits_environment
from bench.report import Bound, Part, progress
from bench.servers import LOOPBACK, ROOT
from proxyctl.protocol.frames import (
    VERSION,
    Dial,
    Dialled,
    DialOutcome,
    Frame,
    FrameReader,
    Hello,
    Park,
    Ping,
    Pong,
    Preface,
    Tickets,
    Welcome,
    encode,
)

EXITS = 6_000
AT_ONCE = 200  # of handshakes: more would wait in the daemon's queue
PATIENCE_SECONDS = 120.0
SETTLE_SECONDS = 3.0
PAUSE_SECONDS = 0.02  # between two questions to the API
COUNTED_SECONDS = 0.25  # all metrics are rendered for that
FIRST_ADDRESS = int(IPv4Address("127.1.0.1"))  # two exits of one address are not both chosen
NOW = 1_800_000_000


def measure(part: Part, folder: Path) -> None:
    """Attach exits up to the descriptors of one process, and query the API meanwhile."""
    own = folder / "attached"
    own.mkdir()
    url, port = f"sqlite:///{own}/proxyd.db", free_port()
    settings = {**exits_environment(port, [443]), "PROXYD_EXITS__EXITS_PER_NETWORK": "100000"}
    process.funded(url, name="owner")
    with process.serving(url, **settings) as daemon:
        _, terms = daemon.call("GET", "/api/exits/terms")
        assert daemon.stop() == 0, daemon.output
    _register(own / "proxyd.db", terms["terms_hash"])
    with process.serving(url, **settings) as daemon:
        pids = usage.tree(daemon.process.pid)
        before, cpu = usage.memory_bytes(pids), usage.cpu_seconds(pids)
        progress(f"exits: {EXITS} attach")
        order = {"port": port, "count": EXITS, "terms": terms["terms_hash"]}
        command = [sys.executable, "-m", "bench.exits_attached", json.dumps(order)]
        devices = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            attached, seconds, slowest = _watch(daemon.api)
            cpu = usage.cpu_seconds(pids) - cpu
            time.sleep(SETTLE_SECONDS)
            memory = usage.memory_bytes(pids) - before
        finally:
            devices.send_signal(signal.SIGKILL)
            devices.communicate()
    each = memory / attached / 1024
    part.notes.append(
        f"{attached:,} exits attached in {seconds:.1f} s, {cpu * 1e6 / attached:,.0f} µs of the"
        " daemon's processor time each; the devices run on the same cores."
    )
    part.bounds += [
        Bound(f"{EXITS:,} exits attached: seconds", seconds, 10, at_most=True),
        Bound("`GET /healthz` meanwhile: the slowest, ms", slowest, 50, at_most=True),
        Bound("KB per attached exit with a connection that waits", each, 32, at_most=True),
    ]


def _register(path: Path, terms: str) -> None:
    """Make the devices and their owners' consents, straight in the database."""
    with closing(sqlite3.connect(path)) as database, database:
        [owner] = database.execute("SELECT id FROM users WHERE username = 'owner'").fetchone()
        ids = [f"01900000-0000-7000-8002-{number:012}" for number in range(EXITS)]
        database.executemany(
            "INSERT INTO devices (id, user_id, token_hash, name, hostname, device_type, created_at)"
            " VALUES (?, ?, ?, 'box', '', 'mini_pc', ?)",
            [
                (each, owner, hashlib.sha256(token(number).encode()).hexdigest(), NOW)
                for number, each in enumerate(ids)
            ],
        )
        database.executemany(
            "INSERT INTO exits (device_id, user_id, terms_hash, consented_at, connections,"
            " bytes_per_second, bytes_per_day, ports, min_price_per_gb)"
            " VALUES (?, ?, ?, ?, 16, 0, 0, '443', 0)",
            [(each, owner, terms, NOW) for each in ids],
        )


def token(number: int) -> str:
    """Return the worker token of a device."""
    return f"device-{number:06}-of-the-benchmark"


def _watch(api: str) -> tuple[int, float, float]:
    """Ask how many exits there are until all are.

    Returns:
        the number of attached exits, the seconds until then, and the slowest answer of /healthz in
        milliseconds.
    """
    began, slowest, attached = time.monotonic(), 0.0, 0
    counted = began
    while attached < EXITS and time.monotonic() - began < PATIENCE_SECONDS:
        asked = time.monotonic()
        with urllib.request.urlopen(f"{api}/healthz", timeout=30) as answer:
            answer.read()
        slowest = max(slowest, (time.monotonic() - asked) * 1000)
        if asked - counted >= COUNTED_SECONDS:
            counted = asked
            with urllib.request.urlopen(f"{api}/metrics", timeout=30) as answer:
                found = re.search(rb"^proxyd_exits_attached (\S+)", answer.read(), re.MULTILINE)
            attached = int(float(found[1])) if found else 0
        time.sleep(PAUSE_SECONDS)
    return attached, time.monotonic() - began, slowest


class Device(asyncio.Protocol):
    """One exit.

    Args:
        fleet: the fleet of this exit.
        number: its own.
    """

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self._fleet = fleet
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._attachment = 0
        self._tickets: list[tuple[int, bytes]] = []
        self._wanted = self._parked = 0
        self._token = token(number)
        self.address = str(IPv4Address(FIRST_ADDRESS + number))
        self.attached = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send(Hello(VERSION, self._token, "0", "bench", (), self._fleet.terms, ""))

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.receive_data(data):
            self._act(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.attached.done():
            self.attached.set_exception(exc or ConnectionError("the daemon has closed"))

    def _send(self, frame: Frame) -> None:
        assert self._transport is not None
        self._transport.write(encode(frame))

    def _act(self, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            self._attachment = frame.attachment
            if not self.attached.done():
                self.attached.set_result(None)
        elif isinstance(frame, Ping):
            self._send(Pong(frame.payload))
        elif isinstance(frame, Dial):  # the daemon looks where its connections leave
            self._parked -= 1
            self._send(Dialled(frame.number, DialOutcome.REFUSED, 0, None, 0))
        elif isinstance(frame, Tickets):
            self._tickets += enumerate(frame.tickets, frame.first)
        elif isinstance(frame, Park):
            self._wanted = frame.connections
        while self._parked < self._wanted and self._tickets:
            self._parked += 1
            self._fleet.spawn(self._park(*self._tickets.pop(0)))

    async def _park(self, number: int, ticket: bytes) -> None:
        """Open a connection that waits, for good."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            asyncio.Protocol, LOOPBACK, self._fleet.port, local_addr=(self.address, 0)
        )
        transport.write(Preface(self._attachment, number, ticket).encode())
        self._fleet.waiting.append(transport)


class Fleet:
    """All devices; they stay until the process is killed."""

    def __init__(self, port: int, count: int, terms: str) -> None:
        self.port = port
        self.terms = terms
        self.waiting: list[Any] = []
        self._count = count
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        await asyncio.gather(*(self._attach(number) for number in range(self._count)))
        await asyncio.Event().wait()

    async def _attach(self, number: int) -> None:
        async with self._slots:
            for _ in range(5):
                device = Device(self, number)
                with suppress(OSError):
                    await asyncio.get_running_loop().create_connection(
                        lambda device=device: device,
                        LOOPBACK,
                        self.port,
                        ssl=self._context,
                        local_addr=(device.address, 0),
                    )
                    await device.attached
                    return
                await asyncio.sleep(0.2)


def main(order: dict[str, Any]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(Fleet(**order).run())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

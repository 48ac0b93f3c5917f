"""The API under siege: one address plays every trick at once, another one measures its answers.

Usage: python -m bench.siege, with SIEGE_SECONDS=60; everything else is at its default.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from support.clients.siege import TRICKS, Besieger
from support.daemons import process

BESIEGER, ANOTHER = "127.0.0.2", "127.0.0.3"
EACH = 40  # connections that play one trick: with all of them, more than twice a network's share
PAUSE_SECONDS = 0.025  # between requests, so that they stay below the rate of one login
PATHS = ("/auth/me", "/api/bandwidth/sessions", "/api/marketplace/jobs", "/healthz", "/docs")
P99_SECONDS = 0.05
MEMORY_BYTES = 200_000_000

# Settings of a daemon without a configuration; the tests of others are cheaper.
DEFAULTS = {
    "PROXYD_AUTH__ARGON2_TIME_COST": "3",
    "PROXYD_AUTH__ARGON2_MEMORY_KIB": "65536",
    "PROXYD_LIMITS__REGISTRATIONS_PER_HOUR": "30",
    "PROXYD_LIMITS__REQUESTS_PER_SECOND": "100",
}


class Client:
    """A well-behaved client at an address of its own."""

    def __init__(self, host: str, port: int, pid: int) -> None:
        self.pid = pid
        self.peak_bytes = 0
        self._place = host, port
        self._connection = self._connect()
        self._token = ""
        self.taken: list[float] = []
        self.failures: Counter[str] = Counter()

    def log_in(self) -> None:
        """Open an account."""
        body = {"username": "ada", "email": "ada@example.com", "password": "correct horse"}
        connection = self._connect()
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/auth/register", json.dumps(body), kind)
        self._token = json.loads(connection.getresponse().read())["token"]
        connection.close()

    def ask(self, path: str, *, anew: bool) -> None:
        """Ask, by the connection that is open or by another one."""
        began = time.perf_counter()
        if anew:
            self._connection.close()
            self._connection = self._connect()
        try:
            self._connection.request(
                "GET", path, headers={"Authorization": f"Bearer {self._token}"}
            )
            answer = self._connection.getresponse()
            answer.read()
            if answer.status != 200:
                self.failures[str(answer.status)] += 1
        except OSError as error:
            self.failures[type(error).__name__] += 1
            self._connection = self._connect()
        self.taken.append(time.perf_counter() - began)

    def _connect(self) -> HTTPConnection:
        connection = HTTPConnection(*self._place, timeout=30, source_address=(ANOTHER, 0))
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def main() -> None:
    """Measure, print, and exit with 1 when a promise is not kept."""
    if len(sys.argv) > 1:
        asyncio.run(_besiege(int(sys.argv[1]), float(sys.argv[2])))
        return
    seconds = float(os.environ.get("SIEGE_SECONDS", "60"))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/proxyd.db"
        with process.serving(url, **DEFAULTS) as daemon:
            place = urlsplit(daemon.api)
            client = Client(str(place.hostname), place.port or 0, daemon.process.pid)
            client.log_in()
            _measure(client, seconds / 6)
            _tell("before", client)
            client.taken.clear()
            with _besieged(place.port or 0, seconds + 5):
                _measure(client, seconds)
            _tell("under siege", client)
    kept = (
        _percentile(client.taken, 0.99) <= P99_SECONDS
        and client.peak_bytes <= MEMORY_BYTES
        and not client.failures
    )
    sys.exit(not kept)


def _measure(client: Client, seconds: float) -> None:
    Path(f"/proc/{client.pid}/clear_refs").write_text("5")  # the peak begins anew
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        client.ask(PATHS[number % len(PATHS)], anew=number % 4 == 0)
        number += 1
        time.sleep(PAUSE_SECONDS)


def _tell(name: str, client: Client) -> None:
    status = Path(f"/proc/{client.pid}/status").read_text()
    client.peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    figures = ", ".join(
        f"p{share:.1%}".rstrip("%") + f" {_percentile(client.taken, share) * 1000:.1f} ms"
        for share in (0.5, 0.99, 1)
    )
    print(f"{name}: {len(client.taken)} answers, {figures}; failures {dict(client.failures)};")
    print(f"    the daemon's memory was at most {client.peak_bytes / 1e6:.0f} MB")


def _percentile(taken: list[float], share: float) -> float:
    ordered = sorted(taken)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@contextmanager
def _besieged(port: int, seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.siege", str(port), str(seconds)]
    besieger = subprocess.Popen(command)
    time.sleep(1.0)
    try:
        yield
    finally:
        besieger.kill()
        besieger.wait()


async def _besiege(port: int, seconds: float) -> None:
    besieger = Besieger(port, BESIEGER)
    async with besieger.standing(EACH):
        await asyncio.sleep(seconds)
    print(f"besieged with {EACH} connections of each of {len(TRICKS)} tricks: {besieger.begun}")


if __name__ == "__main__":
    main()

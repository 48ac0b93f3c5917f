"""Memory of a relayed connection that is idle, and whether the API answers while many are held."""

import json
import resource
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import usage
from bench.bought import Bought
from bench.connections import echo
from bench.report import Bound, Part, progress
from bench.servers import LOOPBACK, Kind, Server, started

HELD, HELD_IN_ALL = 5_000, 10_000
OF_DESCRIPTORS = 0.8 / 2  # the share that proxyd uses for connections, of two descriptors each
SETTLE_SECONDS = 1.0
ASKED = 200
MEMORY = "KB per idle connection"


def measure(kinds: list[Kind], bought: Bought, folder: Path) -> Part:
    """Hold connections at one server after the other, one fresh process each."""
    part = Part("memory")
    possible = _descriptors()
    count = min(HELD, int(possible * OF_DESCRIPTORS) - 100)
    with echo(folder) as port:
        for kind in kinds:
            progress(f"memory: {count} connections at {kind.name}")
            with started(kind) as server:
                _one(part, server, port, count)
        many = min(HELD_IN_ALL, int(possible * OF_DESCRIPTORS) - 100)
        progress(f"memory: the API while {many} connections are held")
        with started(bought.kind) as server, _held(server, port, many) as held:
            slowest = _slowest_answers(bought)
    part.notes.append(f"{count} connections held at each server, one echo on each before.")
    part.notes.append(f"The API answered while {len(held)} connections were held at proxyd.")
    idle = part.samples.median(MEMORY, "proxyd")
    part.bounds.append(Bound("KB per idle connection", idle, 6, at_most=True))
    for path, milliseconds in slowest.items():
        promise = f"`GET {path}` while {len(held):,} are held: the slowest of {ASKED}, ms"
        part.bounds.append(Bound(promise, milliseconds, 50, at_most=True))
    return part


def _one(part: Part, server: Server, port: int, count: int) -> None:
    server.connect(LOOPBACK, port).close()
    time.sleep(SETTLE_SECONDS)
    before = usage.memory_bytes(server.processes())
    try:
        with _held(server, port, count):
            time.sleep(SETTLE_SECONDS)
            after = usage.memory_bytes(server.processes())
    except OSError as error:
        part.notes.append(
            f"{server.name} does not hold {count} connections: {error.strerror or error}."
        )
        return
    part.samples.add(MEMORY, server.name, (after - before) / count / 1024)
    part.samples.add("MB with none", server.name, before / 1024**2)


@contextmanager
def _held(server: Server, port: int, count: int) -> Iterator[list[socket.socket]]:
    """Hold connections that have relayed something."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = server.connect(LOOPBACK, port)
            held.append(sock)
            sock.sendall(b"x" * 64)
            received = 0
            while received < 64:
                size = len(sock.recv(64 - received))
                if not size:
                    raise ConnectionError(f"connection {len(held)} was closed")
                received += size
        yield held
    finally:
        for sock in held:
            sock.close()


def _slowest_answers(bought: Bought) -> dict[str, float]:
    """Ask the API again and again; return the longest time of each request, in milliseconds."""
    taken: dict[str, list[float]] = {"/healthz": [], "/auth/me": []}
    headers = {"Authorization": f"Bearer {bought.token}"}
    for _ in range(ASKED):
        for path, times in taken.items():
            request = urllib.request.Request(
                f"http://{LOOPBACK}:{bought.api_port}{path}", headers=headers
            )
            start = time.monotonic()
            with urllib.request.urlopen(request, timeout=10) as response:
                assert json.loads(response.read())["ok"] is True
            times.append((time.monotonic() - start) * 1000)
    return {path: max(times) for path, times in taken.items()}


def _descriptors() -> int:
    """Raise the limit of open descriptors as far as it goes, for every process of the benchmark."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(hard, 65_536)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

"""Echo latency: 64 bytes there and back over one open connection, again and again."""

import gc
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from bench import usage
from bench.bought import INTERPRETED, PROXYD
from bench.connections import echo
from bench.report import Bound, Part, progress
from bench.servers import LOOPBACK, NO_PROXY, Kind, Server, all_started

BLOCKS, BLOCK = 20, 500
COST = "CPU µs per round trip"
PERCENTILES = {"p50, µs": 0.5, "p99, µs": 0.99, "p99.9, µs": 0.999}


def measure(kinds: list[Kind], rounds: int, folder: Path) -> Part:
    """Measure every server in turn, block by block."""
    part = Part("echo")
    with all_started(kinds) as servers, echo(folder) as port:
        for number in range(rounds):
            progress(f"echo: round {number + 1}")
            _turn(part, [NO_PROXY, *servers], port)
    part.notes.append(f"Medians of {rounds} rounds.")
    ratio = part.samples.ratio
    part.bounds = [
        Bound(f"{name} of dante's", ratio(name, PROXYD, "dante"), 1, at_most=True)
        for name in list(PERCENTILES)[:2]
    ]
    if INTERPRETED in part.samples.servers():
        middle, cost = (
            ratio(name, PROXYD, "microsocks") for name in (next(iter(PERCENTILES)), COST)
        )
        part.bounds.append(Bound("p50 of microsocks'", middle, 1.05, at_most=True))
        part.bounds.append(Bound(f"{COST} of microsocks'", cost, 1.1, at_most=True))
    return part


def _turn(part: Part, servers: list[Server], port: int) -> None:
    """Keep a connection open through each server, and have them take turns."""
    taken: dict[str, list[int]] = {server.name: [] for server in servers}
    cpu = dict.fromkeys(taken, 0.0)
    processes = {server.name: server.processes() for server in servers}
    with ExitStack() as stack:
        socks = {s.name: stack.enter_context(s.connect(LOOPBACK, port)) for s in servers}
        for sock in socks.values():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(None)
            _echoes(sock)
        gc.disable()
        try:
            for _ in range(BLOCKS):
                for name, sock in socks.items():
                    before = usage.cpu_seconds(processes[name])
                    taken[name] += _echoes(sock)
                    cpu[name] += usage.cpu_seconds(processes[name]) - before
        finally:
            gc.enable()
    for name, nanoseconds in taken.items():
        nanoseconds.sort()
        if processes[name]:
            part.samples.add(COST, name, cpu[name] * 1e6 / len(nanoseconds))
        for percentile, share in PERCENTILES.items():
            part.samples.add(percentile, name, nanoseconds[int(share * len(nanoseconds))] / 1000)


def _echoes(sock: socket.socket) -> list[int]:
    """Send a block of messages, one after the other. Return the nanoseconds of each."""
    message, taken = b"x" * 64, []
    for _ in range(BLOCK):
        start = time.perf_counter_ns()
        sock.send(message)
        received = _received(sock, 64)
        while received < 64:
            received += _received(sock, 64 - received)
        taken.append(time.perf_counter_ns() - start)
    return taken


def _received(sock: socket.socket, size: int) -> int:
    received = len(sock.recv(size))
    if not received:
        raise ConnectionError("the connection was closed")
    return received

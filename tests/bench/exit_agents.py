"""The agents of two checkouts, measured alternately: the cost of a connection, and of a gigabyte.

    PYTHONPATH=.:tests .venv/bin/python -m bench.exit_agents CHECKOUT [rounds]

It needs root, and runs in network namespaces of its own. Only processor time is comparable while
the machine has other work; a ratio is the median of the rounds' ratios. Bulk goes through a daemon
of this checkout for each agent; `exit_batches.py` orders the connections.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
from support.base.ports import free_port

from bench import streams, usage
from bench.bulk import window
from bench.exit_batches import drivers
from bench.exit_ways import EXIT, UNBOUND, proxyd_ways
from bench.report import Samples, progress
from bench.servers import ROOT, Server, started

APART = "PROXYD_BENCH_APART"  # set in the namespace
ROUNDS = 5
STREAMS = (1, 4)
WARM_UP_SECONDS, SECONDS = 0.3, 1.0
GB = 10**9
MB = 2**20
BEFORE, AFTER = "before", "after"


def main(checkout: Path, rounds: int, parts: list[str]) -> None:
    """Measure and print."""
    clients = {BEFORE: checkout / "client", AFTER: ROOT / "client"}
    samples = Samples()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, is_far in (("as a home has it", True), ("with --allow", False)):
            if "connections" not in parts:
                continue
            _connections(samples, clients, folder / label, label, rounds, is_far=is_far)
        if "bulk" in parts:
            _bulk(samples, clients, folder, rounds)
    _print(samples)


def _connections(
    samples: Samples,
    clients: dict[str, Path],
    folder: Path,
    label: str,
    rounds: int,
    *,
    is_far: bool,
) -> None:
    """Measure many short connections, and the memory after them."""
    with ExitStack() as stack:
        both = drivers(stack, clients, folder, is_far=is_far, limits=UNBOUND)
        for driver in both.values():
            driver.cost()
        for number in range(rounds):
            progress(f"connections, {label}: round {number + 1}")
            for name in _in_turn(number):
                samples.add(f"connection, {label}: CPU µs", name, both[name].cost())
        for name, driver in both.items():
            samples.add(f"{label}: MB of memory", name, driver.memory_bytes / MB)


def _bulk(samples: Samples, clients: dict[str, Path], folder: Path, rounds: int) -> None:
    """Measure transfers."""
    ports = free_port(), free_port()
    with ExitStack() as stack:
        servers = {}
        for name, client in clients.items():
            (folder / name).mkdir()
            way = next(each for each in proxyd_ways(folder / name, ports) if each.name == EXIT)
            environment = {"PYTHONPATH": os.fspath(client), "PYTHONDONTWRITEBYTECODE": "1"}
            kind = replace(way, name=name, environment=environment).kind_at()
            servers[name] = stack.enter_context(started(kind))
        end = stack.enter_context(streams.target(ports=ports))
        for number in range(rounds):
            progress(f"bulk: round {number + 1}")
            for count in STREAMS:
                for up in (False, True):
                    for name in _in_turn(number):
                        _transfer(samples, servers[name], end, count, up=up)


def _in_turn(number: int) -> tuple[str, str]:
    return (BEFORE, AFTER) if number % 2 else (AFTER, BEFORE)


def _agent(server: Server) -> list[int]:
    """Return the process of the agent."""
    return [pid for pid in server.processes() if "proxyctl" in psutil.Process(pid).cmdline()]


def _transfer(
    samples: Samples, server: Server, end: streams.Target, count: int, *, up: bool
) -> None:
    """Measure a transfer."""
    way = f"{count} {'up' if up else 'down'}"
    with streams.client(server, end, count, up=up) as running:
        time.sleep(WARM_UP_SECONDS)
        agent = _agent(server)
        cpu, size = usage.cpu_seconds(agent), running.counter.value
        speed, both = window(server, running.counter, SECONDS)
        cpu = usage.cpu_seconds(agent) - cpu
        moved = (running.counter.value - size) / GB
    samples.add(f"{way}: agent, CPU s/GB", server.name, cpu / moved)
    samples.add(f"{way}: agent and daemon, CPU s/GB", server.name, both)
    samples.add(f"{way}: GB/s", server.name, speed)


def _print(samples: Samples) -> None:
    for measure in samples.measures():
        before, after = (samples.median(measure, each) for each in (BEFORE, AFTER))
        ratio = samples.ratio(measure, AFTER, BEFORE)
        print(f"{measure:40} {before:10.4g} {after:10.4g} {ratio:8.3f}x", flush=True)


if __name__ == "__main__":
    if APART not in os.environ:
        command = ["unshare", "--net", sys.executable, "-m", "bench.exit_agents", *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, APART: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    chosen = os.environ.get("ONLY", "connections,bulk").split(",")
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS, chosen)

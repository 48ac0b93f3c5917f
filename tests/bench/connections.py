"""Connections: connections per second, their cost in CPU, and the duration of each."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.base.ports import free_port

from bench import usage
from bench.bought import INTERPRETED, PROXYD, several
from bench.native import compiled
from bench.report import Bound, Part, Samples, progress
from bench.servers import (
    HERE,
    LOOPBACK,
    NO_PROXY,
    PATIENCE_SECONDS,
    Kind,
    Place,
    Server,
    ServerError,
    accepts,
    all_started,
)

AT_ONCE, SECONDS = 32, 2.0
SETTLE_SECONDS = 0.2
RATE = "connections/s"
COST = "CPU µs per connection"
DAEMONS_COST = "CPU µs of the daemon per connection"
MEDIAN, TAIL = "p50, ms", "p99, ms"


@contextmanager
def echo(folder: Path, place: Place = HERE, port: int = 0) -> Iterator[int]:
    """Run the target that sends everything back, and yield its port."""
    port = port or free_port()
    running = subprocess.Popen([*place.prefix, compiled("echo", folder), str(port)])
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not accepts(Server("echo", place.host, port), place):
            if time.monotonic() > deadline:
                raise ServerError("the echo server does not come up")
            time.sleep(0.01)
        yield port
    finally:
        running.kill()
        running.wait()


def measure(kinds: list[Kind], rounds: int, folder: Path) -> Part:
    """Measure every server in turn."""
    part = Part("connections")
    failures: dict[str, int] = {}
    with all_started(kinds) as servers, echo(folder) as port:
        for number in range(rounds):
            progress(f"connections: round {number + 1}")
            for server in [NO_PROXY, *servers]:
                _, failed = turn(part, server, port, compiled("connections", folder))
                failures[server.name] = failures.get(server.name, 0) + failed
    part.notes.append(f"Medians of {rounds} rounds.")
    part.notes += [f"Failed at {name}: {count}." for name, count in failures.items() if count]
    part.bounds = _bounds(part.samples)
    return part


def _bounds(samples: Samples) -> list[Bound]:
    """Return the bounds of the compiled server, or else of the interpreted one."""
    ratio = samples.ratio
    rate = ratio(RATE, PROXYD, "microsocks")
    if INTERPRETED not in samples.servers():
        cost = ratio(COST, PROXYD, "microsocks")
        return [
            Bound("connections/s of microsocks'", rate, 0.9),
            Bound("connections/s of dante's", ratio(RATE, PROXYD, "dante"), 1.2),
            Bound("CPU per connection of microsocks'", cost, 1.1, at_most=True),
            Bound("p99 of dante's", ratio(TAIL, PROXYD, "dante"), 1, at_most=True),
        ]
    cost, tail = (samples.of_best(each, PROXYD, lowest=True) for each in (COST, TAIL))
    bounds = [
        Bound("connections/s of microsocks'", rate, 1.1),
        Bound("CPU per connection of the best peer's", cost, 0.8, at_most=True),
        Bound("p99 of the best peer's", tail, 1, at_most=True),
    ]
    if several(2) in samples.servers():
        rate = ratio(RATE, several(2), "microsocks")
        bounds.append(Bound("connections/s of two processes, of microsocks'", rate, 1.6))
    return bounds


def turn(
    part: Part, server: Server, port: int, program: str, at_once: int = AT_ONCE
) -> tuple[int, int]:
    """Drive one server for a while. Return the numbers of good and failed connections."""
    command = [program, server.host or LOOPBACK, str(server.port or port), str(port)]
    command += [str(SECONDS), str(at_once)]
    if server.user:
        command += [server.user, server.password]
    before = usage.cpu_seconds(server.processes())
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    time.sleep(SETTLE_SECONDS)
    cpu = usage.cpu_seconds(server.processes()) - before
    served, failed, seconds, middle, tail = map(float, printed)
    if not served:
        raise ServerError(f"{server.name} serves no client: {failed:.0f} connections failed")
    part.samples.add(of(RATE, at_once), server.name, served / seconds)
    part.samples.add(of(MEDIAN, at_once), server.name, middle / 1000)
    part.samples.add(of(TAIL, at_once), server.name, tail / 1000)
    if server.process is not None:
        part.samples.add(of(COST, at_once), server.name, cpu * 1e6 / served)
    return int(served), int(failed)


def of(measure_name: str, at_once: int) -> str:
    """Return the name of a measure for a number of simultaneous connections."""
    return measure_name if at_once == AT_ONCE else f"{measure_name}, {at_once} clients"

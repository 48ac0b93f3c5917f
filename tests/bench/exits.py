"""Exits: connections and bulk through a device, beside `ssh -R` and the given tunnels.

Every server is a pair here: the public side, and the device behind it, whose processor time is also
counted. `proxyd` alone leaves directly, from where the daemon is.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.base.ports import free_port

from bench import bulk, connections, exits_attached, first_byte, longpath, streams, usage
from bench.bought import PROXYD, Bought
from bench.exit_ways import EXIT, PORTABLE, SHIPPED, SSH, named_way, proxyd_ways, ssh_way
from bench.native import compiled
from bench.report import Bound, Part, progress
from bench.servers import HERE, LOOPBACK, ROOT, Kind, Place, Server, started

ROUND_TRIP_MS = 2 * longpath.DELAY_MS
RATE, COST, DAEMONS_COST = connections.RATE, connections.COST, connections.DAEMONS_COST
FIRST_BYTE = f"connect and 64 bytes back at {ROUND_TRIP_MS} ms, one at a time, p50 ms"
FIRST_BYTE_OF_MANY = (
    f"connect and 64 bytes back at {ROUND_TRIP_MS} ms, {first_byte.AT_ONCE} at once, p50 ms"
)
AGENTS_COST = "CPU µs of the agent per connection, without --allow"
STREAMS = (1, 16)
MANY = 128  # connections at once: more wait for the device in each turn of the daemon
# A server, by where its public side is and where its device is.
Maker = Callable[[Place, Place], Kind]


def measure(direct: Bought, named: Sequence[Kind], rounds: int, folder: Path) -> Part:
    """Measure every pair in turn; then a daemon with the most exits that fit here."""
    part, ports = Part("exits"), (free_port(), free_port(), free_port())
    makers: list[Maker] = [lambda _here, _there: direct.kind]
    ways = proxyd_ways(folder, ports)
    makers += [way.kind_at for way in ways if way.name != SHIPPED]
    shipped = [way.kind_at for way in ways if way.name == SHIPPED]
    ssh = ssh_way(folder)
    if isinstance(ssh, str):
        part.notes.append(f"Skipped: {ssh}.")
    else:
        makers.append(ssh)
    makers += [named_way(kind) for kind in named]
    _near(part, [*makers, *shipped], rounds, folder, ports)
    _far(part, makers[1:], rounds, folder, ports[0])
    _at_home(part, rounds)
    part.notes.append(f"Medians of {rounds} rounds; processor time is that of both ends.")
    exits_attached.measure(part, folder)
    part.bounds = [*_bounds(part), *part.bounds]
    return part


def _near(
    part: Part, makers: Sequence[Maker], rounds: int, folder: Path, ports: tuple[int, int, int]
) -> None:
    """Measure connections and bulk with everything on loopback."""
    with ExitStack() as stack:
        servers = [stack.enter_context(started(make(HERE, HERE))) for make in makers]
        port = stack.enter_context(connections.echo(folder, port=ports[0]))
        end = stack.enter_context(streams.target(ports=ports[1:]))
        for server in servers:
            first_byte.wait_serving(server, LOOPBACK, port)
        unbound = [server for server in servers if server.name != SHIPPED]  # else a day is over
        program = compiled("connections", folder)
        failures: dict[str, int] = {}
        for number in range(rounds):
            progress(f"exits: round {number + 1}")
            for server in servers:
                for at_once in (connections.AT_ONCE, MANY):
                    if at_once == MANY and server.name not in {PROXYD, EXIT}:
                        continue
                    failed = _turn(part, server, port, program, at_once)
                    failures[server.name] = failures.get(server.name, 0) + failed
            for count in STREAMS:
                for up in (False, True):
                    bulk.turn(part.samples, unbound, end, count, up=up)
        part.notes += [f"Failed at {name}: {count}." for name, count in failures.items() if count]


def _turn(part: Part, server: Server, port: int, program: str, at_once: int) -> int:
    """Drive one server, and measure the daemon alone; return the number of failed connections."""
    daemon = server.daemon()
    cpu = usage.cpu_seconds(daemon)
    served, failed = connections.turn(part, server, port, program, at_once)
    if daemon:
        cost = (usage.cpu_seconds(daemon) - cpu) * 1e6 / served
        part.samples.add(connections.of(DAEMONS_COST, at_once), server.name, cost)
    return failed


def _far(part: Part, makers: Sequence[Maker], rounds: int, folder: Path, port: int) -> None:
    """Measure the time to the first byte, the device and the target far from the daemon."""
    with longpath.ends(part, folder, 0) as ends:
        if ends is None:
            return
        near, far = ends
        with ExitStack() as stack:
            servers = [stack.enter_context(started(make(near, far), near)) for make in makers]
            stack.enter_context(connections.echo(folder, far, port))
            for number in range(rounds):
                progress(f"exits: far away, round {number + 1}")
                for server in servers:
                    alone, together = first_byte.measured(server, far.host, port, near)
                    part.samples.add(FIRST_BYTE, server.name, alone)
                    part.samples.add(FIRST_BYTE_OF_MANY, server.name, together)


def _at_home(part: Part, rounds: int) -> None:
    """Measure an agent whose owner has opened no network, and that asks for the route of each."""
    command = [sys.executable, "-m", "bench.exit_batches", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for cost in done.stdout.split():
        part.samples.add(AGENTS_COST, EXIT, float(cost))


def _bounds(part: Part) -> list[Bound]:
    samples = part.samples
    bounds = [
        Bound("connections/s of direct", samples.ratio(RATE, EXIT, PROXYD), 0.5),
        Bound(
            f"connections/s of direct, {MANY} clients",
            samples.ratio(connections.of(RATE, MANY), EXIT, PROXYD),
            0.6,
        ),
        Bound(
            "daemon's CPU per connection: direct of exit",
            samples.ratio(DAEMONS_COST, PROXYD, EXIT),
            0.75,
        ),
        Bound("connections/s of ssh -R", samples.ratio(RATE, EXIT, SSH), 1),
        Bound(f"connections/s of ssh -R, {PORTABLE}", samples.ratio(RATE, PORTABLE, SSH), 1),
        Bound(
            f"connect and first byte at {ROUND_TRIP_MS} ms: two round trips and 5 ms",
            samples.median(FIRST_BYTE, EXIT),
            2 * ROUND_TRIP_MS + 5,
            at_most=True,
        ),
    ]
    for measure_name in samples.measures():
        if measure_name.endswith("CPU s/GB"):
            ratio = samples.ratio(measure_name, EXIT, SSH)
            way = measure_name.partition(",")[0]
            bounds.append(Bound(f"{way}: CPU per GB of ssh -R's", ratio, 0.4, at_most=True))
    return bounds

"""Bulk transfer: its speed and its cost in CPU, with one stream and with many."""

import time

from bench import buffers, streams, usage
from bench.bought import PROXYD, is_ours, several
from bench.report import Bound, Part, Samples, progress
from bench.servers import NO_PROXY, Kind, Server, all_started

STREAMS = (1, 16, 64)
WARM_UP_SECONDS, SECONDS = 0.3, 1.0
GB = 10**9
THE_USUAL = ("no proxy", "dante", "microsocks", "pproxy")


def transfer(server: Server, end: streams.Target, count: int, *, up: bool) -> tuple[float, float]:
    """Return the GB/s through a server, and its CPU seconds per GB."""
    with streams.client(server, end, count, up=up) as running:
        time.sleep(WARM_UP_SECONDS)
        return window(server, running.counter, SECONDS)


def window(server: Server, counter: streams.Counter, seconds: float) -> tuple[float, float]:
    """Watch a transfer for a while; return its GB/s, and the server's CPU seconds per GB."""
    processes = server.processes()
    size, start, cpu = counter.value, time.monotonic(), usage.cpu_seconds(processes)
    time.sleep(seconds)
    moved = (counter.value - size) / GB
    cpu = usage.cpu_seconds(processes) - cpu
    return moved / (time.monotonic() - start), cpu / moved if moved else float("inf")


def measure(kinds: list[Kind], rounds: int) -> Part:
    """Measure every server in turn, with each number of streams, each way.

    With default buffers, the promise covers only speed.
    """
    part = Part("bulk")
    with all_started(kinds) as servers, streams.target() as end:
        for number in range(rounds):
            for count in STREAMS:
                for up in (False, True):
                    progress(f"bulk: round {number + 1}, {count} streams {'up' if up else 'down'}")
                    turn(part.samples, [NO_PROXY, *servers], end, count, up=up)
    part.notes.append(f"Medians of {rounds} rounds.")
    is_default = buffers.are_default()
    part.notes.append(buffers.described())
    part.bounds = _bounds_by_default(part.samples) if is_default else _bounds(part.samples)
    return part


def turn(
    samples: Samples, servers: list[Server], end: streams.Target, count: int, *, up: bool
) -> None:
    way = f"{count} {'stream' if count == 1 else 'streams'} {'up' if up else 'down'}"
    for server in servers:
        speed, cost = transfer(server, end, count, up=up)
        samples.add(f"{way}, GB/s", server.name, speed)
        if server.process is not None:
            samples.add(f"{way}, CPU s/GB", server.name, cost)


def _bounds_by_default(samples: Samples) -> list[Bound]:
    """Return the bounds where the system allows no more buffers than a kernel does by default."""
    speeds = [measure for measure in samples.measures() if measure.endswith("GB/s")]
    return [
        Bound(
            f"{measure.replace(', ', ': ')} of the best peer's",
            samples.of_best(measure, PROXYD, lowest=False),
            1.2,
        )
        for measure in speeds
    ]


def _bounds(samples: Samples) -> list[Bound]:
    bounds = []
    for way in ("1 stream down", "1 stream up"):
        speed, cost = f"{way}, GB/s", f"{way}, CPU s/GB"
        unproxied = samples.ratio(speed, "proxyd", "no proxy")
        bounds.append(Bound(f"{way}: speed of no proxy's", unproxied, 0.55))
        dante = samples.ratio(cost, "proxyd", "dante")
        bounds.append(Bound(f"{way}: CPU per GB of dante's", dante, 0.25, at_most=True))
    for count in STREAMS[1:]:
        for way in (f"{count} streams down", f"{count} streams up"):
            dante = samples.ratio(f"{way}, CPU s/GB", "proxyd", "dante")
            bounds.append(Bound(f"{way}: CPU per GB of dante's", dante, 0.5, at_most=True))
            dante = samples.ratio(f"{way}, GB/s", "proxyd", "dante")
            bounds.append(Bound(f"{way}: speed of dante's", dante, 1))
    for way in (f"{STREAMS[-1]} streams down", f"{STREAMS[-1]} streams up"):
        if several(2) in samples.servers():
            times = samples.ratio(f"{way}, GB/s", several(2), PROXYD)
            bounds.append(Bound(f"{way}: speed of two processes, of one's", times, 1.6))
    return bounds + _bounds_beside_others(samples)


def _bounds_beside_others(samples: Samples) -> list[Bound]:
    """Return the bounds on CPU per GB beside the best of the given servers."""
    others = [name for name in samples.servers() if name not in THE_USUAL and not is_ours(name)]
    bounds = []
    for measure in samples.measures() if others else []:
        if not measure.endswith("CPU s/GB"):
            continue
        costs = {name: samples.median(measure, name) or float("inf") for name in others}
        best = min(costs, key=lambda name: costs[name])
        ratio = samples.ratio(measure, "proxyd", best)
        promise = f"{measure.partition(',')[0]}: CPU per GB of {best}'s"
        bounds.append(Bound(promise, ratio, 0.65, at_most=True))
    return bounds

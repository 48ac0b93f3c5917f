"""Throughput of one stream over a long way, between two network namespaces of its own.

40 ms there and back, and one packet in a thousand lost: by the kernel's netem, or, where the kernel
has none, by a program that passes packets on between two TUN devices. The proxy is at one end of
the long way or at the other, so that either of its sides may be the long one.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import streams
from bench.bulk import window
from bench.native import compiled
from bench.report import Bound, Part, progress
from bench.servers import NO_PROXY, Kind, Place, Server, all_started

WARM_UP_SECONDS, SECONDS = 1.0, 2.5
ROUNDS_MAX = 3
DELAY_MS, LOSS_PERCENT = 20, 0.1
MEASURED = ("proxyd", "dante", "microsocks")
QUEUE_PACKETS = 10_000


@dataclass(frozen=True)
class End:
    """One end of the way: a namespace with one device, besides its loopback."""

    namespace: str
    device: str
    address: str

    @property
    def place(self) -> Place:
        return Place(self.address, ("ip", "netns", "exec", self.namespace))


def measure(kinds: list[Kind], rounds: int, folder: Path) -> Part:
    """Measure in both directions, with the proxy at either end; or say why that cannot be."""
    part, rounds = Part("longpath"), min(rounds, ROUNDS_MAX)
    chosen = [kind for kind in kinds if kind.name in MEASURED]
    with ends(part, folder, LOSS_PERCENT) as joined:
        if joined is None:
            return part
        near, far = joined
        part.notes.append(f"Medians of {rounds} rounds.")
        with streams.target(far) as target:
            for name, place in (("client", near), ("target", far)):
                with all_started(chosen, place) as servers:
                    for number in range(rounds):
                        progress(f"longpath: round {number + 1}, the proxy near the {name}")
                        _turn(part, [NO_PROXY, *servers], target, near, name)
    for measure_name in part.samples.measures():
        for other in MEASURED[1:]:
            ratio = part.samples.ratio(measure_name, "proxyd", other)
            bound = Bound(f"{measure_name.rpartition(',')[0]}: speed beside {other}", ratio, 1)
            part.bounds.append(bound)
    return part


def _turn(
    part: Part, servers: list[Server], target: streams.Target, client: Place, end: str
) -> None:
    for up in (False, True):
        for server in servers:
            with streams.client(server, target, 1, up=up, place=client) as running:
                time.sleep(WARM_UP_SECONDS)
                speed, _ = window(server, running.counter, SECONDS)
            measure_name = f"{'up' if up else 'down'}, proxy near the {end}, MB/s"
            part.samples.add(measure_name, server.name, speed * 1000)


@contextmanager
def ends(part: Part, folder: Path, loss_percent: float) -> Iterator[tuple[Place, Place] | None]:
    """Make a long way; yield its near and its far end, or None and a note on why it cannot be."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        part.notes.append("Skipped: it needs root and iproute2 (apt-get install iproute2).")
        yield None
        return
    near = End(f"proxyd-near-{os.getpid()}", f"pbn{os.getpid()}", "10.213.77.1")
    far = End(f"proxyd-far-{os.getpid()}", f"pbf{os.getpid()}", "10.213.77.2")
    with _namespaces(near, far), _way(near, far, folder, loss_percent) as way:
        if not way:
            part.notes.append("Skipped: the kernel has neither netem nor TUN devices.")
            yield None
            return
        part.notes.append(f"{2 * DELAY_MS} ms there and back, {loss_percent} % lost, by {way}.")
        yield near.place, far.place


@contextmanager
def _namespaces(*ends: End) -> Iterator[None]:
    made = []
    try:
        for end in ends:
            _ip("netns", "add", end.namespace)
            made.append(end)
            _ip("-n", end.namespace, "link", "set", "lo", "up")
        yield
    finally:
        for end in made:
            _ip("netns", "del", end.namespace)


@contextmanager
def _way(near: End, far: End, folder: Path, loss_percent: float) -> Iterator[str]:
    """Join two namespaces; yield the name of the means, empty where neither is available."""
    program = None
    netem = ("netem", "delay", f"{DELAY_MS}ms", "loss", f"{loss_percent}%", "limit", "100000")
    try:
        if _has_netem(near, netem):
            _ip("link", "add", near.device, "type", "veth", "peer", "name", far.device)
            _settle(near, far)
            for end in (near, far):
                command = ("tc", "-n", end.namespace, "qdisc", "add", "dev", end.device, "root")
                subprocess.run([*command, *netem], check=True)
            yield "netem"
            return
        if not Path("/dev/net/tun").exists():
            yield ""
            return
        command = (compiled("longpath", folder), near.device, far.device)
        program = subprocess.Popen(
            [*command, str(DELAY_MS), str(loss_percent)], stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        _settle(near, far)
        yield "a program between two TUN devices, since this kernel has no netem"
    finally:
        if program is not None:
            program.kill()
            program.communicate()


def _settle(*ends: End) -> None:
    """Bring each device into its namespace, with its address."""
    for end in ends:
        _ip("link", "set", end.device, "netns", end.namespace)
        inside = ("-n", end.namespace)
        _ip(*inside, "address", "add", f"{end.address}/30", "dev", end.device)
        _ip(*inside, "link", "set", end.device, "txqueuelen", str(QUEUE_PACKETS), "up")


def _has_netem(end: End, netem: tuple[str, ...]) -> bool:
    """Try netem on the loopback of a namespace, and take it away again."""
    command = ["tc", "-n", end.namespace, "qdisc", "add", "dev", "lo", "root", *netem]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return False
    command = ["tc", "-n", end.namespace, "qdisc", "del", "dev", "lo", "root"]
    subprocess.run(command, check=True)
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)

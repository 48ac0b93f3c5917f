"""Start-up: seconds from the start of a process until it accepts the first connection."""

import time
import urllib.error
import urllib.request

from bench.bought import Bought
from bench.report import Part, progress
from bench.servers import LOOPBACK, PATIENCE_SECONDS, Kind, started

ACCEPTS = "s until it accepts"
READY = "s until /readyz answers 200"


def measure(kinds: list[Kind], rounds: int, bought: list[Bought]) -> Part:
    """Start every server in turn; proxyd is ready only when its API says so."""
    part = Part("startup")
    api_ports = {each.kind.name: each.api_port for each in bought}
    for number in range(rounds):
        progress(f"startup: round {number + 1}")
        for kind in kinds:
            start = time.monotonic()
            with started(kind) as server:
                part.samples.add(ACCEPTS, server.name, time.monotonic() - start)
                if kind.name in api_ports:
                    wait_ready(api_ports[kind.name])
                    part.samples.add(READY, server.name, time.monotonic() - start)
    part.notes.append(f"Medians of {rounds} rounds.")
    return part


def wait_ready(port: int) -> None:
    """Wait until a daemon says that it serves."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)  # each request takes processor time from the measured server

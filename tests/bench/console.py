"""The console: the delay of an event, the cost of open streams, the time until a page is drawn."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from support.console.browser import CHROMIUM, browsing
from support.daemons import process

from bench import usage
from bench.report import Bound, Part, progress

STREAMS = 1_000
USERS = 32
KEYS_PER_USER = 8
STREAMS_PER_KEY = 4
EVENTS = 100  # of each kind, in a round
SETTLE_SECONDS = 3.0
PATIENCE_SECONDS = 30.0
LOADS = 5  # of the page, in a round
OURS = "proxyd"
SEEN, LATEST, LOADED = "an event is seen, ms", "the slowest, ms", "the login page is drawn, ms"
MEMORY = f"{STREAMS:,} open streams, MB"
# All come from one address here.
SETTINGS = {
    "PROXYD_LIMITS__API_CONNECTIONS_TOTAL": "4096",
    "PROXYD_LIMITS__API_CONNECTIONS_PER_NETWORK": "4096",
    "PROXYD_LIMITS__REQUESTS_PER_SECOND": "100000",
}
# From an empty cache, until the browser has drawn the page that the scripts build.
DRAWN = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def measure(rounds: int, folder: Path) -> Part:
    """Open many streams at one daemon, and cause events for a user with an open stream."""
    part, own = Part("console"), folder / "console"
    own.mkdir()
    url = f"sqlite:///{own}/proxyd.db"
    people = [process.funded(url, name=f"user{number}") for number in range(USERS + 1)]
    with process.serving(url, **SETTINGS) as daemon:
        tokens = [daemon.log_in(*each) for each in people]
        keys = [key(daemon, token) for token in tokens[:USERS] for _ in range(KEYS_PER_USER)]
        pids = usage.tree(daemon.process.pid)
        before = usage.memory_bytes(pids)
        progress(f"console: {STREAMS:,} streams")
        wanted = (each for each in keys for _ in range(STREAMS_PER_KEY))
        with contextlib.ExitStack() as stack:
            for _, token in zip(range(STREAMS), wanted, strict=False):
                stack.enter_context(followed(daemon, token))
            time.sleep(SETTLE_SECONDS)
            part.samples.add(MEMORY, OURS, (usage.memory_bytes(pids) - before) / 1e6)
            for number in range(rounds):
                progress(f"console: round {number + 1}")
                _events(part, daemon, tokens[-1])
        if CHROMIUM is None:
            part.notes.append("Pages were not measured: there is no chromium here.")
        else:
            asyncio.run(_pages(part, daemon, own, rounds))
    figure = part.samples.median
    part.bounds = [
        Bound(
            "an event is seen by who follows, ms after it was asked for",
            figure(SEEN, OURS),
            200,
            at_most=True,
        ),
        Bound("the slowest of a round, ms", figure(LATEST, OURS), 200, at_most=True),
        Bound(f"{STREAMS:,} open streams, MB", figure(MEMORY, OURS), 50, at_most=True),
        Bound("the login page is drawn, ms", figure(LOADED, OURS), 300, at_most=True),
    ]
    part.notes.append(
        f"Medians of {rounds} rounds of {2 * EVENTS} events beside those streams, over HTTP: from"
        " the request that causes one until another connection has it, the transaction included."
        " Pages are loaded from an empty cache by Chromium, which uses the same cores."
    )
    return part


def key(daemon: process.Api, token: str) -> str:
    """Make an API key, and return it."""
    body = {"name": "bench", "scopes": ["events:read"]}
    status, made = daemon.call("POST", "/api/keys", body, token)
    assert status == 200, made
    return str(made["key"])


@contextlib.contextmanager
def followed(daemon: process.Api, token: str, types: str = "") -> Iterator[socket.socket]:
    """Follow a user's events. Return the connection when the stream has begun."""
    place = urlsplit(daemon.api)
    assert place.hostname is not None
    assert place.port is not None
    with socket.create_connection((place.hostname, place.port), PATIENCE_SECONDS) as sock:
        lines = [f"GET /api/events/stream?types={types} HTTP/1.1", f"Host: {place.netloc}"]
        lines += [f"Authorization: Bearer {token}", "", ""]
        sock.sendall("\r\n".join(lines).encode())
        heard(sock, b"\r\n\r\n")
        yield sock


def heard(sock: socket.socket, words: bytes) -> None:
    """Read until words have come."""
    data = b""
    while words not in data:
        more = sock.recv(65_536)
        assert more, data
        data += more


def _events(part: Part, daemon: process.Api, token: str) -> None:
    """Make keys and revoke them, which a stream of the same user reports."""
    took = []
    with followed(daemon, token, "key.created,key.revoked") as sock:
        for _ in range(EVENTS):
            began = time.perf_counter()
            body = {"name": "bench", "scopes": ["events:read"]}
            _, made = daemon.call("POST", "/api/keys", body, token)
            heard(sock, b"event: key.created")
            took.append(time.perf_counter() - began)
            began = time.perf_counter()
            daemon.call("POST", f"/api/keys/{made['key_id']}/revoke", None, token)
            heard(sock, b"event: key.revoked")
            took.append(time.perf_counter() - began)
    took.sort()
    part.samples.add(SEEN, OURS, took[len(took) // 2] * 1e3)
    part.samples.add(LATEST, OURS, took[-1] * 1e3)


async def _pages(part: Part, daemon: process.Api, folder: Path, rounds: int) -> None:
    """Load a page, each time as if for the first time."""
    url = f"{daemon.api}/login"
    async with aiohttp.ClientSession() as http, browsing(url, http, folder) as tab:
        for number in range(1 + rounds * LOADS):
            await tab.ask("Network.clearBrowserCache")
            await tab.goto(url)
            await tab.until(f"({DRAWN}) > 0")
            if number:  # the first one starts the browser's own parts
                part.samples.add(LOADED, OURS, await tab.run(DRAWN))

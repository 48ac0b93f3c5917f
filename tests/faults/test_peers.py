"""Targets, clients and name servers that are dead, silent or deaf hold up no other client."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest
from support.base.ports import silent_port
from support.base.waiting import until, until_true
from support.clients.buyer import Buyer, selling
from support.clients.socks import Client, request
from support.daemons import process
from support.daemons.service import running_in
from support.targets import targets, threads
from support.targets.nameserver import NameServer
from support.targets.threads import WebTarget

NETWORK_TIMED_OUT = 6
STANDS_SECONDS = 1.5  # at the same count; bulk goes in turns, and for a moment seems to stand
DEAF = 100
GROWTH_MAX_BYTES = 30_000_000


def fetch(buyer: Buyer, target: WebTarget, size: int = 100_000) -> None:
    """Check that the daemon serves a buyer."""
    with process.proxied(buyer.daemon, buyer.__dict__, target.port) as sock:
        sock.sendall(b"GET /bytes/%d HTTP/1.0\r\n\r\n" % size)
        answer = b""
        while data := sock.recv(65_536):
            answer += data
    assert answer.endswith(targets.pattern(size))


@pytest.mark.long
def test_clients_that_never_read_cost_no_memory_and_hold_no_other_up(tmp_path: Path) -> None:
    with selling(tmp_path) as sell, threads.web() as web, threads.endless() as endless:
        deaf, buyer = sell(), sell()
        fetch(buyer, web)
        running = psutil.Process(buyer.daemon.process.pid)
        before = running.memory_info().rss
        with ExitStack() as stack:
            for _ in range(DEAF):
                stack.enter_context(process.proxied(deaf.daemon, deaf.__dict__, endless.port))
            used, since = 0, time.monotonic()

            def is_stuck() -> bool:
                nonlocal used, since
                before, used = used, deaf.used
                if used != before:
                    since = time.monotonic()
                return used > 0 and time.monotonic() - since > STANDS_SECONDS

            until_true(is_stuck, "nothing moves any more")

            def stands_while_another_is_served() -> bool:
                count = deaf.used
                for _ in range(10):
                    fetch(buyer, web)
                return deaf.used == count

            until_true(stands_while_another_is_served, "nothing moves while others are served")
            assert running.memory_info().rss - before < GROWTH_MAX_BYTES


def test_a_target_that_never_answers_costs_the_time_of_a_dial(tmp_path: Path) -> None:
    settings = {"PROXYD_LIMITS__DIAL_SECONDS": "3"}
    with selling(tmp_path, **settings) as sell, threads.web() as web, silent_port() as port:
        buyer = sell()
        with ExitStack() as stack:
            waiting = [stack.enter_context(dialing(buyer, port)) for _ in range(50)]
            fetch(buyer, web)
            for each in waiting:
                assert each.recv(2) == bytes((5, NETWORK_TIMED_OUT))


def dialing(buyer: Buyer, port: int) -> socket.socket:
    """Return a client's socket whose target is being dialled."""
    sock = socket.create_connection(("127.0.0.1", buyer.daemon.proxy_port), timeout=30)
    name, password = buyer.username.encode(), buyer.password.encode()
    sock.sendall(
        b"\x05\x01\x02\x01" + bytes([len(name)]) + name + bytes([len(password)]) + password
    )
    sock.sendall(request("127.0.0.1", port))
    greeting = b""
    while len(greeting) < 4:
        greeting += sock.recv(4 - len(greeting))
    assert greeting == b"\x05\x02\x01\x00"
    return sock


@pytest.mark.long
def test_a_target_that_says_nothing_costs_the_time_of_the_idle(tmp_path: Path) -> None:
    settings = {"PROXYD_LIMITS__IDLE_SECONDS": "3"}
    with selling(tmp_path, **settings) as sell, threads.web() as web:
        buyer = sell()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(64)
            port = listener.getsockname()[1]
            with ExitStack() as stack:
                silent = [
                    stack.enter_context(process.proxied(buyer.daemon, buyer.__dict__, port))
                    for _ in range(50)
                ]
                fetch(buyer, web)
                for each in silent:
                    each.settimeout(30)
                    assert not received(each)


def received(sock: socket.socket) -> bytes:
    """Read until the end, in order or not."""
    try:
        return sock.recv(1)
    except ConnectionError:
        return b""


@asynccontextmanager
async def dying(server: NameServer) -> AsyncIterator[asyncio.Event]:
    """Serve names until told to die."""
    died = asyncio.Event()

    async def run() -> None:
        async with server.serving():
            started.set()
            await died.wait()

    started = asyncio.Event()
    task = asyncio.create_task(run())
    await started.wait()
    yield died
    died.set()
    await task


async def test_a_name_server_that_dies_costs_only_names(tmp_path: Path) -> None:
    server = NameServer()
    server.has("known.test", "127.0.0.1", ttl=3600)
    server.has("new.test", "127.0.0.1", ttl=3600)
    async with dying(server) as died, targets.echo() as target:
        egress = {"nameservers": [server.address], "lookup_seconds": 4.0}
        async with running_in(tmp_path, egress=egress) as service:
            bought = await service.buy(await service.person(usd="10"))

            async def reply(host: str) -> int:
                client = await Client.open(service.proxy_port)
                try:
                    assert await client.log_in(bought.username, bought.password) == 0
                    return await client.connect(host, target.port)
                finally:
                    await client.close()

            assert await reply("known.test") == 0
            died.set()
            await until(lambda: _is_free(server.port), "the name server is dead")
            failing = asyncio.create_task(reply("new.test"))
            assert await reply("known.test") == 0
            assert await reply("127.0.0.1") == 0
            assert await failing in (1, NETWORK_TIMED_OUT)
            assert (await service.call("GET", "/readyz")).status == 200


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

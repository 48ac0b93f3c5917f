"""Clients that begin a handshake and finish none, or are refused and stay, keep no other out."""

import asyncio
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import psutil
import pytest
import socks
from support.base.ports import silent_port
from support.base.waiting import until, until_true
from support.clients.buyer import Buyer, selling
from support.clients.socks import GREETING, Client, credentials, request, tunnel
from support.daemons import process
from support.daemons.bounded import client_bounds
from support.daemons.service import Bought, Service, running_in
from support.targets import targets, threads
from support.targets.targets import pattern
from support.targets.threads import WebTarget

from proxyd.relay.closing import ClosingBounds

HALF_OPEN = 5_000
DESCRIPTORS_WANTED = 14_000  # so that the daemon can afford this number of connections
PER_ADDRESS = 1_000
BYTES = 100_000
EVERY_AGE = -1.0
WAITING_LONG = ClosingBounds(patience_seconds=3600.0)
NONSENSE = b"GET / HTTP/1.1\r\nHost: nonsense\r\n\r\n"
PAUSES_MAX = 1_000  # a daemon that spins says so more often

BEGINNINGS = (
    b"",
    b"\x05",
    b"\x05\x02\x00",
    GREETING,
    GREETING + b"\x01\xffname",
    b"GET",
    b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n",
)


# --- connections that are closed -----------------------------------------------------------------


async def begun(service: Service) -> Client:
    """Return a client that has begun a handshake; it is refused by a reset."""
    client = await Client.open(service.proxy_port)
    try:
        await client.send(GREETING)
        assert await client.receive(2) == b"\x05\x02"
    except (ConnectionError, asyncio.IncompleteReadError):
        await client.close()
        raise
    return client


async def finished(client: Client, bought: Bought, target: targets.Target) -> None:
    """Finish a handshake that has begun, and use the connection."""
    await client.send(credentials(bought.username, bought.password))
    assert await client.receive(2) == b"\x01\x00"
    await client.send(request(target.host, target.port))
    assert (await client.reply())[0] == 0
    await alive(client)


async def alive(client: Client) -> None:
    """See that a connection is relayed."""
    await client.send(b"alive")
    assert await client.receive(5) == b"alive"


async def test_the_oldest_unfinished_handshake_makes_room(tmp_path: Path) -> None:
    limits = {"connections_total": 3}
    bounds = client_bounds(room_after_seconds=EVERY_AGE)
    async with (
        running_in(tmp_path, bounds=bounds, limits=limits) as service,
        targets.echo() as target,
    ):
        bought = await service.buy(await service.person(usd="10"))
        oldest = await begun(service)
        relaying = await tunnel(
            service.proxy_port, bought.username, bought.password, target.host, target.port
        )
        older = await begun(service)
        newcomer = await begun(service)
        with pytest.raises(ConnectionResetError):
            await oldest.rest()
        for client in (older, newcomer):
            await finished(client, bought, target)
        await alive(relaying)
        for client in (oldest, older, newcomer, relaying):
            await client.close()
        await service.assert_audit()


async def test_a_fresh_handshake_makes_no_room(tmp_path: Path) -> None:
    limits = {"connections_total": 1, "handshake_seconds": 3600.0}
    bounds = client_bounds(room_after_seconds=3600.0)
    async with (
        running_in(tmp_path, bounds=bounds, limits=limits) as service,
        targets.echo() as target,
    ):
        bought = await service.buy(await service.person(usd="10"))
        fresh = await begun(service)
        with pytest.raises(ConnectionError):
            await begun(service)
        await finished(fresh, bought, target)
        await fresh.close()
        await service.assert_audit()


async def refused(service: Service, source: str = "127.0.0.1") -> Client:
    """Return a client that was refused in words, and stays."""
    client = await Client.open(service.proxy_port, source=source)
    try:
        await client.send(NONSENSE)
        assert (await client.receive(12)).startswith(b"HTTP/1.1 400")
    except (ConnectionError, asyncio.IncompleteReadError):
        await client.close()
        raise
    return client


async def test_a_refused_client_that_stays_makes_room(tmp_path: Path) -> None:
    limits = {"connections_total": 3}
    bounds = client_bounds(room_after_seconds=EVERY_AGE, closing=WAITING_LONG)
    async with (
        running_in(tmp_path, bounds=bounds, limits=limits) as service,
        targets.echo() as target,
    ):
        bought = await service.buy(await service.person(usd="10"))
        unfinished = await begun(service)
        nonsense = [await refused(service) for _ in range(2)]
        newcomer = await begun(service)
        await until(lambda: len(service.daemon.gateway.closer) == 1, "one made room")
        for client in (unfinished, newcomer):
            await finished(client, bought, target)
        for client in (unfinished, newcomer, *nonsense):
            await client.close()
        await service.assert_audit()


async def test_a_refused_client_counts_until_it_has_left(tmp_path: Path) -> None:
    limits = {"connections_per_address": 2}
    bounds = client_bounds(closing=WAITING_LONG)
    async with running_in(tmp_path, bounds=bounds, limits=limits) as service:
        gateway = service.daemon.gateway
        clients = [await refused(service) for _ in range(2)]
        with pytest.raises(ConnectionError):
            await refused(service)
        clients.append(await refused(service, "127.0.0.2"))
        assert len(gateway.closer) == 3
        for client in clients:
            await client.close()
        await until(lambda: len(gateway.closer) == 0, "they have left")
        await (await refused(service)).close()
        await until(lambda: not gateway.closer.per_network, "no closed connection is counted")


async def test_a_client_that_may_not_come_in_pushes_no_other_out(tmp_path: Path) -> None:
    limits = {"connections_total": 2, "connections_per_address": 2}
    bounds = client_bounds(room_after_seconds=EVERY_AGE)
    async with (
        running_in(tmp_path, bounds=bounds, limits=limits) as service,
        targets.echo() as target,
    ):
        bought = await service.buy(await service.person(usd="10"))
        clients = [await begun(service) for _ in range(2)]
        with pytest.raises(ConnectionError):
            await begun(service)
        for client in clients:
            await finished(client, bought, target)
            await client.close()
        await service.assert_audit()


async def test_a_client_that_has_asked_and_waits_for_a_target_makes_no_room(tmp_path: Path) -> None:
    limits = {"connections_total": 1, "dial_seconds": 3600.0}
    bounds = client_bounds(room_after_seconds=EVERY_AGE)
    async with running_in(tmp_path, bounds=bounds, limits=limits) as service:
        bought = await service.buy(await service.person(usd="10"))
        with silent_port() as port:
            client = await Client.open(service.proxy_port)
            assert await client.log_in(bought.username, bought.password) == 0
            await client.send(request("127.0.0.1", port))
            await until(lambda: service.daemon.gateway.dialing == 1, "it is dialed for")
            with pytest.raises(ConnectionError):
                await begun(service)
            assert service.daemon.gateway.dialing == 1
            await client.close()
        await service.assert_audit()


# --- floods --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Let this process open as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Flood:
    """Clients from many addresses that begin a handshake and say no more."""

    def __init__(self, port: int, opened: ExitStack) -> None:
        self._port = port
        self._opened = opened
        self._beginnings = cycle(BEGINNINGS)
        self.sockets: list[socket.socket] = []

    def open(self, number: int) -> None:
        """Begin `number` more."""
        for _ in range(number):
            sock = self._opened.enter_context(socket.socket())
            address = f"127.0.1.{1 + len(self.sockets) // PER_ADDRESS}"
            sock.bind((address, 0))
            sock.connect(("127.0.0.1", self._port))
            sock.sendall(next(self._beginnings))
            sock.setblocking(False)
            self.sockets.append(sock)

    def cut(self) -> int:
        """Return how many the daemon has let go of."""
        return sum(map(is_cut, self.sockets))


def is_cut(sock: socket.socket) -> bool:
    """Say whether a connection was reset; bytes that came before are thrown away."""
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@contextmanager
def flooding(buyer: Buyer) -> Iterator[Flood]:
    """Give a flood that ends with the block."""
    with ExitStack() as opened:
        yield Flood(buyer.daemon.proxy_port, opened)


def fetches(buyer: Buyer, target: WebTarget) -> bool:
    """Fetch through the proxy, and say whether the proxy let it happen."""
    ask = f"GET /bytes/{BYTES} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()
    try:
        with process.proxied(buyer.daemon, vars(buyer), target.port) as connection:
            connection.sendall(ask)
            with connection.makefile("rb") as file:
                answer = file.read()
    except (socks.ProxyError, OSError):
        return False
    assert answer.endswith(pattern(BYTES))
    return True


def descriptors(buyer: Buyer) -> int:
    """Count the daemon's open descriptors."""
    return psutil.Process(buyer.daemon.process.pid).num_fds()


def at_rest(buyer: Buyer) -> int:
    """Wait until no client is connected. Return the number of the daemon's open descriptors."""
    daemon = psutil.Process(buyer.daemon.process.pid)
    until_true(
        lambda: all(each.status == psutil.CONN_LISTEN for each in daemon.net_connections("tcp")),
        "no client is connected",
    )
    return descriptors(buyer)


def test_five_thousand_unfinished_handshakes_keep_no_client_out(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS_WANTED:
        pytest.skip(f"ulimit -Hn is {hard}, below {DESCRIPTORS_WANTED}")
    settings = {
        "PROXYD_LIMITS__CONNECTIONS_TOTAL": str(HALF_OPEN),
        "PROXYD_LIMITS__CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
        "PROXYD_LIMITS__HANDSHAKE_SECONDS": "3600",
    }
    with selling(tmp_path, **settings) as sell, threads.web() as target:
        buyer = sell()
        assert fetches(buyer, target)
        before = at_rest(buyer)
        with flooding(buyer) as flood:
            flood.open(HALF_OPEN)
            until_true(lambda: descriptors(buyer) >= before + HALF_OPEN, "all are let in")
            assert flood.cut() == 0
            until_true(lambda: fetches(buyer, target), "a good client is served")
            assert 1 <= flood.cut() < HALF_OPEN, "it was served because the others' time was over"
        until_true(lambda: at_rest(buyer) <= before, "no descriptor is left")
        assert fetches(buyer, target)
        buyer.assert_counted(target)


def test_a_daemon_without_descriptors_lets_unfinished_handshakes_go(tmp_path: Path) -> None:
    spare, waiting = 100, 150
    settings = {"PROXYD_LIMITS__HANDSHAKE_SECONDS": "3600"}
    with selling(tmp_path, **settings) as sell, threads.web() as target:
        buyer = sell()
        assert fetches(buyer, target)
        pid = buyer.daemon.process.pid
        before = at_rest(buyer)
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (before + spare, hard))
        with flooding(buyer) as flood:
            flood.open(waiting)
            until_true(lambda: "no new client" in buyer.daemon.output, "it is out of descriptors")
            until_true(lambda: fetches(buyer, target), "a good client is served")
            let_go = re.compile(r"[1-9]\d* unfinished let go: Too many")
            until_true(lambda: let_go.search(buyer.daemon.output) is not None, "the log says so")
            assert 1 <= flood.cut() < waiting, "it was served because the others' time was over"
        until_true(lambda: at_rest(buyer) <= before, "no descriptor is left")
        assert fetches(buyer, target)
        buyer.assert_counted(target)
        assert buyer.daemon.output.count("no new client") < PAUSES_MAX
        assert "Traceback" not in buyer.daemon.output


def test_running_out_of_descriptors_leaves_a_transfer_alone(tmp_path: Path) -> None:
    with selling(tmp_path) as sell, threads.web() as target:
        buyer = sell()
        pid = buyer.daemon.process.pid
        ask = f"GET /bytes/{100 * BYTES} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()
        with process.proxied(buyer.daemon, vars(buyer), target.port) as connection:
            connection.sendall(ask)
            with connection.makefile("rb") as file, flooding(buyer) as flood:
                answer = file.read(BYTES)
                soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(buyer) + 5, hard))
                flood.open(50)
                until_true(lambda: "no new client" in buyer.daemon.output, "no descriptors")
                answer += file.read()
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert answer.endswith(pattern(100 * BYTES))
        until_true(lambda: fetches(buyer, target), "there is room again")
        buyer.assert_counted(target)

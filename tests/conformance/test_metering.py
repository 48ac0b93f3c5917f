"""Bytes are counted as they are delivered, never past the quota, and billed to the micro-dollar."""

import asyncio
import ctypes
import fcntl
import socket
import struct
import termios
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.ports import silent_port
from support.base.waiting import until
from support.clients.socks import GREETING, Client, credentials, plain_tunnel, request, tunnel
from support.clients.story import INSTANT_BYTES, buy, reached, status_is, used
from support.daemons.bounded import bounded, closing_bounds
from support.daemons.service import Bought, Person, Service, running, running_in, settings_for
from support.exits.device import running_with_exit
from support.targets import targets

from proxyd.wiring.bounds import Bounds
from storage.bandwidth import sessions as bandwidth
from storage.engines.store import Transaction

MEGABYTE = 1_000_000
QUIET_POLLS = 25
WAYS = {"directly": running_in, "through an exit": running_with_exit}

LINGER_NOT = struct.pack("ii", 1, 0)
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: accept 0 bytes of each packet


@pytest.fixture(params=brief(WAYS))
async def service(
    request: pytest.FixtureRequest, tmp_path: Path, bounds: Bounds
) -> AsyncIterator[Service]:
    """A daemon whose sessions leave directly, or all through an exit; its ledger must agree."""
    async with WAYS[request.param](tmp_path, bounds=bounds) as running:
        yield running
        await running.assert_audit()


async def login_status(service: Service, bought: Bought) -> int:
    """Return the status of RFC 1929 that a new client gets."""
    client = await Client.open(service.proxy_port)
    status = await client.log_in(bought.username, bought.password)
    await client.close()
    return status


async def micro_balance(service: Service, person: Person) -> int:
    """Return the money that a user can spend, in micro-USD."""
    return int(Decimal(repr(await service.balance(person))) * 10**6)


def micro_price(size: int, price: float) -> int:
    """Return the price of used bytes, in micro-USD."""
    return int(size * Decimal(repr(price)) * 10**6 // 10**9)


async def read_to_the_end(client: Client) -> bytes:
    """Read until the stream ends, in order or not."""
    received = bytearray()
    with suppress(ConnectionError):
        while data := await client.reader.read(65_536):
            received += data
    await client.close()
    return bytes(received)


@asynccontextmanager
async def plain_pair(
    service: Service, bought: Bought, *, receive_buffer: int | None = None
) -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """Give a client's socket and the socket of the target that it is relayed to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        client = await plain_tunnel(service, bought, port, receive_buffer=receive_buffer)
        with closing(client):
            target, _ = await asyncio.get_running_loop().sock_accept(listener)
            with closing(target):
                yield client, target


def unread(sock: socket.socket) -> int:
    """Return the number of bytes that are acknowledged and that the program has not read."""
    (size,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return int(size)


def finally_unread(sock: socket.socket) -> int:
    """Return the final number of these bytes: the kernel drops all later packets.

    Otherwise the kernel acknowledges a late segment after the count.
    """
    code = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    return unread(sock)


def reset(sock: socket.socket) -> None:
    """Break a connection, now."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    sock.close()


async def settled(target: targets.Target) -> None:
    """Wait until a target cannot send any more."""
    last, quiet = -1, 0

    def is_quiet() -> bool:
        nonlocal last, quiet
        quiet = quiet + 1 if target.sent == last and target.sent > 0 else 0
        last = target.sent
        return quiet >= QUIET_POLLS

    await until(is_quiet, "the target is held back")


class Gate:
    """A target that sends the pattern without an end, once it may."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.sent = 0

    async def handle(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.opened.wait()
        while True:
            writer.write(targets.PATTERN)
            self.sent += len(targets.PATTERN)
            await writer.drain()


# --- counting ------------------------------------------------------------------------------------


@cases(
    ("up", "down"), [(0, 0), (1, 0), (0, 1), (123_457, 54_321), (MEGABYTE + 1, 3), (3, MEGABYTE)]
)
async def test_exactly_the_payload_is_counted(service: Service, up: int, down: int) -> None:
    buyer, bought = await buy(service)
    async with targets.sink(targets.pattern(down)) as target:
        client = await reached(service, bought, target)
        await client.send(targets.pattern(up))
        client.end()
        assert await client.rest() == targets.pattern(down)
        await client.close()
    assert bytes(target.data) == targets.pattern(up)
    assert await used(service, buyer, bought) == up + down


async def test_handshakes_and_failures_are_free(service: Service) -> None:
    buyer, bought = await buy(service)
    for host, port in (("10.0.0.1", 80), ("nosuch.invalid", 80), ("127.0.0.1", 25)):
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        await client.send(request(host, port) + b"payload that goes nowhere")
        assert (await client.reply())[0] != 0
        assert await client.rest() == b""
        await client.close()
    assert await used(service, buyer, bought) == 0


async def test_counters_are_seen_while_the_transfer_runs(service: Service) -> None:
    buyer, bought = await buy(service)
    async with targets.echo() as target:
        client = await reached(service, bought, target)
        for round_number in range(1, 6):
            await client.send(b"x" * 10_000)
            assert await client.receive(10_000) == b"x" * 10_000
            assert await used(service, buyer, bought) == round_number * 20_000
        session = await service.session(buyer, bought)
        assert session["status"] == "active"
        assert session["bytes_left"] == session["quota_bytes"] - 100_000
        await client.close()


async def test_live_counters_are_written_down(service: Service) -> None:
    buyer, bought = await buy(service)
    async with targets.echo() as target:
        client = await reached(service, bought, target)
        await client.send(b"x" * 10_000)
        await client.receive(10_000)
        await service.daemon.core.meter.flush()
        assert await used(service, buyer, bought) == 20_000
        await service.assert_audit()
        await client.send(b"x" * 10_000)
        await client.receive(10_000)
        assert await used(service, buyer, bought) == 40_000
        await client.close()


async def test_connections_of_one_session_are_counted_together(service: Service) -> None:
    buyer, bought = await buy(service)
    other = await service.buy(buyer)
    async with targets.echo() as target:
        clients = [await reached(service, bought, target) for _ in range(10)]
        clients.append(await reached(service, other, target))
        for size, client in enumerate(clients, 1):
            await client.send(bytes(size))
            await client.receive(size)
        assert await used(service, buyer, bought) == 2 * sum(range(1, 11))
        assert await used(service, buyer, other) == 2 * 11
        for client in clients:
            await client.close()


@cases("size", [0, 1, 50_000, 3 * MEGABYTE])
async def test_a_client_that_resets_pays_only_for_its_received_bytes(
    service: Service, size: int
) -> None:
    buyer, bought = await buy(service)
    async with targets.source(None) as target:
        sock = await plain_tunnel(service, bought, target.port, receive_buffer=65_536)
        with closing(sock):
            read = 0
            while read < size:
                read += len(await asyncio.get_running_loop().sock_recv(sock, size - read))
            await settled(target)
            acknowledged = read + finally_unread(sock)
            reset(sock)
        await until(lambda: service.daemon.gateway.connections == 0, "the reset is noticed")
        assert target.sent > acknowledged  # something was under way and is not billed
        assert read <= await used(service, buyer, bought) <= acknowledged


async def test_a_client_that_resets_after_the_targets_end_pays_for_its_received_bytes(
    service: Service,
) -> None:
    buyer, bought = await buy(service)
    async with targets.source(MEGABYTE) as target:
        sock = await plain_tunnel(service, bought, target.port, receive_buffer=65_536)
        with closing(sock):
            gateway = service.daemon.gateway
            await settled(target)
            await until(lambda: target.sent == MEGABYTE, "the target has sent all")
            acknowledged = finally_unread(sock)
            assert acknowledged < MEGABYTE
            reset(sock)
        await until(lambda: gateway.connections == 0, "the reset is noticed")
        assert await used(service, buyer, bought) <= acknowledged


@cases("rounds", [0, 40])
@cases("size", [1, 1000, 50_000])
async def test_a_client_that_resets_right_after_reading_pays_for_its_read_bytes(
    service: Service, size: int, rounds: int
) -> None:
    loop = asyncio.get_running_loop()
    buyer, bought = await buy(service)
    async with plain_pair(service, bought) as (client, target):
        for _ in range(rounds):  # questions and answers make a kernel slow to acknowledge
            await loop.sock_sendall(client, b"?")
            assert await loop.sock_recv(target, 1) == b"?"
            await loop.sock_sendall(target, b"!")
            assert await loop.sock_recv(client, 1) == b"!"
        await loop.sock_sendall(target, bytes(size))
        read = 0
        while read < size:
            read += len(await loop.sock_recv(client, size - read))
        reset(client)
        await until(lambda: service.daemon.gateway.connections == 0, "the reset is noticed")
    assert await used(service, buyer, bought) == size + 2 * rounds


async def test_clients_that_reset_again_and_again_get_no_more_than_the_quota(
    service: Service,
) -> None:
    quota = MEGABYTE
    buyer, bought = await buy(service, quota=quota)
    loop = asyncio.get_running_loop()
    received = 0
    async with targets.source(None) as target:
        for _ in range(100):
            client = await Client.open(service.proxy_port)
            status = await client.log_in(bought.username, bought.password)
            await client.close()
            if status != 0:
                break
            sock = await plain_tunnel(service, bought, target.port, receive_buffer=16_384)
            with closing(sock), suppress(ConnectionError):
                received += len(await loop.sock_recv(sock, 65_536))
                reset(sock)
            await until(lambda: service.daemon.gateway.connections == 0, "the reset is noticed")
            assert received <= await used(service, buyer, bought) <= quota


async def test_a_client_that_leaves_frees_the_bytes_that_it_did_not_get(service: Service) -> None:
    quota = 40 * MEGABYTE
    buyer, bought = await buy(service, quota=quota)
    async with targets.source(None) as target, targets.sink() as sink:
        sock = await plain_tunnel(service, bought, target.port, receive_buffer=65_536)
        with closing(sock):
            await settled(target)
            under_way = await used(service, buyer, bought)
            assert under_way < quota
            reset(sock)
        await until(lambda: service.daemon.gateway.connections == 0, "the reset is noticed")
        rest = quota - await used(service, buyer, bought)
        assert rest > quota - under_way
        client = await reached(service, bought, sink)
        sending = asyncio.create_task(client.send(targets.pattern(quota)))
        assert await read_to_the_end(client) == b""
        with suppress(ConnectionError):
            await sending
        await until(lambda: sink.ended == 1, "the sink has seen the end")
        assert bytes(sink.data) == targets.pattern(rest)
    assert await used(service, buyer, bought) == quota


async def test_bytes_that_a_target_refused_are_not_billed(service: Service) -> None:
    buyer, bought = await buy(service)
    closed = asyncio.Event()

    async def never_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await closed.wait()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        writer.transport.abort()

    async with targets.serving(never_read) as target:
        client = await reached(service, bought, target)
        with suppress(TimeoutError):
            while True:  # until one of them waits: nothing is taken any more
                async with asyncio.timeout(0.5):
                    await client.send(bytes(65_536))
        before = await used(service, buyer, bought)
        closed.set()
        await read_to_the_end(client)
        await until(lambda: service.daemon.gateway.connections == 0, "the reset is noticed")
        assert 0 < await used(service, buyer, bought) < before


@bounded(closing_bounds(patience_seconds=0.3))
async def test_bytes_thrown_away_when_the_target_breaks_are_not_billed(service: Service) -> None:
    buyer, bought = await buy(service)
    async with plain_pair(service, bought, receive_buffer=16_384) as (client, target):
        await asyncio.get_running_loop().sock_sendall(target, bytes(150_000))

        async def arrived() -> bool:
            return await used(service, buyer, bought) == 150_000

        await until(arrived, "the proxy's kernel has it all")
        acknowledged = finally_unread(client)
        assert acknowledged < 150_000
        reset(target)
        gateway = service.daemon.gateway
        await until(lambda: gateway.connections == 0, "the reset is noticed")
        await until(lambda: len(gateway.closer) == 0, "the client has had its time")
        assert await used(service, buyer, bought) <= acknowledged


# --- the quota -----------------------------------------------------------------------------------


async def test_fifty_downloads_at_once_get_exactly_the_quota(service: Service) -> None:
    quota = 20 * MEGABYTE + 3
    buyer, bought = await buy(service, quota=quota, price=0.37)
    gate = Gate()
    async with targets.serving(gate.handle) as target:
        clients = await asyncio.gather(*(reached(service, bought, target) for _ in range(50)))
        gate.opened.set()
        streams = await asyncio.gather(*(client.rest() for client in clients))
        for client in clients:
            await client.close()
    assert gate.sent > quota
    assert sum(len(stream) for stream in streams) == quota
    assert all(stream == targets.pattern(len(stream)) for stream in streams)
    assert await login_status(service, bought) == 2
    await status_is(service, buyer, bought, "exhausted")
    assert await used(service, buyer, bought) == quota
    spent = 10 * 10**6 - await micro_balance(service, buyer)
    assert spent == micro_price(quota, 0.37)


@cases("quota", [1, 9, 70_001, 300_000])
async def test_an_upload_is_cut_at_the_quota(service: Service, quota: int) -> None:
    buyer, bought = await buy(service, quota=quota)
    async with targets.sink(b"too late") as target:
        client = await reached(service, bought, target)
        await client.send(targets.pattern(MEGABYTE))
        assert await read_to_the_end(client) == b""
        await until(lambda: target.ended == 1, "the target has seen the end")
        assert bytes(target.data) == targets.pattern(quota)
    await status_is(service, buyer, bought, "exhausted")
    assert await used(service, buyer, bought) == quota
    assert await login_status(service, bought) == 2


@cases("quota", [1, 1000, 50_000])
async def test_a_payload_sent_early_is_cut_at_the_quota(service: Service, quota: int) -> None:
    buyer, bought = await buy(service, quota=quota)
    async with targets.sink() as target:
        client = await Client.open(service.proxy_port)
        await client.send(
            GREETING
            + credentials(bought.username, bought.password)
            + request(target.host, target.port)
            + targets.pattern(100_000)
        )
        assert len(await read_to_the_end(client)) == 14
        await until(lambda: target.ended == 1, "the target has seen the end")
        assert bytes(target.data) == targets.pattern(quota)
    assert await used(service, buyer, bought) == quota


@cases("quota", [1, 70_001, 3 * MEGABYTE])
async def test_a_download_is_cut_at_the_quota_and_ends_in_order(
    service: Service, quota: int
) -> None:
    buyer, bought = await buy(service, quota=quota)
    async with targets.source(None) as target:
        client = await reached(service, bought, target)
        assert await client.rest() == targets.pattern(quota)
        await client.close()
    await status_is(service, buyer, bought, "exhausted")
    assert await used(service, buyer, bought) == quota


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Send until all is sent or the peer is gone."""
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(sock, data)


async def receive_all(sock: socket.socket) -> bytes:
    """Receive until the stream ends, in order or not."""
    received = bytearray()
    with suppress(ConnectionError):
        while data := await asyncio.get_running_loop().sock_recv(sock, 65_536):
            received += data
    return bytes(received)


@cases("quota", [1, 2, 99_999, 1_500_001])
async def test_both_directions_share_the_quota(service: Service, quota: int) -> None:
    buyer, bought = await buy(service, quota=quota)
    payload = targets.pattern(2 * MEGABYTE)
    async with plain_pair(service, bought) as (client, target):
        sending = [asyncio.create_task(send_all(sock, payload)) for sock in (client, target)]
        up, down = await asyncio.gather(receive_all(target), receive_all(client))
        await asyncio.gather(*sending)
    assert len(up) + len(down) == quota
    assert up == payload[: len(up)]
    assert down == payload[: len(down)]
    assert await used(service, buyer, bought) == quota


async def test_a_quota_that_fits_exactly_is_delivered_and_exhausted(service: Service) -> None:
    buyer, bought = await buy(service, quota=15)
    async with targets.sink(b"the answer") as target:
        client = await reached(service, bought, target)
        await client.send(b"asked")
        client.end()
        assert await client.rest() == b"the answer"
        await client.close()
    await status_is(service, buyer, bought, "exhausted")
    assert await login_status(service, bought) == 2


async def test_a_session_goes_on_where_it_was(service: Service) -> None:
    buyer, bought = await buy(service, quota=250_000)
    delivered: Counter[str] = Counter()
    async with targets.source(100_000) as target:
        for name in ("first", "second", "third"):
            client = await reached(service, bought, target)
            client.end()
            delivered[name] = len(await client.rest())
            await client.close()
    assert delivered == {"first": 100_000, "second": 100_000, "third": 50_000}
    assert await login_status(service, bought) == 2
    assert await used(service, buyer, bought) == 250_000


@cases("price", [0.1, 1.0, 999.0, 1000.0])
async def test_a_session_of_one_byte_costs_a_millionth(service: Service, price: float) -> None:
    buyer, bought = await buy(service, quota=1, price=price)
    assert bought.cost_usd == 0.000001
    assert await micro_balance(service, buyer) == 10 * 10**6 - 1
    async with targets.source(10) as target:
        client = await reached(service, bought, target)
        assert await client.rest() == targets.pattern(1)
        await client.close()
    await status_is(service, buyer, bought, "exhausted")
    assert await used(service, buyer, bought) == 1
    assert await micro_balance(service, buyer) == 10 * 10**6 - 1


# --- ending and paying ---------------------------------------------------------------------------


@cases("price", [0.1, 0.333333, 1.0, 7.123457, 999.999999])
async def test_ending_cuts_a_running_transfer_and_settles_to_the_micro_dollar(
    service: Service, price: float
) -> None:
    buyer, bought = await buy(service, price=price, usd="1000")
    async with targets.source(None) as target:
        client = await reached(service, bought, target)
        received = len(await client.receive(2 * MEGABYTE + 1))
        reading = asyncio.create_task(read_to_the_end(client))
        await service.end(buyer, bought)
        session = await service.session(buyer, bought)
        assert session["status"] == "ended"
        async with asyncio.timeout(10):
            received += len(await reading)
        assert service.daemon.gateway.connections == 0
        assert received - INSTANT_BYTES <= session["bytes_used"] <= target.sent
    left = 1000 * 10**6 - micro_price(session["bytes_used"], price)
    assert await micro_balance(service, buyer) == left
    assert await used(service, buyer, bought) == session["bytes_used"]
    assert await login_status(service, bought) == 3


async def test_ending_cuts_every_connection_of_only_that_session(service: Service) -> None:
    buyer, bought = await buy(service)
    other = await service.buy(buyer)
    async with targets.echo() as target:
        clients = [await reached(service, bought, target) for _ in range(20)]
        spared = await reached(service, other, target)
        await service.end(buyer, bought)
        for client in clients:
            assert await read_to_the_end(client) == b""
        await spared.send(b"alive")
        assert await spared.receive(5) == b"alive"
        assert service.daemon.gateway.connections == 1
        await spared.close()


async def test_a_stalled_transfer_that_is_ended_bills_the_acknowledged_bytes(
    service: Service,
) -> None:
    buyer, bought = await buy(service)
    async with targets.source(None) as target:
        sock = await plain_tunnel(service, bought, target.port, receive_buffer=65_536)
        with closing(sock):
            await settled(target)
            acknowledged = finally_unread(sock)
            await service.end(buyer, bought)
        assert 0 < await used(service, buyer, bought) <= acknowledged
        paid = 10 * 10**6 - await micro_balance(service, buyer)
        assert paid == micro_price(await used(service, buyer, bought), 1.0)


async def test_ending_twice_pays_once(service: Service) -> None:
    buyer, bought = await buy(service)
    async with targets.source(MEGABYTE) as target:
        client = await reached(service, bought, target)
        client.end()
        assert len(await client.rest()) == MEGABYTE
        await client.close()
    await asyncio.gather(*(service.end(buyer, bought) for _ in range(10)))
    await service.end(buyer, bought)
    assert await micro_balance(service, buyer) == 10 * 10**6 - 1000
    assert await used(service, buyer, bought) == MEGABYTE


async def test_ending_as_the_quota_runs_out_pays_once(service: Service) -> None:
    quota = MEGABYTE
    buyer, bought = await buy(service, quota=quota)
    async with targets.source(None) as target:
        client = await reached(service, bought, target)
        received, _ = await asyncio.gather(read_to_the_end(client), service.end(buyer, bought))
    session = await service.session(buyer, bought)
    assert len(received) <= session["bytes_used"] <= quota
    paid = 10 * 10**6 - await micro_balance(service, buyer)
    assert paid == micro_price(session["bytes_used"], 1.0)


@cases("asks", [True, False])
async def test_ending_before_there_is_a_target_costs_nothing(service: Service, asks: bool) -> None:
    buyer, bought = await buy(service)
    gateway = service.daemon.gateway
    with silent_port() as port:
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        if asks:
            await client.send(request("127.0.0.1", port) + b"early")
            await until(lambda: gateway.dialing == 1, "it is dialed for")
        await service.end(buyer, bought)
        assert await read_to_the_end(client) == b""
        assert (gateway.dialing, gateway.connections) == (0, 0)
    session = await service.session(buyer, bought)
    assert (session["status"], session["bytes_used"]) == ("ended", 0)
    assert await micro_balance(service, buyer) == 10 * 10**6


async def test_running_out_while_another_connection_dials_is_reported_to_it(
    service: Service,
) -> None:
    buyer, bought = await buy(service, quota=10)
    gateway = service.daemon.gateway
    with silent_port() as port:
        async with targets.source(10) as target:
            waiting = await Client.open(service.proxy_port)
            assert await waiting.log_in(bought.username, bought.password) == 0
            await waiting.send(request("127.0.0.1", port))
            await until(lambda: gateway.dialing == 1, "it is dialed for")
            client = await reached(service, bought, target)
            assert await client.rest() == targets.pattern(10)
            await client.close()
            assert (await waiting.reply())[0] == 2
            assert await waiting.rest() == b""
            await waiting.close()
    assert gateway.dialing == 0
    await status_is(service, buyer, bought, "exhausted")


async def test_a_hundred_purchases_with_money_for_ten_sell_ten(service: Service) -> None:
    buyer = await service.person(usd="10")

    async def attempt() -> str:
        answer = await service.call(
            "POST", "/api/bandwidth/create", {"gb": 1, "price_per_gb": 1}, token=buyer.token
        )
        return "sold" if answer.status == 200 else f"{answer.status} {answer.code}"

    outcomes = Counter(await asyncio.gather(*(attempt() for _ in range(100))))
    assert outcomes == {"sold": 10, "400 insufficient_funds": 90}
    assert await micro_balance(service, buyer) == 0
    assert len(await service.sessions(buyer)) == 10


async def test_a_client_that_reads_and_resets_still_pays(service: Service) -> None:
    """A client that withholds its acknowledgements gets neither the bytes nor the quota back."""
    answer = targets.pattern(1_000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(answer)
        await reader.read()

    buyer = await service.person(usd="10")
    bought = await service.buy(buyer)
    rounds = 50
    async with targets.serving(serve) as target:
        for _ in range(rounds):
            client = await tunnel(
                service.proxy_port, bought.username, bought.password, target.host, target.port
            )
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            await client.send(b"x")
            assert await client.receive(len(answer)) == answer
            client.reset()
        await until(lambda: service.daemon.gateway.connections == 0)
    session = await service.session(buyer, bought)
    assert session["bytes_used"] == rounds * (1 + len(answer))


async def test_a_session_is_exhausted_at_the_moment_of_its_last_byte(service: Service) -> None:
    for _ in range(20):
        person, bought = await buy(service, quota=1_000)
        async with targets.source(None) as target:
            client = await tunnel(
                service.proxy_port, bought.username, bought.password, target.host, target.port
            )
            assert len(await client.rest()) == 1_000
            [listed] = await service.sessions(person, "all")
            assert (listed["bytes_used"], listed["status"]) == (1_000, "exhausted")
            assert await service.sessions(person, "active") == []
            await client.close()


@asynccontextmanager
async def running_out(
    service: Service, quota: int
) -> AsyncIterator[tuple[socket.socket, Person, Bought]]:
    """Give a client that has read nothing yet of a download that used its session up."""
    buyer, bought = await buy(service, quota=quota)
    async with targets.source(None) as target:
        sock = await plain_tunnel(service, bought, target.port, receive_buffer=16_384)
        with closing(sock):
            await until(lambda: service.daemon.core.meter.live == 0, "the session is used up")
            assert await login_status(service, bought) == 2
            yield sock, buyer, bought


async def written(service: Service, bought: Bought) -> int:
    """Return the bytes used according to the store."""
    row = await service.daemon.store.read(bandwidth.find, bought.id)
    assert row is not None
    return row.bytes_used


async def test_a_used_up_session_is_settled_when_its_last_byte_has_left(service: Service) -> None:
    quota, loop = 200_000, asyncio.get_running_loop()
    async with running_out(service, quota) as (sock, buyer, bought):
        listed = await service.session(buyer, bought)
        assert (listed["status"], listed["bytes_used"]) == ("active", quota)
        await until(lambda: written(service, bought), "what has left is written down")
        assert await written(service, bought) <= unread(sock) < quota
        received = 0
        while data := await loop.sock_recv(sock, 65_536):
            received += len(data)
        assert received == quota
        listed = await service.session(buyer, bought)
        assert (listed["status"], listed["bytes_used"]) == ("exhausted", quota)
    assert await micro_balance(service, buyer) == 10 * 10**6 - micro_price(quota, 1.0)


@bounded(closing_bounds(used_up_seconds=0.5))
async def test_a_trickling_reader_cannot_keep_a_used_up_session_open(service: Service) -> None:
    quota, loop = 200_000, asyncio.get_running_loop()
    async with running_out(service, quota) as (sock, buyer, bought):
        received = 0

        async def trickle() -> None:
            nonlocal received
            while data := await loop.sock_recv(sock, 1_000):
                received += len(data)
                await asyncio.sleep(0.05)  # some 20 KB a second: ten seconds for all of it

        with pytest.raises(ConnectionResetError):
            await trickle()
        await status_is(service, buyer, bought, "exhausted")
        billed = await used(service, buyer, bought)
        assert received <= billed < quota
    assert await micro_balance(service, buyer) == 10 * 10**6 - micro_price(billed, 1.0)


@cases("ends", [True, False])
async def test_bytes_that_a_used_up_session_never_delivered_are_not_billed(
    service: Service, ends: bool
) -> None:
    quota = 200_000
    async with running_out(service, quota) as (sock, buyer, bought):
        acknowledged = finally_unread(sock)
        if ends:
            await service.end(buyer, bought)
        else:
            reset(sock)
    status = "ended" if ends else "exhausted"
    await status_is(service, buyer, bought, status)
    billed = await used(service, buyer, bought)
    assert 0 < billed <= acknowledged < quota
    assert await micro_balance(service, buyer) == 10 * 10**6 - micro_price(billed, 1.0)
    assert await login_status(service, bought) in (2, 3)


async def test_only_a_session_whose_counts_the_store_refuses_is_cut(store_url: str) -> None:
    async def shrink(tx: Transaction, session_id: str) -> None:
        await tx.run(
            """
            UPDATE bandwidth_sessions SET bytes_leased = 0 WHERE id = :session_id
            """,
            session_id=session_id,
        )
        await tx.run(
            "UPDATE bandwidth_leases SET granted_bytes = used_bytes WHERE session_id = :session_id",
            session_id=session_id,
        )

    async with running(settings_for(store_url)) as service, targets.echo() as target:
        buyer, cut = await buy(service)
        spared = await service.buy(buyer)
        clients = [await reached(service, each, target) for each in (cut, spared)]
        for size in (1_000, 2_000):
            for client in clients:
                await client.send(bytes(500))
                await client.receive(500)
            for bought in (cut, spared):
                if (bought, size) != (cut, 2_000):
                    await until(partial(is_written, service, bought, size), "it is written down")
            if size == 1_000:
                await service.daemon.store.write(shrink, cut.id)
        assert await read_to_the_end(clients[0]) == b""
        assert await written(service, cut) == 1_000
        await clients[1].close()


async def is_written(service: Service, bought: Bought, size: int) -> bool:
    """Say whether the store knows `size` used bytes."""
    return await written(service, bought) == size


# --- the speed limit -----------------------------------------------------------------------------


async def test_a_session_goes_at_its_speed_shared_by_its_connections(tmp_path: Path) -> None:
    rate = 400_000
    limits = {"session_bytes_per_second": rate}
    async with running_in(tmp_path, limits=limits) as service:
        buyer, bought = await buy(service)
        loop = asyncio.get_running_loop()
        async with targets.source(None) as target:
            begun = loop.time()
            clients = [await reached(service, bought, target) for _ in range(4)]
            await asyncio.gather(*(client.receive(100_000) for client in clients))
            moved = await used(service, buyer, bought)
            assert moved <= rate * (loop.time() - begun + 0.3)
            for client in clients:
                await client.close()

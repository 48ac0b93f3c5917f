"""Work connections under TLS, with exits that break the protocol."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import pytest
from support.base.clock import Clock
from support.base.waiting import until
from support.daemons.bounded import bounded, exit_bounds
from support.exits.device import Device, Port, ignore

from proxyctl.protocol.frames import SECURE, SECURE_TICKETS, Dial, Dialled, DialOutcome, Preface
from proxyctl.protocol.secure import CHUNK_MAX_BYTES, END, chunked
from proxyd.exits.attached.listener import PortBounds
from proxyd.exits.attached.secure import (
    CHUNK_COST_BYTES,
    DEBT_MAX_BYTES,
    DEBT_PAID_PER_SECOND,
    ChunkDebt,
    Seal,
    make_pair,
)
from proxyd.loop.poller import Poller
from proxyd.relay.closing import reset
from proxyd.wire.wants import Wants

LOOPBACK = ip_address("127.0.0.1")
SECONDS_MAX = 20.0


class Payer:
    """The payer."""

    id = "session"
    user_id = "buyer"
    price_per_gb = 1_000_000


class Suspicions:
    """Records the suspicions, which no honest exit causes."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def admit(self, attached: Any) -> None: ...

    def suspect(self, _attached: Any, kind: str, _evidence: str) -> None:
        self.kinds.append(kind)


async def under_tls(port: Port, device: Device) -> tuple[ssl.SSLSocket, bytes]:
    """Return a connection under TLS, and the preface that makes it a work connection."""
    (attached,) = port.listener.roster.by_device.values()
    assert attached.secure is not None
    device.parks, device.obey = False, ignore
    attached.secure.open()
    await until(lambda: any(each >= SECURE_TICKETS for each in device.tickets), "it has tickets")
    number = next(each for each in device.tickets if each >= SECURE_TICKETS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    assert device.welcome is not None
    ticket = device.tickets.pop(number)
    preface = Preface(device.welcome.attachment, number, ticket).encode()

    def open_one() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection(("127.0.0.1", port.port)))

    return await asyncio.to_thread(open_one), preface


async def parked_under_tls(port: Port, device: Device) -> ssl.SSLSocket:
    """Have one work connection wait under TLS; nothing is ever read from it."""
    sock, preface = await under_tls(port, device)
    sock.sendall(preface)
    (attached,) = port.listener.roster.by_device.values()
    await until(lambda: len(attached.secure or ()) == 1, "it waits")
    return sock


async def test_a_work_connection_that_is_about_to_wait_at_the_end_is_closed(port: Port) -> None:
    device = await port.device(features=(SECURE,))
    theirs, preface = await under_tls(port, device)
    theirs.sendall(preface)
    while not len(port.listener.seals):
        await asyncio.sleep(0)
    # Before the first step of the task: when it is cancelled now, none of its code runs.
    port.listener.close()
    await port.close()
    theirs.settimeout(SECONDS_MAX)
    with suppress(ConnectionError):
        assert await asyncio.to_thread(theirs.recv, 1) == b""
    theirs.close()


async def dialled(port: Port, device: Device, outcomes: list[Any]) -> Any:
    """Send the exit an order for a target under TLS."""
    wants = Wants(secure=True)
    dial = port.exits.dial(wants, Payer(), LOOPBACK, 80, lambda *outcome: outcomes.append(outcome))
    await until(lambda: bool(device.dials), "it has its order")
    return dial


def connected(dial: Dial) -> Dialled:
    return Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0)


async def test_an_answer_that_comes_late_is_no_lie(tmp_path: Path) -> None:
    watch = Suspicions()
    port = Port(tmp_path, watch=watch)
    device = await port.device(features=(SECURE,))
    theirs = await parked_under_tls(port, device)
    dial = await dialled(port, device, [])
    dial.cancel()
    (attached,) = port.listener.roster.by_device.values()
    heard = attached.pulse.heard_at
    for each in device.dials:
        device.send(connected(each))
    await until(lambda: attached.pulse.heard_at > heard, "it is heard")
    assert watch.kinds == []
    device.send(connected(Dial(10**6, (LOOPBACK,), 80)))
    await until(lambda: watch.kinds == ["unasked"], "an unrequested frame is one")
    theirs.close()
    await port.close()


async def reached(port: Port, device: Device) -> socket.socket:
    """Return the work connection of a target that the exit reports as reached."""
    outcomes: list[Any] = []
    await dialled(port, device, outcomes)
    device.send(connected(device.dials[-1]))
    await until(lambda: bool(outcomes), "it is connected")
    sock = outcomes[0][0]
    assert isinstance(sock, socket.SocketType)
    port.reactor.poller.release(sock.fileno())
    return sock


@bounded(exit_bounds(port=PortBounds(tls_end_seconds=0.1)))
@pytest.mark.parametrize(
    ("is_full", "is_ended", "is_reset"),
    [(False, False, False), (False, True, True), (False, False, True), (True, False, True)],
)
async def test_an_exit_keeps_nothing_open_that_the_relay_has_let_go_of(
    port: Port, *, is_full: bool, is_ended: bool, is_reset: bool
) -> None:
    device = await port.device(features=(SECURE,))
    theirs = await parked_under_tls(port, device)
    sock = await reached(port, device)
    if is_full:  # the exit reads nothing
        with suppress(BlockingIOError):
            while True:
                sock.send(bytes(65_536))
                await asyncio.sleep(0.01)
    if is_ended:
        (seal,) = port.listener.seals
        sock.shutdown(socket.SHUT_WR)
        await until(lambda: seal._side.has_ended, "the exit has been told")
    if is_reset:
        reset(sock)
    else:
        sock.close()
    await until(lambda: not len(port.listener.seals), "nothing is left of it")
    theirs.close()


# --- the sizes of chunks -------------------------------------------------------------------------


class Exit:
    """The transport of an exit, in place of one that speaks TLS."""

    def __init__(self) -> None:
        self.is_cut = False

    def set_write_buffer_limits(self, _high: int) -> None: ...

    def set_protocol(self, _protocol: object) -> None: ...

    def is_closing(self) -> bool:
        return self.is_cut

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.is_cut = True

    close = abort


class Sealed:
    """A seal, whose writes to the relay and parsed chunks are counted."""

    def __init__(self, seal: Seal, clock: Clock) -> None:
        self.seal = seal
        self.exit = cast(Exit, seal._transport)
        self.writes: list[bytes] = []
        self.parsed = 0
        seal._debt = ChunkDebt(clock.steady)
        seal._side.write = self.writes.append
        self._parse = seal._reader.receive_data
        seal._reader.receive_data = self._receive

    def _receive(self, data: bytes) -> Iterator[memoryview]:
        for each in self._parse(data):
            self.parsed += 1
            yield each


@pytest.fixture
async def sealed(clock: Clock) -> AsyncIterator[Sealed]:
    poller = Poller(asyncio.get_running_loop())
    near, far = make_pair()
    seal = Seal(cast(Any, Exit()), near, poller, lambda _: None)
    await seal.start()
    yield Sealed(seal, clock)
    seal.abort()
    far.close()
    await until(lambda: seal._side.is_lost, "the pair is closed")
    poller.close()


ONE_BYTE = chunked(b"x")


@pytest.mark.parametrize("size", [1, 20, CHUNK_MAX_BYTES])
async def test_the_chunks_of_one_read_are_one_write(sealed: Sealed, size: int) -> None:
    stream = b"y" * size * 10
    sealed.seal.data_received(b"".join(chunked(stream[:size]) for _ in range(10)))
    assert sealed.writes == [stream]
    assert sealed.seal.received == len(stream)
    sealed.seal.data_received(END)
    assert len(sealed.writes) == 1
    assert not sealed.exit.is_cut


@pytest.mark.parametrize("size", [1, 2, 10])
async def test_a_flood_of_small_chunks_is_cut_before_it_is_parsed(
    sealed: Sealed, size: int
) -> None:
    flood = chunked(b"x" * size) * (256 * 1024 // (size + 2))
    reads = 0
    while not sealed.exit.is_cut:
        sealed.seal.data_received(flood)
        reads += 1
        assert reads < 100
    most = DEBT_MAX_BYTES // (CHUNK_COST_BYTES - size) + len(flood) // CHUNK_COST_BYTES
    assert sealed.parsed <= most + 1
    assert len(sealed.writes) == reads - 1


async def test_a_terminal_passes_for_ever(sealed: Sealed, clock: Clock) -> None:
    chunks_per_second = 1_000  # more than any terminal
    for _ in range(100 * chunks_per_second):
        clock.now += 1 / chunks_per_second
        sealed.seal.data_received(ONE_BYTE)
    assert not sealed.exit.is_cut
    assert sealed.seal.received == 100 * chunks_per_second


async def test_small_chunks_that_had_to_wait_pass_at_once_again_and_again(
    sealed: Sealed, clock: Clock
) -> None:
    for _ in range(5):
        sealed.seal.data_received(ONE_BYTE * (DEBT_MAX_BYTES // CHUNK_COST_BYTES))
        assert not sealed.exit.is_cut
        clock.now += DEBT_MAX_BYTES / DEBT_PAID_PER_SECOND
    sealed.seal.data_received(ONE_BYTE * (DEBT_MAX_BYTES // CHUNK_COST_BYTES))
    sealed.seal.data_received(ONE_BYTE * (DEBT_MAX_BYTES // CHUNK_COST_BYTES))
    assert sealed.exit.is_cut


async def test_small_chunks_between_larger_ones_pass_at_any_speed(sealed: Sealed) -> None:
    mixed = ONE_BYTE + chunked(bytes(2 * CHUNK_COST_BYTES))
    for _ in range(50):
        sealed.seal.data_received(mixed * 1_000)
    assert not sealed.exit.is_cut
    large = chunked(bytes(100 * CHUNK_MAX_BYTES))
    for _ in range(10):
        sealed.seal.data_received(large)
    sealed.seal.data_received(ONE_BYTE * 256 * 1024)
    assert sealed.exit.is_cut, "large chunks pay for none that come later"

"""proxyd.exits.dialling.tunnels: streams into jobs, and the bounds of devices that lie."""

import asyncio
import math
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.base.waiting import until
from support.exits.device import BEAT_SECONDS, Device, Port, Sightings

from market.base.errors import Code, MarketError
from proxyctl.protocol.frames import (
    VERSION,
    Dialled,
    DialOutcome,
    Drain,
    ExitStatus,
    Open,
    Preface,
    Sorry,
    Tunnel,
    Tunnelled,
    encode,
)
from proxyctl.protocol.secure import END, ChunkReader, chunked
from proxyd.exits.attached.control import USUAL as CONTROL
from proxyd.exits.attached.control import ControlBounds
from proxyd.exits.dialling.orders import TunnelError
from proxyd.exits.dialling.streams import IDLE_SECONDS
from proxyd.exits.dialling.tunnels import USUAL, DeviceTunnels, TunnelBounds
from proxyd.loop.reactor import Reactor
from proxyd.wiring.bounds import EXITS
from storage.engines.errors import UnavailableError

JOB = "01234567-89ab-cdef-0123-456789abcdef"
SECONDS = 20.0


@dataclass
class Worker:
    """Device in the marketplace."""

    id: str
    user_id: str


@dataclass
class Authority:
    """Knows the device of each token except "unknown"; its owner is the part before "/"."""

    revoked: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)  # that hold no attempt with ports
    is_away: bool = False
    origins: Sightings = field(default_factory=Sightings)

    async def authenticate(self, token: str) -> Worker:
        if token == "unknown":
            raise MarketError(Code.WORKER_UNAUTHORIZED)
        return Worker(token, token.partition("/")[0])

    async def revoked_among(self, device_ids: Sequence[str]) -> list[str]:
        if self.is_away:
            raise UnavailableError("the store is away")
        return [each for each in device_ids if each in self.revoked]

    async def listening_among(self, device_ids: Sequence[str]) -> list[str]:
        if self.is_away:
            raise UnavailableError("the store is away")
        return [each for each in device_ids if each not in self.idle]


class Place:
    """The port, its attached devices, and the clients of their streams."""

    def __init__(
        self,
        folder: Path,
        most: int = 100,
        heartbeat_seconds: float = 15.0,
        bounds: TunnelBounds = USUAL,
        control: ControlBounds = CONTROL,
    ) -> None:
        self.authority = Authority()

        def make(reactor: Reactor) -> DeviceTunnels:
            return DeviceTunnels(reactor, self.authority, most, heartbeat_seconds, bounds)

        self.port = Port(
            folder,
            make_workers=make,
            arrivals=300,
            bounds=replace(EXITS, port=replace(EXITS.port, control=control)),
        )
        self.tunnels = self.port.workers
        self._writers: list[asyncio.StreamWriter] = []
        self._buyers = 0

    async def worker(self, token: str = "device") -> Device:
        """Return a device that has attached as a worker, or was refused."""
        device = self.port.unattached()
        await device.connect()
        device.send(Tunnel(VERSION, token, "0.0"))
        await until(lambda: bool(device.frames) or device.is_over)
        return device

    def opening(
        self, device_id: str = "device", seconds: float = SECONDS, *, buyer: str = ""
    ) -> asyncio.Task[socket.socket]:
        """Want a stream into a job, of another buyer each time."""
        self._buyers += 1
        buyer = buyer or f"buyer {self._buyers}"
        wish = self.tunnels.open(device_id, JOB, 1, 8888, seconds, buyer)
        return asyncio.get_running_loop().create_task(wish)

    async def dial_back(
        self, preface: Preface, behind: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a work connection under TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port.port, ssl=context)
        self._writers.append(writer)
        writer.write(preface.encode() + behind)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.port.close()
        await until(lambda: not self.tunnels.streams and not len(self.tunnels))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    await made.close()


async def order_of(device: Device, number: int = 0) -> Open:
    """Return an order that a device got."""
    orders: list[Open] = []

    def is_there() -> bool:
        orders[:] = [each for each in device.frames if isinstance(each, Open)]
        return len(orders) > number

    await until(is_there, "an order")
    return orders[number]


def preface_of(device: Device, order: Open) -> Preface:
    [welcome] = [each for each in device.frames if isinstance(each, Tunnelled)]
    return Preface(welcome.attachment, order.number, order.ticket)


async def reason(task: asyncio.Task[socket.socket]) -> str:
    with pytest.raises(TunnelError) as raised:
        await task
    return raised.value.reason


async def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
        if not more:
            break
        data += more
    return data


async def read_stream(reader: asyncio.StreamReader, size: int) -> bytes:
    """Return `size` bytes of a stream out of its chunks."""
    chunks, data = ChunkReader(), b""
    while len(data) < size:
        more = await reader.read(65_536)
        assert more
        data += b"".join(bytes(each) for each in chunks.receive_data(more))
    return data


async def test_a_stream_into_a_job(place: Place) -> None:
    device = await place.worker()
    assert place.tunnels.is_attached("device")
    assert not place.tunnels.is_attached("another")
    opening = place.opening()
    order = await order_of(device)
    assert (order.job_id, order.attempt, order.port) == (JOB, 1, 8888)
    # A server that speaks first: that comes together with the ticket.
    reader, writer = await place.dial_back(preface_of(device, order), chunked(b"SSH-2.0"))
    with await opening as sock:
        assert not sock.getblocking()
        assert await receive(sock, 7) == b"SSH-2.0"
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"question")
        assert await read_stream(reader, 8) == b"question"
        sock.shutdown(socket.SHUT_WR)  # one way ends, the other one goes on
        assert await reader.readexactly(2) == END
        writer.write(chunked(b"answer") + END)
        assert await receive(sock, 100) == b"answer"
    await until(lambda: not place.tunnels.streams, "it is over")
    assert place.tunnels.moved == (13, 8)
    assert place.tunnels.counts.opens == {"open": 1}


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (DialOutcome.REFUSED, "refused"),
        (DialOutcome.FAILED, "refused"),
        (DialOutcome.NOT_ALLOWED, "gone"),
        (DialOutcome.TIMED_OUT, "timeout"),
        (DialOutcome.AT_LIMIT, "busy"),
    ],
)
async def test_a_device_says_why_there_is_no_stream(
    place: Place, outcome: DialOutcome, word: str
) -> None:
    device = await place.worker()
    opening = place.opening()
    order = await order_of(device)
    device.send(Dialled(order.number, outcome, 0, None, 0))
    device.send(Dialled(order.number + 7, outcome, 0, None, 0))  # without an order: it is ignored
    assert await reason(opening) == word
    assert place.tunnels.counts.opens == {word: 1}


async def test_without_a_device_there_is_no_stream(place: Place) -> None:
    assert await reason(place.opening()) == "away"
    exit_device = await place.port.device("an exit")  # it is not a worker
    assert exit_device.welcome is not None
    assert await reason(place.opening("an exit")) == "away"
    worker = await place.worker()
    opening = place.opening()
    await order_of(worker)
    await worker.kill()
    assert await reason(opening) == "away"
    await until(lambda: not place.tunnels.is_attached("device"))


async def test_a_device_that_never_dials_back_is_given_up_and_comes_too_late(place: Place) -> None:
    device = await place.worker()
    assert await reason(place.opening(seconds=0.01)) == "timeout"
    reader, _ = await place.dial_back(preface_of(device, await order_of(device)))
    assert await reader.read() == b""
    cancelled = place.opening()
    order = await order_of(device, 1)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    reader, _ = await place.dial_back(preface_of(device, order))
    assert await reader.read() == b""
    assert not place.tunnels.streams


async def test_a_ticket_is_good_for_one_connection_of_its_device(place: Place) -> None:
    device, other = await place.worker(), await place.worker("other")
    opening = place.opening()
    order = await order_of(device)
    preface = preface_of(device, order)
    theirs = preface_of(other, order)
    for wrong in (
        preface._replace(ticket=bytes(16)),
        preface._replace(number=order.number + 1),
        preface._replace(attachment=preface.attachment + 1),
        theirs,
    ):
        reader, _ = await place.dial_back(wrong)
        assert await reader.read() == b"", wrong
    await place.dial_back(preface)
    with await opening as sock:
        reader, _ = await place.dial_back(preface)
        assert await reader.read() == b""
        assert place.tunnels.streams == 1
        sock.close()


async def test_a_stream_of_a_device_that_breaks_is_reset(place: Place) -> None:
    device = await place.worker()
    opening = place.opening()
    _, writer = await place.dial_back(preface_of(device, await order_of(device)))
    with await opening as sock:
        writer.transport.abort()
        with pytest.raises(ConnectionResetError):
            await receive(sock, 1)


async def test_streams_outlive_a_control_connection_and_not_a_token(place: Place) -> None:
    device = await place.worker()
    opening = place.opening()
    _, writer = await place.dial_back(preface_of(device, await order_of(device)))
    with await opening as sock:
        again = await place.worker()
        await until(lambda: device.is_over, "the older one is let go of")
        assert place.tunnels.is_attached("device")
        writer.write(chunked(b"on"))
        assert await receive(sock, 2) == b"on"
        place.authority.revoked.add("device")
        place.tunnels.recheck("device")
        await until(lambda: again.sorry is not None)
        assert again.sorry is not None
        assert again.sorry.code == "worker_unauthorized"
        with pytest.raises(ConnectionResetError):
            await receive(sock, 1)
    assert not place.tunnels.is_attached("device")


async def test_a_token_that_was_revoked_elsewhere_is_noticed(tmp_path: Path) -> None:
    place = Place(tmp_path, bounds=TunnelBounds(recheck_seconds=0.01))
    device = await place.worker()
    place.authority.is_away = True
    place.authority.revoked.add("device")
    place.authority.is_away = False
    await until(lambda: device.sorry is not None, "it is let go of")
    await place.close()


async def test_a_device_that_may_not_attach_gets_the_reason(place: Place) -> None:
    device = await place.worker("unknown")
    assert device.sorry is not None
    assert (device.sorry.code, device.sorry.retry_seconds) == ("worker_unauthorized", 0)
    place.authority.revoked.add("revoked")
    device = await place.worker("revoked")
    assert device.sorry is not None
    assert device.sorry.code == "worker_unauthorized"
    place.authority.is_away = True
    device = await place.worker()
    assert device.sorry is not None
    assert (device.sorry.code, device.sorry.retry_seconds > 0) == ("unavailable", True)
    place.authority.is_away = False
    drained = await place.worker()
    place.port.listener.drain(3.0)
    await until(lambda: Drain(3) in drained.frames)
    device = await place.worker("late")
    assert device.sorry is not None
    assert device.sorry.code == "stopping"
    assert not len(place.tunnels) or place.tunnels.is_attached("device")


async def test_a_service_without_tunnels_refuses_workers(tmp_path: Path) -> None:
    port = Port(tmp_path)
    device = port.unattached()
    await device.connect()
    device.send(Tunnel(VERSION, "device", "0.0"))
    await until(lambda: device.sorry is not None)
    assert isinstance(device.frames[0], Sorry)
    assert device.frames[0].code == "tunnels_off"
    await port.close()


async def test_a_flood_of_opens_is_bounded(tmp_path: Path) -> None:
    place = Place(tmp_path, most=5, bounds=TunnelBounds(streams_per_device=3))
    await place.worker()
    await place.worker("other")
    openings = [place.opening() for _ in range(4)] + [place.opening("other") for _ in range(3)]
    done, waiting = await asyncio.wait(openings, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: sum(each.done() for each in openings) == 2, "two are too many")
    assert [await reason(each) for each in openings if each.done()] == ["busy", "busy"]
    assert openings[3].done()  # the device's own fourth
    assert openings[6].done()  # the sixth of all
    for each in waiting | done:
        each.cancel()
    await asyncio.gather(*openings, return_exceptions=True)
    retry = place.opening()  # and there is room again
    await asyncio.sleep(0)
    assert not retry.done()
    retry.cancel()
    await place.close()


async def test_one_buyer_has_a_part_of_all_streams(tmp_path: Path) -> None:
    place = Place(tmp_path, most=8)
    device = await place.worker()
    opened = place.opening(buyer="greedy")
    await place.dial_back(preface_of(device, await order_of(device)))
    stream = await opened
    waiting = place.opening(buyer="greedy")
    assert await reason(place.opening(buyer="greedy")) == "busy"
    other = place.opening(buyer="modest")
    await until(lambda: len([each for each in device.frames if isinstance(each, Open)]) == 3)
    waiting.cancel()
    other.cancel()
    await asyncio.gather(waiting, other, return_exceptions=True)
    again = place.opening(buyer="greedy")
    await asyncio.sleep(0)
    assert not again.done()
    stream.close()
    again.cancel()
    await until(lambda: not place.tunnels._streams._per_buyer, "nobody is counted any more")
    await place.close()


async def test_only_devices_with_listening_jobs_are_attached(place: Place) -> None:
    place.authority.idle.add("device")
    refused = await place.worker()
    assert refused.sorry is not None
    assert refused.sorry.code == "no_ports"
    assert refused.sorry.retry_seconds > 0
    place.authority.idle.clear()
    device, other = await place.worker(), await place.worker("other")
    place.authority.idle.add("device")
    place.authority.is_away = True
    await place.tunnels.dismiss()  # the answer is unknown
    assert place.tunnels.is_attached("device")
    place.authority.is_away = False
    await place.tunnels.dismiss()
    await until(lambda: device.sorry is not None, "it is told")
    assert not place.tunnels.is_attached("device")
    assert place.tunnels.is_attached("other")
    assert other.sorry is None


async def test_a_device_that_floods_or_sends_frames_of_no_worker_is_cut(place: Place) -> None:
    device = await place.worker()
    for _ in range(6000):  # twice the burst that it may have
        device.send(Dialled(7, DialOutcome.REFUSED, 0, None, 0))
    await until(lambda: device.is_over, "it is cut")
    device = await place.worker()
    device.send(ExitStatus("tired"))
    await until(lambda: device.is_over, "it is cut")
    device = await place.worker()
    device.send_raw(b"\0\0garbage")
    await until(lambda: device.is_over, "it is cut")
    assert place.tunnels.counts.gone["flood"] == 1
    assert place.tunnels.counts.gone["violation"] == 2


async def test_the_bounds_of_the_port_decide_when_a_worker_does_not_read(tmp_path: Path) -> None:
    frame = Sorry("code", "words " * 80, 0)
    for bound, is_cut in ((1000, True), (64 * 1024 * 1024, False)):
        folder = tmp_path / str(bound)
        folder.mkdir()
        place = Place(folder, control=ControlBounds(waiting_max_bytes=bound))
        device = await place.worker()
        assert device._writer is not None
        device._writer.transport.pause_reading()
        (worker,) = place.tunnels._workers.all()
        transport = worker._transport
        assert transport is not None
        while transport.get_write_buffer_size() <= 2 * CONTROL.waiting_max_bytes:
            for _ in range(100):
                worker.send(frame)
            await asyncio.sleep(0)
            if not place.tunnels.is_attached("device"):
                break
        await asyncio.sleep(0)
        assert place.tunnels.is_attached("device") is not is_cut
        assert place.tunnels.counts.gone["does not read"] == is_cut
        device._writer.transport.resume_reading()
        await place.close()


async def test_the_attached_devices_are_bounded(tmp_path: Path) -> None:
    place = Place(tmp_path, most=1)
    await place.worker()
    late = await place.worker("other")
    assert late.sorry is not None
    assert late.sorry.code == "too_many_devices"
    again = await place.worker()  # the same one takes its own place
    assert again.sorry is None
    assert place.tunnels.is_attached("device")
    await place.close()


async def test_one_owner_leaves_room_for_others(tmp_path: Path) -> None:
    place = Place(tmp_path, most=4)
    mine = [await place.worker(f"mine/{number}") for number in range(3)]
    assert [each.sorry is None for each in mine] == [True, True, False]
    assert mine[2].sorry is not None
    assert mine[2].sorry.code == "too_many_devices"
    assert (await place.worker("mine/1")).sorry is None  # it takes its own place
    assert (await place.worker("other/1")).sorry is None
    mine[0].send(ExitStatus("tired"))  # no worker's: it is cut
    await until(lambda: len(place.tunnels) == 2)
    await place.worker("mine/2")
    assert place.tunnels.is_attached("mine/2")
    await place.close()


async def test_a_hello_is_sent_once(place: Place) -> None:
    device = place.port.unattached()
    await device.connect()
    twice = encode(Tunnel(VERSION, "device", "0.0"))
    device.send_raw(twice + twice)
    await until(lambda: device.is_over, "it is cut")
    await until(lambda: not len(place.tunnels))


async def test_a_silent_device_is_let_go_of(tmp_path: Path) -> None:
    place = Place(tmp_path, heartbeat_seconds=BEAT_SECONDS)
    steady, silent = await place.worker("steady"), await place.worker("silent")
    silent.answers_pings = False
    await until(lambda: silent.is_over, "it is cut")
    assert place.tunnels.is_attached("steady")
    assert not steady.is_over
    await place.close()


async def test_an_idle_stream_is_cut(place: Place) -> None:
    device = await place.worker()
    opening = place.opening()
    _, writer = await place.dial_back(preface_of(device, await order_of(device)))
    with await opening as sock:
        # A whole number of seconds: sums of fractions are rounded, perhaps to just below the bound.
        now = math.ceil(asyncio.get_running_loop().time())
        writer.write(chunked(b"x"))
        assert await receive(sock, 1) == b"x"
        place.tunnels._streams.sweep(now + IDLE_SECONDS)  # it has moved since the last look
        place.tunnels._streams.sweep(now + 2 * IDLE_SECONDS - 1)
        assert place.tunnels.streams == 1
        place.tunnels._streams.sweep(now + 2 * IDLE_SECONDS)
        with pytest.raises(ConnectionResetError):
            await receive(sock, 1)


async def test_the_end_of_the_daemon_cuts_everything(tmp_path: Path) -> None:
    place = Place(tmp_path)
    device = await place.worker()
    opening, waiting = place.opening(), place.opening()
    await place.dial_back(preface_of(device, await order_of(device)))
    with await opening as sock:
        place.port.listener.close()
        assert await reason(waiting) == "away"
        with pytest.raises(ConnectionResetError):
            await receive(sock, 1)
    await place.close()


async def test_the_addresses_of_attached_devices_are_noted(place: Place) -> None:
    worker, exit_ = await place.worker(), await place.port.device("exit")
    assert list(place.tunnels.sighted()) == [("device", "127.0.0.1")]
    exit_id = "exit"
    assert set(place.port.base.origins.sighted()) == {(exit_id, "127.0.0.1")}
    assert place.authority.origins.notes == [("device", "127.0.0.1", "saw")]
    assert place.port.sightings.notes == [(exit_id, "127.0.0.1", "saw")]
    for device in (worker, exit_):
        await device.kill()
    await until(lambda: place.port.sightings.notes[-1] == (exit_id, "127.0.0.1", "left"))
    await until(lambda: place.authority.origins.notes[-1] == ("device", "127.0.0.1", "left"))

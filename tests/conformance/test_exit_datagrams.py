"""Datagrams through exits: the chosen exit, the daemon's checks, and exits that do not obey.

Datagrams themselves are in `test_udp.py`; each test there also runs through an exit.
"""

import asyncio
import fcntl
import socket
import termios
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.base.clock import Clock
from support.base.descriptors import at_rest
from support.base.waiting import until
from support.clients.datagrams import Associated, associated, logged_in, peer
from support.clients.socks import request
from support.clients.story import buy, used
from support.daemons.service import Bought, Service, running_in
from support.exits.device import EXITS, Consented, Device, all_is_shared, consented, listener_of

from api.http.rate import RateLimit
from proxyctl.exit.carrying.datagrams import unwrapped, wrapped
from proxyctl.protocol.frames import Associate, Dialled, DialOutcome, ServiceLimits
from proxyd.relay import exit_datagrams
from proxyd.relay.closing import unacknowledged
from proxyd.relay.exit_datagrams import ExitWay
from proxyd.wire.events import Address
from proxyd.wire.hosts import address_of


class Work:
    """The work connection of a device that does as the test says."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.kept = b""

    async def obey(self, device: Device, order: Associate) -> None:
        self.sock = device.take(order.number)
        device.send(Dialled(order.number, DialOutcome.CONNECTED, 0, None, 0))

    async def send(self, data: bytes) -> None:
        assert self.sock is not None
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> tuple[Address | str, int, bytes]:
        """Return the next datagram that the daemon wants sent."""
        assert self.sock is not None
        loop = asyncio.get_running_loop()
        while len(self.kept) < 2 or len(self.kept) < 2 + int.from_bytes(self.kept[:2]):
            data = await loop.sock_recv(self.sock, 65_536)
            assert data
            self.kept += data
        end = 2 + int.from_bytes(self.kept[:2])
        datagram, self.kept = self.kept[2:end], self.kept[end:]
        return unwrapped(datagram)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()


class Setting:
    """A daemon, a device that is its exit, and the device's work connection."""

    def __init__(self, service: Service, made: Consented, device: Device) -> None:
        self.service = service
        self.made = made
        self.device = device
        self.work = Work()

    async def only_way(self) -> ExitWay:
        (connection,) = self.service.daemon.gateway._clients.connections
        return connection._transfer._way


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with running_in(tmp_path, **EXITS) as service:
        made = await consented(service)
        device = await made.attach(service)
        service.wishes = "-country-xx"
        await until(lambda: listener_of(service).counters.parked > 0, "a connection waits")
        built = Setting(service, made, device)
        yield built
        await all_is_shared(service)
        await device.kill()
        built.work.close()
        await service.assert_audit()


async def refused_with(service: Service, bought: Bought) -> int:
    """Return the reply code of UDP ASSOCIATE."""
    control = await logged_in(service, bought)
    await control.send(request("0.0.0.0", 0, command=3))
    code, *_ = await control.reply()
    await control.close()
    return code


def wishing(bought: Bought, wishes: str) -> Bought:
    return replace(bought, username=bought.username.partition("-")[0] + wishes)


# --- choice of the exit --------------------------------------------------------------------------


async def test_an_exit_that_does_not_offer_it_is_not_chosen(tmp_path: Path) -> None:
    async with running_in(tmp_path, **EXITS) as service:
        made = await consented(service)
        plain = replace(made, first=made.first._replace(features=("dns",)))
        device = await plain.attach(service)
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        assert await refused_with(service, bought) == 3
        assert not any(isinstance(each, Associate) for each in device.frames)
        await device.kill()


async def test_a_daemon_without_exits_carries_no_datagrams_for_an_exit(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        service.wishes = "-country-xx"
        _, bought = await buy(service)
        assert await refused_with(service, bought) == 3


async def test_a_label_keeps_its_exit_for_datagrams(setting: Setting) -> None:
    second = await (await consented(setting.service)).attach(setting.service, "127.0.0.2")
    await until(lambda: len(listener_of(setting.service)) == 2)
    _, bought = await buy(setting.service)
    labelled = wishing(bought, "-country-xx-session-abc")
    for _ in range(6):
        async with associated(setting.service, labelled) as client:
            with peer() as target:
                await client.exchange(target, b"up", b"down")
    orders = [
        sum(isinstance(frame, Associate) for frame in each.frames)
        for each in (setting.device, second)
    ]
    assert sorted(orders) == [0, 6]
    await all_is_shared(setting.service)
    await second.kill()


async def test_a_device_that_refuses_is_passed_over(setting: Setting) -> None:
    async def refuse(device: Device, order: Associate) -> None:
        device.send(Dialled(order.number, DialOutcome.AT_LIMIT, 0, None, 0))
        device.take(order.number).close()

    setting.device.obey_datagrams = refuse
    _, bought = await buy(setting.service)
    assert await refused_with(setting.service, bought) == 3


# --- checks in the daemon ------------------------------------------------------------------------


async def test_names_are_the_exits_to_look_up_if_the_buyer_wants(setting: Setting) -> None:
    setting.device.obey_datagrams = setting.work.obey
    _, bought = await buy(setting.service)
    async with associated(setting.service, wishing(bought, "-country-xx-dns-exit")) as client:
        client.send(("Example.org", 443), b"by name")
        client.send(("example.org", 25), b"forbidden")
        client.send(("10.1", 443), b"an address, and forbidden")
        client.send(("127.0.0.1", 443), b"another one")
        assert await setting.work.receive() == ("example.org", 443, b"by name")
        host, _, payload = await setting.work.receive()
        assert (str(host), payload) == ("127.0.0.1", b"another one")
        # The exit chooses the address of the name; a forbidden address belongs to no target.
        await setting.work.send(wrapped(address_of("10.0.0.1"), 443, b"not from there"))
        await setting.work.send(wrapped(address_of("127.0.0.9"), 443, b"down"))
        assert await client.receive() == ("127.0.0.9", 443, b"down")


@pytest.mark.parametrize(("wishes", "ports"), [("-country-xx-tls-only", ()), ("", (443,))])
async def test_only_permitted_ports_are_sent_to(
    setting: Setting, wishes: str, ports: tuple[int, ...]
) -> None:
    setting.device.obey_datagrams = setting.work.obey
    attached = listener_of(setting.service).roster.by_device[setting.made.device_id]
    attached.grant(ServiceLimits(0, 0, 0, ports))
    person, bought = await buy(setting.service)
    sold = wishing(bought, wishes or "-country-xx")
    async with associated(setting.service, sold) as client:
        client.send(("127.0.0.1", 8443), b"another port")
        client.send(("127.0.0.1", 443), b"the port")
        _, port, payload = await setting.work.receive()
        assert (port, payload) == (443, b"the port")
    assert await used(setting.service, person, bought) == len(b"the port")


# --- exits that do not obey ----------------------------------------------------------------------

GARBAGE = {
    "nothing": b"\0\0",
    "no address": b"\0\x04\0\0\0\x01",
    "a fragment": b"\0\x0b\0\0\x01\x01\x7f\0\0\x01\0\x35x",
    "a name": b"\0\x10\0\0\0\x03\x09localhost\0\x35",
    "an unknown type": b"\0\x0b\0\0\0\x02\x7f\0\0\x01\0\x35x",
    "HTTP": b"\0\x20GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_an_exit_that_sends_garbage_is_cut_off(setting: Setting, garbage: bytes) -> None:
    setting.device.obey_datagrams = setting.work.obey
    person, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        await setting.work.send(garbage)
        await client.cut()
    await at_rest(setting.service)
    assert await used(setting.service, person, bought) == 2


async def test_datagrams_in_any_pieces_arrive_whole(setting: Setting) -> None:
    setting.device.obey_datagrams = setting.work.obey
    _, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        data = wrapped(address_of("127.0.0.1"), 443, b"down")
        for each in data:
            await setting.work.send(bytes((each,)))
            await asyncio.sleep(0)
        assert (await client.receive()).payload == b"down"
        await setting.work.send(data * 50)
        for _ in range(50):
            assert (await client.receive()).payload == b"down"


async def test_datagrams_of_strangers_are_neither_passed_on_nor_paid(setting: Setting) -> None:
    setting.device.obey_datagrams = setting.work.obey
    person, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        flood = wrapped(address_of("127.0.0.1"), 444, bytes(1_200))
        await setting.work.send(flood * 5_000)
        await setting.work.send(wrapped(address_of("127.0.0.1"), 443, b"down"))
        assert (await client.receive()).payload == b"down"
    assert await used(setting.service, person, bought) == 6


class Handled:
    """Counts handled datagrams, in all and in one turn of the loop; none is too many."""

    def __init__(self) -> None:
        self.number = 0
        self.most_in_a_turn = 0
        self._at_last_turn = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._turn)

    def count(self, _: str) -> bool:
        self.number += 1
        return True

    def _turn(self) -> None:
        self.most_in_a_turn = max(self.most_in_a_turn, self.number - self._at_last_turn)
        self._at_last_turn = self.number
        self._handle = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize("port", [443, 444], ids=["of a target", "of strangers"])
async def test_a_turn_of_the_loop_has_a_bounded_number_of_datagrams(
    setting: Setting, port: int
) -> None:
    setting.device.obey_datagrams = setting.work.obey
    _, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        handled = Handled()
        datagrams = setting.service.daemon.gateway._for_connections.datagrams
        datagrams.allows = datagrams.tolerates = handled.count
        await setting.work.send(wrapped(address_of("127.0.0.1"), port, b"") * 20_000)
        await until(lambda: handled.number == 20_000, "all are handled")
        handled.stop()
        assert 100 < handled.most_in_a_turn <= exit_datagrams.DATAGRAMS_PER_TURN


async def test_datagrams_that_wait_for_a_turn_come_before_the_loss_of_the_exit(
    setting: Setting,
) -> None:
    setting.device.obey_datagrams = setting.work.obey
    _, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        stranger = wrapped(address_of("127.0.0.1"), 444, b"")
        last = wrapped(address_of("127.0.0.1"), 443, b"the last one")
        await setting.work.send(stranger * 3 * exit_datagrams.DATAGRAMS_PER_TURN + last)
        setting.work.close()
        assert (await client.receive()).payload == b"the last one"
        await client.cut()


@pytest.mark.parametrize("port", [443, 444], ids=["of a target", "of strangers"])
async def test_an_exit_that_keeps_sending_datagrams_that_are_dropped_is_given_up(
    setting: Setting, clock: Clock, port: int
) -> None:
    setting.device.obey_datagrams = setting.work.obey
    _, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        datagrams = setting.service.daemon.gateway._for_connections.datagrams
        datagrams.tolerates = RateLimit(5, clock.steady).allows
        dropped = wrapped(address_of("127.0.0.1"), port, b"")
        for count in (10, 5):  # a burst, and the rate of a second
            datagrams.allows = refused
            await setting.work.send(dropped * count)
            await until(lambda: last_is_read(setting), "all are handled")
            datagrams.allows = accepted
            await exchange_with(setting.work, client)
            clock.now += 1
        datagrams.allows = refused
        await setting.work.send(dropped * 6)
        await client.cut()
    await at_rest(setting.service)


def accepted(_: str) -> bool:
    return True


def refused(_: str) -> bool:
    return False


async def test_a_flood_spends_no_more_than_the_quota(setting: Setting) -> None:
    setting.device.obey_datagrams = setting.work.obey
    person, bought = await buy(setting.service, quota=100_000)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        datagram = wrapped(address_of("127.0.0.1"), 443, bytes(1_000))
        await setting.work.send(datagram * 1_000)
        await until(lambda: last_is_read(setting), "all of it is read")
    assert await used(setting.service, person, bought) == 99_002


def last_is_read(setting: Setting) -> bool:
    """Say whether the daemon has handled all that the device has sent."""
    assert setting.work.sock is not None
    (connection,) = setting.service.daemon.gateway._clients.connections
    way = connection._transfer._way
    return not (unacknowledged(setting.work.sock, ended=False) or waiting(way._sock) or way._is_due)


def waiting(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), "little")


async def test_an_exit_that_does_not_read_costs_little_and_is_not_paid_for_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_datagrams, "WAITING_MAX_BYTES", 20_000)
    setting.device.obey_datagrams = setting.work.obey
    person, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        way = await setting.only_way()
        sent = 0
        while not way._waiting_bytes:
            client.send(("127.0.0.1", 443), bytes(8_000))
            sent += 1
            await asyncio.sleep(0)
        for number in range(100):
            client.send(("127.0.0.1", 443), number.to_bytes(2, "big") * 500)
            await asyncio.sleep(0)
        client.send(("127.0.0.1", 443), b"the last one")
        await until(lambda: way._waiting[-1][0].endswith(b"the last one"), "it waits")
        assert way._waiting_bytes <= 20_000
        while (await setting.work.receive())[2] != b"the last one":
            pass
        await exchange_with(setting.work, client)
    assert await used(setting.service, person, bought) < sent * 8_000 + 100_000


async def exchange_with(work: Work, client: Associated) -> None:
    client.send(("127.0.0.1", 443), b"and on")
    assert (await work.receive())[2] == b"and on"
    await work.send(wrapped(address_of("127.0.0.1"), 443, b"back"))
    assert (await client.receive()).payload == b"back"


async def test_bytes_that_had_not_left_when_an_exit_died_are_given_back(setting: Setting) -> None:
    setting.device.obey_datagrams = setting.work.obey
    person, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        client.send(("127.0.0.1", 443), b"up")
        await setting.work.receive()
        way = await setting.only_way()
        while not way._waiting_bytes:
            client.send(("127.0.0.1", 443), bytes(8_000))
            await asyncio.sleep(0)
        counted = (await setting_traffic(setting))[0]
        unsent = way.unsent()
        assert 0 < unsent < counted
        assert unsent % 8_000 in (0, 2)
        setting.work.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        setting.work.close()
        await client.cut()
    assert await used(setting.service, person, bought) <= counted - unsent + 8_000


async def setting_traffic(setting: Setting) -> tuple[int, int]:
    (connection,) = setting.service.daemon.gateway._clients.connections
    return connection.traffic


async def test_an_exit_that_goes_takes_its_datagrams_with_it(setting: Setting) -> None:
    _, bought = await buy(setting.service)
    async with associated(setting.service, bought) as client:
        with peer() as target:
            await client.exchange(target, b"up", b"down")
        await setting.device.kill()
        await client.cut()
    await at_rest(setting.service)

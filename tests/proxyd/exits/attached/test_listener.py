"""Arrivals at the exits' port: control and work connections, garbage and floods, each bounded."""

import asyncio
import secrets
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.waiting import until
from support.exits.device import Granted, Port, hello, is_closed, raw
from support.targets.tls import client_hello

from config.check import EXIT_PORTS_MAX
from market.base.errors import Code, MarketError
from proxyctl.protocol.frames import PREFACE, Preface, ServiceLimits
from proxyd.exits.attached import arrivals as module
from proxyd.exits.attached.arrivals import ArrivalTimes
from proxyd.exits.attached.handshakes import HANDSHAKES_AT_ONCE, HANDSHAKES_PER_EXIT
from proxyd.exits.attached.listener import PortBounds
from proxyd.wiring.bounds import ExitBounds
from storage.engines.errors import UnavailableError


def arriving(**times: float) -> ExitBounds:
    """Return usual bounds but for the time that arrivals have (`ArrivalTimes`)."""
    return ExitBounds(port=PortBounds(arrivals=ArrivalTimes(**times)))


async def test_a_device_attaches_and_its_connections_wait(port: Port) -> None:
    device = await port.parked()
    assert device.welcome is not None
    assert (device.welcome.address, device.welcome.country) == ("127.0.0.1", "xx")
    assert device.welcome.heartbeat_seconds == 15
    assert len(port.listener) == 1
    assert port.listener.offers.by_country() == {"xx": 1}
    assert port.counters.attached == 1


async def test_the_records_of_a_device_that_leaves_are_forgotten(port: Port) -> None:
    device = await port.parked()
    await device.kill()
    await until(lambda: len(port.listener) == 0, "it is gone")
    assert port.counters.parked == 0
    assert port.counters.cut == {"lost": 1}


@pytest.mark.parametrize("data", [b"G", b"\x00", b"\x80\x01", b"w" * 33])
async def test_another_first_byte_is_closed(port: Port, data: bytes) -> None:
    with await raw(port.port, data) as sock:
        assert await is_closed(sock)
    assert port.counters.arrivals_refused == {"garbage": 1}


async def test_garbage_behind_the_byte_of_tls_is_closed(port: Port) -> None:
    with await raw(port.port, b"\x16" + secrets.token_bytes(400)) as sock:
        assert await is_closed(sock)
    await until(lambda: port.counters.arrivals_refused == {"tls": 1})
    assert len(port.listener.arrivals) == 0


async def test_a_client_that_leaves_in_the_handshake_leaves_nothing(port: Port) -> None:
    (await raw(port.port, b"\x16\x03\x01")).close()
    await until(lambda: port.counters.arrivals_refused == {"tls": 1})
    assert len(port.listener.arrivals) == 0


async def test_a_client_that_leaves_at_once_leaves_nothing(port: Port) -> None:
    (await raw(port.port)).close()
    await until(lambda: port.counters.arrivals_refused == {"broken": 1})
    assert len(port.listener.arrivals) == 0


async def test_a_preface_may_come_byte_by_byte(port: Port) -> None:
    device = port.unattached()
    device.parks = False
    await device.attach()
    await until(lambda: bool(device.tickets))
    number, ticket = next(iter(device.tickets.items()))
    assert device.welcome is not None
    sock = await raw(port.port)
    for byte in Preface(device.welcome.attachment, number, ticket).encode():
        await asyncio.get_running_loop().sock_sendall(sock, bytes([byte]))
        await asyncio.sleep(0)
    await until(lambda: port.counters.parked == 1, "it waits")
    sock.close()
    await until(lambda: port.counters.parked == 0, "it waits no more")


async def refused(port: Port, preface: bytes) -> None:
    """Check that a work connection is closed, and nothing waits."""
    before = port.counters.arrivals_refused["ticket"]
    with await raw(port.port, preface) as sock:
        assert await is_closed(sock)
    assert port.counters.arrivals_refused["ticket"] == before + 1
    assert port.counters.parked == 0


async def test_a_ticket_lets_in_one_connection_of_only_its_exit_once(port: Port) -> None:
    first, second = port.unattached(), port.unattached()
    for device, token in ((first, "first"), (second, "second")):
        device.parks = False
        await device.attach(hello(token))
        await until(lambda device=device: bool(device.tickets))
    assert first.welcome is not None
    assert second.welcome is not None
    number, ticket = next(iter(first.tickets.items()))
    mine = first.welcome.attachment
    await refused(port, Preface(second.welcome.attachment, number, ticket).encode())
    await refused(port, Preface(mine, number, bytes(16)).encode())
    await refused(port, Preface(mine, number + 100, ticket).encode())
    await refused(port, Preface(mine ^ 1, number, ticket).encode())
    sock = await first.work(number)
    await until(lambda: port.counters.parked == 1, "it waits")
    sock.close()
    await until(lambda: port.counters.parked == 0, "it waits no more")
    await refused(port, Preface(mine, number, ticket).encode())
    number = next(iter(first.tickets))
    late = Preface(mine, number, first.tickets[number]).encode()
    await first.kill()
    await until(lambda: len(port.listener) == 1, "it is gone")
    await refused(port, late)


async def test_a_connection_that_says_something_before_its_order_is_closed(port: Port) -> None:
    device = await port.parked()
    device.parks = False
    (number,) = device.parked
    sock = device.take(number)
    await asyncio.get_running_loop().sock_sendall(sock, b"surprise")
    assert await is_closed(sock)
    sock.close()
    assert port.counters.parked == 0


@pytest.mark.parametrize("data", [b"", b"W" * 10])
async def test_a_silent_connection_is_closed(tmp_path: Path, data: bytes) -> None:
    port = Port(tmp_path, bounds=arriving(seconds=0.05))
    with await raw(port.port, data) as sock:
        assert await is_closed(sock)
    assert port.counters.arrivals_refused == {"slow": 1}
    await port.close()


@pytest.mark.parametrize("size", brief([0, 100, 1, None], 2))
async def test_a_flood_of_silent_connections_and_half_handshakes_keeps_no_exit_out(
    tmp_path: Path, size: int | None
) -> None:
    port = Port(tmp_path, bounds=arriving(room_after_seconds=0.0), arrivals=5)
    silent = []
    for _ in range(20):
        with suppress(ConnectionError):  # it may be closed while it connects
            silent.append(await raw(port.port, client_hello()[:size]))
    await until(lambda: port.counters.arrivals_refused["slow"] >= 15, "the oldest are closed")
    assert len(port.listener.arrivals) <= 5
    await port.parked()
    for sock in silent:
        sock.close()
    await port.close()


async def test_a_flood_of_silent_connections_under_tls_keeps_no_exit_out(
    tmp_path: Path,
) -> None:
    port = Port(tmp_path, bounds=arriving(room_after_seconds=0.0), arrivals=5)
    for _ in range(20):
        device = port.unattached()
        await device.connect()
        assert len(port.listener.arrivals) <= 5
    await port.parked()
    assert len(port.listener.arrivals._controls._all) <= 5
    await port.close()


async def test_one_network_may_not_have_all_silent_places_under_tls(tmp_path: Path) -> None:
    port = Port(tmp_path, exits_per_network=1)
    for _ in range(module.ARRIVALS_PER_EXIT):
        await port.unattached().connect()
    controls = port.listener.arrivals._controls
    await until(lambda: controls.strangers == module.ARRIVALS_PER_EXIT)
    with suppress(ConnectionError):  # it may be closed while it connects
        with await raw(port.port) as sock:
            assert await is_closed(sock)
    assert port.counters.arrivals_refused == {"network": 1}
    await port.close()
    assert not port.listener.arrivals._arriving


async def test_one_network_may_not_have_all_arrivals(tmp_path: Path) -> None:
    port = Port(tmp_path, exits_per_network=1)
    silent = [await raw(port.port) for _ in range(module.ARRIVALS_PER_EXIT)]
    await until(lambda: len(port.listener.arrivals) == module.ARRIVALS_PER_EXIT)
    with suppress(ConnectionError):  # it may be closed while it connects
        with await raw(port.port) as sock:
            assert await is_closed(sock)
    assert port.counters.arrivals_refused == {"network": 1}
    for each in silent:
        each.close()
    await port.close()


async def test_one_network_may_not_have_all_handshakes(tmp_path: Path) -> None:
    port = Port(tmp_path, exits_per_network=1)
    hello, began = client_hello(), []
    for _ in range(HANDSHAKES_PER_EXIT + 1):
        began.append(await raw(port.port, hello))
    await until(lambda: port.counters.arrivals_refused == {"network": 1}, "one is too many")
    assert len(port.listener.arrivals) == HANDSHAKES_PER_EXIT
    for each in began:
        each.close()
    await port.close()


async def test_strangers_leave_places_for_the_connections_of_attached_exits(tmp_path: Path) -> None:
    port = Port(tmp_path, arrivals=8)
    device = port.unattached()
    device.address, device.parks = "127.0.0.2", False
    await device.attach()
    await until(lambda: bool(device.tickets), "it may open connections")
    silent, places = [], 8 - 8 // module.RESERVED_DIVISOR
    for _ in range(20):  # too young to make room
        with suppress(ConnectionError):
            silent.append(await raw(port.port))
    await until(lambda: port.counters.arrivals_refused["total"] == 20 - places, "all are there")
    sock = await device.work(next(iter(device.tickets)))
    await until(lambda: port.counters.parked == 1, "its connection waits")
    for each in (sock, *silent):
        each.close()
    await port.close()


@cases(
    ("data", "size"),
    [
        (client_hello(), len(client_hello())),
        (client_hello() + b"more", len(client_hello())),
        (client_hello()[:-1], 0),
        (b"\x16", 0),
        (b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc", None),  # 16 KiB
        (b"\x16\x03\x01\x00\x04\x01\x00\x10\x00", None),  # longer than its record
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", None),  # a ServerHello
        (b"\x17\x03\x01\x00\x04\x01\x00\x00\x00", None),
    ],
)
def test_a_client_hello_is_told_from_others_and_from_a_part(data: bytes, size: int | None) -> None:
    assert module.hello_size(data) == size


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"exits_total": 1}, "too_many_exits"), ({"exits_per_network": 1}, "too_many_on_network")],
)
async def test_exits_are_bounded(tmp_path: Path, limits: dict[str, int], code: str) -> None:
    port = Port(tmp_path, **limits)
    await port.device("first")
    second = await port.device("second")
    assert second.sorry is not None
    assert (second.sorry.code, second.sorry.retry_seconds > 0) == (code, True)
    assert port.counters.refused == {code: 1}
    await until(lambda: second.is_over, "it is let go of")
    await port.close()


async def test_a_device_that_attaches_again_replaces_itself(port: Port) -> None:
    first = await port.parked("same")
    second = await port.device("same")
    await until(lambda: first.is_over, "the first is let go of")
    assert first.sorry is not None
    assert first.sorry.code == "attached_again"
    assert second.welcome is not None
    assert len(port.listener) == 1


async def test_an_exit_that_may_not_attach_gets_the_reason(port: Port) -> None:
    port.devices.refusal = MarketError(Code.INVALID_CREDENTIALS, "words for its owner")
    device = await port.device()
    assert device.sorry is not None
    assert (device.sorry.code, device.sorry.words) == ("invalid_credentials", "words for its owner")
    assert device.sorry.retry_seconds == 0
    await until(lambda: device.is_over, "it is let go of")


async def test_a_store_that_is_away_means_to_come_again_soon(port: Port) -> None:
    port.devices.refusal = UnavailableError("gone")
    device = await port.device()
    assert device.sorry is not None
    assert device.sorry.retry_seconds > 0


async def test_a_mistake_of_ours_is_logged_and_costs_one_device(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    port.devices.refusal = ZeroDivisionError()
    device = port.unattached()
    await device.connect()
    device.send(hello())
    await until(lambda: "serving an exit failed" in caplog.text)
    port.devices.refusal = None
    assert (await port.device("another")).welcome is not None


async def test_a_device_that_may_carry_nothing_any_more_is_let_go_of(port: Port) -> None:
    device = await port.parked()
    port.devices.refusal = MarketError(Code.INVALID_CREDENTIALS, "revoked")
    port.listener.recheck("device")
    await until(lambda: device.is_over, "it is let go of")
    assert device.sorry is not None
    assert device.sorry.words == "revoked"
    port.listener.recheck("device")  # it is gone: nothing happens
    port.listener.recheck("unknown")


async def test_other_limits_are_passed_on(port: Port) -> None:
    device = await port.parked()
    limits = ServiceLimits(3, 0, 0, (443,))
    port.devices.grants["device"] = Granted("device", "owner", 7, limits)
    port.listener.recheck("device")
    await until(lambda: limits in device.frames, "it is told")
    exit_ = port.directory.exits["device"]
    assert (exit_.limits, exit_.min_price_per_gb) == (limits, 7)


async def test_a_device_with_more_limits_than_a_frame_has_is_refused(port: Port) -> None:
    ports = tuple(range(60_000, 61_000))
    port.devices.grants["device"] = Granted("device", "owner", limits=ServiceLimits(0, 0, 0, ports))
    device = await port.device()
    assert device.sorry is not None
    assert device.sorry.code == "unavailable"
    assert len(port.listener) == 0


async def test_as_many_ports_as_an_operator_may_offer_fit_into_a_frame(port: Port) -> None:
    ports = tuple(range(60_000, 60_000 + EXIT_PORTS_MAX))
    port.devices.grants["device"] = Granted("device", "owner", limits=ServiceLimits(0, 0, 0, ports))
    device = await port.device()
    assert device.welcome is not None
    assert device.welcome.limits.ports == ports


async def test_no_exit_is_cheaper_than_its_country(port: Port) -> None:
    port.devices.price_floors = {"xx": 5}
    port.devices.grants["dear"] = Granted("dear", "owner", 7)
    await port.device("cheap")
    await port.device("dear")
    prices = {key: each.min_price_per_gb for key, each in port.directory.exits.items()}
    assert prices == {"cheap": 5, "dear": 7}
    limits = ServiceLimits(3, 0, 0, (443,))
    port.devices.grants = {"dear": Granted("dear", "owner", 4, limits)}
    port.listener.recheck("dear")
    exit_ = port.directory.exits["dear"]
    await until(lambda: exit_.limits == limits, "it was asked again")
    assert exit_.min_price_per_gb == 5


async def test_a_store_that_is_away_keeps_every_exit(port: Port) -> None:
    await port.parked()
    asked = port.devices.asked
    port.devices.refusal = UnavailableError("gone")
    port.listener.recheck("device")
    await until(lambda: port.devices.asked > asked)
    await asyncio.sleep(0)
    assert len(port.listener) == 1


async def test_exits_are_notified_that_the_daemon_stops(port: Port) -> None:
    device = await port.parked()
    port.listener.drain(30.0)
    await until(lambda: device.drained, "it is told")
    assert port.counters.parked == 1, "and serves meanwhile"


async def test_nothing_is_left_of_handshakes_under_way_at_the_end(tmp_path: Path) -> None:
    port = Port(tmp_path)
    silent = [await raw(port.port, client_hello()) for _ in range(5)]
    await until(lambda: len(port.listener.arrivals._handshakes) == 5)
    await port.close()
    for sock in silent:
        assert await is_closed(sock)
        sock.close()


async def test_handshakes_that_have_not_begun_at_the_end_are_closed(tmp_path: Path) -> None:
    port = Port(tmp_path)
    count = 2 * HANDSHAKES_AT_ONCE  # half of them wait for the next turn
    silent = [await raw(port.port) for _ in range(count)]
    await until(lambda: len(port.listener.arrivals) == count)
    for sock in silent:
        sock.send(client_hello())
    while not port.listener.tasks:
        await asyncio.sleep(0)
    # Before the first step of the task: when it is cancelled now, none of its code runs.
    port.listener.close()
    await port.close()
    for sock in silent:
        assert await is_closed(sock)
        sock.close()


def test_the_preface_is_read_whole() -> None:
    assert module._PREFACE_BYTES == PREFACE.size == 33
    assert socket.MSG_PEEK == module._MSG_PEEK

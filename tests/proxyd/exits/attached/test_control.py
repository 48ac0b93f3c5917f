"""A control connection: the frames that an exit may send, their order, and their number."""

import asyncio

import pytest
from support.base.waiting import until
from support.daemons.bounded import bounded, exit_bounds
from support.exits.device import Device, Port, hello, paused

from proxyctl.protocol.frames import (
    VERSION,
    Dialled,
    DialOutcome,
    Frame,
    Park,
    Ping,
    Pong,
    ServiceLimits,
    Sorry,
    encode,
)
from proxyd.exits.attached import control as module
from proxyd.exits.attached.allowance import BURST_BYTES
from proxyd.exits.attached.control import ControlBounds
from proxyd.exits.attached.listener import PortBounds


async def over(device: Device, port: Port, reason: str) -> None:
    """Wait until a device is cut, for this reason."""
    await until(lambda: device.is_over, "it is cut")
    assert port.counters.cut[reason] + port.counters.refused[reason] == 1


def test_every_state_has_its_arrows_and_none_leads_out_of_the_end() -> None:
    state, arrows = module.ControlState, module.TRANSITIONS
    assert set(arrows) == set(state)
    assert arrows[state.OVER] == ()
    reached = {to for tos in arrows.values() for to in tos} | {state.SILENT}
    assert reached == set(state)


def test_frames_are_read_only_in_these_states() -> None:
    state = module.ControlState
    assert set(module._ACTIONS) == {state.GREETING, state.ASKED, state.ATTACHED}
    assert set(module._ACTIONS[state.ASKED]) == {Ping}, "hello is said once"


async def test_a_hello_may_come_in_pieces_that_begin_with_any_byte(port: Port) -> None:
    device = port.unattached()
    await device.connect()
    data = encode(hello("Wdevice"))
    at = data.index(b"W")  # a work connection begins with it
    device.send_raw(encode(Ping(b"payload!")) + data[:at])
    await until(lambda: Pong(b"payload!") in device.frames, "the first piece is read")
    device.send_raw(data[at:])
    await until(lambda: device.welcome is not None, "it has attached")


async def test_a_ping_is_answered(port: Port) -> None:
    device = await port.device()
    device.send(Ping(b"payload!"))
    await until(lambda: Pong(b"payload!") in device.frames)


async def test_a_protocol_that_is_too_old_is_refused(port: Port) -> None:
    device = await port.device(protocol=0)
    assert device.sorry is not None
    assert (device.sorry.code, device.sorry.retry_seconds) == ("version_too_old", 0)


async def test_a_newer_protocol_attaches_and_its_additions_are_passed_over(port: Port) -> None:
    device = await port.device(protocol=VERSION + 1, features=("telepathy",))
    device.send_raw(b"\x00\x03\xc8??")
    device.send(Ping(b"stillok?"))
    await until(lambda: Pong(b"stillok?") in device.frames)


@pytest.mark.parametrize(
    "frame", [paused("before hello"), Pong(b"12345678"), Dialled(1, DialOutcome.FAILED, 0, None, 0)]
)
async def test_nothing_goes_before_hello(port: Port, frame: Frame) -> None:
    device = port.unattached()
    await device.connect()
    device.send(frame)
    await over(device, port, "violation")


async def test_hello_is_sent_once(port: Port) -> None:
    device = await port.device()
    device.send(hello())
    await over(device, port, "violation")


@pytest.mark.parametrize(
    "frame", [Park(3), Sorry("code", "words", 0), ServiceLimits(1, 2, 3, (4,))]
)
async def test_frames_of_the_daemon_are_not_for_exits(port: Port, frame: Frame) -> None:
    device = await port.device()
    device.send(frame)
    await over(device, port, "violation")


@pytest.mark.parametrize("data", [b"\xff\xff\x01", b"\x00\x00\x01", encode(hello())[:2] + b"\x01{"])
async def test_garbage_is_cut(port: Port, data: bytes) -> None:
    device = await port.device()
    device.send_raw(data + bytes(4096))
    await over(device, port, "violation")


async def test_a_flood_is_cut_and_others_are_served(port: Port) -> None:
    other = await port.parked("other")
    device = await port.device("flooding")
    ping = encode(Ping(b"floods!!"))
    device.send_raw(ping * (BURST_BYTES // len(ping) + 100))
    await over(device, port, "flood")
    other.send(Ping(b"payload!"))
    await until(lambda: Pong(b"payload!") in other.frames)


async def test_a_device_that_changes_its_state_all_the_time_is_cut(port: Port) -> None:
    """Each change files it anew, which takes longer than to read it."""
    device = await port.parked()
    changes = [paused("battery"), paused("")] * 40
    device.send_raw(b"".join(map(encode, changes[:20])))
    device.send(Ping(b"8 bytes."))
    await until(lambda: Pong(b"8 bytes.") in device.frames)
    assert len(port.listener) == 1
    device.send_raw(b"".join(map(encode, changes)))
    await until(lambda: port.counters.cut == {"flood": 1})


async def test_answers_are_no_flood(port: Port) -> None:
    await port.parked()
    (control,) = port.listener.arrivals._controls._all
    before = control._allowance._bytes
    exit_ = port.directory.exits["device"]
    parked = exit_.pool._parked[0]
    exit_.order(parked, "example.com", 443, by=Nobody())
    assert control._allowance._bytes == before + module.ANSWER_BYTES
    control.send(Ping(b"8 bytes."))
    assert control._allowance._bytes == before + 2 * module.ANSWER_BYTES
    assert len(encode(Dialled(1, DialOutcome.CONNECTED, 0, None, 0))) + 16 <= module.ANSWER_BYTES


async def test_frames_of_one_turn_leave_together(port: Port) -> None:
    device = await port.parked()
    (control,) = port.listener.arrivals._controls._all
    written: list[bytes] = []

    class Transport:
        def write(self, data: bytes) -> None:
            written.append(data)
            transport.write(data)

        def get_write_buffer_size(self) -> int:
            return transport.get_write_buffer_size()

    transport, control._transport = control._transport, Transport()
    frames = [ServiceLimits(number, 0, 0, ()) for number in range(3)]
    for each in frames:
        control.send(each)
    assert written == []
    await until(lambda: device.frames[-1:] == frames[-1:], "they arrive")
    assert written == [b"".join(map(encode, frames))]
    control._transport = transport


async def test_frames_leave_before_the_connection_is_closed_or_handed_over(port: Port) -> None:
    device = await port.parked()
    (control,) = port.listener.arrivals._controls._all
    limits, sorry = ServiceLimits(7, 0, 0, ()), Sorry("code", "words", 1)
    control.send(limits)
    control.refuse(sorry.code, sorry.words, sorry.retry_seconds)
    await until(lambda: device.is_over, "it is closed")
    assert device.frames[-2:] == [limits, sorry]


class Nobody:
    """A dial that does not care."""

    def take(self, _parked: object) -> None: ...
    def answer(self, _dialled: object) -> None: ...
    def lose(self) -> None: ...


@bounded(exit_bounds(port=PortBounds(control=ControlBounds(hello_seconds=0.05))))
async def test_an_exit_that_does_not_say_hello_is_cut(port: Port) -> None:
    device = port.unattached()
    await device.connect()
    await over(device, port, "silent")


@bounded(exit_bounds(port=PortBounds(control=ControlBounds(waiting_max_bytes=1000))))
async def test_an_exit_that_does_not_read_is_cut(port: Port) -> None:
    device = await port.parked()
    assert device._writer is not None
    device._writer.transport.pause_reading()
    (control,) = port.listener.arrivals._controls._all
    while not control.is_closed:
        for _ in range(100):
            control.send(Sorry("code", "words " * 80, 0))
        await asyncio.sleep(0)
    await until(lambda: len(port.listener) == 0)
    assert port.counters.cut == {"does not read": 1}
    device._writer.transport.resume_reading()


async def test_a_device_that_leaves_while_it_is_looked_up_does_not_attach(port: Port) -> None:
    may_answer = asyncio.Event()
    authorize = port.devices.authorize

    async def slowly(token: str, terms: str) -> object:
        await may_answer.wait()
        return await authorize(token, terms)

    port.devices.authorize = slowly
    device = port.unattached()
    await device.connect()
    device.send(hello())
    await until(lambda: bool(port.listener.tasks))
    await device.kill()
    await until(lambda: not port.listener.arrivals._controls._all, "it has left")
    may_answer.set()
    await until(lambda: not port.listener.tasks)
    assert len(port.listener) == 0

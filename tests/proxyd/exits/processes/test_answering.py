"""A process asks another one for exits: the handed-over streams, and the rest after a death."""

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import PATIENCE_SECONDS, until
from support.daemons.bounded import bounded, exit_bounds
from support.exits.device import Granted, Port, ignore
from support.targets import targets

from proxyctl.protocol.frames import ServiceLimits
from proxyd.exits.attached.attached import Attached
from proxyd.exits.choosing.entries import Place
from proxyd.exits.dialling.dial import Via
from proxyd.exits.processes import asking
from proxyd.exits.processes.answering import EXHAUSTED_PAUSE_SECONDS, LINES_MAX, ExitDesk
from proxyd.exits.processes.asking import USUAL, AskedExits, AskingTimes
from proxyd.loop.reactor import BUFFER_BYTES
from proxyd.ops.processes.listening import listen_for_processes
from proxyd.wire.asks import RELAYS_PER_MESSAGE, Ended, Moved, Relaying, Resume, encode
from proxyd.wire.events import Failure
from proxyd.wire.wants import Wants
from proxyd.wiring.bounds import Bounds

LOOPBACK = ip_address("127.0.0.1")


class Payer:
    """The payer."""

    id = "session"
    user_id = "buyer"
    price_per_gb = 1_000_000


class Relay:
    """A relay of the process that asks."""

    def __init__(self, sock: socket.SocketType, via: Via) -> None:
        self.sock = sock
        self.via = via
        self.traffic = (0, 0)
        self.is_cut = False
        via.attached.begin(self)

    def abort(self) -> None:
        self.is_cut = True
        self.close()

    def close(self) -> None:
        self.via.attached.end(self)
        self.sock.close()


class Two:
    """The process with the exits, and one that asks it, in one loop."""

    def __init__(self, port: Port, times: AskingTimes = USUAL) -> None:
        self.port = port
        self.supervisors = listen_for_processes()
        self.desk = self.another_desk()
        # A dial is not given up while a test waits for it, however long the machine stands still.
        self.asked = AskedExits(
            port.reactor, self.supervisors.getsockname(), PATIENCE_SECONDS, times
        )
        self.outcomes: list[socket.SocketType | Failure] = []
        self.relays: list[Relay] = []

    def another_desk(self) -> ExitDesk:
        """Return the desk of a successor."""
        self.desk = ExitDesk(self.port.exits, self.port.listener, self.supervisors.dup(), 100)
        self.desk.start()
        return self.desk

    def dial(self, number: int, wants: Wants = Wants()) -> Any:  # noqa: B008 - it is frozen
        """Ask for a target at a port of this machine."""
        return self.asked.dial(wants, Payer(), LOOPBACK, number, self._done)

    def _done(self, outcome: socket.SocketType | Failure, _: bool, via: Via | None) -> None:
        self.outcomes.append(outcome)
        if via is not None:
            assert isinstance(outcome, socket.SocketType)
            self.relays.append(Relay(outcome, via))

    async def relay(self, target: targets.Target) -> Relay:
        """Return a relay to a target."""
        self.dial(target.port)
        before = len(self.outcomes)
        await until(lambda: len(self.outcomes) > before, "there is an outcome")
        return self.relays[-1]

    def close(self) -> None:
        self.asked.close()
        self.desk.close()
        self.supervisors.close()


@pytest.fixture
async def two(port: Port, bounds: Bounds) -> AsyncIterator[Two]:
    """Two processes; no descriptor is left when the test is over."""
    made = Two(port, bounds.exits.asking)
    yield made
    made.close()
    for relay in made.relays:
        relay.sock.close()


def watched_by_kernel(port: Port) -> int:
    """Count the sockets that the kernel reports events of (proc(5), fdinfo)."""
    fd = port.reactor.poller._epoll.fileno()
    return Path(f"/proc/self/fdinfo/{fd}").read_text().count("tfd:")


def exit_of(port: Port, device: str = "device") -> Attached:
    return port.listener.roster.by_device[device]


async def test_a_handed_over_connection_belongs_to_the_asking_process(two: Two) -> None:
    await two.port.parked()
    watched = len(two.port.reactor.poller)
    async with targets.echo() as target:
        relay = await two.relay(target)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(relay.sock, b"words")
        assert await loop.sock_recv(relay.sock, 5) == b"words"
        assert (relay.via.attached.device_id, relay.via.attached.address) == ("device", LOOPBACK)
        assert relay.via.headers[0].startswith("X-Exit: country=xx; id=")
        # Both ends of the line came, and the connection is another one's: the kernel knows the
        # same.
        await until(lambda: len(two.port.reactor.poller) == watched + 2)
        assert watched_by_kernel(two.port) == len(two.port.reactor.poller)
        relay.close()
        await until(lambda: target.ended + target.resets == 1, "no other process holds it open")


@bounded(exit_bounds(asking=AskingTimes(tell_seconds=0.01)))
async def test_traffic_and_the_end_are_reported(two: Two) -> None:
    await two.port.parked()
    exit_ = exit_of(two.port)
    async with targets.echo() as target:
        relay = await two.relay(target)
        (away,) = exit_.relays
        relay.traffic = (100, 50)
        await until(lambda: sum(away.traffic) == 150)
        relay.traffic = (100, 40)  # given back
        relay.close()
        await until(lambda: not exit_.relays)
    assert exit_.load._ended_bytes == 140


async def test_the_first_answer_of_a_target_is_reported(two: Two) -> None:
    """Or an exit that sends junk would be good as long as other processes relay it."""
    await two.port.parked()
    exit_, told = exit_of(two.port), []
    async with targets.echo() as target:
        for _ in range(3):
            await two.relay(target)
            away = next(each for each in exit_.relays if each.proof is None)
            away.proof, away.fault = told.append, lambda: told.append("junk")
        right, other, wrong = two.relays
        right.via.proof(True)
        await until(lambda: told == [True])
        other.via.proof(False)
        await until(lambda: told == [True, False])
        wrong.via.fault()
        await until(lambda: told == [True, False, "junk"])
        wrong.via.proof(True)
        right.close()
        await until(lambda: len(exit_.relays) == 2, "what was told before that is read")
        assert told == [True, False, "junk"], "the first word counts"
        for each in (other, wrong):
            each.close()


async def test_an_exit_is_held_to_its_speed_here(two: Two) -> None:
    slow = ServiceLimits(0, 1000, 0, ())
    two.port.devices.grants["device"] = Granted("device", "owner", limits=slow)
    await two.port.parked()
    async with targets.echo() as target:
        first, second = [await two.relay(target) for _ in range(2)]
        assert first.via.pace is second.via.pace
        assert first.via.pace is not None
        assert 0 < first.via.pace.allowance(first) <= 1000
        for each in (first, second):
            each.close()
        third = await two.relay(target)
        assert third.via.pace is not first.via.pace
        third.close()
    assert not two.asked._relays._paces


async def test_a_stream_that_is_no_longer_wanted_is_closed(two: Two) -> None:
    device = await two.port.parked()
    async with targets.echo() as target:
        dial = two.dial(target.port)
        exit_ = exit_of(two.port)

        def cross(_wants: Wants, _session_id: str) -> bool:
            """Give up in the turn in which it is handed over: that and the answer cross."""
            dial.cancel()
            return False

        two.port.directory.take_move = cross  # type: ignore[method-assign]
        await until(lambda: target.ended + target.resets == 1, "it is closed")
        await until(lambda: not exit_.relays, "it is counted no more")
        assert len(device.dials) == 1
    assert two.outcomes == []


async def test_a_process_that_dies_is_forgotten(two: Two) -> None:
    device = await two.port.parked(count=1)
    async with targets.echo() as target:
        await two.relay(target)
        device.obey = ignore
        two.dial(target.port)
        exit_ = exit_of(two.port)
        await until(lambda: bool(exit_.dials), "another one is under way")
        two.asked.close()
        await until(lambda: not exit_.relays and not exit_.dials)
        assert two.desk.relays == 0
        await asyncio.wait_for(two.desk.wait_over(5), 5)


# --- the process with the exits has been started again -------------------------------------------


async def test_relays_go_on_and_count_at_the_successors_exit(two: Two) -> None:
    await two.port.parked()
    exit_ = exit_of(two.port)
    async with targets.echo() as target:
        relay = await two.relay(target)
        relay.traffic = (1000, 0)
        two.desk.close()
        assert not exit_.relays
        two.another_desk()
        await until(lambda: len(exit_.relays) == 1, "its exit counts it")
        (away,) = exit_.relays
        assert sum(away.traffic) == 0  # the store knows of the bytes before
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(relay.sock, b"words")
        assert await loop.sock_recv(relay.sock, 5) == b"words"
        exit_.cut()
        await until(lambda: relay.is_cut, "it can be cut")
        await until(lambda: not exit_.relays)


@pytest.mark.parametrize("is_paused", [False, True])
async def test_relays_of_a_device_that_comes_later(two: Two, is_paused: bool) -> None:
    device = await two.port.parked()
    async with targets.echo() as target:
        relay = await two.relay(target)
        two.desk.close()
        await device.kill()
        await until(lambda: len(two.port.listener) == 0)
        two.port.devices.grants["device"] = Granted("device", "owner", paused=is_paused)
        two.another_desk()
        if is_paused:
            await until(lambda: relay.is_cut, "it may carry nothing")
            await until(lambda: not two.port.listener.detached._adopted)
            return
        await until(lambda: bool(two.port.listener.detached._adopted), "it is looked after")
        assert two.port.listener.detached.places() == [("device", Place(country="xx"))]
        await two.port.parked()
        assert len(exit_of(two.port).relays) == 1
        assert not two.port.listener.detached._adopted
        relay.close()
        await until(lambda: not exit_of(two.port).relays)


async def test_a_device_is_looked_up_once_for_all_its_relays(two: Two) -> None:
    device = await two.port.parked()
    async with targets.echo() as target:
        for _ in range(5):
            await two.relay(target)
        two.desk.close()
        await device.kill()
        await until(lambda: len(two.port.listener) == 0)
        before = two.port.devices.asked
        two.another_desk()
        await until(lambda: two.desk.relays == 5, "they are looked after")
        await until(lambda: not two.port.listener.tasks, "it was looked up")
        assert two.port.devices.asked == before + 1
        for relay in two.relays:
            relay.close()
        await until(lambda: not two.desk.relays)


def test_a_resume_message_of_many_relays_fits_into_one_read() -> None:
    place = ("us", "s" * 180, "c" * 180, 4_200_000_000, "residential")
    relays = [Relaying(1 << 40, "d" * 36, place, 1 << 50)] * RELAYS_PER_MESSAGE
    assert len(encode(Resume(tuple(relays)))) < BUFFER_BYTES


async def test_a_request_meanwhile_waits_for_the_successor(two: Two) -> None:
    await two.port.parked()
    two.desk.close()
    async with targets.echo() as target:
        two.dial(target.port)
        gone = two.dial(target.port)
        gone.cancel()
        two.another_desk()
        await until(lambda: len(two.relays) == 1, "the successor answers")
    assert len(two.outcomes) == 1


async def test_without_a_successor_there_is_no_exit(port: Port) -> None:
    times = AskingTimes(reconnect_seconds=0.01)
    with listen_for_processes() as nobody:
        address = nobody.getsockname()
    asked = AskedExits(port.reactor, address, 0.05 - asking.SLACK_SECONDS, times)
    outcomes: list[Any] = []
    asked.dial(Wants(), Payer(), LOOPBACK, 80, lambda *outcome: outcomes.append(outcome))
    await until(lambda: outcomes == [(Failure.NO_EXIT, False, None)])
    asked.close()


# --- messages outside the protocol ---------------------------------------------------------------


@pytest.mark.parametrize("message", [b"nonsense", b"\x91\x63", bytes(70_000)])
async def test_a_process_that_says_nonsense_is_cut(two: Two, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(two.supervisors.getsockname())
        sock.setblocking(False)
        await until(lambda: len(two.desk._processes) == 1)
        sock.send(message)
        assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""
        assert not two.desk._processes


async def test_notices_about_unknown_relays_are_harmless(two: Two) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(two.supervisors.getsockname())
        for message in (Moved(((7, 100),)), Ended(7, 100), Resume(())):
            sock.send(encode(message))
        await until(lambda: len(two.desk._processes) == 1)
        await asyncio.sleep(0)
        assert two.desk.relays == 0


async def test_another_users_process_is_turned_away(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(two.supervisors.getsockname())
        sock.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""
    assert not two.desk._processes


class Short:
    """A listening socket in a process that is short of descriptors at its first `accept`.

    `accepts_at` are the moments of its calls (monotonic, seconds).
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.accepts_at: list[float] = []

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts_at.append(time.monotonic())
        if len(self.accepts_at) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return self.sock.accept()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()


async def test_without_descriptors_no_stream_is_requested_until_there_may_be_some(two: Two) -> None:
    await two.port.parked()
    two.desk._sock = short = Short(two.desk._sock)
    async with targets.echo() as target:
        await two.relay(target)  # it is answered all the same
    first, second = short.accepts_at
    assert second - first > 0.9 * EXHAUSTED_PAUSE_SECONDS, "it does not spin"


async def test_programs_that_are_not_to_ask_are_logged_once(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    two.desk._processes.update(range(LINES_MAX))  # as for another user, who cannot be had here
    caplog.set_level(logging.DEBUG, logger="exits")

    def levels() -> list[str]:
        told = [each for each in caplog.records if "turned away" in each.getMessage()]
        return [each.levelname for each in told]

    for number in range(1, 4):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(two.supervisors.getsockname())
            await until(lambda number=number: len(levels()) >= number, "it is turned away")
    two.desk._processes.clear()
    assert levels().count("WARNING") == 1

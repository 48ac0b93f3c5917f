"""Relays by epoll and splice, over real sockets; other tests cover the behaviour of asyncio's as
well.

These tests are `test_agent.py` and `tests/conformance/test_streams.py`, which run both.
"""

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from ipaddress import ip_address

import pytest
from support.base.cases import cases
from support.base.descriptors import descriptors
from support.base.ports import closed_port, listening_port, silent_port
from support.base.waiting import PATIENCE_SECONDS, until
from support.targets.targets import pattern

from proxyctl.attach.relay import closing as closing_module
from proxyctl.attach.relay import halfpipe, path, pipes, relay_linux
from proxyctl.attach.relay.poller import READS, Poller
from proxyctl.attach.relay.relay import RESET, AsyncioRelays
from proxyctl.attach.relay.relay_linux import EpollRelays
from proxyctl.attach.relay.relays import CHOICE, AnyRelay, Work, make_relays

SIZE = 3_000_000
HERE = ip_address("127.0.0.1")


class Meter:
    """Meter that counts, and then calls a function of the test."""

    def __init__(self) -> None:
        self.total = 0
        self.then: Callable[[], float] = lambda: 0.0

    def count(self, size: int) -> float:
        self.total += size
        return self.then()

    def most(self) -> int:
        return 1_000_000


class Joined:
    """A relay, its two far ends (the daemon's, the target's), and its socket towards the daemon."""

    def __init__(
        self, daemon: socket.socket, target: socket.socket, near_work: socket.socket
    ) -> None:
        self.daemon = daemon
        self.target = target
        self.near_work = near_work
        self.meter = Meter()
        self.said: list[bytes] = []
        self.overs = 0
        self.relay: AnyRelay | None = None

    def over(self, _: AnyRelay) -> None:
        self.overs += 1

    def begin(self, relay: AnyRelay) -> None:
        self.relay = relay


def pair(receive_buffer: int = 0) -> tuple[socket.socket, socket.socket]:
    """Return two sockets that are connected by TCP; the first may have little room."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.socket()
        if receive_buffer:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        first.connect(listener.getsockname())
        second, _ = listener.accept()
    first.setblocking(False)
    second.setblocking(False)
    return first, second


@asynccontextmanager
async def relaying() -> AsyncIterator[EpollRelays]:
    relays = EpollRelays(asyncio.get_running_loop())
    try:
        yield relays
    finally:
        relays.close()


@asynccontextmanager
async def joined(relays: EpollRelays, receive_buffer: int = 0) -> AsyncIterator[Joined]:
    daemon, near_work = pair(receive_buffer)
    target, near_target = pair()
    with closing(daemon), closing(target):
        ends = Joined(daemon, target, near_work)
        work = park(relays, near_work)
        assert await asyncio.get_running_loop().sock_recv(daemon, 1) == b"W"
        attempt = relays.begin_join(
            work,
            near_target,
            meter=ends.meter,
            said=ends.said.append,
            over=ends.over,
            began=ends.begin,
            done=pytest.fail,
        )
        assert attempt is None
        yield ends
        if not ends.overs:
            assert ends.relay is not None
            ends.relay.abort()
        assert ends.overs == 1


def park(relays: EpollRelays, sock: socket.socket, lost: Callable[[], None] = lambda: None) -> Work:
    """Have a socket wait as a work connection."""
    ready: list[Work] = []
    assert relays.begin_park(sock, b"W", lost, ready.append, pytest.fail) is None
    return ready[0]


async def connected(relays: EpollRelays, port: int, seconds: float) -> socket.socket:
    """Return a socket that is connected to a port here."""
    outcomes: list[socket.socket | OSError] = []
    relays.connect(HERE, port, seconds, outcomes.append)
    assert not outcomes, "it is not reported before a later turn"
    await until(lambda: bool(outcomes))
    [outcome] = outcomes
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def unacknowledged(sock: socket.socket) -> int:
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return int(struct.unpack("i", answer)[0])


async def outcome(sock: socket.socket) -> tuple[bytes, str]:
    received = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while data := await asyncio.get_running_loop().sock_recv(sock, 65_536):
                received += data
    except ConnectionError:
        return bytes(received), "reset"
    return bytes(received), "end"


async def say(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)
    sock.shutdown(socket.SHUT_WR)


async def fill(sock: socket.socket) -> None:
    """Send until nothing is taken any more."""
    with suppress(BlockingIOError):
        while sock.send(pattern(65_536)):
            await asyncio.sleep(0.01)


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.EINVAL, "cannot be spliced")


def without_splice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halfpipe, "_splice", None)


def with_sockets_that_cannot_be_spliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halfpipe, "_splice", refuse)


def without_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "LENT_MAX_PIPES", 0)


def with_small_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "_SET_SIZE", fcntl.F_GETFD)


@pytest.mark.parametrize(
    "system",
    [
        lambda _: None,
        without_splice,
        with_sockets_that_cannot_be_spliced,
        without_pipes,
        with_small_pipes,
    ],
)
async def test_bulk_passes_both_ways_at_once(
    monkeypatch: pytest.MonkeyPatch, system: Callable[[pytest.MonkeyPatch], None]
) -> None:
    system(monkeypatch)
    up, down = pattern(SIZE), pattern(SIZE)[::-1]
    async with relaying() as relays, joined(relays) as ends:
        answers = await asyncio.gather(
            say(ends.daemon, up), say(ends.target, down), outcome(ends.target), outcome(ends.daemon)
        )
        assert answers[2:] == [(up, "end"), (down, "end")]
        await until(lambda: ends.overs == 1)
        assert ends.meter.total == 2 * SIZE
        assert len(ends.said) == 1
        assert up.startswith(ends.said[0])


async def test_bulk_is_spliced(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 0

    def splice(*arguments: int, flags: int) -> int:
        nonlocal moved
        size = os.splice(*arguments, flags=flags)
        moved += size
        return size

    monkeypatch.setattr(halfpipe, "_splice", splice)
    async with relaying() as relays, joined(relays) as ends:
        await asyncio.gather(say(ends.target, pattern(SIZE)), outcome(ends.daemon))
    assert moved > SIZE  # each byte into a pipe and out of it, but for the first


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


async def test_bulk_is_fitted_to_its_path_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[bool] = []

    def fit(sock: socket.socket, *, was_short: bool) -> bool:
        fitted.append(was_short)
        return not was_short

    monkeypatch.setattr(halfpipe, "fit_to_path", fit)
    monkeypatch.setattr(halfpipe, "FIT_EVERY_BYTES", SIZE // 8)
    async with relaying() as relays, joined(relays) as ends:
        await asyncio.gather(say(ends.target, pattern(SIZE)), outcome(ends.daemon))
    assert fitted[:6] == [False, False, True, True, False, False]


async def test_bulk_on_a_short_path_is_not_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        halfpipe, "fit_to_path", partial(path.fit_to_path, short_path=path.ShortPath(60_000_000))
    )
    async with relaying() as relays, joined(relays) as ends:
        assert ends.relay is not None
        near = ends.near_work
        await asyncio.gather(say(ends.target, pattern(SIZE)), outcome(ends.daemon))
        assert congestion_control(near) == path.SHORT_PATH_CONGESTION_CONTROL


async def test_sockets_and_pipes_are_closed_once() -> None:
    before = descriptors()
    async with relaying() as relays:
        for _ in range(10):
            async with joined(relays) as ends:
                await asyncio.gather(say(ends.target, pattern(SIZE)), outcome(ends.daemon))
                ends.daemon.close()
                await until(lambda ends=ends: ends.overs == 1)
    await until(lambda: descriptors() <= before, "nothing is left open")


async def test_the_last_bytes_of_a_peer_that_resets_during_a_write_are_read() -> None:
    async with relaying() as relays:
        for far_first in (True, False):
            async with joined(relays) as ends:
                broken, other = ends.target, ends.daemon
                if not far_first:
                    broken, other = other, broken
                broken.send(b"last words")
                other.send(b"an unread text")
                reset(broken)
                assert await outcome(other) == (b"last words", "reset")
                await until(lambda ends=ends: ends.overs == 1)


async def test_a_slow_reader_has_everything_before_the_reset() -> None:
    data = pattern(400_000)
    async with relaying() as relays, joined(relays, receive_buffer=4_096) as ends:
        await asyncio.get_running_loop().sock_sendall(ends.target, data)
        await until(lambda: unacknowledged(ends.target) == 0, "the relay's system has it all")
        reset(ends.target)
        assert await outcome(ends.daemon) == (data, "reset")


async def test_a_reader_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing_module, "PATIENCE_SECONDS", 0.05)
    before = descriptors()
    async with relaying() as relays:
        async with joined(relays, receive_buffer=4_096) as ends:
            ends.target.send(pattern(100_000))
            await until(lambda: unacknowledged(ends.target) == 0)
            reset(ends.target)
            await until(lambda: ends.overs == 1)
            await until(lambda: not relays._closer._leaving, "its socket is closed")
    await until(lambda: descriptors() <= before, "nothing is left open")


async def test_bytes_on_their_way_out_are_cut_at_once_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing_module, "LEAVING_MAX_SOCKETS", 1)
    async with relaying() as relays:
        for _ in range(3):
            async with joined(relays, receive_buffer=4_096) as ends:
                ends.target.send(pattern(100_000))
                await until(lambda ends=ends: unacknowledged(ends.target) == 0)
                reset(ends.target)
                await until(lambda ends=ends: ends.overs == 1)
                assert len(relays._closer._leaving) <= 1
        relays.cut()
        assert not relays._closer._leaving


async def test_a_closed_peer_is_let_go_while_the_other_side_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_linux, "STUCK_SECONDS", 0.0)
    async with relaying() as relays, joined(relays) as ends:
        await fill(ends.target)
        reset(ends.target)
        assert ends.relay is not None

        def is_over() -> bool:
            assert ends.relay is not None
            ends.relay.tend()
            return ends.overs == 1

        await until(is_over)


async def test_a_fast_sender_is_held_back() -> None:
    async with relaying() as relays, joined(relays) as ends:
        pauses = [0.05, 0.0]
        ends.meter.then = lambda: pauses.pop(0) if pauses else 0.0
        began = asyncio.get_running_loop().time()
        await say(ends.daemon, b"a")
        assert await outcome(ends.target) == (b"a", "end")
        assert asyncio.get_running_loop().time() - began >= 0.05


async def test_a_meter_may_cut_the_relay_that_it_counts() -> None:
    async with relaying() as relays, joined(relays) as ends:

        def cut() -> float:
            assert ends.relay is not None
            ends.relay.abort()
            return 0.0

        ends.meter.then = cut
        ends.daemon.send(b"too much")
        assert (await outcome(ends.daemon))[1] == "reset"
        assert ends.overs == 1


async def test_a_mistake_cuts_one_relay_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> float:
        raise RuntimeError("a mistake")

    async with relaying() as relays, joined(relays) as broken, joined(relays) as whole:
        broken.meter.then = fail
        broken.daemon.send(b"hello")
        assert (await outcome(broken.daemon))[1] == "reset"
        await say(whole.daemon, b"hello")
        assert await outcome(whole.target) == (b"hello", "end")
    assert "a mistake" in caplog.text


@cases("ends_by", ["speaking", "ending", "resetting"])
async def test_a_work_connection_that_waits_is_lost_once(ends_by: str) -> None:
    losses: list[None] = []
    async with relaying() as relays:
        daemon, near = pair()
        work = park(relays, near, lambda: losses.append(None))
        with closing(daemon):
            assert await asyncio.get_running_loop().sock_recv(daemon, 1) == b"W"
            if ends_by == "speaking":
                daemon.send(b"too early")
                assert await outcome(daemon) == (b"", "reset")
            elif ends_by == "ending":
                daemon.shutdown(socket.SHUT_WR)
                assert await outcome(daemon) == (b"", "end")
            else:
                reset(daemon)
            await until(lambda: work.is_lost)
            work.close()
            work.reset()
            assert losses == [None]


async def test_of_a_lost_work_connection_the_target_is_reset() -> None:
    async with relaying() as relays:
        daemon, near_work = pair()
        target, near_target = pair()
        with closing(daemon), closing(target):
            work = park(relays, near_work)
            work.reset()
            never = pytest.fail
            relays.begin_join(
                work,
                near_target,
                meter=Meter(),
                said=never,
                over=never,
                began=never,
                done=never,
            )
            assert await outcome(target) == (b"", "reset")


async def test_connecting_fails_as_it_should_and_leaves_nothing() -> None:
    before = descriptors()
    async with relaying() as relays:
        with closed_port() as port, pytest.raises(ConnectionRefusedError):
            await connected(relays, port, 5)
        with silent_port() as port, pytest.raises(TimeoutError):
            await connected(relays, port, 0.05)
    await until(lambda: descriptors() <= before, "nothing is left open")


async def test_bytes_and_an_end_that_come_with_the_connection_are_not_lost() -> None:
    async with relaying() as relays:
        daemon, near_work = pair()
        ends = Joined(daemon, daemon, near_work)
        work = park(relays, near_work)

        def join(outcome: socket.socket | OSError) -> None:
            assert isinstance(outcome, socket.socket)
            relays.begin_join(
                work,
                outcome,
                meter=ends.meter,
                said=ends.said.append,
                over=ends.over,
                began=ends.begin,
                done=pytest.fail,
            )

        with socket.create_server(("127.0.0.1", 0)) as listener, closing(daemon):
            relays.connect(HERE, listener.getsockname()[1], 5, join)
            target, _ = listener.accept()  # before the loop has a turn
            with target:
                target.send(b"hello")
                target.shutdown(socket.SHUT_WR)
                assert await outcome(daemon) == (b"Whello", "end")
                daemon.shutdown(socket.SHUT_WR)
                await until(lambda: ends.overs == 1)


async def test_a_work_connection_that_is_closed_with_its_connect_is_lost() -> None:
    losses: list[None] = []
    async with relaying() as relays:
        works: list[Work] = []

        def wait(outcome: socket.socket | OSError) -> None:
            assert isinstance(outcome, socket.socket)
            works.append(park(relays, outcome, lambda: losses.append(None)))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            relays.connect(HERE, listener.getsockname()[1], 5, wait)
            daemon, _ = listener.accept()
            with daemon:
                daemon.shutdown(socket.SHUT_WR)
                await until(lambda: losses == [None])
        assert works[0].is_lost


async def test_a_connected_socket_that_another_reads_wakes_no_poller() -> None:
    async with relaying() as relays:
        with listening_port() as port, await connected(relays, port, 5) as sock:
            poller = relays._shared.poller
            with pytest.raises(FileNotFoundError):
                poller.report_again(sock.fileno())
            assert not poller._watchers


async def test_a_mistake_after_a_connect_is_logged_and_costs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(outcome: socket.socket | OSError) -> None:
        assert isinstance(outcome, socket.socket)
        outcome.close()
        raise RuntimeError("a mistake")

    async with relaying() as relays:
        with listening_port() as port:
            relays.connect(HERE, port, 5, fail)
            (await connected(relays, port, 5)).close()
            await until(lambda: "a mistake" in caplog.text)
        assert not relays._shared.poller._watchers


class Noted:
    """Handler that notes events, and then calls a function of the test."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.events: list[int] = []
        self.then = then

    def ready(self, events: int) -> None:
        self.events.append(events)
        if events & READS:
            self.then()

    def fail(self) -> None:
        pytest.fail("it has failed")


async def test_a_socket_gets_no_event_of_its_predecessor() -> None:
    poller = Poller(asyncio.get_running_loop())
    (first, first_far), (second, second_far) = pair(), pair()
    new: list[socket.socket] = []
    heard = Noted()

    def replace() -> None:
        if new:
            return
        for each in (first, second):
            other = second if each is first else first
            if watchers[each].events:
                number = other.fileno()
                poller.forget(number)
                near, far = socket.socketpair()  # it does not get the number by itself
                other.close()
                os.dup2(near.fileno(), number)
                near.close()
                new.extend((socket.socket(fileno=number), far))
                poller.watch(number, heard)
                return

    watchers = {first: Noted(replace), second: Noted(replace)}
    for each, watcher in watchers.items():
        poller.watch(each.fileno(), watcher)
    written = "both are told that they can be written to"
    await until(lambda: all(each.events for each in watchers.values()), written)
    for watcher in watchers.values():
        watcher.events.clear()
    first_far.send(b"x")
    second_far.send(b"x")
    await until(lambda: bool(new))
    await until(lambda: bool(heard.events), "it can be written to, which is told of it alone")
    assert not any(each & READS for each in heard.events), heard.events
    poller.close()
    for sock in (first, first_far, second, second_far, *new):
        sock.close()


async def test_the_best_way_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    relays = make_relays(loop)
    assert isinstance(relays, EpollRelays)
    relays.close()
    monkeypatch.setenv(CHOICE, "asyncio")
    assert isinstance(make_relays(loop), AsyncioRelays)
    monkeypatch.delenv(CHOICE)

    def none_left() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(select, "epoll", none_left)
    assert isinstance(make_relays(loop), AsyncioRelays)

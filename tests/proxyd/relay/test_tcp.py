"""The relay over real sockets: bytes arrive whole and in order, counted to the last one."""

import asyncio
import errno
import fcntl
import gc
import os
import random
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.market.metering import grant_of
from support.targets.targets import pattern

from market.base.states import SessionStatus
from proxyd.limits import raise_descriptors
from proxyd.loop.poller import ALONE_TURNS
from proxyd.loop.reactor import Reactor
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession
from proxyd.relay import closing, halfpipe
from proxyd.relay.closing import Closer
from proxyd.relay.halfpipe import SWALLOW_MAX_BYTES
from proxyd.relay.tcp import Relay

QUOTA = 10**9
MEGABYTES = 6_000_000
SMALL_BUFFER_BYTES = 65_536


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection, non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    for sock in (left, right):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return left, right


@pytest.fixture(params=[False, True], ids=["directly", "through_exits"], autouse=True)
def by_exits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test twice: traffic by exits is the same, and theirs to the byte."""
    monkeypatch.setattr(Scene, "by_exits", request.param)


class Scene:
    """A relay between a client and a target that the test plays."""

    by_exits = False

    def __init__(self, quota: int, pipes: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.reactor = Reactor(self.loop, pipes)
        self.pipes = self.reactor.pipes
        self.closer = Closer(self.loop, self.reactor.poller)
        self.client, near = connected()
        self.target, far = connected()
        self.exhausted = False
        self.session = LiveSession(grant_of(quota), self._exhausted)
        self.closed = 0
        self.others: list[tuple[Relay, socket.socket, socket.socket]] = []
        self.relay = self._relay(near, far, self._closed)

    def _exhausted(self, _: LiveSession) -> None:
        self.exhausted = True
        self.relay.finish()

    def _closed(self) -> None:
        self.closed += 1

    def _relay(self, near: socket.socket, far: socket.socket, closed: Callable[[], None]) -> Relay:
        share = self.session.share_of(f"{len(self.others) % 3}") if self.by_exits else None
        return Relay(self.reactor, near, far, self.session, self.closer, closed, share=share)

    def start(self, early: bytes = b"", limit: int | None = None) -> None:
        self.relay.start(early, limit, client_unread=True, target_unread=True)

    def another(self, early: bytes = b"") -> tuple[socket.socket, socket.socket]:
        """Relay for the same session once more; return the client's socket and the target's."""
        client, near = connected()
        target, far = connected()
        relay = self._relay(near, far, lambda: None)
        self.others.append((relay, client, target))
        relay.start(early, None, client_unread=True, target_unread=True)
        return client, target

    def left(self) -> int:
        """Return how many counted bytes have left, by asking the kernel about every socket."""
        relays = [self.relay, *(relay for relay, _, _ in self.others)]
        halves = [half for each in relays if not each.is_closed for half in (each._up, each._down)]
        return self.session.used - sum(each.unsent() for each in (*halves, *self.session.closings))

    def certain(self) -> int:
        """Return the certain bytes of the session; the shares of its exits have the same sum."""
        usage = self.session.certain_usage()
        self.session.mark_reported(usage)
        if self.by_exits:
            assert sum(each.used for each in self.session.shares) == self.session.used
            assert sum(each.reported for each in self.session.shares) == usage.used_bytes
        return usage.used_bytes

    async def rest(self, sock: socket.socket) -> bytes:
        """Return everything until the end of a stream."""
        data = bytearray()
        while piece := await self.loop.sock_recv(sock, 65_536):
            data += piece
        return bytes(data)

    async def exactly(self, sock: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += await self.loop.sock_recv(sock, size - len(data))
        return bytes(data)


@asynccontextmanager
async def scene(quota: int = QUOTA, pipes: int = 4) -> AsyncIterator[Scene]:
    made = Scene(quota, pipes)
    try:
        yield made
    finally:
        made.relay.abort()
        for relay, client, target in made.others:
            relay.abort()
            client.close()
            target.close()
        made.closer.close_now()
        assert not len(made.session.sinks)
        assert made.certain() == made.session.used
        made.client.close()
        made.target.close()
        made.reactor.close()
        assert made.pipes.lent == 0
        assert made.closed == 1


async def through(made: Scene, source: socket.socket, sink: socket.socket, size: int) -> None:
    """Send bytes one way while they are read slowly, and compare."""
    sending = made.loop.create_task(made.loop.sock_sendall(source, pattern(size)))
    assert await made.exactly(sink, size) == pattern(size)
    await sending


async def test_bulk_is_spliced_both_ways_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    spliced = 0
    splice = os.splice

    def count(*arguments: int, flags: int) -> int:
        nonlocal spliced
        size = splice(*arguments, flags=flags)
        spliced += size
        return size

    monkeypatch.setattr(halfpipe.os, "splice", count)
    async with scene() as made:
        made.start()
        await asyncio.gather(
            through(made, made.client, made.target, MEGABYTES),
            through(made, made.target, made.client, MEGABYTES),
        )
        assert (made.relay.bytes_up, made.relay.bytes_down) == (MEGABYTES, MEGABYTES)
        assert made.session.used == 2 * MEGABYTES
        assert made.session.available == QUOTA - 2 * MEGABYTES
        assert spliced > 2 * MEGABYTES  # into a pipe and out of it, but for the first bytes


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
async def test_where_splice_is_refused_bytes_are_copied(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: int, flags: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(halfpipe.os, "splice", refuse)
    async with scene() as made:
        made.start()
        await through(made, made.target, made.client, MEGABYTES)
        assert made.session.used == MEGABYTES


async def test_without_a_pipe_bytes_are_copied() -> None:
    async with scene(pipes=0) as made:
        made.start()
        await through(made, made.target, made.client, MEGABYTES)
        assert made.session.used == MEGABYTES


async def test_a_sink_that_stalls_stops_the_source_and_keeps_one_pipe() -> None:
    async with scene() as made:
        made.start()
        sending = made.loop.create_task(made.loop.sock_sendall(made.target, pattern(30_000_000)))
        await until(lambda: made.pipes.lent == 1, "a pipe waits for the client")
        assert not sending.done()
        assert made.session.granted - made.session.available >= made.session.used
        assert await made.exactly(made.client, 30_000_000) == pattern(30_000_000)
        await sending
        assert made.pipes.lent == 0
        assert made.session.used == 30_000_000


async def test_bytes_that_a_cut_leaves_in_a_pipe_go_back() -> None:
    async with scene() as made:
        made.start()
        sending = made.loop.create_task(made.loop.sock_sendall(made.target, pattern(30_000_000)))
        await until(lambda: made.pipes.lent == 1, "a pipe waits for the client")
        made.relay.abort()
        for half in (made.relay._up, made.relay._down):  # their numbers may be others' soon
            assert (half._source_fd, half._sink_fd) == (-1, -1)
        assert made.session.available + made.session.used == QUOTA
        with pytest.raises(OSError, match=r"reset|Broken"):
            await sending


async def test_the_quota_ends_a_splice_to_the_byte() -> None:
    quota = 3_333_333
    async with scene(quota) as made:
        made.start()
        sending = made.loop.create_task(made.loop.sock_sendall(made.target, pattern(MEGABYTES)))
        assert await made.rest(made.client) == pattern(quota)
        assert made.exhausted
        assert (made.session.used, made.session.available) == (quota, 0)
        await asyncio.wait([sending])
        sending.exception()


async def test_early_bytes_come_first_and_are_paid() -> None:
    async with scene() as made:
        await made.loop.sock_sendall(made.client, b" after")
        made.start(b"before")
        assert await made.exactly(made.target, 12) == b"before after"
        assert made.session.used == 12


async def test_early_bytes_wait_for_the_budget() -> None:
    async with scene(quota=4) as made:
        made.start(b"before")
        assert await made.rest(made.target) == b"befo"
        assert made.exhausted


async def test_bytes_behind_the_limit_are_dropped_and_free() -> None:
    async with scene() as made:
        made.start(b"head", limit=5)
        await made.loop.sock_sendall(made.client, b"body!more that is meant for somebody else")
        assert await made.exactly(made.target, 9) == b"headbody!"
        await made.loop.sock_sendall(made.target, b"answer")
        assert await made.exactly(made.client, 6) == b"answer"
        made.client.shutdown(socket.SHUT_WR)
        assert await made.rest(made.target) == b""
        assert made.session.used == 15


async def test_a_client_that_floods_past_the_limit_is_cut() -> None:
    async with scene() as made:
        made.start(b"head", limit=0)
        with pytest.raises(OSError, match=r"reset|Broken"):
            await made.loop.sock_sendall(made.client, bytes(SWALLOW_MAX_BYTES + 50_000_000))
        await until(lambda: made.closed == 1, "it is cut")
        assert made.session.used == 4


async def test_halves_end_one_by_one() -> None:
    async with scene() as made:
        made.start()
        made.client.shutdown(socket.SHUT_WR)
        assert await made.rest(made.target) == b""
        await through(made, made.target, made.client, MEGABYTES)
        made.target.close()
        assert await made.rest(made.client) == b""
        await until(lambda: made.closed == 1, "it is over")


async def test_a_reset_after_a_half_has_ended_is_passed_on() -> None:
    async with scene() as made:
        made.start()
        made.client.shutdown(socket.SHUT_WR)
        assert await made.rest(made.target) == b""
        made.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.client.close()
        await until(lambda: made.closed == 1, "it is noticed although nothing is written")


@contextmanager
def questions() -> Iterator[list[int]]:
    """Give a list of the descriptors whose unsent bytes are requested from the kernel."""
    asked: list[int] = []
    ioctl = fcntl.ioctl

    def ask(fd: int, *question: object) -> object:
        asked.append(fd)
        return ioctl(fd, *question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing.fcntl, "ioctl", ask)
        yield asked


async def test_a_count_asks_once_for_each_way_that_moved_and_never_for_open_ones() -> None:
    raise_descriptors()
    async with scene() as made:
        pairs = [made.another(b"early") for _ in range(1000)]
        assert made.session.used == 5 * 1000
        with questions() as asked:
            assert made.certain() == 5 * 1000
            assert len(asked) == 1000
        for client, _ in pairs[::100]:
            await made.loop.sock_sendall(client, b"more")
        await until(lambda: made.session.used == 5 * 1000 + 4 * 10, "ten have moved")
        with questions() as asked:
            assert made.certain() == made.session.used
            assert len(asked) == 10
        with questions() as asked:
            assert made.certain() == made.session.used
            assert asked == []


async def test_certain_bytes_have_left_by_the_kernels_count_and_never_fall() -> None:
    async with scene() as made:
        made.start()
        chance = random.Random(7)
        ends = [(made.client, made.target), *(made.another() for _ in range(5))]
        seen = 0
        for _ in range(300):
            client, target = chance.choice(ends)
            source, sink = chance.choice([(client, target), (target, client)])
            with suppress(OSError):
                if chance.random() < 0.7:
                    source.send(pattern(chance.choice([1, 1000, 300_000])))
                elif chance.random() < 0.8:
                    sink.recv(chance.choice([1, 100_000, 1_000_000]))
                elif chance.random() < 0.1:
                    source.shutdown(socket.SHUT_WR)
                elif chance.random() < 0.1:
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    source.close()
            await asyncio.sleep(0)
            before, certain = made.left(), made.certain()
            assert max(seen, before) <= certain <= made.left()  # the kernel goes on meanwhile
            seen = certain
        assert seen > 1_000_000
        assert made.session.used > seen, "nothing had to wait, so nothing was shown"


async def test_an_end_behind_bytes_that_a_reset_throws_away_is_no_byte_to_give_back() -> None:
    async with scene() as made:
        made.start()
        made.target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await made.loop.sock_sendall(made.client, pattern(500_000))
        made.client.shutdown(socket.SHUT_WR)
        await until(lambda: made.relay._up.announced, "the end waits behind what is unsent")
        assert made.certain() < made.session.used == 500_000
        left = made.left()
        made.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.client.close()
        await until(lambda: made.closed == 1, "the reset is passed on")
        assert made.certain() == made.left() == left
        made.closer.close_now()
        assert made.session.used == left


async def stalled(made: Scene, source: socket.socket, sink: socket.socket) -> None:
    """Send more than a receiver takes, until counted bytes wait in the kernel's queue."""
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await made.loop.sock_sendall(source, pattern(500_000))
    await until(lambda: made.session.used == 500_000, "the kernel has all of it")
    assert made.certain() < 500_000


@cases("is_down", [False, True])
@cases("who", ["receiver", "sender"])
async def test_a_reset_by_either_side_takes_back_the_bytes_that_did_not_leave(
    is_down: bool, who: str
) -> None:
    async with scene() as made:
        made.start()
        source, sink = (made.target, made.client) if is_down else (made.client, made.target)
        await stalled(made, source, sink)
        resetting = sink if who == "receiver" else source
        resetting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        resetting.close()
        await until(lambda: made.closed == 1, "it is passed on")
        made.closer.close_now()
        assert made.certain() == made.session.used < 500_000
        assert made.session.used + made.session.available == QUOTA


async def test_a_spent_budget_is_refunded_late_by_a_client_that_never_reads() -> None:
    async with scene(quota=500_000) as made:
        made.start()
        made.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await made.loop.sock_sendall(made.target, pattern(500_000))
        await until(lambda: made.exhausted, "the last byte is counted")
        made.session.status = SessionStatus.EXHAUSTED
        before = made.certain()
        assert before < made.session.used == 500_000
        made.closer.close_now()
        assert before <= made.certain() == made.session.used < 500_000
        assert made.session.available == 0


async def test_after_an_end_nothing_is_refunded() -> None:
    async with scene() as made:
        made.start()
        await stalled(made, made.client, made.target)
        made.session.status = SessionStatus.ENDED
        made.relay.abort()
        assert made.certain() == made.session.used == 500_000


async def test_a_mistake_cuts_only_the_relay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(quota=1) as made:
        made.start()
        monkeypatch.setattr(made.session, "_on_spent", lambda _: 1 // 0)
        await made.loop.sock_sendall(made.client, b"x")
        await until(lambda: made.closed == 1, "it is cut")
        assert "a relay failed and is cut" in caplog.text


async def test_a_relay_that_is_over_leaves_nothing_to_the_collector() -> None:
    def halves() -> int:
        return sum(isinstance(each, halfpipe.HalfPipe) for each in gc.get_objects())

    async with scene() as made:
        gc.collect()
        gc.disable()
        try:
            before = halves()
            client, target = made.another(b"up")
            assert await made.exactly(target, 2) == b"up"
            for sock in (client, target):
                sock.shutdown(socket.SHUT_WR)
            await until(lambda: made.others[0][0].is_closed, "both ends are over")
            made.others.clear()
            assert halves() == before
        finally:
            gc.enable()
        client.close()
        target.close()


async def test_a_mistake_behind_the_end_of_a_relay_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(quota=5) as made:
        made.start()

        def spent(_: LiveSession) -> None:
            made.relay.finish()
            raise RuntimeError("a mistake of another connection")

        monkeypatch.setattr(made.session, "_on_spent", spent)
        half = made.relay._up
        await made.loop.sock_sendall(made.client, b"12345")
        half._unread = True
        half.turn()
        assert "a mistake of another connection" in caplog.text


class Stepping:
    """A loop for a pace; its clock allows more bytes at each look."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_later = loop.call_later
        self._now = 0.0

    def time(self) -> float:
        self._now += 0.000_6
        return self._now


async def test_a_transfer_that_would_soon_not_have_to_wait_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pattern(205)  # the burst of 200, and a byte a round
    async with scene() as made:
        pace = Pace(Stepping(made.loop), 1000)  # type: ignore[arg-type]
        monkeypatch.setattr(made.session, "_pace", pace)
        made.start()
        await made.loop.sock_sendall(made.client, data)
        assert await made.exactly(made.target, len(data)) == data


# --- messages that come alone --------------------------------------------------------------------


async def echoed(made: Scene, size: int) -> None:
    """Send a message to the target and the same back."""
    for source, sink in ((made.client, made.target), (made.target, made.client)):
        await made.loop.sock_sendall(source, pattern(size))
        assert await made.exactly(sink, size) == pattern(size)


@asynccontextmanager
async def scene_apart(quota: int = QUOTA) -> AsyncIterator[Scene]:
    """A relay whose sockets were set apart, after `2 * ALONE_TURNS` bytes each way."""
    async with scene(quota) as made:
        made.start()
        for _ in range(2 * ALONE_TURNS):
            await echoed(made, 1)
        assert are_apart(made) == [True, True]
        assert (made.relay.bytes_up, made.relay.bytes_down) == (2 * ALONE_TURNS, 2 * ALONE_TURNS)
        yield made


def keep_small_buffers(made: Scene) -> None:
    """Let the target stall the relay: the kernel would enlarge buffers until all fits in them."""
    made.target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    made.relay._target.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)


def are_apart(made: Scene) -> list[bool]:
    socks = (made.relay._client, made.relay._target)
    return [made.reactor.poller.is_apart(sock.fileno()) for sock in socks]


async def test_the_halves_of_a_relay_set_apart_end_one_by_one() -> None:
    async with scene_apart() as made:
        made.client.shutdown(socket.SHUT_WR)
        assert await made.rest(made.target) == b""
        assert made.closed == 0
        assert are_apart(made) == [False, True], "the end would wake the loop for ever"
        await made.loop.sock_sendall(made.target, pattern(100))
        assert await made.exactly(made.client, 100) == pattern(100)
        made.target.shutdown(socket.SHUT_WR)
        assert await made.rest(made.client) == b""
        await until(lambda: made.closed == 1, "both have ended")


@pytest.mark.parametrize("is_by_client", [False, True])
async def test_a_reset_of_a_socket_set_apart_is_passed_on(is_by_client: bool) -> None:
    async with scene_apart() as made:
        sides = (made.client, made.target) if is_by_client else (made.target, made.client)
        closing.close_with_reset(sides[0])
        sides[0].close()
        with pytest.raises(ConnectionResetError):
            await made.rest(sides[1])
        assert made.relay.is_broken


async def test_bulk_through_sockets_set_apart_arrives_and_they_rejoin() -> None:
    async with scene_apart() as made:
        await through(made, made.client, made.target, MEGABYTES)
        await through(made, made.target, made.client, MEGABYTES)
        assert are_apart(made) == [False, False]
        assert made.relay.bytes_up == made.relay.bytes_down == MEGABYTES + 2 * ALONE_TURNS


async def test_a_sink_set_apart_that_stalls_gets_everything_in_the_end() -> None:
    async with scene_apart() as made:
        keep_small_buffers(made)
        sending = made.loop.create_task(made.loop.sock_sendall(made.client, pattern(MEGABYTES)))
        await until(lambda: not are_apart(made)[1], "the target's socket is watched for writing")
        assert await made.exactly(made.target, MEGABYTES) == pattern(MEGABYTES)
        await sending
        await echoed(made, 1)


async def test_a_sink_that_was_watched_for_writing_is_watched_again_after_it_was_apart() -> None:
    async with scene_apart() as made:
        keep_small_buffers(made)
        for _ in range(2):
            sending = made.loop.create_task(made.loop.sock_sendall(made.client, pattern(MEGABYTES)))
            await until(lambda: not are_apart(made)[1], "the target's socket is not apart")
            assert await made.exactly(made.target, MEGABYTES) == pattern(MEGABYTES)
            await sending
            while are_apart(made) != [True, True]:
                await echoed(made, 1)


async def test_a_budget_ends_to_the_byte_behind_sockets_set_apart() -> None:
    async with scene_apart(quota=4 * ALONE_TURNS + 10) as made:
        await made.loop.sock_sendall(made.client, pattern(11))
        await until(lambda: made.exhausted, "the budget is used")
        assert await made.rest(made.target) == pattern(11)[:10]
        assert made.session.used == 4 * ALONE_TURNS + 10


async def test_urgent_data_does_not_wake_a_relay_set_apart_for_ever() -> None:
    async with scene_apart() as made:
        made.client.send(b"!", socket.MSG_OOB)
        arrived = select.poll()
        arrived.register(made.relay._client.fileno(), select.POLLPRI)
        await until(lambda: bool(arrived.poll(0)), "urgent data is there")
        for _ in range(5):
            await asyncio.sleep(0)
        assert are_apart(made) == [True, True]
        for apart in made.reactor.poller._apart.values():
            assert apart._epoll.poll(0, 1) == [], "nothing wakes the loop"
        made.client.send(b"behind")
        assert await made.exactly(made.target, 6) == b"behind"

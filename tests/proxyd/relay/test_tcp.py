"""The relay over real sockets: bytes arrive whole and in order, counted to the last one."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.targets import pattern
from support.waiting import until

from market.leases import Grant
from market.states import SessionStatus
from proxyd.meter import LiveSession
from proxyd.poller import Poller
from proxyd.relay import halfpipe
from proxyd.relay.closing import Closer
from proxyd.relay.halfpipe import SWALLOW_MAX_BYTES, Way
from proxyd.relay.pipes import PipePool
from proxyd.relay.tcp import Relay

QUOTA = 10**9
MEGABYTES = 6_000_000


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection, non-blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    for sock in (left, right):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return left, right


class Scene:
    """A relay between a client and a target that the test plays."""

    def __init__(self, quota: int, pipes: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.pipes = PipePool(pipes)
        self.closer = Closer(self.loop, self.poller)
        self.client, near = connected()
        self.target, far = connected()
        grant = Grant(
            session_id="session",
            username="somebody",
            password_hash="",
            status=SessionStatus.ACTIVE,
            expires_at=2**40,
            lease_id="lease",
            granted_bytes=quota,
            names=(),
        )
        self.exhausted = False
        self.session = LiveSession(grant, self._exhausted)
        self.closed = 0
        way = Way(self.loop, self.poller, self.pipes)
        self.relay = Relay(way, near, far, self.session, self.closer, self._closed)

    def _exhausted(self, _: LiveSession) -> None:
        self.exhausted = True
        self.relay.finish()

    def _closed(self) -> None:
        self.closed += 1

    def start(self, early: bytes = b"", limit: int | None = None) -> None:
        self.relay.start(early, limit, client_unread=True, target_unread=True)

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
        made.closer.close_now()
        made.client.close()
        made.target.close()
        made.pipes.close()
        made.poller.close()
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


async def test_what_a_cut_leaves_in_a_pipe_goes_back() -> None:
    async with scene() as made:
        made.start()
        sending = made.loop.create_task(made.loop.sock_sendall(made.target, pattern(30_000_000)))
        await until(lambda: made.pipes.lent == 1, "a pipe waits for the client")
        made.relay.abort()
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


async def test_what_follows_the_limit_is_dropped_and_free() -> None:
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


async def test_a_mistake_cuts_the_relay_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene() as made:
        made.start()
        monkeypatch.setattr(LiveSession, "allowance", lambda *_: 1 // 0)
        await made.loop.sock_sendall(made.client, b"x")
        await until(lambda: made.closed == 1, "it is cut")
        assert "a relay failed and is cut" in caplog.text

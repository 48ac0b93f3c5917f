"""Carries the bytes of one connection: between a work connection and a target.

An `End` is one socket. Two ends are joined by a `Relay`, which keeps the meaning of TCP: an end of
the stream is passed on alone, so the other direction goes on; a reset is passed on as a reset; when
one side reads slowly, the relay reads nothing more from the other side, which then waits.

Bytes go from one transport to the other without a copy. If the other transport could not send all
of them, it keeps that buffer, and the reader gets another one.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from proxyctl.attach.network.sniff import LOOKED_AT_BYTES
from proxyctl.attach.relay import dial
from proxyctl.attach.relay.attempts import TaskAttempt
from proxyctl.attach.relay.keepalive import keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.attach.relay.attempts import Attempt, Connected
    from proxyctl.attach.relay.relays import AnyRelay, Meter, Work
    from proxyctl.protocol.addresses import Address

# The most bytes of one read. Two of these are held for each relay: at 16 connections 4 MiB.
BUFFER_BYTES: Final = 128 * 1024

# Why an end does not read just now; it reads again when there is no reason left.
_PEER_IS_FULL: Final = 1
_TOO_FAST: Final = 2

_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)

RESET: Final = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class End(asyncio.BufferedProtocol):
    """One socket of a relay; it closes a peer that sends before it is joined to another socket.

    Args:
        lost: called once, when the socket is gone.
        connected: called once, when the loop has handed the socket over, before it reads.
    """

    def __init__(
        self, lost: Callable[[End], None], connected: Callable[[End], None] = lambda _: None
    ) -> None:
        self.relay: Relay | None = None
        self.has_ended = False  # it will send no more
        self.is_lost = False
        self._lost = lost
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(b"")
        self._waits_for = 0

    @property
    def transport(self) -> asyncio.Transport:
        """The transport; there is one as soon as the loop has handed it over."""
        assert self._transport is not None  # noqa: S101 - ends are handed out connected
        return self._transport

    def close(self) -> None:
        """See `Work.close`."""
        if not self.is_lost:
            self.transport.close()

    def reset(self) -> None:
        """See `Work.reset`."""
        if not self.is_lost:
            reset(self.transport)

    def tend(self) -> None:
        """See `Work.tend`: that was seen to when it began to wait."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        """Return the buffer for the next read; an end that waits to be joined needs no memory."""
        if self.relay is None:
            return memoryview(bytearray(1))
        if not self._buffer:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        # With nothing left its meter has cut it; later bytes are dropped.
        return self._buffer[: self.relay.most() or BUFFER_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read."""
        if self.relay is None:
            reset(self.transport)  # the daemon may not send before the dial was reported
        elif not self.relay.carry(self, self._buffer[:nbytes]):
            self._buffer = memoryview(b"")  # the other transport still needs these bytes

    def eof_received(self) -> bool:
        """Pass on the end of the stream; the socket stays open for the other direction."""
        if self.has_ended:
            return True
        self.has_ended = True
        if self.relay is None:
            self.transport.close()
        else:
            self.relay.end(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the relay."""
        self.is_lost = True
        self._buffer = memoryview(b"")
        if self.relay is not None:
            self.relay.lose(self, is_broken=exc is not None)
        self._lost(self)

    def pause_writing(self) -> None:
        """Make the other end wait: this one's receiver is slow."""
        if self.relay is not None:
            self.relay.other(self).wait_for(_PEER_IS_FULL)

    def resume_writing(self) -> None:
        """Resume reading at the other end."""
        if self.relay is not None:
            self.relay.other(self).go_on(_PEER_IS_FULL)

    def is_broken(self) -> bool:
        """Ask the system whether the socket has failed."""
        sock = None if self.is_lost else self.transport.get_extra_info("socket")
        try:
            return sock is not None and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        except OSError:
            return True

    def acknowledge(self) -> None:
        """Make the system acknowledge the bytes without delay, if it has such an option."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and _QUICKACK is not None:
            with suppress(OSError):  # it breaks just now, and says so next
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    def wait_for(self, reason: int) -> None:
        """Stop reading until `go_on` was called with each reason."""
        if not self._waits_for and not self.is_lost and not self.has_ended:
            with suppress(RuntimeError):  # of a transport that has read everything already
                self.transport.pause_reading()
        self._waits_for |= reason

    def go_on(self, reason: int) -> None:
        """Read again, if that was the last reason not to."""
        was_waiting, self._waits_for = self._waits_for, self._waits_for & ~reason
        if was_waiting and not self._waits_for and not self.is_lost and not self.has_ended:
            with suppress(RuntimeError):
                self.transport.resume_reading()


class Relay:
    """Two ends, joined.

    Args:
        work: the end towards the daemon.
        target: the other one.
        meter: counts every byte, both ways.
        said: called once, with the first bytes from the daemon's side.
        over: called once, when both sockets are gone.
        acknowledges: see `AsyncioRelays`.
    """

    def __init__(
        self,
        work: End,
        target: End,
        *,
        meter: Meter,
        said: Callable[[bytes], None],
        over: Callable[[Relay], None],
        loop: asyncio.AbstractEventLoop,
        acknowledges: bool = False,
    ) -> None:
        self._acknowledges = acknowledges
        self.moved_at = loop.time()
        self._said: Callable[[bytes], None] | None = said
        self._work = work
        self._target = target
        self._meter = meter
        self._over = over
        self._loop = loop
        work.relay = target.relay = self

    def other(self, end: End) -> End:
        """Return the end opposite."""
        return self._target if end is self._work else self._work

    def most(self) -> int:
        """Return the most bytes that an end may read in one call."""
        return self._meter.most()

    def carry(self, end: End, data: memoryview) -> bool:
        """Pass on bytes of an end; return False while the other transport needs `data`."""
        self.moved_at = self._loop.time()
        if self._said is not None and end is self._work:
            self._said(bytes(data[:LOOKED_AT_BYTES]))
            self._said = None
        other = self.other(end)
        if other.is_lost or other.transport.is_closing():
            return True
        other.transport.write(data)
        if self._acknowledges and end is self._target:
            end.acknowledge()
        seconds = self._meter.count(len(data))
        if seconds:
            end.wait_for(_TOO_FAST)
            self._loop.call_later(seconds, end.go_on, _TOO_FAST)
        return not other.transport.get_write_buffer_size()

    def end(self, end: End) -> None:
        """Pass on the end of a stream; when both have ended, close both sockets."""
        other = self.other(end)
        if not other.is_lost and not other.transport.is_closing():
            with suppress(OSError, RuntimeError):  # its socket breaks just now, and says so next
                other.transport.write_eof()
        if other.has_ended:
            self._work.transport.close()
            self._target.transport.close()

    def lose(self, end: End, *, is_broken: bool) -> None:
        """Note that a socket is gone. If it broke, the other one is reset."""
        other = self.other(end)
        if other.is_lost:
            self._over(self)
        elif is_broken or not other.has_ended:
            reset(other.transport)

    def tend(self) -> None:
        """Reset both sockets if one broke after its stream had ended.

        The relay reads no more from it, so the loop reports nothing.
        """
        if any(each.has_ended and each.is_broken() for each in (self._work, self._target)):
            self.abort()

    def abort(self) -> None:
        """Reset both sockets immediately."""
        for end in (self._work, self._target):
            if not end.is_lost:
                reset(end.transport)


def ignore(_: object) -> None:
    """Do nothing with an argument."""


class AsyncioRelays:
    """Makes relays on every system. See `Relays`.

    Args:
        acknowledges: whether bytes of a target are acknowledged without delay. Simple servers write
            an answer in two parts, and the second one waits for that, 40 ms if the system delays
            it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, acknowledges: bool = False) -> None:
        self._loop = loop
        self._acknowledges = acknowledges
        self._tasks: set[asyncio.Task[Any]] = set()

    def connect(self, address: Address, port: int, seconds: float, done: Connected) -> Attempt:
        """See `Relays.connect`."""
        return self._noted(dial.begin_connect(address, port, seconds, done))

    def begin_park(
        self,
        sock: socket.socket,
        hello: bytes,
        lost: Callable[[], None],
        ready: Callable[[Work], None],
        done: Callable[[], None],
    ) -> Attempt | None:
        """See `Relays.begin_park`."""
        parking = self._park(sock, hello, lost, ready)
        return self._noted(TaskAttempt(self._loop, parking, lambda _: done(), owned=sock))

    def begin_join(
        self,
        work: Work,
        target: socket.socket,
        *,
        meter: Meter,
        said: Callable[[bytes], None],
        over: Callable[[AnyRelay], None],
        began: Callable[[AnyRelay], None],
        done: Callable[[OSError | None], None],
    ) -> Attempt | None:
        """See `Relays.begin_join`."""

        async def join() -> None:
            try:
                await self.join(work, target, meter=meter, said=said, over=over, began=began)
            except BaseException:
                target.close()
                work.reset()
                raise

        return self._noted(TaskAttempt(self._loop, join(), done, owned=target))

    async def closed(self) -> None:
        """See `Relays.closed`."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _park(
        self,
        sock: socket.socket,
        hello: bytes,
        lost: Callable[[], None],
        ready: Callable[[Work], None],
    ) -> None:
        end = End(lambda _: lost())
        keep_alive(sock)
        try:
            await self._loop.create_connection(lambda: end, sock=sock)
        except BaseException:
            sock.close()
            raise
        if not end.is_lost and not end.transport.is_closing():
            ready(end)
            end.transport.write(hello)

    def _noted(self, attempt: TaskAttempt[Any]) -> TaskAttempt[Any]:
        self._tasks.add(attempt.task)
        attempt.task.add_done_callback(self._tasks.discard)
        return attempt

    async def join(
        self,
        work: Work,
        target: socket.socket,
        *,
        meter: Meter,
        said: Callable[[bytes], None],
        over: Callable[[AnyRelay], None],
        began: Callable[[AnyRelay], None],
    ) -> None:
        """Relay between a work connection and a target, which is owned unless an error is raised.

        Raises:
            OSError: the target broke.
        """
        assert isinstance(work, End)  # noqa: S101 - `begin_park` makes no others

        def connected(end: End) -> None:
            if work.is_lost:
                reset(end.transport)
            else:
                relay = Relay(
                    work,
                    end,
                    meter=meter,
                    said=said,
                    over=over,
                    loop=self._loop,
                    acknowledges=self._acknowledges,
                )
                began(relay)

        await self._loop.create_connection(lambda: End(ignore, connected), sock=target)

    async def hand_over(self, work: Work, protocol: asyncio.Protocol) -> None:
        """See `Relays.hand_over`."""
        assert isinstance(work, End)  # noqa: S101 - `begin_park` makes no others
        if work.is_lost or work.transport.is_closing():
            raise ConnectionResetError
        work.transport.set_protocol(protocol)
        protocol.connection_made(work.transport)

    def cut(self) -> None:
        """See `Relays.cut`; transports close in the background, and nothing is kept of them."""

    def close(self) -> None:
        """See `Relays.close`."""


def reset(transport: asyncio.Transport) -> None:
    """Close a socket so that the other side sees a reset, and not an end in order."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()

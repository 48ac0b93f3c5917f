"""Carries connections by epoll and splice, where the system is Linux.

It means the same as `relay.py`, at a third of the cost: a relay is two sockets that a `Poller`
watches, and a `HalfPipe` each way. When a peer resets a connection while bytes are written to it,
its last bytes still arrive, which a transport of asyncio cannot do.

A relay needs no control connection. Each of its sockets is registered once, from its connect to its
close, with an epoll that hangs in the event loop; while bulk goes through the relay, it also has a
pipe. Tasks and transports for each socket would be most of the cost of a short connection.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from proxyctl.attach.relay.closing import Closer, reset_socket
from proxyctl.attach.relay.halfpipe import HalfPipe, Shared
from proxyctl.attach.relay.keepalive import keep_alive
from proxyctl.attach.relay.pipes import PipePool
from proxyctl.attach.relay.poller import READS, WRITABLE, Poller
from proxyctl.attach.relay.relay import AsyncioRelays, End

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from proxyctl.attach.relay.attempts import Attempt, Connected
    from proxyctl.attach.relay.relays import AnyRelay, Meter, Work
    from proxyctl.protocol.addresses import Address

# One side is gone, and for this time none of its last bytes could be read: the other side does not
# take it.
STUCK_SECONDS: Final = 10.0


class EpollRelays:
    """Makes relays and their work connections on one poller. See `Relays`.

    Raises:
        OSError: the system has no epoll, or no descriptor for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = Shared(Poller(loop), PipePool(), loop)
        self._closer = Closer(self._shared.poller, loop)
        self._others = AsyncioRelays(loop)

    def connect(self, address: Address, port: int, seconds: float, done: Connected) -> Attempt:
        """See `Relays.connect`."""
        return self._shared.poller.connect(address, port, seconds, done)

    def begin_park(
        self,
        sock: socket.socket,
        hello: bytes,
        lost: Callable[[], None],
        ready: Callable[[Work], None],
        done: Callable[[], None],  # noqa: ARG002 - it is done at once
    ) -> Attempt | None:
        """See `Relays.begin_park`."""
        try:
            if sock.send(hello) != len(hello):
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            parked = _Parked(self._shared.poller, sock, lost)
        except OSError:
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            ready(parked)  # in the same turn of the loop: no answer to the hello was read yet
        return None

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
        if isinstance(work, End):
            return self._others.begin_join(
                work, target, meter=meter, said=said, over=over, began=began, done=done
            )
        if work.is_lost:
            reset_socket(target)
        else:
            assert isinstance(work, _Parked)  # noqa: S101 - `begin_park` makes no others
            relay = _EpollRelay(
                self._shared, self._closer, work, target, meter=meter, said=said, over=over
            )
            began(relay)
            relay.start()
        return None

    async def hand_over(self, work: Work, protocol: asyncio.Protocol) -> None:
        """See `Relays.hand_over`."""
        if isinstance(work, End):
            await self._others.hand_over(work, protocol)
            return
        assert isinstance(work, _Parked)  # noqa: S101 - `begin_park` makes no others
        if work.is_lost:
            raise ConnectionResetError
        sock = work.release()
        try:
            await self._shared.loop.create_connection(lambda: protocol, sock=sock)
        except BaseException:
            sock.close()
            raise

    async def closed(self) -> None:
        """See `Relays.closed`."""
        await self._others.closed()

    def cut(self) -> None:
        """See `Relays.cut`."""
        self._closer.cut()

    def close(self) -> None:
        """See `Relays.close`."""
        self.cut()
        self._shared.poller.close()
        self._shared.pipes.close()


class _Parked:
    """A work connection that waits for a dial; the daemon may not send on it before.

    Args:
        sock: it is owned from here on.
        lost: called once, when the other side has ended it.

    Raises:
        OSError: the system watches no more.
    """

    __slots__ = ("_is_tended", "_lost", "_poller", "is_lost", "sock")

    def __init__(self, poller: Poller, sock: socket.socket, lost: Callable[[], None]) -> None:
        self.is_lost = False
        self._is_tended = False
        self.sock = sock
        self._poller = poller
        self._lost = lost
        poller.watch(sock.fileno(), self)

    def close(self) -> None:
        """See `Work.close`."""
        if not self.is_lost:
            self.is_lost = True
            self._poller.forget(self.sock.fileno())
            self.sock.close()

    def reset(self) -> None:
        """See `Work.reset`."""
        if not self.is_lost:
            self.is_lost = True
            self._poller.forget(self.sock.fileno())
            reset_socket(self.sock)

    def tend(self) -> None:
        """See `Work.tend`: four system calls that a short connection does without."""
        if not self._is_tended:
            self._is_tended = True
            keep_alive(self.sock)

    def release(self) -> socket.socket:
        """Return its socket, the caller's from here on."""
        self.is_lost = True
        self._poller.release(self.sock.fileno())
        return self.sock

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if not events & READS or self.is_lost:
            return
        try:
            spoke = bool(self.sock.recv(1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            spoke = False
        if spoke:
            self.reset()
        else:
            self.close()
        self._lost()

    def fail(self) -> None:
        """See `Watcher.fail`."""
        self.reset()
        self._lost()


class _EpollRelay:
    """Two connected sockets; both are owned from here on.

    Args:
        parked: the side towards the daemon.
        target: the other one.
        meter: counts every byte, both ways.
        said: called once, with the first bytes from the daemon's side.
        over: called once, when the relay has let go of both sockets.
    """

    __slots__ = (
        "_closer",
        "_down",
        "_over",
        "_parked",
        "_shared",
        "_target",
        "_up",
        "_work",
        "is_over",
        "moved_at",
    )

    def __init__(
        self,
        shared: Shared,
        closer: Closer,
        parked: _Parked,
        target: socket.socket,
        *,
        meter: Meter,
        said: Callable[[bytes], None],
        over: Callable[[AnyRelay], None],
    ) -> None:
        self.moved_at = shared.loop.time()
        self.is_over = False
        self._shared = shared
        self._closer = closer
        self._parked = parked
        self._work = work = parked.sock
        self._target = target
        self._over = over
        self._up = HalfPipe(self, shared, work, target, meter, said)
        self._down = HalfPipe(self, shared, target, work, meter, None)

    def start(self) -> None:
        """Begin."""
        poller = self._shared.poller
        poller.replace(self._work.fileno(), _Side(self, self._up, self._down))
        try:
            poller.watch(self._target.fileno(), _Side(self, self._down, self._up))
        except OSError:
            self.abort()

    def tend(self) -> None:
        """See `AnyRelay.tend`. Events report broken sockets; but a side may never read the rest."""
        self._parked.tend()
        if self._shared.loop.time() - self.moved_at > STUCK_SECONDS and (
            self._up.is_stuck() or self._down.is_stuck()
        ):
            self.abort()

    def abort(self) -> None:
        """See `AnyRelay.abort`."""
        if self._release():
            self._closer.reset(self._work)
            self._closer.reset(self._target)
            self._over(self)

    # --- for its halves ------------------------------------------------------------------------

    def half_ended(self) -> None:
        """Handle the end of one direction; end the relay when both directions have ended."""
        if not (self._up.ended and self._down.ended and self._release()):
            return
        if self._up.gave_up or self._down.gave_up:
            self._closer.close_later(self._work, with_reset=False)
            self._closer.close_later(self._target, with_reset=False)
        else:
            self._closer.close(self._work)
            self._closer.close(self._target)
        self._over(self)

    def other(self, half: HalfPipe) -> HalfPipe:
        """Return the half that goes the other way."""
        return self._down if half is self._up else self._up

    def broken(self, half: HalfPipe) -> None:
        """The source of a half was reset: reset the other side, behind the bytes before it."""
        if not self._release():
            return
        source, sink = self._work, self._target
        if half is self._down:
            source, sink = sink, source
        self._closer.close(source)
        self._closer.close_later(sink, with_reset=True)
        self._over(self)

    def _release(self) -> bool:
        """Stop both halves; False when that has been done before."""
        if self.is_over:
            return False
        self.is_over = True
        self._up.stop()
        self._down.stop()
        return True


class _Side:
    """One socket of a relay, as the poller sees it.

    Args:
        source_of: the half that reads from the socket.
        sink_of: the half that writes to it.
    """

    __slots__ = ("_relay", "_sink_of", "_source_of")

    def __init__(self, relay: _EpollRelay, source_of: HalfPipe, sink_of: HalfPipe) -> None:
        self._relay = relay
        self._source_of = source_of
        self._sink_of = sink_of

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & WRITABLE:
            self._sink_of.sink_ready()
        if events & READS and not self._relay.is_over:
            self._source_of.source_ready(events)

    def fail(self) -> None:
        """See `Watcher.fail`."""
        self._relay.abort()

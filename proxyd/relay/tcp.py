"""The relay: two half-pipes between a client and its target, every byte metered.

The end of one stream is passed on while the other goes on; a reset is passed on as a reset, after
the bytes before it. A byte counts when the kernel has it, and is given back if the connection
breaks before it has left this machine.
"""

import logging
import socket
from collections.abc import Callable
from typing import final

from proxyd.loop.poller import READABLE, READS, WRITABLE, Reader
from proxyd.loop.reactor import Reactor
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.in_transit import Payer
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import Closer, close_with_reset
from proxyd.relay.first_answer import FirstAnswer
from proxyd.relay.halfpipe import HalfPipe, Owner

_logger = logging.getLogger("relay")


@final
class Relay(Owner):
    """Two connected sockets, until both streams have ended or one is broken.

    The relay owns both sockets from here on.

    Args:
        client: the client's socket, non-blocking.
        target: the target's socket, non-blocking.
        closer: takes over sockets whose last bytes are still on their way.
        closed: called once, when the relay has let go of both sockets.
        network: the network that the client's socket counts for until it is closed.
        share: the session's share of the exit that carries the bytes; None if they leave directly.
    """

    __slots__ = (
        "_client",
        "_closed",
        "_closer",
        "_down",
        "_network",
        "_payer",
        "_poller",
        "_target",
        "_up",
        "is_broken",
        "is_closed",
    )

    def __init__(
        self,
        reactor: Reactor,
        client: socket.SocketType,
        target: socket.SocketType,
        session: LiveSession,
        closer: Closer,
        closed: Callable[[], None],
        network: str = "",
        share: ExitShare | None = None,
    ) -> None:
        self._client = client
        self._target = target
        self._payer = _payer(session, share)
        self._closer = closer
        self._closed = closed
        self._network = network
        self._poller = reactor.poller
        self._up = HalfPipe(self, reactor, client, target, session, share)
        self._down = HalfPipe(self, reactor, target, client, session, share)
        self.is_broken = False
        self.is_closed = False

    @property
    def active_at(self) -> float:
        """The loop time in seconds when the last byte was moved, or when the relay began."""
        return max(self._up.active_at, self._down.active_at)

    @property
    def is_half_closed(self) -> bool:
        """Whether one of the two streams has ended."""
        return self._up.ended is not self._down.ended

    @property
    def bytes_up(self) -> int:
        """Bytes delivered from the client to the target."""
        return self._up.delivered

    @property
    def bytes_down(self) -> int:
        """Bytes delivered from the target to the client."""
        return self._down.delivered

    def judge(self, first: FirstAnswer) -> None:
        """Compare the first bytes of both ways; call it before `start`."""
        self._up.first = first.asked
        self._down.first = first.answered

    def start(
        self,
        early: bytes,
        limit: int | None,
        *,
        client_unread: bool,
        target_unread: bool,
    ) -> None:
        """Begin.

        Args:
            early: bytes that the client sent ahead of the connection to the target.
            limit: how many bytes the client may send after it; None for any number.
            client_unread: whether the client may have sent more already.
            target_unread: whether the target may have sent something already.
        """
        self._poller.watch(self._client.fileno(), _SocketWatcher(self, self._up, self._down))
        self._poller.watch(self._target.fileno(), _SocketWatcher(self, self._down, self._up))
        self._up.start(early, limit, unread=client_unread)
        if not self.is_closed:
            self._down.start(b"", None, unread=target_unread)

    def finish(self) -> None:
        """Close both sides so that everything already counted still arrives."""
        if self._release():
            self._close_later(self._client, self._down)
            self._close_later(self._target, self._up)
            self._closed()

    def abort(self) -> None:
        """Cut both sides without delay; bytes still on this machine go back to the budget."""
        if self._release():
            for sock, half in ((self._client, self._down), (self._target, self._up)):
                close_with_reset(sock)
                half.refund()
                self._close(sock)
            self._closed()

    def fail(self, error: Exception) -> None:
        """Cut both sides because of a fault in this program, and log the traceback."""
        _logger.error("a relay failed and is cut", exc_info=error)
        self.abort()

    def half_ended(self) -> None:
        """Note the end of one direction; close the relay when both have ended."""
        if not (self._up.ended and self._down.ended and self._release()):
            return
        if self._up.gave_up or self._down.gave_up:
            self._close_later(self._client, self._down)
            self._close_later(self._target, self._up)
        else:
            self._close(self._client)
            self._close(self._target)
        self._closed()

    def is_last(self, half: HalfPipe) -> bool:
        """Return whether the other way has ended in order, so that a close announces this end."""
        other = self._down if half is self._up else self._up
        return other.ended and not other.gave_up

    def was_reset(self, source: socket.SocketType) -> bool:
        """Return whether writing to a side has shown that it reset the connection."""
        return (self._down if source is self._client else self._up).was_reset

    def broken(self, source: socket.SocketType) -> None:
        """Handle the reset of one side: give back its lost bytes, and reset the other side."""
        if not self._release():
            return
        self.is_broken = True
        if source is self._client:
            other, to_source, to_other = self._target, self._down, self._up
        else:
            other, to_source, to_other = self._client, self._up, self._down
        to_source.refund()
        self._close(source)
        self._close_later(other, to_other, with_reset=True)
        self._closed()

    def _close(self, sock: socket.SocketType) -> None:
        self._poller.forget(sock.fileno())
        sock.close()

    def _close_later(
        self, sock: socket.SocketType, half: HalfPipe, *, with_reset: bool = False
    ) -> None:
        self._closer.close(
            sock,
            payer=self._payer,
            size=half.refundable,
            ended=half.announced,
            with_reset=with_reset,
            network=self._network if sock is self._client else "",
        )

    def _release(self) -> bool:
        """Stop both halves; False when both were stopped before."""
        if self.is_closed:
            return False
        self.is_closed = True
        for half in (self._up, self._down):
            half.stop()
            half.leave()
        return True


@final
class _SocketWatcher(Reader):
    """Watcher of one of a relay's sockets: the source of one half, and the sink of the other.

    Args:
        source_of: the half that reads from the socket.
        sink_of: the half that writes to it.
    """

    __slots__ = ("_relay", "_sink_of", "_source_of")

    def __init__(self, relay: Relay, source_of: HalfPipe, sink_of: HalfPipe) -> None:
        self._relay = relay
        self._source_of = source_of
        self._sink_of = sink_of

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & WRITABLE:
            self._sink_of.sink_ready()
        if events & READS and not self._relay.is_closed:
            self._source_of.source_ready(events)

    @property
    def is_at_ease(self) -> bool:
        """See `Reader.is_at_ease`."""
        return self._source_of.has_read_all and not self._sink_of.has_to_write

    def read(self) -> bool:
        """See `Reader.read`; the result is also False after an event without a byte."""
        half = self._source_of
        before = half.delivered
        half.source_ready(READABLE)
        return half.delivered != before and self.is_at_ease

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        self._relay.fail(error)


def _payer(session: LiveSession, share: ExitShare | None) -> Payer:
    return session if share is None else share

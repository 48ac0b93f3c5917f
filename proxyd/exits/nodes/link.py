"""A link: the connection that this node keeps with another one, frames over TLS.

Each side proves itself before it sends anything else: the dialled node by its certificate, whose
fingerprint stands in its row of the database, and both by a proof with a key that is derived from
the signing key (`proxyd.wire.links.proof`). So a thief of the database alone, or a device, gets no
link.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hmac import compare_digest
from secrets import token_bytes
from time import monotonic
from typing import Final, Protocol, cast, final

from proxyctl.protocol.frames import FrameError
from proxyd.wire.links import (
    DIALLED,
    DIALLER,
    PING_BYTES,
    VERSION,
    Accepted,
    Exits,
    Frame,
    Gone,
    Greeting,
    Leaving,
    LinkReader,
    Loan,
    LoanNumbers,
    Moved,
    Ping,
    Pong,
    Recheck,
    encode,
    proof,
)

SILENT_BEATS: Final = 3
# Bytes that wait for a node that does not read: more than all exits of a node, announced twice.
WAITING_MAX_BYTES: Final = 128 * 1024 * 1024

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """The time between heartbeats of a link, and the time of a turn for its frames.

    Attributes:
        beat_seconds: between two heartbeats. A node that is gone without a word is noticed after
            three of them and the next look: 6 s.
        turn_seconds: for the frames of a link, in one turn of the loop: clients and the API wait
            meanwhile. A new link brings all exits of a node, and filing them takes seconds.
    """

    beat_seconds: float = 1.5
    turn_seconds: float = 0.005


USUAL: Final = LinkTimes()


class LinkHandler(Protocol):
    """Acts on links and on their frames."""

    def joined(self, link: "Link") -> None:
        """Handle a link that has opened: both sides have proved themselves."""

    def announced(self, link: "Link", frame: Exits | Gone | Leaving | Recheck | Moved) -> None:
        """Handle a frame about the other node's exits, a device, or that node itself."""

    def lending(self, link: "Link", frame: Loan) -> None:
        """Handle a frame about a loan."""

    def lost(self, link: "Link") -> None:
        """Handle the loss of an open link."""


@final
class LinkEnds:
    """The two nodes of a link, and their proofs.

    Args:
        key: see `proxyd.wire.links.link_key`.
        own_id: this node's identifier.
        node_id: the other node's identifier.
        fingerprint: that of the dialled node's certificate (SHA-256, hexadecimal).
        is_dialler: whether this node has dialled.
    """

    __slots__ = ("_key", "_own_id", "fingerprint", "is_dialler", "node_id")

    def __init__(
        self, key: bytes, own_id: str, node_id: str, fingerprint: str, *, is_dialler: bool
    ) -> None:
        self._key = key
        self._own_id = own_id
        self.node_id = node_id
        self.fingerprint = fingerprint
        self.is_dialler = is_dialler

    def greeting(self) -> Greeting:
        """Return the first frame of the node that has dialled."""
        return Greeting(VERSION, self._own_id, self.node_id, self._proof(DIALLER))

    def acceptance(self) -> Accepted:
        """Return the first frame of the dialled node."""
        return Accepted(self._own_id, self._proof(DIALLED))

    def proves(self, frame: Accepted) -> bool:
        """Return whether a frame proves that the other node is the one that was dialled."""
        return compare_digest(frame.proof, self._proof(DIALLED)) and frame.node_id == self.node_id

    def _proof(self, speaker: bytes) -> bytes:
        dialler, dialled = (
            (self._own_id, self.node_id) if self.is_dialler else (self.node_id, self._own_id)
        )
        return proof(self._key, speaker, self.fingerprint, dialler, dialled)


@final
class _Inbox:
    """Frames that come over a link; each turn of the loop has a bounded time for them.

    `heard_at` is when bytes came last (loop time, seconds).

    Args:
        reader: has read the bytes that came before.
        turn_seconds: the time for frames in one turn of the loop.
        act: called with each frame; raises FrameError for one that must not come.
        violated: called with the reason when the other node has sent such a frame.
    """

    __slots__ = (
        "_act",
        "_is_over",
        "_is_paused",
        "_loop",
        "_reader",
        "_timer",
        "_transport",
        "_turn_seconds",
        "_violated",
        "heard_at",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reader: LinkReader,
        turn_seconds: float,
        act: Callable[[Frame], None],
        violated: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._turn_seconds = turn_seconds
        self._act = act
        self._violated = violated
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.Handle | None = None
        self._is_paused = False  # nothing is read meanwhile
        self._is_over = False
        self.heard_at = loop.time()

    def begin(self, transport: asyncio.Transport) -> None:
        """Read from a connection from now on."""
        self._transport = transport

    def receive(self, data: bytes) -> None:
        """Act on bytes that have come."""
        frames = self._reader.receive_data(data)
        if self._timer is None:
            self._act_on(frames)

    def close(self) -> None:
        """Ignore all further frames."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _act_on(self, frames: Iterator[Frame]) -> None:
        """Act on frames that have come, within the time of a turn; the next turns take the rest."""
        self.heard_at = self._loop.time()
        until = monotonic() + self._turn_seconds  # the loop's own clock may stand still meanwhile
        try:
            for frame in frames:
                self._act(frame)
                if self._is_over:
                    return
                if monotonic() >= until:
                    self._pause(is_paused=True)
                    self._timer = self._loop.call_soon(self._go_on)
                    return
        except FrameError as error:
            self._violated(f"it has sent {error}")
        else:
            self._pause(is_paused=False)

    def _go_on(self) -> None:
        self._timer = None
        self._act_on(self._reader.receive_data(b""))

    def _pause(self, *, is_paused: bool) -> None:
        """Stop reading, or read again: the bytes that are kept here are bounded."""
        transport = self._transport
        if self._is_paused == is_paused or transport is None:
            return
        self._is_paused = is_paused
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()


@final
class _Heart:
    """Heartbeats of a link: pings, and the end of a link whose other node is silent.

    Silence is counted in beats, not in seconds: a process that gets no processor for seconds finds
    the other node's frames waiting afterwards, and must read them before it judges.

    Args:
        seconds: between two beats.
        inbox: knows when the other node has sent something last.
        silent: called with the reason when the other node has been silent for long.
    """

    __slots__ = (
        "_heard_at",
        "_inbox",
        "_loop",
        "_ping",
        "_seconds",
        "_silent",
        "_silent_beats",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        inbox: _Inbox,
        ping: Callable[[], None],
        silent: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._inbox = inbox
        self._ping = ping
        self._silent = silent
        self._silent_beats = 0
        self._heard_at = inbox.heard_at
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the heartbeats."""
        self._timer = self._loop.call_later(self._seconds, self._beat)

    def stop(self) -> None:
        """Stop the heartbeats."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        heard_at = self._inbox.heard_at
        self._silent_beats = self._silent_beats + 1 if heard_at == self._heard_at else 0
        self._heard_at = heard_at
        if self._silent_beats == SILENT_BEATS:
            self._silent("it is silent")
            return
        self._ping()
        self.start()


@final
class LinkLife:
    """Life of a link: it opens when both nodes have proved themselves, and ends once.

    `settled` is set once the link is open, or never will be; `closed` gets the reason of its end.
    """

    __slots__ = ("closed", "is_open", "is_over", "settled", "was_open")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self.is_over = False
        self.was_open = False
        self.settled = asyncio.Event()
        self.closed: asyncio.Future[str] = loop.create_future()

    def open(self) -> None:
        """Open the link: both nodes have proved themselves."""
        self.is_open = self.was_open = True
        self.settled.set()

    def end(self, reason: str) -> None:
        """End the link."""
        self.is_over, self.is_open = True, False
        self.settled.set()
        if not self.closed.done():
            self.closed.set_result(reason)


class Link(asyncio.Protocol):
    """One connection with another node.

    `is_leaving` says that the other node takes no more exits. `can_borrow` says whether its exits
    may be chosen here; `loans` numbers the loans of this side.

    Args:
        reader: has read the bytes that came before.
    """

    __slots__ = (
        "_drained",
        "_handler",
        "_heart",
        "_inbox",
        "_loop",
        "_transport",
        "began",
        "can_borrow",
        "ends",
        "is_leaving",
        "life",
        "loans",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: LinkHandler,
        ends: LinkEnds,
        *,
        reader: LinkReader | None = None,
        times: LinkTimes = USUAL,
    ) -> None:
        self._loop = loop
        self._handler = handler
        self._inbox = _Inbox(
            loop, reader or LinkReader(), times.turn_seconds, self._act, self.close
        )
        self._transport: asyncio.Transport | None = None
        self._heart = _Heart(loop, times.beat_seconds, self._inbox, self._ping, self.close)
        self._drained = asyncio.Event()
        self._drained.set()
        self.ends = ends
        self.life = LinkLife(loop)
        self.is_leaving = False
        self.can_borrow = False
        self.began = loop.time()
        self.loans = LoanNumbers(is_dialler=ends.is_dialler)

    @property
    def node_id(self) -> str:
        """The other node's identifier."""
        return self.ends.node_id

    @property
    def is_over(self) -> bool:
        """Whether the link has ended."""
        return self.life.is_over

    # --- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's inherits from nothing
        self._inbox.begin(self._transport)
        if not self.ends.is_dialler:
            self._send(self.ends.acceptance())
            self._open()
        elif shown_fingerprint(transport) != self.ends.fingerprint:
            self.close("it has shown another certificate than its row says")
        else:
            self._send(self.ends.greeting())

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._inbox.receive(data)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._drained.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.close("the connection was lost")

    # --- called by others ----------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Send a frame; a link that is over, or not open yet, sends nothing."""
        if self.life.is_open:
            self._send(frame)

    def send_encoded(self, data: bytes) -> None:
        """Send the bytes of frames; see `send`."""
        transport = self._transport
        if not self.life.is_open or transport is None:
            return
        transport.write(data)
        if transport.get_write_buffer_size() > WAITING_MAX_BYTES:
            # Later: a sender must not find the link gone before its frame was sent.
            self._loop.call_soon(self.close, "it does not read")

    async def drained(self) -> None:
        """Wait until most of the sent bytes have left, or the link is over."""
        await self._drained.wait()

    def close(self, reason: str) -> None:
        """End the link; only the first call counts."""
        if self.life.is_over:
            return
        was_open = self.life.is_open
        self.life.end(reason)
        self.can_borrow = False
        self._heart.stop()
        self._inbox.close()
        if self._transport is not None:
            self._transport.abort()
        self._drained.set()
        if was_open:
            _logger.info("node %s: the link is lost: %s", self.node_id, reason)
            self._handler.lost(self)

    # --- inside --------------------------------------------------------------------------------

    def _act(self, frame: Frame) -> None:
        if isinstance(frame, Accepted):
            self._accepted(frame)
        elif not self.life.is_open or isinstance(frame, Greeting):
            raise FrameError(f"a frame of the type {type(frame).__name__} out of turn")
        elif isinstance(frame, Ping):
            self._send(Pong(frame.payload))
        elif isinstance(frame, (Exits, Gone, Leaving, Recheck, Moved)):
            self._handler.announced(self, frame)
        elif not isinstance(frame, Pong):
            self._handler.lending(self, frame)

    def _accepted(self, frame: Accepted) -> None:
        """Handle the first frame of the dialled node."""
        if self.life.is_open or not self.ends.is_dialler:
            raise FrameError("a frame of the type Accepted out of turn")
        if self.ends.proves(frame):
            self._open()
        else:
            self.close("it has not proved to be the node")

    def _open(self) -> None:
        self.life.open()
        self._heart.start()
        _logger.info("node %s: linked", self.node_id)
        self._handler.joined(self)

    def _ping(self) -> None:
        self._send(Ping(token_bytes(PING_BYTES)))

    def _send(self, frame: Frame) -> None:
        if self.life.is_over or self._transport is None:
            return
        if self.life.is_open:
            self.send_encoded(encode(frame))
        else:
            self._transport.write(encode(frame))


def shown_fingerprint(transport: asyncio.BaseTransport) -> str:
    """Return the SHA-256 of the certificate that the other side has shown, in hexadecimal."""
    shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return hashlib.sha256(shown or b"").hexdigest()


def client_context() -> ssl.SSLContext:
    """Return the TLS context for a node that is known only by its certificate's fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # `Link.connection_made` compares the fingerprint
    return context


def greeted(
    reader: LinkReader, data: bytes, *, key: bytes, own_id: str, fingerprint: str
) -> Greeting | None:
    """Return the greeting at the start of a connection, if it has one with a correct proof.

    Args:
        reader: reads the data, and the bytes behind it.
        data: the first bytes: nodes send their greeting in one piece.
        key: see `proxyd.wire.links.link_key`.
        own_id: this node's.
        fingerprint: that of this node's certificate.
    """
    try:
        frame = next(reader.receive_data(data), None)
    except FrameError:
        return None
    if not isinstance(frame, Greeting) or frame.to_node_id != own_id or frame.protocol < VERSION:
        return None
    expected = proof(key, DIALLER, fingerprint, frame.node_id, own_id)
    return frame if compare_digest(frame.proof, expected) else None

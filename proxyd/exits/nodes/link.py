"""A link: the connection that this node keeps with another one, frames over TLS.

Each side has proved itself before anything else is said: the dialled node by its certificate, whose
fingerprint stands in its row of the database, and both by a proof with a key that is derived from
the signing key (`proxyd.wire.links.proof`). So whoever has stolen the database alone, or a device,
gets no link.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from hmac import compare_digest
from secrets import token_bytes
from time import monotonic
from typing import Final, Protocol, cast

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
# What waits for a node that does not read: more than all exits of a node, announced twice.
WAITING_MAX_BYTES: Final = 128 * 1024 * 1024

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """How often a link is looked at, and for how long.

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
    """What is done about links."""

    def joined(self, link: "Link") -> None:
        """A link is there: both sides have proved themselves."""

    def announced(self, link: "Link", frame: Exits | Gone | Leaving | Recheck | Moved) -> None:
        """The other node tells of its exits, of a device, or of itself."""

    def lending(self, link: "Link", frame: Loan) -> None:
        """The other node says something about a loan."""

    def lost(self, link: "Link") -> None:
        """A link that was there is gone."""


# More than 12 fields: who is at both ends, the connection, and how far it has come.
class Link(asyncio.Protocol):
    """One connection with another node.

    `node_id` is the other node's. `settled` is set once it is open, or never will be; `closed` says
    why it is over. `is_over` says that nothing comes over it any more, `is_leaving`
    that the other node takes no more exits. `can_borrow` says whether its exits may be chosen here;
    `loans` numbers what this side borrows.

    Args:
        loop: the event loop.
        handler: hears of it, and of what comes over it.
        key: see `proxyd.wire.links.link_key`.
        own_id: this node's.
        node_id: the other one's.
        fingerprint: of the dialled node's certificate (SHA-256, hexadecimal).
        is_dialler: whether this node has dialled.
        reader: has read what came before.
        times: how often it is looked at, and for how long.
    """

    __slots__ = (
        "_beat_timer",
        "_drained",
        "_fingerprint",
        "_go_on_timer",
        "_handler",
        "_is_paused",
        "_key",
        "_loop",
        "_own_id",
        "_reader",
        "_times",
        "_transport",
        "began",
        "can_borrow",
        "closed",
        "heard_at",
        "is_dialler",
        "is_leaving",
        "is_open",
        "is_over",
        "loans",
        "node_id",
        "settled",
        "was_open",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: LinkHandler,
        key: bytes,
        *,
        own_id: str,
        node_id: str,
        fingerprint: str,
        is_dialler: bool,
        reader: LinkReader | None = None,
        times: LinkTimes = USUAL,
    ) -> None:
        self._times = times
        self._loop = loop
        self._handler = handler
        self._key = key
        self._own_id = own_id
        self._fingerprint = fingerprint
        self._reader = reader or LinkReader()
        self._transport: asyncio.Transport | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._go_on_timer: asyncio.Handle | None = None
        self._is_paused = False  # nothing is read meanwhile
        self._drained = asyncio.Event()
        self._drained.set()
        self.node_id = node_id
        self.is_dialler = is_dialler
        self.is_open = False
        self.is_over = False
        self.was_open = False
        self.settled = asyncio.Event()
        self.is_leaving = False
        self.can_borrow = False
        self.began = self.heard_at = loop.time()
        self.closed: asyncio.Future[str] = loop.create_future()
        self.loans = LoanNumbers(is_dialler=is_dialler)

    # --- what the event loop calls -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's inherits from nothing
        if not self.is_dialler:
            self._send(Accepted(self.node_id_of_dialled, self._proof(DIALLED)))
            self._open()
        elif shown_fingerprint(transport) != self._fingerprint:
            self.close("it has shown another certificate than its row says")
        else:
            greeting = Greeting(VERSION, self._own_id, self.node_id, self._proof(DIALLER))
            self._send(greeting)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        frames = self._reader.receive_data(data)
        if self._go_on_timer is None:
            self._act_on(frames)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._drained.clear()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._drained.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.close("the connection was lost")

    # --- what others call ----------------------------------------------------------------------

    @property
    def node_id_of_dialled(self) -> str:
        """Which of the two nodes was dialled."""
        return self.node_id if self.is_dialler else self._own_id

    def send(self, frame: Frame) -> None:
        """Send a frame; a link that is over, or not open yet, sends nothing."""
        if self.is_open:
            self._send(frame)

    def send_encoded(self, data: bytes) -> None:
        """Send the bytes of frames; see `send`."""
        transport = self._transport
        if not self.is_open or self.is_over or transport is None:
            return
        transport.write(data)
        if transport.get_write_buffer_size() > WAITING_MAX_BYTES:
            # Later: whoever sends something must not find the link gone before it was sent.
            self._loop.call_soon(self.close, "it does not read")

    async def drained(self) -> None:
        """Wait until what was sent has mostly left, or the link is over."""
        await self._drained.wait()

    def close(self, reason: str) -> None:
        """End it at once; only the first call counts."""
        if self.is_over:
            return
        was_open, self.is_over, self.is_open = self.is_open, True, False
        self.can_borrow = False
        for timer in (self._beat_timer, self._go_on_timer):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._drained.set()
        self.settled.set()
        if not self.closed.done():
            self.closed.set_result(reason)
        if was_open:
            _logger.info("node %s: the link is lost: %s", self.node_id, reason)
            self._handler.lost(self)

    # --- inside --------------------------------------------------------------------------------

    def _act_on(self, frames: Iterator[Frame]) -> None:
        """Act on frames that have come, within the time of a turn; the next turns take the rest."""
        self.heard_at = self._loop.time()
        until = (
            monotonic() + self._times.turn_seconds
        )  # the loop's own clock may stand still meanwhile
        try:
            for frame in frames:
                self._act(frame)
                if self.is_over:
                    return
                if monotonic() >= until:
                    self._pause(is_paused=True)
                    self._go_on_timer = self._loop.call_soon(self._go_on)
                    return
        except FrameError as error:
            self.close(f"it has sent {error}")
        else:
            self._pause(is_paused=False)

    def _go_on(self) -> None:
        self._go_on_timer = None
        self._act_on(self._reader.receive_data(b""))

    def _pause(self, *, is_paused: bool) -> None:
        """Read nothing more for now, or again: what is kept here is bounded."""
        transport = self._transport
        if self._is_paused == is_paused or transport is None:
            return
        self._is_paused = is_paused
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _act(self, frame: Frame) -> None:
        if isinstance(frame, Accepted):
            self._accepted(frame)
        elif not self.is_open or isinstance(frame, Greeting):
            raise FrameError(f"a frame of the type {type(frame).__name__} out of turn")
        elif isinstance(frame, Ping):
            self._send(Pong(frame.payload))
        elif isinstance(frame, (Exits, Gone, Leaving, Recheck, Moved)):
            self._handler.announced(self, frame)
        elif not isinstance(frame, Pong):
            self._handler.lending(self, frame)

    def _accepted(self, frame: Accepted) -> None:
        """The dialled node has answered."""
        if self.is_open or not self.is_dialler:
            raise FrameError("a frame of the type Accepted out of turn")
        is_proved = compare_digest(frame.proof, self._proof(DIALLED))
        if not is_proved or frame.node_id != self.node_id:
            self.close("it has not proved to be the node")
            return
        self._open()

    def _open(self) -> None:
        self.is_open = self.was_open = True
        self.settled.set()
        self._beat_timer = self._loop.call_later(self._times.beat_seconds, self._beat)
        _logger.info("node %s: linked", self.node_id)
        self._handler.joined(self)

    def _beat(self) -> None:
        """Ask whether the other node is there; one that has been silent for long is not."""
        if self._loop.time() - self.heard_at >= SILENT_BEATS * self._times.beat_seconds:
            self.close("it is silent")
            return
        self._send(Ping(token_bytes(PING_BYTES)))
        self._beat_timer = self._loop.call_later(self._times.beat_seconds, self._beat)

    def _send(self, frame: Frame) -> None:
        if self.is_over or self._transport is None:
            return
        if self.is_open:
            self.send_encoded(encode(frame))
        else:
            self._transport.write(encode(frame))

    def _proof(self, speaker: bytes) -> bytes:
        dialler, dialled = (
            (self._own_id, self.node_id) if self.is_dialler else (self.node_id, self._own_id)
        )
        return proof(self._key, speaker, self._fingerprint, dialler, dialled)


def shown_fingerprint(transport: asyncio.BaseTransport) -> str:
    """Return the SHA-256 of the certificate that the other side has shown, in hexadecimal."""
    shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return hashlib.sha256(shown or b"").hexdigest()


def client_context() -> ssl.SSLContext:
    """Return what speaks TLS with a node that is known by its certificate's fingerprint alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # `Link.connection_made` compares the fingerprint
    return context


def greeted(
    reader: LinkReader, data: bytes, *, key: bytes, own_id: str, fingerprint: str
) -> Greeting | None:
    """Return the greeting that a connection has begun with, if it has, and its proof is right.

    Args:
        reader: reads the data, and what comes after.
        data: the first bytes: nodes send their greeting in one piece.
        key: see `proxyd.wire.links.link_key`.
        own_id: this node's.
        fingerprint: of this node's certificate.
    """
    try:
        frame = next(reader.receive_data(data), None)
    except FrameError:
        return None
    if not isinstance(frame, Greeting) or frame.to_node_id != own_id or frame.protocol < VERSION:
        return None
    expected = proof(key, DIALLER, fingerprint, frame.node_id, own_id)
    return frame if compare_digest(frame.proof, expected) else None

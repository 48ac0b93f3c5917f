"""TLS at the exits' port: an idle connection keeps no buffer for reads.

The event loop's own TLS keeps a buffer of 256 KB for each connection: one page of this buffer stays
in use. It also keeps a queue for writes. Here the loop reads all connections into one buffer, and
writes a record as soon as it is made.

A connection is a protocol for the loop, which has the bytes of TCP, and a transport for the
protocol of its stream. `TRANSITIONS` has the arrows between its states.
"""

import asyncio
import ssl
from enum import IntEnum
from typing import Final, cast, final

RECORD_BYTES: Final = 16 * 1024  # the most that a record has
UNREAD_MAX_BYTES: Final = 256 * 1024  # of a paused stream; its end is noticed below that
# A client may send records without any byte of its stream, as changes of its key, which cost forty
# microseconds each here. A byte of the stream pays for a record of its own; beyond that there may
# be one record that has not come whole, and a few others.
STREAM_BYTE_PAYS: Final = 24
IDLE_MAX_BYTES: Final = RECORD_BYTES + 4096
# The answers to such records also wait for a client that does not read. The protocols here pause at
# a quarter of this.
UNSENT_MAX_BYTES: Final = 1024 * 1024


class TlsState(IntEnum):
    """State of a connection under TLS.

    SHAKING: its handshake is under way. OPEN: the stream passes. ENDING: this side has ended the
    stream, and waits for the other one to do so. OVER: nothing passes any more.
    """

    SHAKING = 0
    OPEN = 1
    ENDING = 2
    OVER = 3


TRANSITIONS: Final = {
    TlsState.SHAKING: (TlsState.OPEN, TlsState.OVER),
    TlsState.OPEN: (TlsState.ENDING, TlsState.OVER),
    TlsState.ENDING: (TlsState.OVER,),
    TlsState.OVER: (),
}

# Names of this module: the attribute of an enumeration is six times slower (3.11).
_SHAKING: Final = TlsState.SHAKING
_OPEN: Final = TlsState.OPEN
_ENDING: Final = TlsState.ENDING
_OVER: Final = TlsState.OVER

_NOBODY: Final = asyncio.Protocol()  # the protocol of a connection that was lost


@final
class TlsPort:
    """Resources that the connections of a port share.

    Args:
        loop: the event loop.
        context: the certificate and the versions of TLS.
        view: the memory for reads; other code of the loop may use it between two reads.
        shake_seconds: the time for a handshake.
        end_seconds: the time for the end of a stream, its last bytes included.
    """

    __slots__ = ("context", "end_seconds", "loop", "shake_seconds", "view")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        view: memoryview,
        shake_seconds: float,
        end_seconds: float,
    ) -> None:
        self.loop = loop
        self.context = context
        self.view = view
        self.shake_seconds = shake_seconds
        self.end_seconds = end_seconds


@final
class TlsConnection:
    """One connection under TLS, as its server: what an `asyncio.Transport` is for TLS.

    It is also an `asyncio.BufferedProtocol`, which has no methods that this one lacks.

    Args:
        app: the protocol of its stream.
    """

    __slots__ = (
        "_app",
        "_idle_bytes",
        "_incoming",
        "_is_paused",
        "_last",
        "_outgoing",
        "_port",
        "_shaken",
        "_state",
        "_timer",
        "_tls",
        "_transport",
    )

    def __init__(self, port: TlsPort, app: asyncio.Protocol) -> None:
        self._port = port
        self._app = app
        self._state = _SHAKING
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = port.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._idle_bytes = 0  # of records without a stream, as far as nothing has paid for them
        self._last: bytes | None = None  # of a stream that has ended while it was paused
        self._shaken: asyncio.Future[None] | None = port.loop.create_future()

    async def shaken(self) -> None:
        """Wait for the end of the handshake; the protocol of the stream has its transport then.

        Raises:
            OSError: the handshake has failed (`ssl.SSLError`), or takes too long, or the connection
                is lost.
        """
        if self._shaken is not None:
            try:
                await self._shaken
            finally:  # the error refers to this frame, and the future to the error: a cycle
                self._shaken = None

    def _to(self, state: TlsState) -> None:
        assert state in TRANSITIONS[self._state]  # noqa: S101 - half a connection helps nobody
        self._state = state

    # --- called by the loop: see `asyncio.BufferedProtocol` -------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake, unless it was cancelled before."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's inherits from nothing
        if self._state == _OVER:
            self._transport.abort()
            return
        self._timer = self._port.loop.call_later(self._port.shake_seconds, self._late)

    def get_buffer(self, _size: int) -> memoryview:
        """Return the memory for the next read; `buffer_updated` follows in the same turn."""
        return self._port.view

    def buffer_updated(self, size: int) -> None:
        """Act on bytes of TCP."""
        self.data_received(self._port.view[:size])

    def data_received(self, data: bytes | memoryview) -> None:
        """Act on bytes of TCP.

        The loop of asyncio calls this, because it finds a buffered protocol by its base class;
        uvloop finds one by its methods.
        """
        state = self._state
        if state == _OVER:
            return
        self._incoming.write(data)
        if state == _OPEN:
            self._read()
        elif state == _SHAKING:
            self._shake()
        else:
            self._finish()

    def eof_received(self) -> bool:
        """Close the connection: without the end of TLS it counts as lost.

        A paused stream that has ended before is kept until it goes on.
        """
        if self._state == _SHAKING:
            self._give_up(ConnectionResetError("the client has left"))
        elif self._state == _OPEN:
            if self._is_paused:
                data, has_ended = self._take()
                if has_ended:
                    self._last = data
                    return True
            self._limit_end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Pass the loss on."""
        self._stop_timer()
        if self._state == _SHAKING:
            self._give_up(error or ConnectionResetError("the client is lost"))
        elif self._state < _OVER:
            self._to(_OVER)
        app, self._app = self._app, _NOBODY
        app.connection_lost(error)

    def pause_writing(self) -> None:
        """Pass on that the client reads too little."""
        if self._state == _OPEN:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that it reads again."""
        if self._state == _OPEN:
            self._app.resume_writing()

    # --- called by the protocol of the stream: see `asyncio.Transport` --------------------------

    def is_closing(self) -> bool:
        """Return whether the stream was ended, or is lost."""
        return self._state > _OPEN

    def set_protocol(self, app: asyncio.Protocol) -> None:
        """Pass the stream on to another protocol from now on."""
        self._app = app

    def write(self, data: bytes) -> None:
        """Send a part of the stream."""
        if data and self._state == _OPEN:
            self._tls.write(data)
            self._flush()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the kernel does not have yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int) -> None:
        """Pause the protocol while more than `high` bytes wait for the kernel."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high)

    def pause_reading(self) -> None:
        """Keep what comes from now on; TCP holds the client back when that is much."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Pass the stream on again, from the next turn of the loop on."""
        if self._is_paused:
            self._is_paused = False
            self._port.loop.call_soon(self._go_on)

    def close(self) -> None:
        """End the stream in order: bytes before the end still arrive; no more are passed on."""
        if self._state == _OPEN:
            self._to(_ENDING)
            self._limit_end()
            self._resume_transport()  # the end of the other side comes behind all else
            self._finish()

    def abort(self) -> None:
        """Cut the connection; a handshake that is under way is cancelled."""
        if self._state == _SHAKING:
            self._app = _NOBODY  # it has no transport yet, and loses none
            if self._shaken is not None:
                self._shaken.cancel()
        if self._state < _OVER:
            self._to(_OVER)
        if self._transport is not None:
            self._transport.abort()

    # --- the handshake -------------------------------------------------------------------------

    def _shake(self) -> None:
        """Continue the handshake."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._give_up(error)
        else:
            self._open()

    def _open(self) -> None:
        """Begin to pass the stream on: the handshake is over."""
        self._stop_timer()
        self._flush()
        self._to(_OPEN)
        shaken, self._shaken = self._shaken, None
        if shaken is not None and not shaken.done():
            shaken.set_result(None)  # resumes the coroutine in the next turn
        self._app.connection_made(cast(asyncio.BaseTransport, self))
        # Later, because the one that waits for the handshake goes on before the first bytes.
        self._port.loop.call_soon(self._go_on)

    def _late(self) -> None:
        self._give_up(ConnectionAbortedError("the handshake takes too long"))

    def _give_up(self, error: Exception) -> None:
        """End a handshake that has failed."""
        if self._shaken is not None and not self._shaken.done():
            self._shaken.set_exception(error)
        self.abort()

    # --- the stream ----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Pass the bytes on that were kept."""
        try:
            self._read()
        except Exception:  # as after an error in a read of the loop, which logs both
            self.abort()
            raise
        if not self._is_paused:
            self._resume_transport()

    def _read(self) -> None:
        """Pass the received bytes of the stream on, and its end."""
        if self._state > _OPEN:
            return
        if self._is_paused:
            if self._incoming.pending >= UNREAD_MAX_BYTES and self._transport is not None:
                self._transport.pause_reading()
            return
        data, has_ended = self._take() if self._last is None else (self._last, True)
        self._last = None
        if data:
            self._app.data_received(data)
        if has_ended and self._state == _OPEN:
            self._app.eof_received()
            self.close()
        self._flush()

    def _take(self) -> tuple[bytes, bool]:
        """Return the received bytes of the stream, and whether it has ended.

        The connection is cut, and has no bytes, if they break the rules or the bounds.
        """
        before = self._incoming.pending
        parts: list[bytes] = []
        has_ended = False
        try:
            while self._incoming.pending or self._tls.pending():
                part = self._tls.read(RECORD_BYTES)
                if not part:
                    has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:  # the rest of a record is still to come
            pass
        except ssl.SSLZeroReturnError:  # both sides have ended
            has_ended = True
        except ssl.SSLError:
            self.abort()
            return b"", False
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self._pay(before - self._incoming.pending, len(data)):
            self.abort()
            return b"", False
        return data, has_ended

    def _pay(self, received: int, size: int) -> bool:
        """Return whether bytes of TCP are within the bounds, with the bytes of stream in them."""
        self._idle_bytes = max(self._idle_bytes + received - size * STREAM_BYTE_PAYS, 0)
        if self._idle_bytes > IDLE_MAX_BYTES:
            return False
        return not self._outgoing.pending or self.get_write_buffer_size() <= UNSENT_MAX_BYTES

    def _finish(self) -> None:
        """Send the end, drop what still comes, and close when the other side has ended too."""
        self._take()
        if self._state == _OVER:
            return
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError:
            self.abort()
        else:
            self._flush()
            if self._transport is not None:
                self._transport.close()

    def _flush(self) -> None:
        """Send the records that were made."""
        data = self._outgoing.read()
        if data and self._transport is not None:
            self._transport.write(data)

    def _limit_end(self) -> None:
        """Cut the connection later, if it is not over by then."""
        if self._timer is None:
            self._timer = self._port.loop.call_later(self._port.end_seconds, self.abort)

    def _resume_transport(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""Work connections under TLS: a relay sees each as a stream like any other.

The stream goes in chunks (`protocol/secure.py`), so that one direction can end before the other. An
`End` gets the same calls as it would get from a socket, and sends through `SecureTransport`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from proxyctl.attach.relay.attempts import TaskAttempt
from proxyctl.attach.relay.keepalive import keep_alive
from proxyctl.attach.relay.relay import End, ignore
from proxyctl.protocol.secure import END, ChunkError, ChunkReader, chunked

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from proxyctl.attach.relay.attempts import Attempt

HANDSHAKE_SECONDS: Final = 10.0  # one round trip, and the computation of a small device
# Bytes that wait in the loop for a slow daemon, besides the kernel's buffers.
WAITING_MAX_BYTES: Final = 64 * 1024


class SecureTransport(asyncio.Transport):
    """Sends a stream in chunks over TLS.

    Args:
        under: speaks TLS.
    """

    def __init__(self, under: asyncio.Transport, stream: SecureStream) -> None:
        super().__init__()
        self._under = under
        self._stream = stream
        self._has_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`."""
        if not self._has_ended:
            self._under.write(chunked(data))

    def write_before(self, data: bytes) -> None:
        """Send bytes that are no part of the stream, before any that are."""
        self._under.write(data)

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`."""
        if not self._has_ended:
            self._has_ended = True
            self._under.write(END)

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def close(self) -> None:
        """Send the end of the stream, and then close (see `asyncio.BaseTransport`)."""
        if not self._under.is_closing():
            self.write_eof()
            self._under.close()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self._under.abort()

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._under.is_closing()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return self._under.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        self._under.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See `asyncio.BaseTransport`."""
        self._stream.taker = cast("asyncio.Protocol", protocol)

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._under.is_reading()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._under.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._under.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - asyncio's
        """See `asyncio.BaseTransport`."""
        return self._under.get_extra_info(name, default)


class SecureStream(asyncio.Protocol):
    """One work connection under TLS.

    After a hand-over `taker` gets the calls instead of the end.

    Args:
        end: gets the same calls as from a socket.
        hello: is sent first, as it is.
        is_ours: says of a certificate (DER) whether it is the daemon's.
        ready: called with the end before the hello is sent.
    """

    def __init__(
        self,
        end: End,
        hello: bytes,
        is_ours: Callable[[bytes], bool],
        ready: Callable[[End], None],
    ) -> None:
        self._end = end
        self._hello = hello
        self._is_ours = is_ours
        self._ready = ready
        self.taker: asyncio.Protocol | None = None
        self._reader = ChunkReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Compare the certificate, and show the ticket."""
        under = self._transport = cast("asyncio.Transport", transport)
        certificate = under.get_extra_info("ssl_object").getpeercert(True)
        under.set_write_buffer_limits(WAITING_MAX_BYTES)
        self._end.connection_made(SecureTransport(under, self))
        if self._is_ours(certificate or b""):
            self._ready(self._end)
            under.write(self._hello)
        else:
            under.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on the stream; bytes that are no chunk break the connection."""
        had_ended = self._reader.has_ended
        try:
            for part in self._reader.receive_data(data):
                self._hand_on(part)
        except ChunkError:
            self._abort()
        else:
            if self._reader.has_ended and not had_ended and not self._told.eof_received():
                self._end.transport.close()

    def eof_received(self) -> bool:
        """Close the connection; it is broken if it ends before its stream."""
        if not self._reader.has_ended:
            self._abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss; without an end of the stream before it, the connection was broken."""
        if exc is None and not self._reader.has_ended:
            exc = ConnectionResetError()
        self._told.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `End.pause_writing`."""
        self._told.pause_writing()

    def resume_writing(self) -> None:
        """See `End.resume_writing`."""
        self._told.resume_writing()

    @property
    def _told(self) -> asyncio.Protocol | End:
        return self._end if self.taker is None else self.taker

    def _hand_on(self, part: memoryview) -> None:
        if self.taker is not None:
            self.taker.data_received(bytes(part))
            return
        while part and not self._end.is_lost:
            buffer = self._end.get_buffer(-1)
            size = min(len(part), len(buffer))
            buffer[:size] = part[:size]
            self._end.buffer_updated(size)
            part = part[size:]

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class SecureDoor:
    """Has work connections wait under TLS.

    Args:
        host: the daemon's name, which its certificate is compared with where that is not pinned.
        is_ours: says of a certificate (DER) whether it is the daemon's.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        host: str,
        is_ours: Callable[[bytes], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._context = context
        self._host = host
        self._is_ours = is_ours
        self._loop = loop

    def begin_park(
        self,
        sock: socket.socket,
        hello: bytes,
        lost: Callable[[], None],
        ready: Callable[[End], None],
        done: Callable[[], None],
    ) -> Attempt | None:
        """See `Relays.begin_park`."""
        keep_alive(sock)
        parking = self.park(sock, hello, lost, ready)
        return TaskAttempt(self._loop, parking, lambda _: done(), owned=sock)

    async def park(
        self,
        sock: socket.socket,
        hello: bytes,
        lost: Callable[[], None],
        ready: Callable[[End], None] = ignore,
    ) -> End:
        """Have a socket wait under TLS; see `Relays.begin_park`.

        The daemon may give an order before this returns: the loop reports the end of a handshake
        some turns later.
        """
        end = End(lambda _: lost())
        stream = SecureStream(end, hello, self._is_ours, ready)
        try:
            await self._loop.create_connection(
                lambda: stream,
                sock=sock,
                ssl=self._context,
                server_hostname=self._host,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except BaseException:
            sock.close()
            raise
        return end

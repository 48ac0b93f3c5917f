"""The control connection: frames over TLS 1.3, to a daemon that has proved its identity."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import ssl
from typing import TYPE_CHECKING, Final, cast

from proxyctl.attach.daemon.secure import SecureDoor
from proxyctl.protocol.frames import PING_BYTES, FrameError, FrameReader, Ping, Pong, encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from proxyctl.protocol.frames import Frame

ATTACH_SECONDS: Final = 20.0  # to connect, to shake hands, and to be let in
_HANDSHAKE_SECONDS: Final = 15.0
HEARTBEAT_LEAST_SECONDS: Final = 1
HEARTBEAT_MOST_SECONDS: Final = 300
SILENT_HEARTBEATS: Final = 2.5  # one may be lost to a moment without a network
_MISMATCH: Final = (
    "the daemon shows another certificate than the one that you agreed to; "
    "if its operator says that it was changed, run: proxyctl exit consent"
)


class AttachError(Exception):
    """There is no control connection; the message is for the owner of the device."""


class ControlConnection(asyncio.Protocol):
    """Sends a Hello as soon as the daemon is known to be the right one, then frames.

    The token is in the Hello, so the client sends it only to a daemon with the expected
    certificate.

    Args:
        pin: the SHA-256 of the daemon's certificate, in hexadecimal; empty where authorities vouch.
        receive: called with this connection and each frame of the daemon.
        mismatch: the words for the owner when the certificate is another one.
    """

    def __init__(
        self,
        hello: Frame,
        pin: str,
        receive: Callable[[ControlConnection, Frame], None],
        loop: asyncio.AbstractEventLoop,
        mismatch: str,
    ) -> None:
        self.closed: asyncio.Future[str] = loop.create_future()  # why, in words
        self.heard_at = loop.time()
        self._hello = hello
        self._pin = pin
        self._receive = receive
        self._loop = loop
        self._mismatch = mismatch
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._unsent = b""
        self._reason = "the daemon closed the connection"

    @property
    def endpoint(self) -> tuple[str, int]:
        """The address and port that the daemon was reached at."""
        assert self._transport is not None  # noqa: S101 - asked for behind Welcome
        host, port = self._transport.get_extra_info("peername")[:2]
        return str(host).partition("%")[0], int(port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the certificate, and send the hello."""
        self._transport = cast("asyncio.Transport", transport)
        if self._pin and not self._is_pinned():
            self.close(self._mismatch)
            return
        self.send(self._hello)

    def data_received(self, data: bytes) -> None:
        """Hand on every frame that is complete; answer those that only ask for that."""
        self.heard_at = self._loop.time()
        try:
            for frame in self._reader.receive_data(data):
                if isinstance(frame, Ping):
                    self.send(Pong(frame.payload))
                else:
                    self._receive(self, frame)
                if self._transport is None or self._transport.is_closing():
                    return
        except FrameError as error:
            self.close(f"the daemon does not speak the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete `closed` with the reason."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(f"{self._reason}: {exc}" if exc is not None else self._reason)

    def pause_writing(self) -> None:
        """Stop reading from a daemon that does not read: so the replies in memory are bounded."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def send(self, frame: Frame) -> None:
        """Send a frame; one for a connection that is gone goes nowhere.

        Frames of one turn of the loop leave together, in one record and one packet: under load
        several dials end in each.
        """
        if self._transport is None or self._transport.is_closing():
            return
        data = encode(frame)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += data

    def close(self, reason: str) -> None:
        """Close the connection without waiting for anything."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.abort()

    def _flush(self) -> None:
        data, self._unsent = self._unsent, b""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _is_pinned(self) -> bool:
        assert self._transport is not None  # noqa: S101 - called by connection_made alone
        ssl_object = self._transport.get_extra_info("ssl_object")
        certificate = ssl_object.getpeercert(True)
        shown = hashlib.sha256(certificate or b"").hexdigest()
        return hmac.compare_digest(shown, self._pin)


async def open_control(
    host: str,
    port: int,
    hello: Frame,
    *,
    pin: str,
    receive: Callable[[ControlConnection, Frame], None],
    connect: Callable[[], Awaitable[socket.socket]] | None = None,
    mismatch: str = _MISMATCH,
) -> ControlConnection:
    """Connect to a daemon, and send the hello.

    Args:
        host: its name or address.
        port: its port.
        hello: the first frame.
        pin: the SHA-256 of its certificate, in hexadecimal; empty where authorities vouch.
        receive: called with the connection and each frame of the daemon.
        connect: returns a socket that is connected to it, or raises OSError; None to connect to the
            addresses that the resolver returns for the name.
        mismatch: the words for the owner when the certificate is another one.

    Raises:
        AttachError: why that is not possible now.
    """
    loop, context = asyncio.get_running_loop(), _context(pin)

    async def open_connection() -> ControlConnection:
        sock = None if connect is None else await connect()
        place = {"host": host, "port": port} if sock is None else {"sock": sock}
        _, control = await loop.create_connection(
            lambda: ControlConnection(hello, pin, receive, loop, mismatch),
            **place,
            ssl=context,
            server_hostname=host,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        )
        return control

    attempt = loop.create_task(open_connection())
    try:
        await asyncio.wait({attempt}, timeout=ATTACH_SECONDS)
    finally:
        if not attempt.done():
            attempt.cancel()
    if not attempt.done():
        raise AttachError(f"{host} port {port} does not answer")
    try:
        return attempt.result()
    except ssl.SSLCertVerificationError as error:
        raise AttachError(
            f"no authority vouches for the certificate of {host}: {error.verify_message}"
        ) from None
    except OSError as error:
        raise AttachError(
            f"{host} port {port} cannot be reached: {error.strerror or error}"
        ) from None


async def keep_alive(control: ControlConnection, heartbeat_seconds: int) -> None:
    """Ask for signs of life until there are none, and return when the connection is closed.

    Args:
        control: a connection to a daemon that has welcomed this device.
        heartbeat_seconds: as the daemon has said; kept within bounds.
    """
    loop = asyncio.get_running_loop()
    seconds = min(max(heartbeat_seconds, HEARTBEAT_LEAST_SECONDS), HEARTBEAT_MOST_SECONDS)
    while not control.closed.done():
        await asyncio.wait({control.closed}, timeout=seconds)
        if loop.time() - control.heard_at > seconds * SILENT_HEARTBEATS:
            control.close("the daemon is silent")
            await control.closed
        else:
            control.send(Ping(os.urandom(PING_BYTES)))


def secure_door(host: str, pin: str) -> SecureDoor:
    """Return the door that keeps work connections with a daemon under TLS.

    Raises:
        AttachError: this Python has no TLS 1.3.
    """

    def is_ours(certificate: bytes) -> bool:
        shown = hashlib.sha256(certificate).hexdigest()
        return not pin or hmac.compare_digest(shown, pin)

    return SecureDoor(_context(pin), host, is_ours, asyncio.get_running_loop())


def _context(pin: str) -> ssl.SSLContext:
    if not ssl.HAS_TLSv1_3:
        raise AttachError("this Python has no TLS 1.3: install one from python.org")
    if pin:  # the certificate itself is compared, so none has to be read
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context

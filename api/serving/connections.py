"""The connections of the API: accepted within bounds, and cut when their clients stall."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from api.http import request_id
from api.http.aiohttp_compat import PrivateProtocol, PrivateServer
from api.http.errors import Transport, TransportError, of_transport
from api.http.evictable_slots import EvictableSlots
from api.http.forwarded import Clients
from api.http.framing import framing_problem
from api.http.limits import ApiLimits, ConnectionTimes
from api.http.memory import Memory
from api.http.prefer import Handling
from api.http.progress import Incoming, Outgoing
from api.http.rate import RateLimit
from api.routing.responses import Response, refusal
from market.base.networks import counted_network

if TYPE_CHECKING:
    import socket
    import ssl

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader

HEAD_MAX_BYTES = 32 * 1024  # of a head that comes in pieces; the parser bounds each of its lines
QUEUED_MAX = 2  # pipelined requests behind one: more of them are not read from the socket
UNHANDLED_BYTES = 32 * 1024  # of a body: no more is read until the handler takes them
UNREAD_MAX_BYTES = 64 * 1024  # of an answer, beside the kernel's buffer; then writing waits
ARRIVALS_SHARE = 2  # connections per allowed request: a client that exceeds its rate sees a 429

TOO_LONG = "The request line or a header is too long."

_logger = logging.getLogger("api")


class Server(PrivateServer):
    """aiohttp's low-level server, with a bounded number of connections.

    Args:
        clients: knows the trusted proxies. All clients of one come from its address, which is
            therefore not bounded like a client; its connections make room like others.
        tls: the TLS context; None for plain HTTP.
        request_ids: names malformed requests, for their answer and the log.
        answer_unparsed: returns the answer to a malformed request; its second argument is whether
            it was only too long.
        settings: aiohttp's own.
    """

    def __init__(
        self,
        handler: "Callable[[Request], Awaitable[web.StreamResponse]]",
        *,
        limits: ApiLimits,
        clients: Clients,
        tls: "ssl.SSLContext | None",
        request_ids: request_id.RequestIds,
        answer_unparsed: "Callable[[Transport, bool], Response] | None" = None,
        **settings: Any,  # noqa: ANN401 - aiohttp's own
    ) -> None:
        # aiohttp types the handler by the requests that it would make itself.
        super().__init__(
            cast(Any, handler),
            request_factory=Request,
            keepalive_timeout=limits.times.keepalive_seconds,
            lingering_time=limits.times.linger_seconds,
            **settings,
        )
        self.slots: EvictableSlots[Connection] = EvictableSlots()
        self.memory = Memory(limits)
        self.request_ids = request_ids
        self.answer_unparsed = answer_unparsed or _answer_unparsed
        self.unread: dict[Connection, None] = {}
        self._clients = clients
        self._tls = tls
        self._arrivals = RateLimit(limits.requests_per_second * ARRIVALS_SHARE, monotonic)
        self._timer = self.loop.call_later(self.limits.times.sweep_seconds, self._sweep)

    @property
    def limits(self) -> ApiLimits:
        """The bounds as they are now."""
        return self.memory.limits

    def change_limits(self, limits: ApiLimits) -> None:
        """Apply new bounds."""
        self.memory.limits = limits
        self._arrivals = RateLimit(limits.requests_per_second * ARRIVALS_SHARE, monotonic)

    def welcome(self, sock: "socket.socket", address: str) -> str:
        """Serve a client; else return the reason, and leave the socket to the caller."""
        network = "" if self._clients.believes(address) else counted_network(address)
        if network and not self._arrivals.allows(network):
            return f"{network} connects too often"
        limits = self.limits
        reason = self.slots.refusal(network, limits.connections, limits.share_of_connections)
        if not reason:
            connection = Connection(self, loop=self.loop, **self.protocol_settings)
            self.slots.take(connection, network)
            connection.open(sock, self._tls)
        return reason

    async def close(self, seconds: float) -> None:
        """Wait a bounded time for requests in progress, and close everything."""
        self._timer.cancel()
        await asyncio.sleep(0)  # so that the requests that have arrived begin
        self.pre_shutdown()
        await self.shutdown(seconds)
        for connection in self.slots:
            connection.cut()

    def _sweep(self) -> None:
        """Cut clients that do not read their answers."""
        now = self.loop.time()
        for connection in tuple(self.unread):
            if not connection.is_unread(now):
                del self.unread[connection]
        self._timer = self.loop.call_later(self.limits.times.sweep_seconds, self._sweep)


class Front:
    """Takes over clients: it serves none before it has a server, or after it was closed."""

    _server: Server | None = None

    def welcome(self, sock: "socket.socket", address: str) -> str:
        """Serve a client; else return the reason, and leave the socket to the caller."""
        return "nothing is served" if self._server is None else self._server.welcome(sock, address)

    def shed(self, most: int) -> int:
        """Cut at most `most` idle clients. Return the number cut."""
        return 0 if self._server is None else self._server.slots.shed(most)

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return 0 if self._server is None else len(self._server.slots)

    async def _close(self, seconds: float) -> None:
        """Wait a bounded time for requests in progress, and close everything."""
        server, self._server = self._server, None
        if server is not None:
            await server.close(seconds)


class Request(web.BaseRequest):
    """A request.

    `connection` is the connection of the request, `handling` its preference, once its route is
    known.
    """

    handling = Handling.UNSPECIFIED

    def __init__(
        self,
        message: "RawRequestMessage",
        payload: "StreamReader",
        protocol: web.RequestHandler,
        writer: "AbstractStreamWriter",
        task: "asyncio.Task[None]",
    ) -> None:
        self.connection = connection = cast(Connection, protocol)
        super().__init__(message, payload, protocol, writer, task, connection.loop)
        connection.begin_answer(writer)


class Connection(PrivateProtocol):
    """One HTTP connection; no text of a hostile request reaches the log or the answer.

    `ends_request` says whether the request in progress ends when the connection is lost.
    """

    __slots__ = (
        "_at_work",
        "_held",
        "_held_of",
        "_incoming",
        "_opening",
        "_outgoing",
        "_progress_at",
        "_server",
        "_shakes_hands",
        "_was_cut",
        "_wire",
        "ends_request",
    )

    def __init__(self, server: Server, **settings: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(server, **settings)
        self.bound_queue(QUEUED_MAX)
        self.ends_request = False
        self._server = server
        self._wire: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._shakes_hands = False
        self._was_cut = False
        self._at_work = False
        self._incoming = Incoming()
        self._outgoing = Outgoing()
        self._progress_at = 0.0  # when a body came on, or an answer left, by the loop's clock
        # Bytes that count for the memory of a client, until the request is answered.
        self._held_of = ""
        self._held = 0

    def open(self, sock: "socket.socket", tls: "ssl.SSLContext | None") -> None:
        """Begin to speak with a client."""
        self._opening = self.loop.create_task(self._open(sock, tls))

    async def _open(self, sock: "socket.socket", tls: "ssl.SSLContext | None") -> None:
        if self._was_cut:
            sock.close()
            return
        times = {}
        if tls is not None:
            self._shakes_hands = True
            times = {
                "ssl_handshake_timeout": self.times.tls_seconds,
                "ssl_shutdown_timeout": self.times.tls_shutdown_seconds,
            }
        try:
            await self.loop.connect_accepted_socket(lambda: self, sock, ssl=tls, **times)
        except (OSError, RuntimeError, asyncio.CancelledError) as error:
            _logger.debug("a connection failed before its first request: %s", type(error).__name__)
            self._server.slots.give(self)
        finally:
            self._shakes_hands = False
            self._opening = None

    @property
    def times(self) -> ConnectionTimes:
        """The times of the server's connections."""
        return self._server.limits.times

    # --- making room ------------------------------------------------------------------------

    @property
    def can_leave(self) -> bool:
        """Whether it is idle, or its client does not send its body and does not read the answer."""
        if not self._at_work and not self._waiting_bytes:
            return True
        if not self._incoming.is_read and not self._waiting_bytes:
            return False
        self._note_leaving()
        return self.loop.time() - self._progress_at >= self.times.stalled_seconds

    def cut(self) -> None:
        """Close the connection, and drop the bytes that its client has not read."""
        self._was_cut = True
        if self._wire is not None:
            self._wire.abort()
        elif self._opening is not None and self._shakes_hands:
            self._opening.cancel()

    # --- called by aiohttp -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read, unless the connection was cut before."""
        super().connection_made(transport)
        self._wire = cast(asyncio.Transport, transport)
        self._wire.set_write_buffer_limits(high=UNREAD_MAX_BYTES)
        if self._was_cut:
            self._wire.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the slot, and the reader and writer, which refer to the connection.

        Otherwise it stays in memory until the next collection of garbage.
        """
        serving = self.serving
        super().connection_lost(exc)
        self._incoming.end()
        self._outgoing.end()
        self._server.slots.give(self)
        self._server.unread.pop(self, None)
        if self.ends_request and serving is not None:
            serving.cancel()

    def data_received(self, data: bytes) -> None:
        """Count arriving bytes, and have them parsed."""
        incoming = self._incoming
        if self.is_raw:
            self._server.slots.touch(self)
        elif incoming.body.is_eof():
            incoming.head_bytes += len(data)
        elif incoming.is_progress(len(data)):
            self._progress_at = self.loop.time()
            self._server.slots.touch(self)
        parsed = self.parsed
        super().data_received(data)
        queued = self.queued
        if self.parsed != parsed:
            self.refuse_newest(self.parsed - parsed, framing_problem)
        if queued:
            incoming.body = self.newest_body
        if self.parsed != parsed:
            incoming.head_bytes = 0
        elif incoming.head_bytes > HEAD_MAX_BYTES and not self.reads_no_more and not queued:
            self.refuse(LineTooLong(b"", str(HEAD_MAX_BYTES)))

    def pause_writing(self) -> None:
        """Stop writing: the client reads more slowly than the answer is written."""
        super().pause_writing()
        self._watch_unread()

    def request_begins(self) -> None:
        """Note that the connection is at work."""
        self._at_work = True
        self._server.slots.touch(self)

    def request_ended(self) -> None:
        """Note that the connection is idle, and watch that the client reads the answer."""
        self._at_work = False
        self._give_memory()
        self._server.slots.touch(self)
        if self._waiting_bytes:
            self._watch_unread()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes the request
    ) -> web.StreamResponse:
        """Return the answer to a malformed request, and log one line."""
        reason = Transport.BAD_REQUEST if status < 500 else Transport.INTERNAL_ERROR
        if isinstance(exc, TransportError):
            reason = exc.reason
        name = self._server.request_ids.chosen("")
        token = request_id.current.set(name)
        _logger.info("malformed request from %s (%s)", request.remote, type(exc).__name__)
        request_id.current.reset(token)
        response = self._server.answer_unparsed(reason, isinstance(exc, LineTooLong))
        response.add(request_id.HEADER, name)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - aiohttp's own
        """Log one line, without anything that the client has sent."""
        error = kwargs.get("exc_info")
        level = logging.INFO if isinstance(error, web.RequestPayloadError) else logging.ERROR
        _logger.log(level, "%s: %s", args[0] if args else "failed", type(error).__name__)

    # --- input -------------------------------------------------------------------------------

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Within the block a body is awaited; a client that sends none of it makes room."""
        self._incoming.is_read = True
        self._progress_at = self.loop.time()
        try:
            yield
        finally:
            self._incoming.is_read = False

    def hold(self, client: str, size: int) -> None:
        """Count bytes that the request in progress has in memory, until it is answered.

        Raises:
            MarketError: `too_busy`, when its network, or all, have too many.
        """
        self._server.memory.take(client, size)
        self._held_of = client
        self._held += size

    def expect(self, client: str, size: int) -> None:
        """Check that memory for a body is available, before the body arrives.

        Raises:
            MarketError: `too_busy`, as `hold`.
        """
        self._server.memory.check(client, size)

    def _give_memory(self) -> None:
        if self._held:
            self._server.memory.give(self._held_of, self._held)
            self._held = 0

    # --- output ------------------------------------------------------------------------------

    def begin_answer(self, writer: "AbstractStreamWriter") -> None:
        """Store the writer of the answer to the next request."""
        self._outgoing.begin(writer)

    def is_unread(self, now: float) -> bool:
        """Return whether part of an answer waits; cut the connection after too long a wait."""
        if not self._waiting_bytes:
            return False
        if self._note_leaving():
            self._server.slots.touch(self)
        patience_seconds = self._server.limits.stall_seconds
        if self._outgoing.is_overdue(now, patience_seconds, self.times.read_bytes_per_second_min):
            _logger.info("connection cut: the client does not read its answer")
            self.cut()
            return False
        return True

    @property
    def _waiting_bytes(self) -> int:
        """The bytes of answers that the kernel has not taken yet."""
        return 0 if self._wire is None else self._wire.get_write_buffer_size()

    def _note_leaving(self) -> bool:
        """Note the bytes that have left. Return whether there are more than before."""
        if not self._outgoing.has_left_more(self._waiting_bytes):
            return False
        self._progress_at = self.loop.time()
        return True

    def _watch_unread(self) -> None:
        if self not in self._server.unread:
            now = self._progress_at = self.loop.time()
            self._outgoing.watch(now, self._waiting_bytes)
            self._server.unread[self] = None


def connection_of(request: web.BaseRequest) -> Connection:
    """Return the connection of a request."""
    return cast(Connection, request.protocol)


def _answer_unparsed(reason: Transport, is_too_long: bool) -> Response:
    return refusal(of_transport(reason, message=TOO_LONG if is_too_long else None))

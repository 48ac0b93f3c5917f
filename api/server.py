"""The HTTP server: reads a request, calls its route, writes the response; aiohttp underneath."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from ipaddress import ip_address, ip_network
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import msgspec
from aiohttp import web
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from aiohttp.web_protocol import RequestHandler

from api import errors, events, openapi
from api.codec import Decoder, convert_query
from api.errors import Failure, Transport, TransportError
from api.forms import Form, Uploads, continued
from api.pages import Page, pages
from api.rate import RateLimit
from api.router import Router
from api.routes import Auth, Call, Encoded, Nothing, Route, Streamed, encode
from market.accounts import Caller
from market.errors import Code, MarketError
from market.once import Once, Replayed, Seal
from storage.devices import DeviceRow
from storage.errors import StoreError

if TYPE_CHECKING:
    import socket
    import ssl

BODY_TIMEOUT_SECONDS = 30.0
KEEPALIVE_SECONDS = 75.0
SHUTDOWN_SECONDS = 5.0
JSON = "application/json"
SERVER = "proxyd"

Authenticate = Callable[[str], Awaitable[Caller]]
AuthenticateWorker = Callable[[str], Awaitable[DeviceRow]]

_logger = logging.getLogger("api")


class HttpServer:
    """Serves a table of routes on one listening socket.

    Args:
        routes: the table.
        authenticate: returns whose session token it is given, or raises `MarketError`.
        authenticate_worker: the same for the tokens of worker devices.
        body_max_bytes: the largest request body.
        seal: seals the answers that are kept for requests with an Idempotency-Key.
        now: the wall clock, in UTC seconds.
        trusted_proxies: networks whose X-Forwarded-For is believed.
        requests_per_second: how often a caller may ask; 0 for no limit.
        connections_max: how many may be open; whoever waits longest makes room for one more.
        version: the program's, for the document that describes the API.
        base_url: how the outside world reaches the API, for the same.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        authenticate: Authenticate,
        authenticate_worker: AuthenticateWorker,
        body_max_bytes: int,
        seal: Seal,
        now: Callable[[], int],
        trusted_proxies: Iterable[str] = (),
        requests_per_second: int = 0,
        connections_max: int = 1000,
        version: str = "",
        base_url: str = "",
    ) -> None:
        self.routes = table = tuple(routes)
        self.openapi = openapi.document(table, version=version, base_url=base_url)
        self._pages = pages(msgspec.json.encode(self.openapi))
        self._router = Router(table)
        self._decoders = {
            route.body: Decoder(route.body) for route in table if not route.form_max_bytes
        }
        self._authenticate = authenticate
        self._authenticate_worker = authenticate_worker
        self._body_max_bytes = body_max_bytes
        self._trusted_proxies = tuple(ip_network(text) for text in trusted_proxies)
        self._seal = seal
        self._wall_clock = now
        self._connections_max = connections_max
        self._rate = RateLimit(requests_per_second, monotonic)
        self._uploads = Uploads()
        self._draining = False
        self._runner: web.ServerRunner | None = None

    async def start(self, listener: "socket.socket", tls: "ssl.SSLContext | None") -> None:
        """Begin to serve on a socket that listens already."""
        server = _Server(
            self._respond,
            connections_max=self._connections_max,
            request_factory=self._request,
            access_log=None,
            keepalive_timeout=KEEPALIVE_SECONDS,
            logger=_logger,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=tls, backlog=1024).start()

    def drain(self) -> None:
        """From now on answer every new request with `draining`."""
        self._draining = True

    async def stop(self) -> None:
        """Let requests in progress finish, for a bounded time, and close everything."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _request(self, *parts: Any) -> web.BaseRequest:  # noqa: ANN401 - aiohttp's own
        message, payload, protocol, writer, task = parts
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            asyncio.get_running_loop(),
            client_max_size=self._body_max_bytes,
        )

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            page = self._pages.get(request.path)
            if page is not None:
                return _shown(request, page)
            route, names = self._router.find(request.method, request.path)
            if self._draining and not route.while_draining:
                raise TransportError(Transport.DRAINING)
            reply = await route.handler(await self._call(request, route, names))
            if isinstance(reply, Streamed):
                return await events.send(request, reply.events, {"Server": SERVER})
            body = reply.body if isinstance(reply, Encoded) else encode(reply)
            return _response(200, body, {})
        except Replayed as replayed:
            return _response(200, replayed.answer, {"Idempotency-Replayed": "true"})
        except MarketError as error:
            failure = errors.of_market(error)
        except TransportError as error:
            failure = errors.of_transport(error.reason, error.headers)
        except StoreError as error:
            _logger.error("%s %s: the store failed: %s", request.method, request.path, error)
            failure = errors.of_transport(Transport.STORE_UNAVAILABLE)
        except Exception:
            _logger.exception("%s %s failed", request.method, request.path)
            failure = errors.of_transport(Transport.INTERNAL_ERROR)
        return _refusal(failure)

    async def _call(
        self, request: web.BaseRequest, route: Route, names: dict[str, str]
    ) -> Call[Any, Any]:
        client = self._client(request)
        login, worker = await self._identify(request, route, client)
        query: object = None
        if route.query is not Nothing:
            query = convert_query(dict(request.query), route.query)
        body: object = None
        sent = b""
        if route.form_max_bytes:
            body = Form(
                request,
                route.body,
                max_bytes=route.form_max_bytes,
                uploads=self._uploads,
                client=client,
            )
        elif route.body is not Nothing:
            absent = route.body_optional and not request.body_exists
            sent = b"{}" if absent else await self._body(request)
            body = self._decoders[route.body].decode(sent)
        once = None
        key = request.headers.get("Idempotency-Key")
        if route.idempotent and login is not None and key is not None:
            asked = sha256(b"\0".join((request.method.encode(), request.path.encode(), sent)))
            once = Once(
                login.profile.user_id, key, asked.hexdigest(), self._seal, self._wall_clock()
            )
        accepted = request.headers.get("Accept-Language", "")
        return Call(body, query, names, client, login, once, worker, accepted)

    async def _identify(
        self, request: web.BaseRequest, route: Route, client: str
    ) -> tuple[Caller | None, DeviceRow | None]:
        """Return who calls; each caller may call so often, and each address that is nobody."""
        login, worker = None, None
        identity = client
        try:
            is_somebody = route.auth is Auth.OPTIONAL_JWT and "Authorization" in request.headers
            if route.auth is Auth.JWT or is_somebody:
                login = await self._authenticate(_bearer(request))
                identity = login.session_id
            elif route.auth is Auth.WORKER:
                worker = await self._authenticate_worker(request.headers.get("X-Worker-Token", ""))
                identity = worker.id
        finally:
            if not route.while_draining and not self._rate.allows(identity):
                raise TransportError(Transport.TOO_MANY_REQUESTS)
        return login, worker

    def _client(self, request: web.BaseRequest) -> str:
        """Return the client's address: what a trusted proxy says it is, or where it came from."""
        address = request.remote or ""
        if not self._trusted_proxies:
            return address
        hops = [hop.strip() for hop in request.headers.get("X-Forwarded-For", "").split(",")]
        while hops and self._is_trusted(address):
            address = hops.pop() or address
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(
            parsed.version == network.version and parsed in network
            for network in self._trusted_proxies
        )

    async def _body(self, request: web.BaseRequest) -> bytes:
        declared = request.headers.get("Content-Type")
        if declared is not None and declared.partition(";")[0].strip().lower() != JSON:
            raise TransportError(Transport.UNSUPPORTED_MEDIA_TYPE)
        if (request.content_length or 0) > self._body_max_bytes:
            raise TransportError(Transport.BODY_TOO_LARGE)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                await continued(request)
                return await request.read()
        except TimeoutError as error:
            raise TransportError(Transport.REQUEST_TIMEOUT) from error
        except HTTPRequestEntityTooLarge as error:
            raise TransportError(Transport.BODY_TOO_LARGE) from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise TransportError(Transport.BAD_REQUEST) from error


class _Server(web.Server):
    """aiohttp's low-level server, whose connections answer broken requests as the API does."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        connections_max: int,
        **settings: Any,  # noqa: ANN401 - aiohttp's own
    ) -> None:
        super().__init__(handler, **settings)
        self._connections_max = connections_max

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def make_room(self, newest: "_Connection") -> None:
        """Close the oldest connection without a request when there is one too many."""
        connections = self.connections
        if len(connections) > self._connections_max:
            waiting = (each for each in connections if cast(_Connection, each).is_waiting)
            next(waiting, newest).force_close()


class _Connection(RequestHandler):
    """One HTTP connection; nothing of a hostile request reaches the log or the answer."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(_Server, self._manager).make_room(self)

    @property
    def is_waiting(self) -> bool:
        """Whether it has asked for nothing that is not answered."""
        return self._current_request is None and not self._messages

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes the request
    ) -> web.StreamResponse:
        reason = Transport.BAD_REQUEST if status < 500 else Transport.INTERNAL_ERROR
        _logger.info("refused a malformed request from %s (%s)", request.remote, type(exc).__name__)
        response = _refusal(errors.of_transport(reason))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - aiohttp's own
        error = kwargs.get("exc_info")
        level = logging.INFO if isinstance(error, web.RequestPayloadError) else logging.ERROR
        _logger.log(level, "%s: %s", args[0] if args else "failed", type(error).__name__)


def _bearer(request: web.BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise MarketError(Code.UNAUTHORIZED)
    return token.strip()


def _shown(request: web.BaseRequest, page: Page) -> web.Response:
    if request.method not in ("GET", "HEAD"):
        raise TransportError(Transport.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
    return _response(200, page.body, {"Content-Type": page.content_type, **page.headers})


def _response(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(
        status=status, body=body, headers={"Content-Type": JSON, "Server": SERVER, **headers}
    )


def _refusal(failure: Failure) -> web.Response:
    return _response(failure.status, encode(failure.body), failure.headers)

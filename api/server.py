"""The HTTP server: reads a request, calls its route, writes the response; aiohttp underneath."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from aiohttp.web_protocol import RequestHandler

from api import errors, events, openapi, request_id
from api import metrics as exposed
from api.clients import Clients
from api.codec import Decoder, convert_query
from api.errors import Failure, Transport, TransportError
from api.forms import Form, Uploads, continued, too_large, unsupported_media_type
from api.metrics import Exposition
from api.pages import Page, pages
from api.rate import RateLimit
from api.router import Router, routed, wrong_method
from api.routes import Auth, Call, Encoded, Nothing, Route, Streamed, encode
from market.accounts import Caller
from market.errors import Code, MarketError
from market.networks import counted_network
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

NO_AUTHORIZATION = (
    "There is no Authorization header; send Authorization: Bearer and the token that logging in "
    "returns."
)
TOO_LONG = "The request line or a header is too long."
NOT_BEARER = "The Authorization header is not the word Bearer, a space and a session token."
NOT_A_WORKER = (
    "This path is for people: it wants a session token behind Authorization: Bearer, not a worker "
    "token."
)
NO_DEVICE = "There is no X-Worker-Token header; send one with the token of this device."
NOT_A_PERSON = (
    "This path is for worker devices: it wants a worker token in the header X-Worker-Token, not a "
    "session token."
)

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
        more_pages: what is shown beside that document and its page, by path.
        exposition: the metrics, if there are any to read.
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
        more_pages: Mapping[str, Page] | None = None,
        exposition: Exposition | None = None,
    ) -> None:
        self.routes = table = tuple(routes)
        self._describe = partial(openapi.document, table, version=version, base_url=base_url)
        self._pages = pages(lambda: msgspec.json.encode(self.openapi) + b"\n") | dict(
            more_pages or {}
        )
        self._router = Router(table)
        self._decoders = {
            route.body: Decoder(route.body) for route in table if not route.form_max_bytes
        }
        self._authenticate = authenticate
        self._authenticate_worker = authenticate_worker
        self._body_max_bytes = body_max_bytes
        self._clients = Clients(trusted_proxies)
        self._seal = seal
        self._wall_clock = now
        self._connections_max = connections_max
        self._rate = RateLimit(requests_per_second, monotonic)
        self._uploads = Uploads()
        self._exposition = exposition
        self._draining = False
        self._runner: web.ServerRunner | None = None

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The document that describes the API."""
        return self._describe()

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

    def change_rate(self, requests_per_second: int) -> None:
        """Hold callers to another rate from now on; 0 for none."""
        self._rate = RateLimit(requests_per_second, monotonic)

    def drain(self) -> None:
        """From now on answer every new request with `draining`."""
        self._draining = True

    async def leave(self) -> None:
        """Accept no new connection; whoever holds the socket keeps it for the next daemon."""
        if self._runner is not None:
            for site in tuple(self._runner.sites):
                await site.stop()

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
        name = request_id.chosen(request.headers.get(request_id.HEADER, ""))
        token = request_id.current.set(name)
        try:
            response = await self._answer(request)
            _logger.debug("%s %s: %d", request.method, request.path, response.status)
        finally:
            request_id.current.reset(token)
        response.headers[request_id.HEADER] = name
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            path = routed(request.rel_url.raw_path)
            if path == exposed.PATH and self._exposition is not None:
                return self._measured(request, self._exposition)
            page = self._pages.get(path)
            if page is not None:
                return _shown(request, page)
            route, names = self._router.find(request.method, path)
            if self._draining and not route.while_draining:
                raise TransportError(Transport.DRAINING)
            cast(_Connection, request.protocol).ends_request = route.ends_with_client
            reply = await route.handler(await self._call(request, route, names))
            if isinstance(reply, Streamed):
                headers = {"Server": SERVER, request_id.HEADER: request_id.current.get()}
                return await events.send(request, reply.events, headers)
            body = reply.body if isinstance(reply, Encoded) else encode(reply)
            return _response(200, body, {})
        except Replayed as replayed:
            return _response(200, replayed.answer, {"Idempotency-Replayed": "true"})
        except MarketError as error:
            failure = errors.of_market(error)
        except TransportError as error:
            failure = errors.of_transport(error.reason, error.headers, error.message)
        except StoreError as error:
            _logger.error("%s %s: the store failed: %s", request.method, request.path, error)
            failure = errors.of_transport(Transport.STORE_UNAVAILABLE)
        except Exception:
            _logger.exception("%s %s failed", request.method, request.path)
            failure = errors.of_transport(Transport.INTERNAL_ERROR)
        finally:
            cast(_Connection, request.protocol).ends_request = False
        return _refusal(failure)

    def _measured(self, request: web.BaseRequest, exposition: Exposition) -> web.Response:
        """Return the metrics to whoever may see them; to others there is nothing here."""
        says_forwarded = "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
        forwarded = says_forwarded and not self._clients.believes(request.remote or "")
        if not exposition.permits(self._client(request), forwarded=forwarded):
            raise TransportError(Transport.NO_SUCH_PATH)
        if request.method not in ("GET", "HEAD"):
            raise TransportError(Transport.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        return _response(200, exposition.render(), {"Content-Type": exposed.CONTENT_TYPE})

    def _client(self, request: web.BaseRequest) -> str:
        forwarded = request.headers.getall("X-Forwarded-For", ())
        return self._clients.identify(request.remote or "", forwarded)

    async def _call(
        self, request: web.BaseRequest, route: Route, names: dict[str, str]
    ) -> Call[Any, Any]:
        address = self._client(request)
        client = counted_network(address)
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
                user_id=login.profile.user_id if login is not None else "",
            )
        elif route.body is not Nothing:
            absent = route.body_optional and not request.body_exists
            sent = b"" if absent else await self._body(request)
            if route.body_optional and not sent:
                sent = b"{}"
            body = self._decoders[route.body].decode(sent)
        once = None
        key = request.headers.get("Idempotency-Key")
        if route.idempotent and key is not None:
            user_id = login.profile.user_id if login is not None else ""
            asked = b"\0".join((request.method.encode(), request.path.encode(), sent))
            once = Once(user_id, key, self._seal.fingerprint(asked), self._seal, self._wall_clock())
        accepted = request.headers.get("Accept-Language", "")
        return Call(body, query, names, client, login, once, worker, accepted, address)

    async def _identify(
        self, request: web.BaseRequest, route: Route, client: str
    ) -> tuple[Caller | None, DeviceRow | None]:
        """Return who calls; each caller may call so often, and each network that is nobody."""
        login, worker = None, None
        identity = client
        try:
            auth = _shown_auth(route.auth, request.headers)
            if auth is Auth.JWT:
                login = await self._authenticate(_bearer(request))
                identity = login.session_id
            elif auth is Auth.WORKER:
                worker = await self._authenticate_worker(_worker_token(request))
                identity = worker.id
        finally:
            if not route.while_draining and not self._rate.allows(identity):
                raise TransportError(Transport.TOO_MANY_REQUESTS)
        return login, worker

    async def _body(self, request: web.BaseRequest) -> bytes:
        declared = request.headers.get("Content-Type")
        if declared is not None and declared.partition(";")[0].strip().lower() != JSON:
            raise unsupported_media_type(JSON)
        if (request.content_length or 0) > self._body_max_bytes:
            raise too_large(self._body_max_bytes)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                await continued(request)
                return await request.read()
        except TimeoutError as error:
            raise TransportError(Transport.REQUEST_TIMEOUT) from error
        except HTTPRequestEntityTooLarge as error:
            raise too_large(self._body_max_bytes) from error
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
    """One HTTP connection; nothing of a hostile request reaches the log or the answer.

    `ends_request` says whether the request in progress ends when the connection is lost.
    """

    __slots__ = ("ends_request",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(*args, **kwargs)
        self.ends_request = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(_Server, self._manager).make_room(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        serving = self._task_handler
        super().connection_lost(exc)
        if self.ends_request and serving is not None:
            serving.cancel()

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
        name = request_id.chosen("")
        token = request_id.current.set(name)
        words = "refused a malformed request from %s (%s)"
        _logger.info(words, request.remote, type(exc).__name__)
        request_id.current.reset(token)
        told = TOO_LONG if isinstance(exc, LineTooLong) else None
        response = _refusal(errors.of_transport(reason, message=told))
        response.headers[request_id.HEADER] = name
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - aiohttp's own
        error = kwargs.get("exc_info")
        level = logging.INFO if isinstance(error, web.RequestPayloadError) else logging.ERROR
        _logger.log(level, "%s: %s", args[0] if args else "failed", type(error).__name__)


def _shown_auth(auth: Auth, headers: Mapping[str, str]) -> Auth:
    """Return what a caller must show in the end: what is optional counts once it is shown."""
    if auth is Auth.OPTIONAL_EITHER and "X-Worker-Token" in headers:
        return Auth.WORKER
    if auth in (Auth.OPTIONAL_EITHER, Auth.OPTIONAL_JWT):
        return Auth.JWT if "Authorization" in headers else Auth.NONE
    return auth


def _bearer(request: web.BaseRequest) -> str:
    shown = request.headers.get("Authorization")
    if shown is None and "X-Worker-Token" in request.headers:
        raise MarketError(Code.UNAUTHORIZED, NOT_A_WORKER)
    if shown is None:
        raise MarketError(Code.UNAUTHORIZED, NO_AUTHORIZATION)
    scheme, _, token = shown.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MarketError(Code.UNAUTHORIZED, NOT_BEARER)
    return token.strip()


def _worker_token(request: web.BaseRequest) -> str:
    shown = request.headers.get("X-Worker-Token")
    if shown is None:
        mixed_up = "Authorization" in request.headers
        raise MarketError(Code.WORKER_UNAUTHORIZED, NOT_A_PERSON if mixed_up else NO_DEVICE)
    return shown


def _shown(request: web.BaseRequest, page: Page) -> web.Response:
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.method, ("GET", "HEAD"))
    return _response(200, page.body, {"Content-Type": page.content_type, **page.headers})


def _response(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(
        status=status, body=body, headers={"Content-Type": JSON, "Server": SERVER, **headers}
    )


def _refusal(failure: Failure) -> web.Response:
    return _response(failure.status, encode(failure.body), failure.headers)

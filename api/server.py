"""The HTTP server: reads a request, calls its route, writes the response; aiohttp underneath.

A request goes through these steps: the server finds its route, authenticates its caller, and
decodes its body into the route's type. The handler calls one function of the market, which runs one
unit of work in one transaction. The server encodes the typed reply. A refusal anywhere is a
`MarketError` with a code, and becomes an HTTP answer here, once (`http/errors.py`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import hdrs, web
from msgspec import Struct, structs

from api import openapi
from api.console import PREFIX, Console
from api.files import downloads
from api.http import errors, prefer, request_id
from api.http.accept import prefers_page
from api.http.allowed import Allowed, is_forwarded
from api.http.errors import Transport, TransportError
from api.http.forwarded import Clients
from api.http.limits import ApiLimits
from api.http.prefer import Handling
from api.http.rate import Rates
from api.ops import metrics as exposed
from api.ops.metrics import Exposition
from api.routing import sse
from api.routing.callers import (
    Authenticate,
    AuthenticateKey,
    AuthenticateStaff,
    AuthenticateWorker,
    Callers,
)
from api.routing.cookies import Cookies
from api.routing.lasting import GoesOn, while_read
from api.routing.pages import PAGE_PATH, Page, pages
from api.routing.responses import CSV, NO_SNIFF, PLAIN, SERVER, SLICE_BYTES, Response, refusal
from api.routing.router import Router, routed, wrong_method
from api.routing.routes import (
    Call,
    Csv,
    Download,
    Encoded,
    Redirect,
    Reply,
    Route,
    Streamed,
    Text,
    WithCookie,
    encode,
)
from api.serving.calls import CallReader
from api.serving.connections import UNHANDLED_BYTES, Front, Request, Server
from api.serving.patience import Patience
from api.site.pages import PublicPages
from market.accounts.accounts import Caller
from market.base.errors import MarketError
from market.base.networks import counted_network
from market.events.idempotency import Replayed, Seal
from market.staff.base.callers import StaffCaller
from storage.blobs.base import BlobError, FullError
from storage.engines.errors import StoreError, UnknownOutcomeError, level_of

if TYPE_CHECKING:
    import socket
    import ssl

# A switchover loses the answer to a commit so soon.
REPEATED_WITHIN_SECONDS = 3.0
# Of answers in the form that the client asks for.
OF_CLIENT = {"Vary": "Accept"}
HEADERS_FOR_PROXIES = (hdrs.PROXY_AUTHORIZATION, "Proxy-Connection")
_logger = logging.getLogger("api")


class _Fixed:
    """Answers that no route makes: pages, the console and the metrics.

    Args:
        console: the pages of the console, if they are served.
        exposition: the metrics, if they are served.
    """

    def __init__(
        self,
        served: Mapping[str, Page],
        console: Console | None,
        exposition: Exposition | None,
        clients: Clients,
    ) -> None:
        self._pages = served
        self._console = console
        self._exposition = exposition
        self._clients = clients

    def find(self, request: Request, path: str) -> Callable[[], Response] | None:
        """Return the function that makes the answer; None if a route has to answer."""
        page = self._pages.get(path)
        if page is None and self._console is not None:
            page = self._console.page(path)
        if page is None and self._is_visit(request, path):
            return _visit
        if path == exposed.PATH and self._exposition is not None:
            return partial(self._metrics, request, self._exposition)
        return None if page is None else partial(_page, request, page)

    def _is_visit(self, request: Request, path: str) -> bool:
        """Return whether a browser opens the service's address; programs get JSON there."""
        if path != "/" or self._console is None or request.method not in ("GET", "HEAD"):
            return False
        return prefers_page(request.headers.get(hdrs.ACCEPT, ""))

    def _metrics(self, request: Request, exposition: Exposition) -> Response:
        """Return the metrics to a client that may read them; to others the path does not exist."""
        client = _client_of(request, self._clients)
        forwarded = _hides_client(request, self._clients)
        host = request.headers.get(hdrs.HOST, "")
        if not exposition.permits(client, host, forwarded=forwarded):
            raise TransportError(Transport.NO_SUCH_PATH)
        if request.method not in ("GET", "HEAD"):
            raise TransportError(Transport.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        return Response(200, exposition.render(), {"Content-Type": exposed.CONTENT_TYPE})


class Face(Struct, frozen=True):
    """The outside of an API beside its routes.

    Attributes:
        version: the program's, for the document of the API.
        base_url: the public address of the API, for the same.
        document: makes its OpenAPI document, of its routes; None for the one of the users' API.
        pages: makes its pages, of a function that makes the document as JSON.
        handling: of fields that a path does not have, where a request prefers none.
        public: the public pages of the service, if they are served.
        allowed: the clients that get an answer; None for all.
        listed_at: the path that lists the paths of the API.
        count: counts the requests to each route, with the error of one that was not done.
    """

    version: str = ""
    base_url: str = ""
    document: Callable[..., dict[str, Any]] | None = None
    pages: Callable[[Callable[[], bytes]], Mapping[str, Page]] = pages
    handling: Handling = Handling.UNSPECIFIED
    public: PublicPages | None = None
    allowed: Allowed | None = None
    listed_at: str = PAGE_PATH
    count: Callable[[Route, Exception | None], None] | None = None


FACE_OF_USERS = Face()


class HttpServer(Front):
    """Serves a table of routes to clients whose sockets it is handed.

    Args:
        authenticate: returns the login of a session token, or raises `MarketError`.
        authenticate_key: the same for an API key, and the address that it is shown from.
        authenticate_worker: the same for the tokens of worker devices.
        authenticate_staff: the same for members of the staff; None where none calls.
        is_current: says whether the login or key of a caller is valid; long answers end with it.
        body_max_bytes: the largest request body; a route takes less if its type is smaller.
        seal: seals the answers that are stored for requests with an Idempotency-Key.
        now: the wall clock, in UTC seconds.
        trusted_proxies: networks whose X-Forwarded-For is believed.
        limits: bounds on the use by clients.
        cookies: reads the login of a browser.
        console: its pages, if they are served.
        exposition: the metrics, if they are served.
        face: its document and pages, and the clients that it answers.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        authenticate: Authenticate,
        authenticate_key: AuthenticateKey,
        authenticate_worker: AuthenticateWorker,
        is_current: Callable[[Any], Awaitable[bool]],
        body_max_bytes: int,
        seal: Seal,
        now: Callable[[], int],
        trusted_proxies: Iterable[str] = (),
        limits: ApiLimits | None = None,
        cookies: Cookies | None = None,
        console: Console | None = None,
        exposition: Exposition | None = None,
        authenticate_staff: AuthenticateStaff | None = None,
        face: Face = FACE_OF_USERS,
    ) -> None:
        self.routes = table = tuple(routes)
        self._face = face
        self._router = Router(table, face.listed_at)
        self._clients = Clients(trusted_proxies)
        served = face.pages(lambda: msgspec.json.encode(self.openapi) + b"\n")
        self._fixed = _Fixed(served, console, exposition, self._clients)
        self._is_current = is_current
        self._limits = limits or ApiLimits()
        self._callers = Callers(
            authenticate,
            authenticate_key,
            authenticate_worker,
            Rates(self._limits, monotonic),
            cookies,
            authenticate_staff,
        )
        self._calls = CallReader(table, self._callers, is_current, body_max_bytes, seal, now)
        self._request_ids = request_id.RequestIds()
        self._draining = False

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The document that describes the API."""
        face = self._face
        document = face.document or openapi.document
        return document(self.routes, version=face.version, base_url=face.base_url)

    def start(self, tls: "ssl.SSLContext | None") -> None:
        """Begin to serve clients, over TLS if there is a context."""
        self._server = Server(
            self._respond,
            limits=self._limits,
            clients=self._clients,
            tls=tls,
            request_ids=self._request_ids,
            access_log=None,
            read_bufsize=UNHANDLED_BYTES,
            logger=_logger,
        )

    def welcome(self, sock: "socket.socket", address: str) -> str:
        """Serve a client; else return the reason, and leave the socket to the caller."""
        if self._face.allowed is not None and not self._face.allowed.permits(address):
            return f"{address} is outside the allowed networks"
        return super().welcome(sock, address)

    def change_limits(self, limits: ApiLimits) -> None:
        """Apply new bounds from now on; the times stay as they are."""
        self._limits = limits = structs.replace(limits, times=self._limits.times)
        self._callers.rates = Rates(limits, monotonic)
        if self._server is not None:
            self._server.change_limits(limits)

    def drain(self) -> None:
        """Begin to answer every new request with `draining`."""
        self._draining = True

    async def stop(self) -> None:
        """Wait a bounded time for requests in progress, and close everything."""
        await self._close(self._limits.times.shutdown_seconds)

    def _is_answered(self, request: Request, allowed: Allowed) -> bool:
        """Return whether an allowed client has sent a request, also behind a web server."""
        return allowed.permits(self._client(request)) and not _hides_client(request, self._clients)

    async def _respond(self, request: Request) -> web.StreamResponse:
        allowed = self._face.allowed
        if allowed is not None and not self._is_answered(request, allowed):
            request.connection.cut()
            return refusal(errors.of_transport(Transport.NO_SUCH_PATH))  # the connection is cut
        name = self._request_ids.chosen(request.headers.get(request_id.HEADER, ""))
        token = request_id.current.set(name)
        try:
            try:
                answer = await self._served(request, self._client(request))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
                answer = _answer_of(error, request)
            if _logger.isEnabledFor(logging.DEBUG):  # the path has to be decoded for it
                _logger.debug("%s %s: %d", request.method, request.path, answer.status)
        finally:
            request.connection.ends_request = False
            request_id.current.reset(token)
        if isinstance(answer, Response):  # a streamed answer has been sent
            answer.add(request_id.HEADER, name)
            if request.handling is not Handling.UNSPECIFIED:
                for header, value in _applied(request).items():
                    answer.add(header, value)
        return answer

    async def _served(self, request: Request, address: str) -> web.StreamResponse:
        client = counted_network(address)
        if _is_for_proxy(request):
            await self._callers.rates.count(client)
            raise TransportError(Transport.MISDIRECTED)
        path = routed(request.rel_url.raw_path)
        fixed = self._fixed.find(request, path)
        if fixed is not None:
            await self._callers.rates.count(client)
            return fixed()
        public = None if self._face.public is None else self._face.public.find(path)
        if public is not None:
            await self._callers.rates.count(client)
            languages = request.headers.get(hdrs.ACCEPT_LANGUAGE, "")
            return _page(request, await public(request.rel_url.query, languages))
        try:
            route, names = self._router.find(request.method, path)
        except TransportError:  # an unknown path also counts against the rate
            await self._callers.rates.count(client)
            raise
        request.handling = self._face.handling
        if prefer.HEADER in request.headers:
            request.handling = prefer.handling(request.headers.getall(prefer.HEADER))
        if self._draining and not route.while_draining:
            raise TransportError(Transport.DRAINING)
        request.connection.ends_request = route.ends_with_client
        answering = self._routed(request, route, names, client, address)
        count = self._face.count
        return await (answering if count is None else _counted(answering, partial(count, route)))

    async def _routed(
        self, request: Request, route: Route, names: dict[str, str], client: str, address: str
    ) -> web.StreamResponse:
        call = await self._calls.read(request, route, names, client, address)
        if route.is_held:
            return await _held(request, route, call)
        return await _answered(request, route, call, partial(self._lasting, request, call))

    def _lasting(self, request: Request, call: Call[Any, Any]) -> GoesOn | None:
        """Return the repeated login check of a request; None for one that needs no login."""
        login = call.login or call.member
        if login is None and call.worker is None:
            return None
        check = partial(self._goes_on, request, login)
        return GoesOn(check, self._limits.times.login_check_seconds)

    async def _goes_on(self, request: Request, login: Caller | StaffCaller | None) -> bool:
        """Return whether a login or a device may still read; True while the store is away."""
        try:
            if login is not None:
                return await self._is_current(login)
            return await self._callers.is_device(request)
        except StoreError:
            return True

    def _client(self, request: Request) -> str:
        return _client_of(request, self._clients)


def _client_of(request: Request, clients: Clients) -> str:
    """Return the address of the client that has sent a request."""
    headers, peer = request.headers, request.remote or ""
    if hdrs.X_FORWARDED_FOR not in headers:
        return clients.identify(peer, ())
    return clients.identify(peer, headers.getall(hdrs.X_FORWARDED_FOR))


def _hides_client(request: Request, clients: Clients) -> bool:
    """Return whether a web server has passed a request on without a client that is believed.

    Then the address is that of the web server.
    """
    if hdrs.X_FORWARDED_FOR in request.headers and clients.believes(request.remote or ""):
        return False
    return is_forwarded(request.headers)


def _is_for_proxy(request: Request) -> bool:
    """Return whether a client has sent a request for a proxy: its target names a host.

    A server also accepts such targets (RFC 9112, section 3.2.2), so the headers of proxies decide.
    """
    if request.raw_path.startswith("/"):
        return False
    return any(name in request.headers for name in HEADERS_FOR_PROXIES)


def _visit() -> Response:
    """Lead a browser from the service's address to the console."""
    return Response(302, b"", {"Content-Type": PLAIN, **OF_CLIENT, "Location": PREFIX})


async def _counted(
    answering: Awaitable[web.StreamResponse], count: Callable[[Exception | None], None]
) -> web.StreamResponse:
    try:
        answer = await answering
    except Exception as error:
        count(error)
        raise
    count(None)
    return answer


async def _answered(
    request: Request,
    route: Route,
    call: Call[Any, Any],
    lasting: Callable[[], GoesOn | None],
) -> web.StreamResponse:
    if route.raw_max_bytes:  # a file may take hours
        async with while_read(request, lasting()):
            reply = await _repeated(route, call)
    else:
        reply = await _repeated(route, call)
    if isinstance(reply, Streamed | Download | Redirect):
        return await _sent(request, reply, call.client, lasting())
    if isinstance(reply, WithCookie):
        cookie: dict[str, str] = {hdrs.SET_COOKIE: reply.cookie}
        return _whole(request, call.client, encode(reply.reply), cookie)
    headers = dict(OF_CLIENT) if route.has_text else {}
    if isinstance(reply, Text):
        headers["Content-Type"] = PLAIN
        return Response(200, reply.line.encode() + b"\n", headers)
    if isinstance(reply, Csv):
        headers = {
            "Content-Type": CSV,
            "Content-Disposition": f'attachment; filename="{reply.name}"',
        }
        return _whole(request, call.client, reply.body.encode(), headers, lasting)
    body = reply.body if isinstance(reply, Encoded) else encode(reply)
    return _whole(request, call.client, body, headers, lasting)


async def _repeated(route: Route, call: Call[Any, Any]) -> Reply:
    """Handle a request; repeat it once if its outcome is unknown and it has an Idempotency-Key.

    Its sender would repeat it with the same Idempotency-Key. A request whose commit had no answer
    for seconds is not repeated: the repetition would wait for that commit as well.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + REPEATED_WITHIN_SECONDS
    try:
        return await route.handler(call)
    except UnknownOutcomeError:
        if call.keyed is None or loop.time() > until:
            raise
    return await route.handler(call)


def _whole(
    request: Request,
    client: str,
    body: bytes,
    headers: Mapping[str, str],
    lasting: Callable[[], GoesOn | None] = lambda: None,
) -> Response:
    """Return a response that is in memory whole, its memory counted for its client.

    Args:
        request: the request.
        client: the network that it is counted for.
        body: the body of the response.
        headers: the headers of the response.
        lasting: makes the repeated login check of a response that takes long: a large one.
    """
    if len(body) <= SLICE_BYTES:
        return Response(200, body, headers)
    request.connection.hold(client, len(body))
    return Response(200, body, headers, lasting())


def _held(
    request: Request, route: Route, call: Call[Any, Any]
) -> Coroutine[Any, Any, web.StreamResponse]:
    """Answer a request whose answer may take minutes; the frames here keep no sent bytes."""
    patience = Patience(request)
    answering = route.handler(structs.replace(call, send_space=patience.send_space))
    return _late(request, call.client, patience, answering)


async def _late(
    request: Request, client: str, patience: Patience, answering: Awaitable[Reply]
) -> web.StreamResponse:
    try:
        body = encode(await answering)
    except Exception as error:
        if not patience.has_begun:
            raise
        if not isinstance(error, ConnectionError):
            _logger.warning("%s %s broke off: %s", request.method, request.path, error)
        return patience.break_off()
    if patience.has_begun:
        return await patience.finish(body)
    return _whole(request, client, body, {})


async def _sent(
    request: Request, reply: Streamed | Download | Redirect, client: str, goes_on: GoesOn | None
) -> web.StreamResponse:
    """Answer with a reply that is not in memory: events, a file, or the place of a file."""
    if isinstance(reply, Redirect):
        place: dict[str, str] = {hdrs.LOCATION: reply.url}
        return Response(302, encode(reply), place)
    name = request_id.current.get()
    common = {"Server": SERVER, **NO_SNIFF, request_id.HEADER: name, **_applied(request)}
    if isinstance(reply, Download):
        return await downloads.send(request, reply, client, common, goes_on)
    events = reply.events if goes_on is None else sse.while_current(reply.events, goes_on)
    return await sse.send(request, events, common, request.connection.times.event_write_seconds)


def _answer_of(error: Exception, request: Request) -> Response:
    """Return the answer to a request that has raised an error; log errors of the server."""
    if isinstance(error, Replayed):
        return Response(200, error.answer, {"Idempotency-Replayed": "true"})
    if isinstance(error, MarketError):
        return refusal(errors.of_market(error))
    if isinstance(error, TransportError):
        return refusal(errors.of_transport(error.reason, error.headers, error.message))
    if isinstance(error, BlobError):
        _logger.error("%s %s: files cannot be kept: %s", request.method, request.path, error)
        is_full = isinstance(error, FullError)
        reason = Transport.FILES_FULL if is_full else Transport.FILES_UNAVAILABLE
        return refusal(errors.of_transport(reason))
    if isinstance(error, StoreError):
        level = level_of(error, logging.ERROR)
        _logger.log(level, "%s %s: the store failed: %s", request.method, request.path, error)
        is_unknown = isinstance(error, UnknownOutcomeError)
        reason = Transport.OUTCOME_UNKNOWN if is_unknown else Transport.STORE_UNAVAILABLE
        return refusal(errors.of_transport(reason))
    _logger.error("%s %s failed", request.method, request.path, exc_info=error)
    return refusal(errors.of_transport(Transport.INTERNAL_ERROR))


def _applied(request: Request) -> dict[str, str]:
    """Return the header Preference-Applied, if the request has a preference.

    The stored answer is the same with and without it, so that it needs no Vary.
    """
    if request.handling is Handling.UNSPECIFIED:
        return {}
    return {prefer.APPLIED_HEADER: f"handling={request.handling.value}"}


def _page(request: Request, page: Page) -> Response:
    if request.method not in ("GET", "HEAD"):
        raise wrong_method(request.method, ("GET", "HEAD"))
    headers = {"Content-Type": page.content_type, **page.headers}
    if page.gzipped and _takes_gzip(request.headers.get(hdrs.ACCEPT_ENCODING, "")):
        return Response(200, page.gzipped, {**headers, "Content-Encoding": "gzip"})
    return Response(200, page.body, headers)


def _takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding names gzip, and not with a weight of nothing."""
    for each in accepted.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() == "gzip":
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False

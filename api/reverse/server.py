"""The listener of apps: lets requests in by their key, and has a job answer them."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from aiohttp import web
from msgspec import Struct

from api.http.forwarded import Clients
from api.http.limits import ApiLimits
from api.http.rate import RateLimit
from api.http.request_id import RequestIds
from api.reverse import admission, headers, pages
from api.reverse.admission import Names, Shown
from api.reverse.choosing import in_turn
from api.reverse.kept import Kept, Way
from api.reverse.known_apps import KnownApps
from api.reverse.pages import Refusal, RefusedError
from api.reverse.places import Place, Places
from api.reverse.relaying import Answered, become_raw, break_off, pass_back, send_body
from api.reverse.streams import Stream, Streams
from api.reverse.upstream import SWITCHING, Head, NoAnswerError, Upstream
from api.serving.connections import UNHANDLED_BYTES, Front, Request, Server
from market.base.networks import counted_network
from market.deploys.apps import App
from market.deploys.rollouts import Serving
from storage.engines.errors import StoreError

if TYPE_CHECKING:
    import socket
    import ssl

# Until a device has opened a stream: a living device needs one round trip, so that another replica
# is tried soon. Where there is no other one, a machine with much to do gets its time.
OPEN_SECONDS = 2.0
LAST_OPEN_SECONDS = 10.0
TRIED_MAX = 3  # replicas for a request, of one look; more would make a client wait for nothing
LOOKS = 2  # for replicas: a rollout may have replaced all of them since the first look
SHUTDOWN_SECONDS = 2.0  # a WebSocket does not end by itself
TARGET_MAX_CHARACTERS = 8 * 1024
NOT_PASSED_ON = frozenset(("CONNECT", "TRACE"))
# Nothing happens twice by asking another replica the same again (RFC 9110, section 9.2.1).
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
WEBSOCKET = "websocket"

_logger = logging.getLogger("apps")


class UnreachedError(Exception):
    """A job cannot be reached now.

    Args:
        reason: one of the keys of `REFUSAL_OF_REASON`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Reach(Protocol):
    """Opens streams into jobs."""

    async def __call__(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> "socket.socket":
        """Return a connected, non-blocking socket whose other end is the job's port.

        It counts against the buyer's share of all streams.

        Raises:
            UnreachedError: the device opened no stream.
        """

    def reset(self, sock: "socket.socket") -> None:
        """Close such a socket with a reset; harmless for one that is closed."""


REFUSAL_OF_REASON = {
    "away": Refusal.AWAY,
    "refused": Refusal.NOT_LISTENING,
    "gone": Refusal.NOT_READY,
    "timeout": Refusal.TIMEOUT,
    "busy": Refusal.BUSY,
    "paused": Refusal.PAUSED,
}


class Terms(Struct, frozen=True):
    """Settings of the operator for the door; `idle_seconds` is for a stream without a byte."""

    places: Places
    limits: ApiLimits
    streams_per_app: int
    idle_seconds: float


class Visit(Struct):
    """An admitted request: its app, its place, the way it showed the key, and its stream."""

    request: Request
    place: Place
    app: App
    by: Shown
    client: headers.Client
    stream: Stream
    is_upgrade: bool

    @property
    def can_be_asked_twice(self) -> bool:
        """Whether it does nothing, and leaves nothing on its way that could be read otherwise."""
        return self.request.method in SAFE and not self.request.body_exists and not self.is_upgrade


class AppServer(Front):
    """Serves apps to clients whose sockets it is handed.

    Args:
        find: returns an app that has a key, or None.
        key_hashes: returns the hash of the key of each of some apps that still has one.
        trusted_proxies: networks whose X-Forwarded-For is believed.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[App | None]],
        key_hashes: Callable[[Sequence[str]], Awaitable[dict[str, str]]],
        reach: Reach,
        terms: Terms,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        self.places = terms.places
        self.streams = Streams(terms.streams_per_app)
        self._names = Names.of(terms.places)
        self._known = KnownApps(find)
        self._key_hashes = key_hashes
        self._kept = Kept()
        self._reach = reach
        self._terms = terms
        self._clients = Clients(trusted_proxies)
        # Of requests that are not let in, which each may ask the store something new.
        self._strangers = RateLimit(terms.limits.requests_per_second, monotonic)
        self._is_draining = False

    # --- its life ---------------------------------------------------------------------------

    def start(self, tls: "ssl.SSLContext | None") -> None:
        """Begin to serve clients, over TLS if there is a context."""
        self._server = Server(
            self._respond,
            limits=self._terms.limits,
            clients=self._clients,
            tls=tls,
            request_ids=RequestIds(),
            answer_unparsed=pages.answer_unparsed,
            access_log=None,
            auto_decompress=False,
            max_field_size=admission.COOKIES_MAX_BYTES,
            read_bufsize=UNHANDLED_BYTES,
            logger=_logger,
        )

    def drain(self) -> None:
        """Begin no new requests."""
        self._is_draining = True

    async def stop(self) -> None:
        """End every stream, and close everything, within a bound."""
        for stream in self.streams:
            stream.cut()
        await self._close(SHUTDOWN_SECONDS)
        self._kept.forget()

    def forget(self, app_id: str) -> None:
        """End the streams and connections that an earlier key of an app opened."""
        self._known.forget(app_id)
        self._kept.forget(app_id)
        self.streams.end_app(app_id)

    async def sweep(self) -> int:
        """End idle streams, and streams of apps that are over or have another key.

        Raises:
            StoreError: streams of apps are checked again the next time.
        """
        ended = self.streams.end_idle(self._terms.idle_seconds)
        apps = self.streams.apps
        if apps:
            hashes = await self._key_hashes(apps)
            ended += sum(self.streams.end_app(each, hashes.get(each, "")) for each in apps)
        return ended

    # --- a request --------------------------------------------------------------------------

    async def _respond(self, request: Request) -> web.StreamResponse:
        connection = request.connection
        connection.ends_request = True
        try:
            return await self._served(request)
        except RefusedError as error:
            self.streams.refused += 1
            return pages.answer(error.refusal, _accept(request))
        except ConnectionError:  # the client has left
            break_off(request)
            return Answered(499, keeps=False)
        except Exception as error:  # noqa: BLE001 - one request fails, and nothing of it is logged
            _logger.error("a request failed: %s", type(error).__name__)
            if request.writer.output_size:
                break_off(request)
                return Answered(500, keeps=False)
            return pages.answer(Refusal.FAILED, _accept(request))
        finally:
            connection.ends_request = False

    async def _served(self, request: Request) -> web.StreamResponse:
        """Answer a request.

        Raises:
            RefusedError: it does not reach a job.
        """
        place = self._place(request)
        forwarded = request.headers.getall("X-Forwarded-For", [])
        address = self._clients.identify(request.remote or "", forwarded)
        app, by = await self._admitted(request, place, counted_network(address))
        is_upgrade = _is_websocket(request)
        if by is Shown.COOKIE and admission.is_from_elsewhere(
            request.raw_headers, place.origin, is_upgrade=is_upgrade
        ):
            raise RefusedError(Refusal.ELSEWHERE)
        if response := self._led_elsewhere(request, place, app, by, is_upgrade=is_upgrade):
            return response
        if not self.streams.has_room(app.id):
            raise RefusedError(Refusal.FULL)
        client = headers.Client(address, request.headers["Host"], self.places.scheme)
        stream = Stream(self.streams, app.id, app.key_hash, request.connection.cut)
        self.streams.take(stream)
        try:
            return await self._passed_on(Visit(request, place, app, by, client, stream, is_upgrade))
        finally:
            self.streams.give(stream)

    def _place(self, request: Request) -> Place:
        """Return which app a request is for.

        Raises:
            RefusedError: it is for none, or would not mean the same to everybody.
        """
        hosts, target = request.headers.getall("Host", []), request.raw_path
        if len(hosts) != 1 or not _is_plain(target):
            raise RefusedError(Refusal.MALFORMED)
        if request.method in NOT_PASSED_ON:
            raise RefusedError(Refusal.METHOD)
        if self._is_draining:
            raise RefusedError(Refusal.DRAINING)
        place = self.places.find(hosts[0], target)
        if place is None:
            raise RefusedError(Refusal.NOWHERE)
        return place

    async def _admitted(self, request: Request, place: Place, network: str) -> tuple[App, Shown]:
        """Return the app whose key a request has shown, and the way in which the key was shown.

        Raises:
            RefusedError: it has not.
            StoreError: the store does not answer.
        """
        if not self._known.recent(place.app_id) and not self._strangers.allows(network):
            raise RefusedError(Refusal.TOO_OFTEN)
        app = await self._known.find(place.app_id)
        if app is None:
            raise RefusedError(Refusal.NO_KEY)
        by = admission.shown(place.target, request.raw_headers, self._names, app.opens)
        if by is None:
            raise RefusedError(Refusal.NO_KEY)
        return app, by

    def _led_elsewhere(
        self, request: Request, place: Place, app: App, by: Shown, *, is_upgrade: bool
    ) -> web.StreamResponse | None:
        """Return the redirect for a browser, mostly to the address without the key."""
        is_page = request.method in ("GET", "HEAD") and not is_upgrade
        path, target = place.prefix, headers.target_of(place, app.opens)
        if not target.startswith("/"):
            target = f"/{target}"
            if is_page and by is not Shown.QUERY:
                return pages.redirect(path + target, "")
        if by is not Shown.QUERY or not is_page:
            return None
        key, _ = admission.key_in_query(place.target)
        cookie = admission.cookie(place, self.places, self._names.key, key)
        # With the origin: a target that begins with two slashes would be an address on another
        # host.
        return pages.redirect((place.origin if self.places.has_hosts else path) + target, cookie)

    async def _passed_on(self, visit: Visit) -> web.StreamResponse:
        """Pass a request to a replica, or to another one if the first has not received anything."""
        app, place, kept = visit.app, visit.place, ""
        if app.stays:
            cookies = dict(admission.cookies(visit.request.raw_headers))
            kept = cookies.get(self._names.replica, "")
        if place.port and app.targets and not in_turn(app.targets, place.port, lambda _: 0):
            raise RefusedError(Refusal.NO_PORT)
        refusal, tried = Refusal.NOT_READY, set[tuple[str, int]]()
        for _ in range(LOOKS):
            turns = [
                (each, port)
                for each, port in in_turn(app.targets, place.port, self.streams.of_job, kept)
                if (each.job_id, each.attempt) not in tried
            ][:TRIED_MAX]
            for index, (target, port) in enumerate(turns, 1):
                tried.add((target.job_id, target.attempt))
                seconds = OPEN_SECONDS if index < len(turns) else LAST_OPEN_SECONDS
                visit.stream.reaches(target.job_id)
                try:
                    return await self._tried(visit, target, port, seconds)
                except UnreachedError as error:
                    refusal = REFUSAL_OF_REASON.get(error.reason, Refusal.AWAY)
                    self._known.forget(app.id)  # there may be others by now
                except NoAnswerError:
                    refusal = Refusal.NO_ANSWER
                    self._known.forget(app.id)
                    if visit.request.method not in SAFE or visit.request.can_read_body:
                        raise RefusedError(refusal) from None
            try:
                app = await self._as_it_is_now(app, was_tried=bool(tried))
            except StoreError:  # the known state of the app is enough to refuse
                break
        raise RefusedError(refusal)

    async def _as_it_is_now(self, app: App, *, was_tried: bool) -> App:
        """Return an app with its present replicas.

        Raises:
            RefusedError: it is over, or its key was replaced.
            StoreError: the store does not answer.
        """
        if not was_tried:  # it waits for a machine, or is over: no device can say which
            self._known.forget(app.id)
        fresh = await self._known.find(app.id)
        if fresh is None or fresh.key_hash != app.key_hash:
            raise RefusedError(Refusal.NO_KEY)
        return fresh

    async def _tried(
        self, visit: Visit, target: Serving, port: int, seconds: float
    ) -> web.StreamResponse:
        """Pass a request to one replica.

        Raises:
            UnreachedError: it was sent nothing.
            NoAnswerError: it did not; the client was sent nothing.
        """
        way = Way(
            visit.app.id, visit.app.key_hash, target.device_id, target.job_id, target.attempt, port
        )
        kept = self._kept.take(way) if visit.can_be_asked_twice else None
        if kept is not None:
            with contextlib.suppress(NoAnswerError):  # the job has closed it meanwhile, perhaps
                return await self._over(visit, kept, target, way)
        upstream = await self._upstream(target, port, seconds, visit.app.buyer_id)
        return await self._over(visit, upstream, target, way)

    async def _over(
        self, visit: Visit, upstream: Upstream, target: Serving, way: Way
    ) -> web.StreamResponse:
        """Pass a request to a replica over a connection; keep that if permitted; see `_tried`."""
        try:
            response = await self._asked(visit, upstream, target)
        except BaseException:
            upstream.abort()
            raise
        self._kept.keep(way, upstream)
        return response

    async def _upstream(
        self, target: Serving, port: int, seconds: float, buyer_id: str
    ) -> Upstream:
        """Return a new connection to a replica.

        Raises:
            UnreachedError: the device opened no stream.
        """
        sock = await self._reach(
            target.device_id, target.job_id, target.attempt, port, seconds, buyer_id
        )
        try:
            return await Upstream.over(sock, self._reach.reset)
        except OSError as error:
            raise UnreachedError("away") from error

    async def _asked(self, visit: Visit, upstream: Upstream, target: Serving) -> web.StreamResponse:
        """Pass a request on and its answer back.

        Raises:
            NoAnswerError: there was none; the client was sent nothing.
        """
        request, stream = visit.request, visit.stream
        is_chunked = request.body_exists and request.content_length is None
        sent = list(headers.to_job(request.raw_headers, visit.place, visit.client, visit.by))
        if visit.is_upgrade:
            sent += [(b"Connection", b"Upgrade"), (b"Upgrade", WEBSOCKET.encode())]
        elif not visit.can_be_asked_twice:
            sent.append((b"Connection", b"close"))
        if is_chunked:
            sent.append((b"Transfer-Encoding", b"chunked"))
        elif request.content_length is not None:
            sent.append((b"Content-Length", b"%d" % request.content_length))
        asked = headers.target_of(visit.place, visit.app.opens)
        asked = asked if asked.startswith("/") else f"/{asked}"
        sending: asyncio.Task[None] | None = None
        try:
            await upstream.ask(
                request.method, asked, sent, chunked=is_chunked, keeps=visit.can_be_asked_twice
            )
            if request.can_read_body:
                sending = asyncio.create_task(send_body(request, upstream, stream))
            head = await upstream.answer()
            stream.answered()
            return await self._answered(visit, upstream, head, target)
        except OSError as error:
            if request.writer.output_size:
                raise
            raise NoAnswerError(type(error).__name__) from error
        finally:
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sending

    async def _answered(
        self, visit: Visit, upstream: Upstream, head: Head, target: Serving
    ) -> web.StreamResponse:
        place = visit.place
        back = list(headers.from_job(head.headers, place))
        if visit.app.stays:
            line = admission.cookie(place, self.places, self._names.replica, target.job_id)
            back.append((b"Set-Cookie", line.encode()))
        if head.status != SWITCHING:
            return await pass_back(visit.request, head, back, visit.stream)
        if not (visit.is_upgrade and upstream.is_upgraded):
            raise NoAnswerError("an upgrade without a request for it")
        return await become_raw(visit.request, upstream, head, back, visit.stream)


def _is_plain(target: str) -> bool:
    """Return whether a target is a path, in characters that mean the same to everybody."""
    return (
        target.startswith("/")
        and target.isascii()
        and target.isprintable()
        and " " not in target
        and len(target) <= TARGET_MAX_CHARACTERS
    )


def _accept(request: Request) -> str:
    return ",".join(request.headers.getall("Accept", []))


def _is_websocket(request: Request) -> bool:
    """Return whether a request asks for a WebSocket (RFC 6455, section 4.1)."""
    if request.method != "GET" or b"upgrade" not in headers.named(request.raw_headers):
        return False
    return request.headers.get("Upgrade", "").strip().lower() == WEBSOCKET

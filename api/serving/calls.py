"""Reads requests into calls: the caller, the query and the body of each, as its route has them."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import hdrs

from api.http import prefer
from api.http.prefer import Handling
from api.http.sizes import largest
from api.routing.callers import Callers
from api.routing.codec import Decoder, check_number, convert_query
from api.routing.cookies import is_console
from api.routing.listing import Listing
from api.routing.responses import JSON
from api.routing.routes import Call, Nothing, Route
from api.serving.bodies import RawBody, unsupported_media_type, whole
from api.serving.connections import Request
from api.serving.forms import Form, Uploads
from market.accounts.accounts import Caller
from market.base.errors import Code, MarketError
from market.events.idempotency import KeyedRequest, Seal
from market.staff.base.callers import StaffCaller
from storage.devices.devices import DeviceRow

ENDED = "The login or API key has ended while the body of the request was on its way."


class CallReader:
    """Reads the calls of a table of routes.

    Args:
        is_current: returns whether the login or key of a caller is still valid.
        body_max_bytes: the largest request body; a route takes less if its type is smaller.
        seal: seals the answers that are stored for requests with an Idempotency-Key.
        now: the wall clock, in UTC seconds.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        callers: Callers,
        is_current: Callable[[Any], Awaitable[bool]],
        body_max_bytes: int,
        seal: Seal,
        now: Callable[[], int],
    ) -> None:
        self._decoders = {
            route.body: Decoder(route.body) for route in routes if not route.form_max_bytes
        }
        self._body_max_bytes = {
            kind: min(largest(kind) or body_max_bytes, body_max_bytes) for kind in self._decoders
        }
        self._callers = callers
        self._is_current = is_current
        self._seal = seal
        self._now = now
        self._uploads = Uploads()

    async def read(
        self,
        request: Request,
        route: Route,
        names: dict[str, str],
        client: str,
        address: str,
    ) -> Call[Any, Any]:
        """Return a request as its handler gets it: authenticated, counted and decoded.

        Args:
            request: the request.
            route: its route.
            names: the parts of its path that the route names.
            client: the network that it is counted for.
            address: the client's address.

        Raises:
            MarketError: `unauthorized`, `worker_unauthorized`, `too_busy` and others.
            TransportError: the request is malformed, or comes too often.
        """
        login, worker = await self._callers.identify(request, route, client, address)
        is_strict = request.handling is Handling.STRICT
        if is_strict:
            prefer.check_names(request.query, route.query)
        query = _query(request, route)
        more = _weight(route, query) - 1
        if more:
            await self._callers.count_more(login, worker, client, more)
        body: object = None
        sent = b""
        if route.form_max_bytes:
            body = Form(
                request,
                route.body,
                max_bytes=route.form_max_bytes,
                uploads=self._uploads,
                client=client,
                user_id=login.user_id if login is not None else "",
                is_strict=is_strict,
            )
        elif route.raw_max_bytes:
            body = RawBody(request, route.raw_max_bytes, route.raw_encodings)
        elif route.body is not Nothing:
            sent = await self._received(request, route, client, login, worker)
            if is_strict:
                prefer.check_body(sent, route.body, route.fixed)
            body = self._decoders[route.body].decode(sent)
            if route.fixed and body == route.body():  # nothing in it was understood: say why
                prefer.check_body(sent, route.body, route.fixed)
        keyed = None
        key = request.headers.get("Idempotency-Key") if route.idempotent else None
        if key is not None:
            user_id = login.user_id if login is not None else ""
            asked = b"\0".join((request.method.encode(), request.path.encode(), sent))
            request_hash = self._seal.fingerprint(asked)
            purse_id = login.purse_id if login is not None else ""
            now = self._now()
            keyed = KeyedRequest(user_id, key, request_hash, self._seal, now, purse_id)
        accepted = request.headers.get(hdrs.ACCEPT_LANGUAGE, "")
        accept = request.headers.get(hdrs.ACCEPT, "")
        last_id = request.headers.get(hdrs.LAST_EVENT_ID, "")
        return Call(
            body,
            query,
            names,
            client,
            login if isinstance(login, Caller) else None,
            keyed,
            worker,
            accepted,
            address,
            accept,
            last_id,
            is_console(request.headers),
            user_agent=request.headers.get(hdrs.USER_AGENT, ""),
            member=login if isinstance(login, StaffCaller) else None,
        )

    async def _received(
        self,
        request: Request,
        route: Route,
        client: str,
        login: Caller | StaffCaller | None,
        worker: DeviceRow | None,
    ) -> bytes:
        """Return the JSON body of a request, after checking that its caller may still send it.

        Raises:
            MarketError: `unauthorized`, `worker_unauthorized`, `too_busy`.
            TransportError: the body exceeds its bound, comes too slowly, or has another type.
        """
        comes_later = not request.content.is_eof()
        absent = route.body_optional and not request.body_exists
        sent = b"" if absent else await self._body(request, route, client)
        if comes_later:
            await self._require_current(request, login, worker)
        return b"{}" if route.body_optional and not sent else sent

    async def _require_current(
        self, request: Request, login: Caller | StaffCaller | None, worker: DeviceRow | None
    ) -> None:
        """Refuse a login, key or worker token that has ended while the body was on its way.

        Raises:
            MarketError: `unauthorized`, `worker_unauthorized`.
        """
        if login is not None and not await self._is_current(login):
            raise MarketError(Code.UNAUTHORIZED, ENDED)
        if worker is not None:
            await self._callers.require_device(request)

    async def _body(self, request: Request, route: Route, client: str) -> bytes:
        # A page of another site can send a body of no type, or of another, without a preflight.
        declared = request.headers.get("Content-Type", "" if request.body_exists else JSON)
        if declared.partition(";")[0].strip().lower() != JSON:
            raise unsupported_media_type(JSON)
        sent = await whole(request, self._body_max_bytes[route.body], client)
        check_number(sent)
        return sent


def _query(request: Request, route: Route) -> object:
    """Return the query of a request as the type of its route."""
    if route.query is Nothing:
        return None
    parameters = dict(request.query) if request.rel_url.raw_query_string else {}
    return convert_query(parameters, route.query)


def _weight(route: Route, query: object) -> int:
    """Return the number of requests that a request counts as: see `Route`."""
    return route.weight * (query.requests if isinstance(query, Listing) else 1)

"""Callers: checks the session or worker token of a request, and counts it by its owner."""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from aiohttp.hdrs import AUTHORIZATION

from api.http.rate import Rates
from api.routing.cookies import Cookies
from api.routing.routes import Auth, Route, StaffRoute
from market.accounts.accounts import Caller
from market.accounts.keys import is_key
from market.accounts.scopes import Grant
from market.accounts.suspensions import refusal
from market.base.errors import Code, MarketError
from market.staff.base.callers import StaffCaller
from market.staff.base.roles import Via
from storage.devices.devices import DeviceRow

WORKER_TOKEN = "X-Worker-Token"  # noqa: S105 - the name of a header

NO_AUTHORIZATION = (
    "There is no Authorization header; send Authorization: Bearer and the token that logging in "
    "returns."
)
NOT_BEARER = "The Authorization header is not the word Bearer, a space and a session token."
NOT_A_WORKER = (
    "This path is for people: it wants a session token behind Authorization: Bearer, not a worker "
    "token."
)
NO_KEYS = "No API key opens this path; log in, and send the session token."
NO_SCOPE = "This path wants an API key with the scope {scope}; this one is for {scopes}."
NO_DEVICE = "There is no X-Worker-Token header; send one with the token of this device."
NOT_A_PERSON = (
    "This path is for worker devices: it wants a worker token in the header X-Worker-Token, not a "
    "session token."
)

Authenticate = Callable[[str], Awaitable[Caller]]
AuthenticateKey = Callable[[str, str], Awaitable[Caller]]
AuthenticateWorker = Callable[[str], Awaitable[DeviceRow]]
AuthenticateStaff = Callable[[str, str, Via], Awaitable[StaffCaller]]


class Callers:
    """Identifies callers, and holds each to its rate.

    Args:
        authenticate: returns the login of a session token, or raises `MarketError`.
        authenticate_key: the same for an API key, and the address that it is shown from.
        authenticate_worker: the same for the tokens of worker devices.
        rates: how often each may call; it may be replaced.
        cookies: reads the login of a browser; None where only headers count.
        authenticate_staff: returns the member of a token or key, which is shown from an address by
            a program or a page; None where no member calls.
    """

    def __init__(
        self,
        authenticate: Authenticate,
        authenticate_key: AuthenticateKey,
        authenticate_worker: AuthenticateWorker,
        rates: Rates,
        cookies: Cookies | None = None,
        authenticate_staff: AuthenticateStaff | None = None,
    ) -> None:
        self._cookies = cookies
        self._authenticate_staff = authenticate_staff
        self._authenticate = authenticate
        self._authenticate_key = authenticate_key
        self._authenticate_worker = authenticate_worker
        self.rates = rates

    async def identify(
        self, request: web.BaseRequest, route: Route, client: str, address: str = ""
    ) -> tuple[Caller | StaffCaller | None, DeviceRow | None]:
        """Return the login or the device that calls a route; neither where it needs none.

        A caller that shows no valid token is counted by `client`, its network; `address` is the
        exact one, which an API key may be bound to.

        Raises:
            MarketError: `unauthorized`, `scope_missing`, `key_address`, `account_suspended`,
                `worker_unauthorized`, `not_permitted`.
            TransportError: `too_many_requests`.
        """
        if route.is_health:
            await self.rates.count_health(client)
            return None, None
        login: Caller | StaffCaller | None = None
        worker = None
        identity, user_id = client, ""
        try:
            auth = route.auth
            if auth is Auth.OPTIONAL_EITHER or auth is Auth.OPTIONAL_JWT:
                auth = self._required(auth, request.headers)
            if auth is Auth.JWT:
                login = await self._login(request, address)
                identity, user_id = login.session_id, login.user_id
            elif auth is Auth.WORKER:
                worker = await self._authenticate_worker(_worker_token(request))
                identity, user_id = worker.id, worker.user_id
            elif auth is Auth.STAFF:
                login = await self._staff(request, address)
                identity, user_id = login.session_id, login.user_id
            _require_permitted(login, route)
        except BaseException:
            insistent = self.rates.exceeds(identity, user_id)
            if insistent is None:
                raise
        else:
            insistent = self.rates.exceeds(identity, user_id)
        if insistent is not None:  # not in the handler: see `proxyd.compiled.hot`
            await self.rates.refuse(insistent)
        return login, worker

    async def require_device(self, request: web.BaseRequest) -> None:
        """Refuse a worker token that is not valid any more.

        Raises:
            MarketError: `worker_unauthorized`.
        """
        await self._authenticate_worker(_worker_token(request))

    async def count_more(
        self,
        login: Caller | StaffCaller | None,
        worker: DeviceRow | None,
        client: str,
        requests: int,
    ) -> None:
        """Count the further requests that an expensive request counts as, for its caller.

        Args:
            login: its login, if it has one.
            worker: its device, if it has one.
            client: its network.
            requests: the number of further requests.

        Raises:
            TransportError: `too_many_requests`.
        """
        if login is not None:
            await self.rates.count(login.session_id, login.user_id, requests)
        elif worker is not None:
            await self.rates.count(worker.id, worker.user_id, requests)
        else:
            await self.rates.count(client, requests=requests)

    async def is_device(self, request: web.BaseRequest) -> bool:
        """Return whether the worker token of a request is valid."""
        try:
            await self.require_device(request)
        except MarketError:
            return False
        return True

    async def _login(self, request: web.BaseRequest, address: str) -> Caller:
        token = self._kept(request.headers) or _bearer(request)
        if is_key(token):
            return await self._authenticate_key(token, address)
        return await self._authenticate(token)

    async def _staff(self, request: web.BaseRequest, address: str) -> StaffCaller:
        if self._authenticate_staff is None:
            raise LookupError("no member of the staff calls this server")
        kept = self._kept(request.headers)
        if kept is not None:
            return await self._authenticate_staff(kept, address, Via.PAGE)
        return await self._authenticate_staff(_bearer(request), address, Via.API)

    def _required(self, auth: Auth, headers: Mapping[str, str]) -> Auth:
        """Return a caller's `Auth` where tokens are optional: one that is sent must be valid."""
        if auth is Auth.OPTIONAL_EITHER and WORKER_TOKEN in headers:
            return Auth.WORKER
        is_shown = AUTHORIZATION in headers or self._kept(headers) is not None
        return Auth.JWT if is_shown else Auth.NONE

    def _kept(self, headers: Mapping[str, str]) -> str | None:
        """Return the token in a cookie that counts; a header goes before it."""
        if self._cookies is None or AUTHORIZATION in headers:
            return None
        return self._cookies.token(headers)


def _require_permitted(login: Caller | StaffCaller | None, route: Route) -> None:
    """Refuse an API key without the scope of a route, a suspended login, and a member by the role.

    Raises:
        MarketError: `scope_missing`, `account_suspended`, `not_permitted`.
    """
    if isinstance(login, StaffCaller) and isinstance(route, StaffRoute):
        login.require(route.action)
    elif isinstance(login, Caller):
        if login.key is not None:
            _require_scope(login.key, route)
        if login.suspended is not None and not route.while_suspended:
            raise refusal(login.suspended)


def _require_scope(key: Grant, route: Route) -> None:
    """Refuse a key that is not for a route.

    Raises:
        MarketError: `scope_missing`.
    """
    if route.scope is None:
        raise MarketError(Code.SCOPE_MISSING, NO_KEYS)
    if route.scope not in key.scopes:
        scopes = ", ".join(sorted(key.scopes))
        raise MarketError(
            Code.SCOPE_MISSING, NO_SCOPE.format(scope=route.scope.value, scopes=scopes)
        )


def _bearer(request: web.BaseRequest) -> str:
    header = request.headers.get(AUTHORIZATION)
    if header is None and WORKER_TOKEN in request.headers:
        raise MarketError(Code.UNAUTHORIZED, NOT_A_WORKER)
    if header is None:
        raise MarketError(Code.UNAUTHORIZED, NO_AUTHORIZATION)
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MarketError(Code.UNAUTHORIZED, NOT_BEARER)
    return token.strip()


def _worker_token(request: web.BaseRequest) -> str:
    header = request.headers.get(WORKER_TOKEN)
    if header is None:
        is_person = AUTHORIZATION in request.headers
        raise MarketError(Code.WORKER_UNAUTHORIZED, NOT_A_PERSON if is_person else NO_DEVICE)
    return header

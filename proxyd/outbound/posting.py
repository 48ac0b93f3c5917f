"""Sends the HTTP request of a webhook's attempt, only to addresses that a session may reach.

The owner of an endpoint chooses the destination of this process's request. So each address is
judged when it is about to be dialled, by the policy that holds for sessions: a name that leads
elsewhere by then is judged by where it leads then. No redirection is followed, and no proxy or
credentials of this machine's are used. Users see a class of errors, and never the text of a
network's answer.
"""

import asyncio
import logging
import socket
import ssl
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from time import monotonic
from typing import Any, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from market.notify.webhooks import Attempt, DeliveryOutcome
from proxyctl.protocol.policy import Policy
from proxyd.egress.resolve import (
    LookupFailedError,
    LookupTimedOutError,
    NameNotFoundError,
    Resolver,
)

CONNECT_SECONDS = 5.0
READ_MAX_BYTES = 4_096
KEPT_BYTES = 512

_logger = logging.getLogger("webhooks")


class Request(NamedTuple):
    """A request: a name for the log, the target, and the time of its start in UTC seconds."""

    name: str
    url: str
    headers: dict[str, str]
    body: bytes
    started_at: int


class NotAllowedError(OSError):
    """The policy forbids an address that was about to be dialled."""


class Poster:
    """Makes requests.

    Args:
        resolver: looks names up, as for sessions.
        agent: the name of this program in requests.
        tls: the accepted certificates; by default those that this machine trusts.
        seconds: how long a request may take, from the look-up to the end of the answer.
    """

    def __init__(
        self,
        resolver: Resolver,
        policy: Policy,
        agent: str,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        self._seconds = seconds
        self._resolver = resolver
        self._policy = policy
        self._agent = agent
        self._tls = tls

    async def post(self, attempt: Attempt) -> DeliveryOutcome:
        """Send one attempt, and return its outcome."""
        return await self.send(
            Request(
                f"delivery {attempt.row.id}",
                attempt.url,
                attempt.headers,
                attempt.body,
                attempt.started_at,
            )
        )

    async def send(self, request: Request) -> DeliveryOutcome:
        """Send a request, and return its outcome."""
        started = monotonic()
        connector = aiohttp.TCPConnector(
            limit=1,
            force_close=True,
            resolver=_Lookups(self._resolver),
            use_dns_cache=False,
            socket_factory=self._judged,
            ssl=self._tls if self._tls is not None else True,
        )
        status, error, answer, wait = None, "", "", 0
        try:
            async with (
                asyncio.timeout(self._seconds),
                aiohttp.ClientSession(
                    connector=connector,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    trust_env=False,
                    auto_decompress=False,
                ) as session,
                session.post(
                    request.url,
                    data=request.body,
                    headers={
                        **request.headers,
                        "Content-Type": "application/json",
                        "User-Agent": self._agent,
                        "Accept-Encoding": "identity",
                    },
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                ) as response,
            ):
                status = response.status
                wait = retry_after(response.headers.get("Retry-After", ""), request.started_at)
                if not 200 <= status < 300:
                    error = f"status {status}"
                answer = await _beginning(response.content)
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            # Once there is a status, that is the outcome; how the body went on is not.
            if status is None:
                error = kind_of(failure)
        except Exception:  # if a library fails on one server, the others still get theirs
            _logger.exception("%s: error in proxyd", request.name)
            error = error or ("" if status is not None else "failed")
        ms = round((monotonic() - started) * 1_000)
        return DeliveryOutcome(status, error, ms, answer, wait)

    def _judged(self, info: tuple[Any, ...]) -> socket.socket:
        """Return a socket for the very address that is dialled next, if that is permitted."""
        family, kind, protocol, _, place = info
        address = ip_address(str(place[0]).partition("%")[0])
        if not self._policy.permits(address, place[1]):
            raise NotAllowedError("not allowed")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


class _Lookups(AbstractResolver):
    """Looks names up for a client of HTTP as sessions have them looked up."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: it has none, or the look-up failed; its cause says which.
        """
        try:
            addresses = await self._resolver.resolve(host, "webhooks")
        except (NameNotFoundError, LookupFailedError) as error:
            raise OSError("the name was not found") from error
        kinds = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            ResolveResult(
                hostname=host,
                host=str(each),
                port=port,
                family=kinds[each.version],
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for each in addresses
            if family in (socket.AF_UNSPEC, kinds[each.version])
        ]

    async def close(self) -> None:
        """Close nothing: the resolver is the proxy's."""


async def _beginning(content: aiohttp.StreamReader) -> str:
    """Return the beginning of an answer as text; bytes beyond `READ_MAX_BYTES` are not read."""
    body = b""
    while len(body) < READ_MAX_BYTES:
        piece = await content.read(READ_MAX_BYTES - len(body))
        if not piece:
            break
        body += piece
    text = body[:KEPT_BYTES].decode("utf-8", "replace")
    # PostgreSQL stores no NUL in texts.
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def retry_after(text: str, now: int) -> int:
    """Return the seconds of a server's Retry-After (RFC 9110, section 10.2.3)."""
    if text.isascii() and text.isdigit():
        return int(text[:9])
    try:
        return max(0, int(parsedate_to_datetime(text).timestamp()) - now)
    except (ValueError, OverflowError):
        return 0


def kind_of(failure: BaseException) -> str:
    """Return the class of errors of a failure, as users see it."""
    chain = _causes(failure)
    kinds: list[tuple[tuple[type[BaseException], ...], str]] = [
        ((NotAllowedError,), "not allowed"),
        ((NameNotFoundError,), "name not found"),
        ((LookupTimedOutError, TimeoutError), "timed out"),
        ((LookupFailedError, aiohttp.ClientConnectorDNSError), "name not looked up"),
        ((ssl.SSLError, ssl.CertificateError, aiohttp.ClientSSLError), "tls"),
        ((ConnectionRefusedError,), "refused"),
        ((aiohttp.ClientConnectorError,), "not reached"),
        ((aiohttp.InvalidURL,), "not a URL"),
        ((aiohttp.ServerDisconnectedError, ConnectionResetError), "broken off"),
        ((aiohttp.ClientResponseError, aiohttp.ClientPayloadError), "no HTTP"),
    ]
    for types, word in kinds:
        if any(isinstance(each, types) for each in chain):
            return word
    return "failed"


def _causes(failure: BaseException) -> list[BaseException]:
    """Return a failure and its causes, also where several addresses were tried."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [failure]
    while waiting and len(found) < 32:
        each = waiting.pop()
        if each is None or each in found:
            continue
        found.append(each)
        waiting += [each.__cause__, each.__context__, getattr(each, "os_error", None)]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
    return found

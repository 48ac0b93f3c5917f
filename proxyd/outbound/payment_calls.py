"""HTTP calls to payment providers: bounded in time and size, and paused when a server wants it.

Payments and payouts use them. A failure never has the address of the call in its text.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from time import monotonic
from typing import NamedTuple

import aiohttp

from market.payments.provider import HookError, ProviderError
from proxyd.outbound.posting import retry_after

ANSWER_MAX_BYTES = 1024 * 1024  # a list of a hundred refunds has a quarter of it
CALL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
PAUSE_MAX_SECONDS = 60
CONNECTIONS = 8
# Statuses below 500 after which another attempt may succeed. The operator changes a wrong key, a
# request in progress ends, and too many requests become fewer.
_RETRIED = frozenset((401, 403, 408, 409, 425, 429))
# The request, or one before it with the same name, may be in progress.
_MAY_HAVE_EFFECT = frozenset((408, 409))


class Answer(NamedTuple):
    """An answer of a provider: its status and its body."""

    status: int
    body: bytes


class PaymentCalls:
    """Calls to the API of one provider.

    Args:
        base_url: the beginning of every address.
        headers: sent with each call; they may have a secret, which is never logged.
        now: the wall clock, in UTC seconds.
        seconds: the time limit of a call.
        max_bytes: the size limit of an answer.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        now: Callable[[], int],
        seconds: float = CALL_SECONDS,
        max_bytes: int = ANSWER_MAX_BYTES,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity", **headers}
        self._now = now
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None
        self._paused_until = 0.0  # on the monotonic clock

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer to a call, with a status of success.

        Raises:
            ProviderError: another status, no answer in time, or one that is too large.
        """
        answer = await self.exchange(method, path, body, headers)
        if not 200 <= answer.status < 300:
            raise refusal(answer.status)
        return answer

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer to a call, with any status.

        Redirections are not followed: they would carry the key elsewhere.

        Raises:
            ProviderError: no answer in time, or one that is too large.
        """
        if monotonic() < self._paused_until:
            raise ProviderError("it has requested a pause")
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._connected().request(
                    method,
                    self._base_url + path,
                    data=body,
                    headers={**self._headers, **(headers or {})},
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                ) as response,
            ):
                answer = Answer(response.status, await self._body(response))
                wait = retry_after(response.headers.get("Retry-After", ""), self._now())
        except TimeoutError as error:
            raise ProviderError("it does not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Not the error's own text: it can have the address, and an address can have a secret.
            raise ProviderError(f"it cannot be reached ({type(error).__name__})") from error
        if answer.status in (429, 503):
            self._paused_until = monotonic() + min(wait, PAUSE_MAX_SECONDS)
        return answer

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_bytes:
                raise ProviderError("its answer is too large", is_of_payment=True)
        return bytes(body)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
            )
        return self._session


def refusal(status: int) -> ProviderError:
    """Return the error of an answer without success; it is final if a repetition cannot succeed."""
    is_refused = 400 <= status < 500
    return ProviderError(
        f"it answered with status {status}",
        is_final=is_refused and status not in _RETRIED,
        has_no_effect=is_refused and status not in _MAY_HAVE_EFFECT,
    )


def header_of(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a header of a notice.

    Raises:
        HookError: the header is missing.
    """
    for key, value in headers.items():
        if key.lower() == name:
            return value
    raise HookError(f"there is no {name}", "missing")


def is_signed(secrets: tuple[str, ...], signed: bytes, signatures: tuple[str, ...]) -> bool:
    """Return whether one of some signatures is that of one of the secrets (HMAC-SHA256, hex)."""
    expected = [
        hmac.digest(secret.encode(), signed, "sha256").hex() for secret in secrets if secret
    ]
    # All pairs are compared, so the time is the same for each.
    matches = [
        hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
        for one in expected
        for other in signatures
    ]
    return any(matches)

"""Calls to the REST API of Stripe: forms are sent, and JSON of a known form comes back."""

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from market.payments.provider import ProviderError
from proxyd.outbound.payment_calls import Answer, PaymentCalls

_Kind = TypeVar("_Kind")


class StripeCalls:
    """Calls to the API.

    Args:
        calls: have the address and the key.
    """

    def __init__(self, calls: PaymentCalls) -> None:
        self._calls = calls

    async def post(
        self, path: str, request: Mapping[str, str], key: str, kind: type[_Kind]
    ) -> _Kind:
        """Send a form, and return the answer; a repetition with the key does nothing more.

        Raises:
            ProviderError: the API refused it, did not answer, or answered in another form.
        """
        return decoded((await self.send(path, request, key)).body, kind)

    async def send(
        self,
        path: str,
        request: Mapping[str, str],
        key: str,
        *,
        accepts: frozenset[int] = frozenset(),
    ) -> Answer:
        """Send a form, and return the answer with its status, which may be one of `accepts`.

        Raises:
            ProviderError: the API refused it, or did not answer.
        """
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Idempotency-Key": key,
        }
        body = urlencode(request).encode()
        return await self._calls.call("POST", path, body, headers, accepts=accepts)

    async def get(self, path: str, query: Mapping[str, str], kind: type[_Kind]) -> _Kind:
        """Return the answer to a query.

        Raises:
            ProviderError: the API refused it, did not answer, or answered in another form.
        """
        return decoded((await self._calls.call("GET", f"{path}?{urlencode(query)}")).body, kind)

    async def close(self) -> None:
        """Close every connection."""
        await self._calls.close()


def decoded(body: bytes, kind: type[_Kind]) -> _Kind:
    """Return an answer in its form.

    Raises:
        ProviderError: it has another form.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderError("its answer has another form", is_of_payment=True) from error

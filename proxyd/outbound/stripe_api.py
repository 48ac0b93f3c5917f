"""The REST API of Stripe: forms, a pinned version, and keys against repetitions.

Amounts of Stripe are whole cents. The version of the API is pinned, so answers keep their form.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from market.payments.provider import ProviderError
from proxyd.outbound.payment_calls import Answer, PaymentCalls

API_BASE = "https://api.stripe.com"
API_VERSION = "2026-10-28.endive"
_TEST_KEYS = ("sk_test_", "rk_test_")
_Kind = TypeVar("_Kind")


class StripeApi:
    """Calls to Stripe.

    Args:
        secret_key: the key of the API; never logged.
        now: the wall clock, in UTC seconds.
        api_base: the address of the API.
        seconds: the time limit of a call; None for the usual one.

    Attributes:
        is_live: whether the key moves real money.
    """

    def __init__(
        self,
        secret_key: str,
        now: Callable[[], int],
        *,
        api_base: str = API_BASE,
        seconds: float | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {secret_key}", "Stripe-Version": API_VERSION}
        self._calls = (
            PaymentCalls(api_base, headers, now)
            if seconds is None
            else PaymentCalls(api_base, headers, now, seconds)
        )
        self.is_live = not secret_key.startswith(_TEST_KEYS)

    async def get(self, path: str, query: Mapping[str, str], kind: type[_Kind]) -> _Kind:
        """Return the content of an answer.

        Raises:
            ProviderError: the provider refused the call or did not answer.
        """
        answer = await self._calls.call("GET", f"{path}?{urlencode(query)}")
        return decoded(answer.body, kind)

    async def post(
        self, path: str, request: Mapping[str, str], key: str, kind: type[_Kind]
    ) -> _Kind:
        """Send a form; a repetition with the same key has no second effect for a day.

        Raises:
            ProviderError: the provider refused the call or did not answer.
        """
        answer = await self._calls.call("POST", path, *_form(request, key))
        return decoded(answer.body, kind)

    async def delete(self, path: str, kind: type[_Kind]) -> _Kind:
        """Delete a thing, and return the answer.

        Raises:
            ProviderError: the provider refused the call or did not answer.
        """
        answer = await self._calls.call("DELETE", path)
        return decoded(answer.body, kind)

    async def exchange(self, path: str, request: Mapping[str, str], key: str) -> Answer:
        """Send a form as `post` does, and return an answer with any status.

        Raises:
            ProviderError: the provider did not answer.
        """
        return await self._calls.exchange("POST", path, *_form(request, key))

    async def close(self) -> None:
        """Close every connection."""
        await self._calls.close()


def _form(request: Mapping[str, str], key: str) -> tuple[bytes, dict[str, str]]:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if key:
        headers["Idempotency-Key"] = key
    return urlencode(request).encode(), headers


def decoded(body: bytes, kind: type[_Kind]) -> _Kind:
    """Return the content of an answer.

    Raises:
        ProviderError: it has another form.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderError("its answer has another form", is_of_payment=True) from error

"""Payouts by PayPal: the API "Payouts" of version 1.

A batch has its identifier as `sender_batch_id`. PayPal refuses a second batch of the same name for
30 days and names the first one, so a repetition returns that one. It has no other question by this
name, so a repetition is also the look at a batch whose answer was lost.

PayPal checks the form of all payouts of a batch before it takes any, and names the wrong ones.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from market.money.money import MICRO
from market.payments.provider import ProviderError
from market.payouts.providers import BATCH_MAX, Order, Progress, Refusal
from market.payouts.terms import FailReason, MethodKind
from proxyd.outbound.payment_calls import PaymentCalls, refusal

CALL_SECONDS = 30.0
ANSWER_MAX_BYTES = 4 * 1024 * 1024  # 500 items have less than one
TOKEN_MARGIN_SECONDS = 60
ITEMS_MAX = 1_000
CENT_MICRO = MICRO // 100
DUPLICATE = "USER_BUSINESS_ERROR"
NO_MONEY = "INSUFFICIENT_FUNDS"
# A day less than PayPal promises.
REMEMBERS_SECONDS = 29 * 86_400
# The place of an error, such as `items[3].receiver`.
_PLACE = re.compile(r"/?items[\[/.]([0-9]{1,4})\]?[./](\w+)", re.ASCII)
# The end of an item; any other state waits.
FAILED: Mapping[str, FailReason] = {
    "FAILED": FailReason.REFUSED,
    "BLOCKED": FailReason.REFUSED,
    "RETURNED": FailReason.UNCLAIMED,
    "REFUNDED": FailReason.RETURNED,
    "REVERSED": FailReason.RETURNED,
}
PAID = "SUCCESS"
# The end of a whole batch that PayPal did not carry out.
DENIED = frozenset(("DENIED", "CANCELED"))


class PayPal:
    """The provider.

    Args:
        client_id: of the operator's app at PayPal.
        secret: its secret.
        now: the wall clock, in UTC seconds.
        api_base: the beginning of every address.
    """

    name = "paypal"
    kind = MethodKind.PAYPAL
    batch_max = BATCH_MAX
    remembers_seconds = REMEMBERS_SECONDS

    def __init__(self, client_id: str, secret: str, now: Callable[[], int], api_base: str) -> None:
        self._login = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        self._calls = PaymentCalls(api_base, {}, now, CALL_SECONDS, ANSWER_MAX_BYTES)
        self._token = ""
        self._token_until = 0.0  # on the monotonic clock

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """Send a batch once. Return PayPal's name of it.

        Raises:
            ProviderError: PayPal did not take it.
        """
        body = {
            "sender_batch_header": {
                "sender_batch_id": batch_id,
                "email_subject": "Your earnings are paid out",
            },
            "items": [_item(order) for order in orders],
        }
        status, answer = await self._call("POST", "/v1/payments/payouts", body)
        if status == 400 and answer.get("name") == DUPLICATE:
            for link in _dicts(answer.get("links")):
                _, is_batch, known = str(link.get("href", "")).rpartition("/payouts/")
                if is_batch and known:
                    return known
            # The batch may be one that PayPal has: to give its money back would pay it twice.
            raise ProviderError("it names no batch for a repeated one")
        header = answer.get("batch_header")
        if status != 201 or not isinstance(header, dict) or not header.get("payout_batch_id"):
            error = refusal(status)
            reasons = _named(answer, orders)
            is_of_payouts = status == 400 or bool(reasons)
            if error.is_final and is_of_payouts and answer.get("name") != NO_MONEY:
                return Refusal(str(error), reasons)
            raise error
        return str(header["payout_batch_id"])

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        """Return the progress of a batch by the identifiers of its payouts.

        Raises:
            ProviderError: PayPal did not answer.
        """
        path = f"/v1/payments/payouts/{outside_id}?page_size={ITEMS_MAX}"
        status, answer = await self._call("GET", path)
        if status != 200:
            raise refusal(status)
        header = answer.get("batch_header")
        denied = isinstance(header, dict) and header.get("batch_status") in DENIED
        found = {}
        for item in _dicts(answer.get("items")):
            details = item.get("payout_item")
            name = details.get("sender_item_id") if isinstance(details, dict) else None
            state = str(item.get("transaction_status", ""))
            reason = FailReason.NOT_SENT if denied else FAILED.get(state)
            found[str(name)] = Progress(state == PAID and not denied, reason)
        return found

    async def close(self) -> None:
        """Close every connection."""
        await self._calls.close()

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an answer."""
        token = await self._authorised()
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        status, answer = await self._asked(method, path, content, headers)
        if status == 401:
            self._token_until = 0.0  # another one next time
        return status, answer

    async def _authorised(self) -> str:
        """Return a token that is valid now."""
        if monotonic() < self._token_until:
            return self._token
        headers = {
            "Authorization": f"Basic {self._login}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        content = b"grant_type=client_credentials"
        try:
            status, answer = await self._asked("POST", "/v1/oauth2/token", content, headers)
        except ProviderError as error:
            raise ProviderError(str(error), has_no_effect=True) from error
        token, seconds = answer.get("access_token"), answer.get("expires_in")
        if status != 200 or not isinstance(token, str) or not isinstance(seconds, int):
            raise ProviderError(f"it gave no token, with status {status}", has_no_effect=True)
        self._token = token
        self._token_until = monotonic() + max(seconds - TOKEN_MARGIN_SECONDS, 0)
        return token

    async def _asked(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of an answer.

        Raises:
            ProviderError: no answer in time, or one that is too large or no JSON object.
        """
        status, text = await self._calls.exchange(method, path, content, headers)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ProviderError(f"its answer is no JSON object, with status {status}")
        return status, answer


def _item(order: Order) -> dict[str, Any]:
    """Return a payout as PayPal wants it."""
    whole, cents = divmod(order.net // CENT_MICRO, 100)
    return {
        "recipient_type": "EMAIL",
        "receiver": order.details.email,
        "amount": {"value": f"{whole}.{cents:02d}", "currency": "USD"},
        "sender_item_id": order.payout_id,
        "note": "Your earnings",
    }


def _named(answer: Mapping[str, Any], orders: Sequence[Order]) -> dict[str, FailReason]:
    """Return the payouts that an answer names as wrong, with their reasons."""
    found = {}
    for detail in _dicts(answer.get("details")):
        place = _PLACE.match(str(detail.get("field", "")))
        if place is None or int(place[1]) >= len(orders):
            continue
        is_receiver = place[2] in ("receiver", "recipient_type")
        reason = FailReason.METHOD_INVALID if is_receiver else FailReason.REFUSED
        found[orders[int(place[1])].payout_id] = reason
    return found


def _dicts(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list in an answer."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

"""Payments by the hosted Checkout of Stripe: its sessions, refunds, disputes and signed notices."""

from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from market.payments.provider import (
    Cards,
    Failure,
    HookError,
    NewPayment,
    Notice,
    Opened,
    ProviderError,
    ReturnState,
    Seen,
    SeenReturn,
)
from market.payments.terms import CENT
from proxyd.outbound.payment_calls import header_of, is_signed
from proxyd.outbound.stripe_api import API_BASE, StripeApi
from proxyd.outbound.stripe_cards import AUTHENTICATION, AUTOMATIC, StripeCards

HOOK_AGE_MAX_SECONDS = 300
SIGNATURES_MAX = 10
LIST_MAX = 100  # refunds or disputes of one payment: the longest list of the API

_REFUNDS: dict[str, ReturnState] = {
    "pending": "pending",
    "requires_action": "pending",
    "succeeded": "done",
    "failed": "void",
    "canceled": "void",
}
# No money moves for warnings, which are not listed here.
_DISPUTES: dict[str, ReturnState] = {
    "needs_response": "pending",
    "under_review": "pending",
    "lost": "done",
    "won": "void",
    "prevented": "void",
}


OF_CHARGES = "pi_"  # the beginning of the identifiers of payments by saved cards
_STATES_OF_CHARGES: dict[str, Literal["open", "paid", "expired", "failed"]] = {
    "succeeded": "paid",
    "processing": "open",
    "requires_capture": "open",
    "requires_payment_method": "failed",
    "requires_confirmation": "failed",
    "requires_action": "failed",
    "canceled": "failed",
}


class _Intent(Struct):
    id: str
    status: str = ""


class _Session(Struct):
    id: str
    status: str = ""
    payment_status: str = ""
    url: str | None = None
    amount_total: int | None = None
    currency: str | None = None
    client_reference_id: str | None = None
    livemode: bool = False
    payment_intent: _Intent | str | None = None


class _Return(Struct):
    """A refund or a dispute."""

    id: str
    amount: int
    currency: str
    status: str | None = None
    metadata: dict[str, str] | None = None


class _Refusal(Struct):
    """The last refusal of a payment by a saved card."""

    code: str | None = None
    decline_code: str | None = None


class _Charge(Struct):
    """A payment by a saved card."""

    id: str
    status: str
    amount: int
    currency: str
    livemode: bool = False
    metadata: dict[str, str] = {}
    last_payment_error: _Refusal | None = None


class _Returns(Struct):
    data: list[_Return]


class _Subject(Struct):
    """The subject of a notice."""

    object: str = ""
    id: str = ""
    client_reference_id: str | None = None
    payment_intent: _Intent | str | None = None
    metadata: dict[str, str] | None = None


class _Data(Struct):
    object: _Subject


class _Event(Struct):
    data: _Data
    type: str = ""
    livemode: bool = field(default=False)


class StripeProvider:
    """A `Provider` at Stripe.

    Args:
        secret_key: the key of the API; never logged.
        webhook_secrets: the secrets of the endpoint for notices, the current and the previous one.
        now: the wall clock, in UTC seconds.
        api_base: the address of the API.
        seconds: the time limit of a call; None for the usual one.
    """

    def __init__(
        self,
        secret_key: str,
        webhook_secrets: tuple[str, ...],
        now: Callable[[], int],
        *,
        api_base: str = API_BASE,
        seconds: float | None = None,
    ) -> None:
        self._api = StripeApi(secret_key, now, api_base=api_base, seconds=seconds)
        self._webhook_secrets = webhook_secrets
        self.cards: Cards | None = StripeCards(self._api)

    async def create(self, payment: NewPayment) -> Opened:
        """See `Provider.create`."""
        session = await self._api.post(
            "/v1/checkout/sessions", session_request(payment), payment.id, _Session
        )
        if not session.url or not session.url.startswith(("https://", "http://")):
            raise ProviderError("its answer has no page", is_of_payment=True)
        return Opened(session.id, session.url)

    async def look(self, provider_id: str) -> Seen:
        """See `Provider.look`."""
        if provider_id.startswith(OF_CHARGES):
            return await self._look_at_charge(provider_id)
        session = await self._api.get(
            f"/v1/checkout/sessions/{quote(provider_id, safe='')}",
            {"expand[]": "payment_intent"},
            _Session,
        )
        intent = session.payment_intent
        charge_id = (intent.id if isinstance(intent, _Intent) else intent) or ""
        state = _state(session)
        currency = session.currency or ""
        is_charged = state == "paid" and bool(charge_id)
        returns = await self._returns(charge_id, currency) if is_charged else ()
        return Seen(
            state=state,
            amount=(session.amount_total or 0) * CENT,
            currency=currency,
            payment_id=session.client_reference_id or "",
            has_mode=session.livemode == self._api.is_live,
            charge_id=charge_id,
            returns=returns,
        )

    async def refund(self, provider_id: str, charge_id: str, amount: int, key: str) -> SeenReturn:
        """See `Provider.refund`."""
        del provider_id
        request = refund_request(charge_id, amount, key)
        answer = await self._api.post("/v1/refunds", request, key, _Return)
        return _refund(answer, answer.currency)  # a refund has the currency of its payment

    def read_hook(self, headers: Mapping[str, str], body: bytes, now: int) -> Notice:
        """See `Provider.read_hook`."""
        _check_signature(header_of(headers, "stripe-signature"), body, self._webhook_secrets, now)
        try:
            event = msgspec.json.decode(body, type=_Event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Notice()  # signed, and about something that is no payment
        subject = event.data.object
        if subject.object == "checkout.session":
            return Notice(payment_id=subject.client_reference_id or "", provider_id=subject.id)
        if subject.object == "payment_intent" and AUTOMATIC in (subject.metadata or {}):
            payment_id = (subject.metadata or {}).get("payment_id", "")
            return Notice(payment_id=payment_id, provider_id=subject.id, charge_id=subject.id)
        if subject.object == "transfer":
            return Notice(transfer_id=subject.id)
        intent = subject.payment_intent
        return Notice(charge_id=(intent.id if isinstance(intent, _Intent) else intent) or "")

    async def close(self) -> None:
        """See `Provider.close`."""
        await self._api.close()

    async def _look_at_charge(self, intent_id: str) -> Seen:
        """Return the facts about a payment by a saved card."""
        intent = await self._api.get(
            f"/v1/payment_intents/{quote(intent_id, safe='')}", {}, _Charge
        )
        state = _STATES_OF_CHARGES.get(intent.status)
        if state is None:
            raise ProviderError("its answer has a state that is not known", is_of_payment=True)
        return Seen(
            state=state,
            amount=intent.amount * CENT,
            currency=intent.currency,
            payment_id=intent.metadata.get("payment_id", ""),
            has_mode=intent.livemode == self._api.is_live,
            charge_id=intent.id,
            returns=await self._returns(intent.id, intent.currency) if state == "paid" else (),
            failure=_failure(intent) if state == "failed" else "",
        )

    async def _returns(self, intent_id: str, currency: str) -> tuple[SeenReturn, ...]:
        """Return the refunds and disputes of a payment in a currency."""
        query = {"payment_intent": intent_id, "limit": str(LIST_MAX)}
        refunds = await self._api.get("/v1/refunds", query, _Returns)
        disputes = await self._api.get("/v1/disputes", query, _Returns)
        return (
            *(_refund(each, currency) for each in refunds.data),
            *(
                SeenReturn(each.id, "dispute", _DISPUTES[each.status or ""], _micro(each, currency))
                for each in disputes.data
                if each.status in _DISPUTES
            ),
        )


def session_request(payment: NewPayment) -> dict[str, str]:
    """Return the form that opens a Checkout session; the same payment has the same form."""
    item = "line_items[0]"
    return {
        "mode": "payment",
        f"{item}[quantity]": "1",
        f"{item}[price_data][currency]": "usd",
        f"{item}[price_data][unit_amount]": str(payment.amount // CENT),
        f"{item}[price_data][product_data][name]": payment.title,
        "client_reference_id": payment.id,
        "metadata[payment_id]": payment.id,
        "payment_intent_data[metadata][payment_id]": payment.id,
        "expires_at": str(payment.expires_at),
        "success_url": payment.return_url,
        "cancel_url": payment.return_url,
    }


def refund_request(charge_id: str, amount: int, key: str) -> dict[str, str]:
    """Return the form that refunds micro-USD of a payment."""
    return {
        "payment_intent": charge_id,
        "amount": str(amount // CENT),
        "metadata[return_id]": key,
    }


def _state(session: _Session) -> Literal["open", "paid", "expired", "failed"]:
    """Return the state of a payment by its session.

    A slow bank leaves a complete session unpaid, until its intent has succeeded or needs another
    method.
    """
    if session.payment_status == "paid":
        return "paid"
    if session.status == "expired":
        return "expired"
    intent = session.payment_intent
    has_failed = isinstance(intent, _Intent) and intent.status in (
        "requires_payment_method",
        "canceled",
    )
    return "failed" if session.status == "complete" and has_failed else "open"


def _failure(charge: _Charge) -> Failure:
    """Return the reason why a payment by a saved card has failed."""
    refusal = charge.last_payment_error or _Refusal()
    is_of_owner = AUTHENTICATION in (refusal.code, refusal.decline_code)
    return "authentication" if is_of_owner or charge.status == "requires_action" else "refused"


def _refund(found: _Return, currency: str) -> SeenReturn:
    own_id = (found.metadata or {}).get("return_id", "")
    state = _REFUNDS.get(found.status or "", "pending")
    return SeenReturn(found.id, "refund", state, _micro(found, currency), own_id)


def _micro(found: _Return, currency: str) -> int:
    """Return the amount of a refund or a dispute in micro-units of the currency of its payment.

    Raises:
        ProviderError: the currency is another one, or the amount is no amount.
    """
    if found.currency != currency or found.amount <= 0:
        raise ProviderError(f"{found.id} has another currency or no amount", is_of_payment=True)
    return found.amount * CENT


def _check_signature(header: str, body: bytes, secrets: tuple[str, ...], now: int) -> None:
    """Check the signature of a notice: `t=…,v1=…`, the HMAC of the time, a point and the body.

    Raises:
        HookError: it is wrong or too old.
    """
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    signatures = tuple(value for name, _, value in parts if name == "v1")[:SIGNATURES_MAX]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdigit() and len(times[0]) < 16):
        raise HookError("the signature has no time", "missing")
    if abs(now - int(times[0])) > HOOK_AGE_MAX_SECONDS:
        raise HookError("the signature is too old", "old")
    if not is_signed(secrets, times[0].encode() + b"." + body, signatures):
        raise HookError("the signature is wrong")

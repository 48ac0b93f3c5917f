"""Saved cards at Stripe: a page of Checkout saves one, and payments are taken from it.

Each payment is confirmed while its user is away (`off_session`). A bank that requires the owner of
the card ends it.
"""

from collections.abc import Awaitable
from urllib.parse import quote

from msgspec import Struct

from market.payments.provider import (
    NewCharge,
    NewSetup,
    OpenedSetup,
    ProviderError,
    SeenSetup,
)
from market.payments.terms import CENT
from proxyd.outbound.payment_calls import refusal
from proxyd.outbound.stripe_api import StripeApi, decoded

AUTOMATIC = "automatic"  # the mark of these payments in their metadata
AUTHENTICATION = "authentication_required"
SHOWN_MAX_CHARACTERS = 40
CHARGES_MAX = 100  # the newest ones; the longest list of the API
_REFUSED = 402


class _Named(Struct):
    id: str


class _Card(Struct):
    brand: str = ""
    last4: str = ""


class _Method(Struct):
    id: str
    card: _Card | None = None


class _SetupIntent(Struct):
    status: str = ""
    payment_method: _Method | str | None = None


class _Setup(Struct):
    id: str
    status: str = ""
    url: str | None = None
    customer: str | None = None
    client_reference_id: str | None = None
    livemode: bool = False
    setup_intent: _SetupIntent | str | None = None


class _Intent(Struct):
    id: str
    metadata: dict[str, str] = {}


class _Intents(Struct):
    data: list[_Intent]


class _Error(Struct):
    payment_intent: _Named | None = None


class _Refused(Struct):
    error: _Error


class StripeCards:
    """The `Cards` of Stripe.

    Args:
        api: the API with the key of the operator.
    """

    def __init__(self, api: StripeApi) -> None:
        self._api = api

    async def prepare(self, setup: NewSetup) -> OpenedSetup:
        """See `Cards.prepare`."""
        customer = setup.customer_id
        if not customer:
            request = customer_request(setup)
            key = f"{setup.id}:customer"
            customer = (await self._api.post("/v1/customers", request, key, _Named)).id
        session = await self._api.post(
            "/v1/checkout/sessions", setup_request(setup, customer), setup.id, _Setup
        )
        if not session.url or not session.url.startswith(("https://", "http://")):
            raise ProviderError("its answer has no page", is_of_payment=True)
        return OpenedSetup(session.id, customer, session.url)

    async def look(self, ref: str) -> SeenSetup:
        """See `Cards.look`."""
        session = await self._api.get(
            f"/v1/checkout/sessions/{quote(ref, safe='')}",
            {"expand[]": "setup_intent.payment_method"},
            _Setup,
        )
        has_mode, setup_id = (
            session.livemode == self._api.is_live,
            session.client_reference_id or "",
        )
        intent = session.setup_intent
        if session.status == "expired":
            return SeenSetup("over", setup_id, has_mode)
        if session.status != "complete" or not isinstance(intent, _SetupIntent):
            return SeenSetup("open", setup_id, has_mode)
        method = intent.payment_method
        if intent.status != "succeeded" or not isinstance(method, _Method):
            is_over = intent.status in ("canceled", "requires_payment_method")
            return SeenSetup("over" if is_over else "open", setup_id, has_mode)
        card = method.card or _Card()
        shown = f"{card.brand} …{card.last4}"[:SHOWN_MAX_CHARACTERS]
        return SeenSetup("saved", setup_id, has_mode, session.customer or "", method.id, shown)

    async def charge(self, charge: NewCharge) -> str:
        """See `Cards.charge`."""
        answer = await self._api.exchange("/v1/payment_intents", charge_request(charge), charge.id)
        if 200 <= answer.status < 300:
            return decoded(answer.body, _Named).id
        if answer.status != _REFUSED:
            raise refusal(answer.status)
        refused = decoded(answer.body, _Refused).error.payment_intent
        if refused is None:
            raise ProviderError("it refused the card", is_final=True)
        return refused.id

    async def find_charge(self, charge: NewCharge) -> str | None:
        """See `Cards.find_charge`; a customer has far fewer charges in the time of a repetition."""
        query = {"customer": charge.customer_id, "limit": str(CHARGES_MAX)}
        charges = (await self._api.get("/v1/payment_intents", query, _Intents)).data
        return next(
            (each.id for each in charges if each.metadata.get("payment_id") == charge.id), None
        )

    async def forget(self, card_id: str) -> None:
        """See `Cards.forget`."""
        path = f"/v1/payment_methods/{quote(card_id, safe='')}/detach"
        await _settled(self._api.post(path, {}, f"{card_id}:detach", _Named))

    async def expire(self, ref: str) -> None:
        """See `Cards.expire`."""
        path = f"/v1/checkout/sessions/{quote(ref, safe='')}/expire"
        await _settled(self._api.post(path, {}, "", _Named))

    async def forget_customer(self, customer_id: str) -> None:
        """See `Cards.forget_customer`; Stripe detaches all cards of a deleted customer."""
        path = f"/v1/customers/{quote(customer_id, safe='')}"
        await _settled(self._api.delete(path, _Named))


async def _settled(call: Awaitable[object]) -> None:
    """Wait for a removal; a final refusal means that the thing is not there.

    Raises:
        ProviderError: the provider did not answer.
    """
    try:
        await call
    except ProviderError as error:
        if not error.is_final:
            raise


def customer_request(setup: NewSetup) -> dict[str, str]:
    """Return the form that makes a customer, without the name or the address of the user."""
    return {"metadata[setup_id]": setup.id}


def setup_request(setup: NewSetup, customer_id: str) -> dict[str, str]:
    """Return the form that opens a page where a card is saved for payments without its user."""
    return {
        "mode": "setup",
        "currency": "usd",
        "allowed_payment_method_types[0]": "card",
        "customer": customer_id,
        "client_reference_id": setup.id,
        "metadata[setup_id]": setup.id,
        "expires_at": str(setup.expires_at),
        "success_url": setup.return_url,
        "cancel_url": setup.return_url,
    }


def charge_request(charge: NewCharge) -> dict[str, str]:
    """Return the form that takes a payment from a saved card, the same one each time."""
    return {
        "amount": str(charge.amount // CENT),
        "currency": "usd",
        "customer": charge.customer_id,
        "payment_method": charge.card_id,
        "allowed_payment_method_types[0]": "card",
        "off_session": "true",
        "confirm": "true",
        "error_on_requires_action": "true",
        "description": charge.title,
        "metadata[payment_id]": charge.id,
        f"metadata[{AUTOMATIC}]": "1",
    }

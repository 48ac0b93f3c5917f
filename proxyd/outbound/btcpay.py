"""Payments by a BTCPay Server: its Greenfield API, and its signed notices.

Invoices are in USD; the server settles them in coins, and converts at its own rate. Only an invoice
that is settled, and not over- or underpaid, is credited; the others wait for the operator, also one
that has expired with a part of its price. A refund opens a pull payment in the currency of its
invoice: the payer claims it on a page of the server. An invoice that the operator has made for a
payment may be in another currency. The pull payments of such an invoice never exceed its amount.
"""

from collections.abc import Callable, Mapping
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from market.money.money import as_decimal, micro
from market.payments.provider import (
    Cards,
    HookError,
    NewPayment,
    Notice,
    Opened,
    ProviderError,
    ReturnState,
    Seen,
    SeenReturn,
)
from proxyd.outbound.payment_calls import PaymentCalls, header_of, is_signed

MINUTE_SECONDS = 60
USD = "USD"
OWN = "proxyd "  # the beginning of the names of our pull payments
_STATES: dict[str, Literal["open", "paid", "expired", "failed"]] = {
    "New": "open",
    "Processing": "open",
    "Settled": "paid",
    "Expired": "expired",
    "Invalid": "failed",
}
# A payment that is not the price: the operator decides, so the amount is reported as another one.
_OTHER_AMOUNTS = frozenset(("PaidPartial", "PaidOver", "PaidLate"))
# A coin has eight decimals, but a micro-unit is the least amount here.
_MICRO_UNIT = Decimal("0.000001")
STEP = 1  # in micro-units: a pull payment can have any amount


class _Invoice(Struct):
    id: str
    status: str
    amount: str
    currency: str
    additionalStatus: str = ""  # noqa: N815 - the name in the API
    checkoutLink: str = ""  # noqa: N815
    metadata: dict[str, object] = {}


class _PullPayment(Struct):
    id: str
    name: str = ""
    amount: str = "0"
    archived: bool = False


class _Claim(Struct):
    """A payout of a pull payment."""

    id: str


class _Event(Struct):
    invoiceId: str = ""  # noqa: N815 - the name in the API


_Kind = TypeVar("_Kind")


class BtcPayProvider:
    """A `Provider` at a BTCPay Server.

    Args:
        url: the address of the server.
        store: the identifier of the store.
        key: a key of the API for this store alone; never logged.
        webhook_secret: the secret of the webhook.
        now: the wall clock, in UTC seconds.
        seconds: the time limit of a call; None for the usual one.
    """

    def __init__(
        self,
        url: str,
        store: str,
        key: str,
        webhook_secret: str,
        now: Callable[[], int],
        *,
        seconds: float | None = None,
    ) -> None:
        self.cards: Cards | None = None
        headers = {"Authorization": f"token {key}"}
        self._calls = (
            PaymentCalls(url, headers, now)
            if seconds is None
            else PaymentCalls(url, headers, now, seconds)
        )
        self._now = now
        self._store = f"/api/v1/stores/{quote(store, safe='')}"
        self._webhook_secret = webhook_secret

    async def create(self, payment: NewPayment) -> Opened:
        """See `Provider.create`. The API has no Idempotency-Key, so an earlier invoice is found."""
        found = await self._get(f"{self._store}/invoices?orderId={payment.id}", list[_Invoice])
        invoice = next((each for each in found if _order(each) == payment.id), None)
        if invoice is None:
            left = max(payment.expires_at - self._now(), MINUTE_SECONDS)
            request = {
                "amount": as_decimal(payment.amount),
                "currency": USD,
                "metadata": {"orderId": payment.id, "itemDesc": payment.title},
                "checkout": {
                    "redirectURL": payment.return_url,
                    "expirationMinutes": left // MINUTE_SECONDS,
                },
            }
            invoice = await self._post(f"{self._store}/invoices", request, _Invoice)
        if not invoice.checkoutLink.startswith(("https://", "http://")):
            raise ProviderError("its answer has no page", is_of_payment=True)
        return Opened(invoice.id, invoice.checkoutLink)

    async def look(self, provider_id: str) -> Seen:
        """See `Provider.look`."""
        invoice = await self._get(self._path(provider_id), _Invoice)
        state = _STATES.get(invoice.status)
        if state is None:
            raise ProviderError("its answer has a state that is not known", is_of_payment=True)
        is_partial = invoice.additionalStatus == "PaidPartial"
        if invoice.additionalStatus in _OTHER_AMOUNTS and not (is_partial and state == "open"):
            state = "paid"  # with another amount, so it is doubtful
        return Seen(
            state=state,
            amount=_paid(invoice),
            currency=invoice.currency.lower(),
            payment_id=_order(invoice),
            has_mode=True,
            charge_id=invoice.id,
            returns=await self._refunds(provider_id) if state == "paid" else (),
            step=STEP,
        )

    async def refund(self, provider_id: str, charge_id: str, amount: int, key: str) -> SeenReturn:
        """See `Provider.refund`. An earlier pull payment of the same name is found."""
        del charge_id
        earlier = await self._refunds(provider_id)
        for each in earlier:
            if each.own_id == key:
                return each
        invoice = await self._get(self._path(provider_id), _Invoice)
        returned = sum(each.amount for each in earlier if each.state != "void")
        if invoice.currency != USD and not 0 < amount <= _paid(invoice) - returned:
            raise ProviderError("its invoice does not have this amount", is_final=True)
        request = {
            "name": f"{OWN}{provider_id} {key}",
            "refundVariant": "Custom",
            "customAmount": as_decimal(amount),
            "customCurrency": invoice.currency,
        }
        made = await self._post(f"{self._path(provider_id)}/refund", request, _PullPayment)
        return SeenReturn(made.id, "refund", "done", amount, key)

    def read_hook(self, headers: Mapping[str, str], body: bytes, now: int) -> Notice:
        """See `Provider.read_hook`. The signature has no time: a replay only causes a look."""
        del now
        scheme, _, signature = header_of(headers, "btcpay-sig").partition("=")
        if scheme != "sha256" or not is_signed((self._webhook_secret,), body, (signature,)):
            raise HookError("the signature is wrong")
        try:
            event = msgspec.json.decode(body, type=_Event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Notice()  # signed, and about something that is no payment
        return Notice(provider_id=event.invoiceId)

    async def close(self) -> None:
        """See `Provider.close`."""
        await self._calls.close()

    async def _refunds(self, provider_id: str) -> tuple[SeenReturn, ...]:
        """Return the pull payments that this service has opened for an invoice."""
        path = f"{self._store}/pull-payments?includeArchived=true"
        found = await self._get(path, list[_PullPayment])
        own = [each for each in found if each.name.startswith(f"{OWN}{provider_id} ")]
        return tuple([await self._refund(each) for each in own])

    async def _refund(self, found: _PullPayment) -> SeenReturn:
        """Return a pull payment as a refund; one that was archived is taken back.

        Archived after the payer has claimed a part of it, it is done: that money has left. The list
        of claims is without the cancelled ones; an archived one has no other that waits.
        """
        state: ReturnState = "done"
        if found.archived:
            path = f"/api/v1/pull-payments/{quote(found.id, safe='')}/payouts"
            state = "done" if await self._get(path, list[_Claim]) else "void"
        own_id = found.name.split(" ")[-1]
        return SeenReturn(found.id, "refund", state, _micro(found.amount), own_id)

    def _path(self, provider_id: str) -> str:
        return f"{self._store}/invoices/{quote(provider_id, safe='')}"

    async def _get(self, path: str, kind: type[_Kind]) -> _Kind:
        return _decoded((await self._calls.call("GET", path)).body, kind)

    async def _post(self, path: str, request: object, kind: type[_Kind]) -> _Kind:
        headers = {"Content-Type": "application/json"}
        body = msgspec.json.encode(request)
        return _decoded((await self._calls.call("POST", path, body, headers)).body, kind)


def _order(invoice: _Invoice) -> str:
    """Return the identifier that this service gave to the payment of an invoice."""
    found = invoice.metadata.get("orderId")
    return found if isinstance(found, str) else ""


def _paid(invoice: _Invoice) -> int:
    """Return the paid amount in micro-units of the invoice's currency; 0 for one that is unknown.

    Raises:
        ProviderError: it is no amount.
    """
    return 0 if invoice.additionalStatus in _OTHER_AMOUNTS else _micro(invoice.amount)


def _micro(amount: str) -> int:
    """Return an amount of the API in micro-units, rounded down.

    Raises:
        ProviderError: it is no amount.
    """
    try:
        return micro(Decimal(amount).quantize(_MICRO_UNIT, ROUND_DOWN))
    except (InvalidOperation, ValueError) as error:
        raise ProviderError("its answer has no amount", is_of_payment=True) from error


def _decoded(body: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderError("its answer has another form", is_of_payment=True) from error

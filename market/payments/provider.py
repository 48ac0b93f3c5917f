"""The interface of a payment provider, and the facts that it reports.

A provider shows a page where the user pays. Its notices are hints only: `look` returns the facts.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from market.payments.terms import CENT

ReturnKind = Literal["refund", "dispute"]
ReturnState = Literal["pending", "done", "void"]


class ProviderError(Exception):
    """The provider did not carry out a request; the text is for the log, and has no secret.

    Args:
        text: the reason.
        is_final: whether a repetition of the request fails in the same way.
        is_of_payment: whether the answer about this payment is at fault; requests about other
            payments may succeed.
        has_no_effect: whether the request certainly changed nothing at the provider.
    """

    def __init__(
        self,
        text: str,
        *,
        is_final: bool = False,
        is_of_payment: bool = False,
        has_no_effect: bool = False,
    ) -> None:
        super().__init__(text)
        self.is_final = is_final
        self.is_of_payment = is_of_payment
        self.has_no_effect = has_no_effect


HookFault = Literal["missing", "old", "signature"]


class HookError(Exception):
    """A notice is not one that the provider has signed now.

    Args:
        text: the reason, for the log.
        fault: the signature is missing, wrong, or from more than five minutes ago.
    """

    def __init__(self, text: str, fault: HookFault = "signature") -> None:
        super().__init__(text)
        self.fault = fault


class NewPayment(Struct, frozen=True):
    """A payment that a provider is to receive: `amount` in micro-USD, whole cents.

    The same payment is requested with the same fields each time: the identifier makes the request
    happen once. `return_url` is where the user goes afterwards, `expires_at` is in UTC seconds.
    """

    id: str
    amount: int
    title: str
    return_url: str
    expires_at: int


class Opened(Struct, frozen=True):
    """A payment at a provider: its identifier there, and the page where the user pays."""

    provider_id: str
    url: str


class SeenReturn(Struct, frozen=True):
    """A refund or a dispute at a provider: `amount` in micro-units of the payment's currency.

    `own_id` is the identifier that this service gave to a refund; "" for one made elsewhere.
    """

    ref: str
    kind: ReturnKind
    state: ReturnState
    amount: int
    own_id: str = ""


class NewSetup(Struct, frozen=True):
    """A page where a user saves a card.

    `customer_id` is the provider's identifier of the user, "" before the first page. `return_url`
    is where the user goes afterwards, `expires_at` is in UTC seconds.
    """

    id: str
    customer_id: str
    return_url: str
    expires_at: int


class OpenedSetup(Struct, frozen=True):
    """A page where a user saves a card: the provider's identifiers, and its address."""

    ref: str
    customer_id: str
    url: str


class SeenSetup(Struct, frozen=True):
    """The facts about a page where a user saves a card.

    `setup_id` is the identifier that this service gave to it. `shown` has the brand and the last
    digits of the card. `has_mode` is as in `Seen`.
    """

    state: Literal["open", "saved", "over"]
    setup_id: str
    has_mode: bool
    customer_id: str = ""
    card_id: str = ""
    shown: str = ""


class NewCharge(Struct, frozen=True):
    """A payment by a saved card, while its user is away: `amount` in micro-USD, whole cents."""

    id: str
    amount: int
    title: str
    customer_id: str
    card_id: str


Failure = Literal["", "refused", "authentication"]


class Seen(Struct, frozen=True):
    """The facts about a payment at its provider.

    `charge_id` names the payment in notices about refunds and disputes, "" before the first.
    `payment_id` is the identifier that this service gave to the payment. `has_mode` is whether the
    payment is of the mode of the configured key, test or live. `failure` is the reason of a failed
    payment by a saved card: the bank refused it, or requires the owner of the card. `step` is the
    least part of its currency that can be returned, in micro-units.
    """

    state: Literal["open", "paid", "expired", "failed"]
    amount: int
    currency: str
    payment_id: str
    has_mode: bool
    charge_id: str = ""
    returns: tuple[SeenReturn, ...] = ()
    failure: Failure = ""
    step: int = CENT


class Notice(Struct, frozen=True):
    """A signed notice about a payment, by any of its names, or about a transfer to a user.

    All are "" for other subjects.
    """

    payment_id: str = ""
    provider_id: str = ""
    charge_id: str = ""
    transfer_id: str = ""


class Cards(Protocol):
    """The saved cards of a payment provider."""

    async def prepare(self, setup: NewSetup) -> OpenedSetup:
        """Prepare a page where a user saves a card; a repetition returns the same one.

        Raises:
            ProviderError: the provider refused it or did not answer.
        """

    async def look(self, ref: str) -> SeenSetup:
        """Return the facts about a page.

        Raises:
            ProviderError: the provider refused it or did not answer.
        """

    async def charge(self, charge: NewCharge) -> str:
        """Take a payment from a saved card, and return the provider's identifier of it.

        A repetition with the same charge takes nothing more. `Provider.look` says whether the
        payment was made.

        Raises:
            ProviderError: the provider refused it or did not answer.
        """

    async def find_charge(self, charge: NewCharge) -> str | None:
        """Return the provider's identifier of a charge that was made; None without one.

        Raises:
            ProviderError: the provider did not answer.
        """

    async def forget(self, card_id: str) -> None:
        """Remove a card at the provider; a card that is not there counts as removed.

        Raises:
            ProviderError: the provider did not answer.
        """

    async def expire(self, ref: str) -> None:
        """End a page where a user saves a card; one that is over already stays so.

        Raises:
            ProviderError: the provider did not answer.
        """

    async def forget_customer(self, customer_id: str) -> None:
        """Delete a user at the provider with all cards; one that is not there counts as deleted.

        Raises:
            ProviderError: the provider did not answer.
        """


class Provider(Protocol):
    """A payment provider."""

    @property
    def cards(self) -> Cards | None:
        """The saved cards; None for a provider without them."""

    async def create(self, payment: NewPayment) -> Opened:
        """Prepare a payment; a repetition with the same payment returns the same one.

        Raises:
            ProviderError: the provider refused it or did not answer.
        """

    async def look(self, provider_id: str) -> Seen:
        """Return the facts about a payment.

        Raises:
            ProviderError: the provider refused it or did not answer.
        """

    async def refund(self, provider_id: str, charge_id: str, amount: int, key: str) -> SeenReturn:
        """Send money of a payment back to its payer; a repetition with the same key does nothing.

        Args:
            provider_id: the payment.
            charge_id: its charge.
            amount: micro-units of the currency that the payer has paid in, whole cents.
            key: this service's identifier of the refund.

        Raises:
            ProviderError: the provider refused it or did not answer.
        """

    def read_hook(self, headers: Mapping[str, str], body: bytes, now: int) -> Notice:
        """Return the content of a notice.

        Args:
            headers: of the request; names in any case.
            body: the bytes that were signed.
            now: UTC seconds.

        Raises:
            HookError: the signature is missing, wrong or too old.
        """

    async def close(self) -> None:
        """Close every connection."""

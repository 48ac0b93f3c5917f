"""Payouts by Stripe Connect: each is a transfer to the user's own Express account.

Stripe checks the identity of the user, on its own pages. A transfer arrives at once or is refused;
the way from the user's account to a bank is between the user and Stripe. Stripe finds a transfer by
the identifier of its batch, so a repetition looks before it sends.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct

from market.money.money import MICRO
from market.payments.provider import ProviderError
from market.payouts.providers import Order, Progress, Refusal
from market.payouts.terms import FailReason, MethodKind
from proxyd.outbound.payment_calls import refusal
from proxyd.outbound.stripe_api import StripeApi, decoded

ACCOUNTS = "/v1/accounts"
LINKS = "/v1/account_links"
TRANSFERS = "/v1/transfers"
CENT_MICRO = MICRO // 100
# The look before a repetition has no end; the staff decides about a batch that is this old.
REMEMBERS_SECONDS = 29 * 86_400
NO_MONEY = "balance_insufficient"
# The receiver's account is at fault.
OF_ACCOUNT = frozenset(
    (
        "account_invalid",
        "insufficient_capabilities_for_transfer",
        "no_account",
        "resource_missing",
        "transfers_not_allowed",
    )
)


class _Capabilities(Struct, frozen=True):
    transfers: str = ""


class _Account(Struct):
    id: str
    payouts_enabled: bool = False
    capabilities: _Capabilities = _Capabilities()


class _Link(Struct):
    url: str


class _Transfer(Struct):
    id: str
    reversed: bool = False
    metadata: dict[str, str] = {}


class _Transfers(Struct):
    data: list[_Transfer]


class _Error(Struct, frozen=True):
    code: str = ""


class _Refused(Struct):
    error: _Error = _Error()


class StripePayouts:
    """The provider, and the accounts that it pays to, by calls to Stripe."""

    name = "stripe"
    kind = MethodKind.STRIPE
    batch_max = 1
    remembers_seconds = REMEMBERS_SECONDS

    def __init__(self, api: StripeApi) -> None:
        self._api = api

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """See `Provider.send`; a batch has one payout."""
        [order] = orders
        query = {"transfer_group": batch_id, "limit": "1"}
        for known in (await self._api.get(TRANSFERS, query, _Transfers)).data:
            return known.id
        answer = await self._api.exchange(TRANSFERS, transfer_request(order, batch_id), batch_id)
        if 200 <= answer.status < 300:
            return decoded(answer.body, _Transfer).id
        error = refusal(answer.status)
        if not error.is_final:
            raise error
        code = decoded(answer.body, _Refused).error.code
        if code == NO_MONEY:
            return Refusal("its account has not enough money", is_of_batch=True)
        reason = FailReason.METHOD_INVALID if code in OF_ACCOUNT else FailReason.REFUSED
        return Refusal(str(error), {order.payout_id: reason})

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        """See `Provider.look`."""
        payout_id, progress = await self.payout_of(outside_id)
        return {payout_id: progress}

    async def payout_of(self, transfer_id: str) -> tuple[str, Progress]:
        """See `Connect.payout_of`."""
        path = f"{TRANSFERS}/{quote(transfer_id, safe='')}"
        found = await self._api.get(path, {}, _Transfer)
        failed = FailReason.RETURNED if found.reversed else None
        return found.metadata.get("payout_id", ""), Progress(failed is None, failed)

    async def open_account(self, key: str) -> str:
        """See `Connect.open_account`."""
        request = account_request()
        return (await self._api.post(ACCOUNTS, request, f"connect:{key}", _Account)).id

    async def link(self, account_id: str, return_url: str) -> str:
        """See `Connect.link`."""
        request = link_request(account_id, return_url)
        url = (await self._api.post(LINKS, request, "", _Link)).url
        if not url.startswith(("https://", "http://")):
            raise ProviderError("its answer has no page")
        return url

    async def is_ready(self, account_id: str) -> bool:
        """See `Connect.is_ready`."""
        path = f"{ACCOUNTS}/{quote(account_id, safe='')}"
        found = await self._api.get(path, {}, _Account)
        return found.payouts_enabled and found.capabilities.transfers == "active"

    async def close(self) -> None:
        """See `Provider.close`."""
        await self._api.close()


def account_request() -> dict[str, str]:
    """Return the form that opens an account; it has no data of the user."""
    return {"type": "express", "capabilities[transfers][requested]": "true"}


def link_request(account_id: str, return_url: str) -> dict[str, str]:
    """Return the form that makes a link to the pages where a user fills the account in."""
    return {
        "account": account_id,
        "type": "account_onboarding",
        "refresh_url": return_url,
        "return_url": return_url,
    }


def transfer_request(order: Order, batch_id: str) -> dict[str, str]:
    """Return the form that sends a payout; the same payout has the same form."""
    return {
        "amount": str(order.net // CENT_MICRO),
        "currency": "usd",
        "destination": order.details.account,
        "transfer_group": batch_id,
        "metadata[payout_id]": order.payout_id,
    }

"""The client for Stripe against the stand-in, and the same tests against Stripe's real test mode.

`make stripe` runs both with a key. A payment on the real page needs a person: the
test prints the address, and waits for `PROXYD_TEST_STRIPE_SECONDS`.
"""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
from support.payments import stripe_server
from support.payments.stripe_server import SECRET

from market.payments.provider import (
    Cards,
    NewCharge,
    NewPayment,
    NewSetup,
    ProviderError,
    Seen,
    SeenReturn,
)
from market.payouts.details import Details
from market.payouts.providers import Order, Refusal
from market.payouts.terms import FailReason
from proxyd.outbound.stripe import StripeProvider
from proxyd.outbound.stripe_api import API_BASE, StripeApi
from proxyd.outbound.stripe_payouts import StripePayouts

KEY = os.environ.get("PROXYD_TEST_STRIPE_KEY", "")
BY_HAND_SECONDS = int(os.environ.get("PROXYD_TEST_STRIPE_SECONDS", "0"))
DISPUTED_SECONDS = 60  # the bank of a test card disputes a little later
BACK = "https://example.com/"
CENT = 10_000


def now() -> int:
    return int(time.time())


def new_id() -> str:
    return str(uuid.uuid4())


class Side:
    """A provider and its payouts, at the stand-in or at Stripe."""

    def __init__(self, key: str, base: str) -> None:
        self.is_real = base == API_BASE
        self.api = StripeApi(key, now, api_base=base)
        self.provider = StripeProvider(key, (SECRET,), now, api_base=base)
        self.payouts = StripePayouts(StripeApi(key, now, api_base=base))

    @property
    def cards(self) -> Cards:
        assert self.provider.cards is not None
        return self.provider.cards

    async def save(self, card: str) -> tuple[str, str]:
        """Save a card of the test mode for a new customer; return both."""
        opened = await self.cards.prepare(NewSetup(new_id(), "", BACK, now() + 3_600))
        path, form = f"/v1/payment_methods/{card}/attach", {"customer": opened.customer_id}
        method = await self.api.post(path, form, "", Named)
        return opened.customer_id, method.id

    async def pay(self, url: str) -> None:
        """Pay on a page: press the button of the stand-in, or let a person pay at Stripe."""
        if self.is_real:
            sys.stderr.write(f"\nPay with the card 4242 4242 4242 4242: {url}\n")
            return
        async with aiohttp.ClientSession() as http:
            await http.post(f"{url}/pay", allow_redirects=False)

    async def look(self, provider_id: str, seconds: float) -> Seen:
        """Look until a payment is not open any more, for some seconds."""
        until = time.monotonic() + seconds
        while (seen := await self.provider.look(provider_id)).state == "open":
            assert time.monotonic() < until, "nobody has paid"
            await asyncio.sleep(1)
        return seen

    async def close(self) -> None:
        await self.api.close()
        await self.provider.close()
        await self.payouts.close()


class Named(msgspec.Struct):
    """A thing with an identifier."""

    id: str


@pytest.fixture(params=["stand-in", "real"])
async def side(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    if request.param == "real":
        if not KEY:
            pytest.skip("PROXYD_TEST_STRIPE_KEY is not set")
        if not KEY.startswith("sk_test_"):
            pytest.fail("PROXYD_TEST_STRIPE_KEY is no key of the test mode; nothing was sent")
        made = Side(KEY, API_BASE)
        yield made
        await made.close()
        return
    async with stripe_server.running(now) as server:
        made = Side(stripe_server.KEY, server.url)
        yield made
        await made.close()


def payment() -> NewPayment:
    return NewPayment(new_id(), 20_000_000, "proxyd: 20.00 USD", BACK, now() + 3_600)


def summary(returns: tuple[SeenReturn, ...]) -> list[tuple[str, str, int]]:
    return [(each.kind, each.state, each.amount // CENT) for each in returns]


async def test_a_payment_is_opened_once_and_expires(side: Side) -> None:
    made = payment()
    opened = await side.provider.create(made)
    assert await side.provider.create(made) == opened
    seen = await side.provider.look(opened.provider_id)
    assert (seen.state, seen.amount, seen.currency) == ("open", made.amount, "usd")
    assert (seen.payment_id, seen.has_mode) == (made.id, True)
    for _ in range(2):
        await side.cards.expire(opened.provider_id)
    assert (await side.provider.look(opened.provider_id)).state == "expired"


async def test_a_payment_on_the_page_arrives_and_goes_back_in_parts(side: Side) -> None:
    if side.is_real and not BY_HAND_SECONDS:
        pytest.skip("PROXYD_TEST_STRIPE_SECONDS is not set: nobody pays on the page")
    made = payment()
    opened = await side.provider.create(made)
    await side.pay(opened.url)
    seen = await side.look(opened.provider_id, BY_HAND_SECONDS)
    assert (seen.state, seen.amount, seen.payment_id) == ("paid", made.amount, made.id)
    for key, cents in (("a", 742), ("a", 742), ("b", 1_258)):
        name = f"{made.id}:{key}"
        await side.provider.refund(opened.provider_id, seen.charge_id, cents * CENT, name)
    seen = await side.provider.look(opened.provider_id)
    found = sorted(summary(seen.returns))
    assert found == [("refund", "done", 742), ("refund", "done", 1_258)]


async def test_a_saved_card_pays_once_and_its_money_goes_back_once(side: Side) -> None:
    customer, method = await side.save("pm_card_visa")
    charge = NewCharge(new_id(), 2_000 * CENT, "proxyd: 20", customer, method)
    charge_id = await side.cards.charge(charge)
    assert await side.cards.charge(charge) == charge_id
    assert await side.cards.find_charge(charge) == charge_id
    seen = await side.provider.look(charge_id)
    assert (seen.state, seen.amount, seen.currency) == ("paid", charge.amount, "usd")
    assert (seen.payment_id, seen.has_mode) == (charge.id, True)
    key = new_id()
    first = await side.provider.refund(charge_id, seen.charge_id, 742 * CENT, key)
    assert await side.provider.refund(charge_id, seen.charge_id, 742 * CENT, key) == first
    assert first.own_id == key
    with pytest.raises(ProviderError) as refused:
        await side.provider.refund(charge_id, seen.charge_id, 1_259 * CENT, new_id())
    assert refused.value.is_final
    seen = await side.provider.look(charge_id)
    assert summary(seen.returns) == [("refund", "done", 742)]
    for _ in range(2):
        await side.cards.forget(method)
    with pytest.raises(ProviderError):
        await side.cards.charge(NewCharge(new_id(), 500 * CENT, "proxyd: 5", customer, method))
    for _ in range(2):
        await side.cards.forget_customer(customer)


@pytest.mark.parametrize(
    ("card", "failure"),
    [
        ("pm_card_chargeCustomerFail", "refused"),
        ("pm_card_authenticationRequired", "authentication"),
    ],
)
async def test_a_card_that_refuses_has_paid_nothing(side: Side, card: str, failure: str) -> None:
    customer, method = await side.save(card)
    charge = NewCharge(new_id(), 2_000 * CENT, "proxyd: 20", customer, method)
    seen = await side.provider.look(await side.cards.charge(charge))
    assert (seen.state, seen.failure) == ("failed", failure)
    await side.cards.forget_customer(customer)


async def test_a_dispute_is_seen_and_stops_refunds(side: Side) -> None:
    customer, method = await side.save("pm_card_createDispute")
    charge = NewCharge(new_id(), 2_000 * CENT, "proxyd: 20", customer, method)
    charge_id = await side.cards.charge(charge)
    until = time.monotonic() + DISPUTED_SECONDS
    while not (seen := await side.provider.look(charge_id)).returns:
        assert time.monotonic() < until, "the bank disputes nothing"
        await asyncio.sleep(1)
    assert summary(seen.returns) == [("dispute", "pending", 2_000)]
    with pytest.raises(ProviderError) as refused:
        await side.provider.refund(charge_id, seen.charge_id, CENT, new_id())
    assert refused.value.is_final
    await side.cards.forget_customer(customer)


async def test_an_account_that_is_not_complete_is_paid_nothing(side: Side) -> None:
    """At Stripe the account of the key needs Connect."""
    user = new_id()
    account = await side.payouts.open_account(user)
    assert await side.payouts.open_account(user) == account
    assert (await side.payouts.link(account, BACK)).startswith("http")
    assert not await side.payouts.is_ready(account)
    order = Order(new_id(), Details(account=account), 500 * CENT)
    refused = await side.payouts.send(new_id(), [order])
    assert isinstance(refused, Refusal)
    assert refused.reasons == {order.payout_id: FailReason.METHOD_INVALID}

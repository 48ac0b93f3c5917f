"""Payouts by Stripe against a stand-in over HTTP: accounts, transfers, refusals, repetitions.

The SDK of Stripe judges the requests and the stand-in in `test_stripe.py`.
"""

from collections.abc import AsyncIterator

import pytest
from support.payments import stripe_server
from support.payments.stripe_server import KEY, Fault, StripeServer

from market.payments.provider import ProviderError
from market.payouts.details import Details
from market.payouts.providers import Order, Progress, Refusal
from market.payouts.terms import FailReason
from proxyd.loop import clock
from proxyd.outbound.stripe_api import StripeApi
from proxyd.outbound.stripe_payouts import StripePayouts

BACK = "https://app.example/console/earnings"


@pytest.fixture
async def server() -> AsyncIterator[StripeServer]:
    async with stripe_server.running(clock.seconds) as running:
        yield running


@pytest.fixture
async def payouts(server: StripeServer) -> AsyncIterator[StripePayouts]:
    made = StripePayouts(StripeApi(KEY, clock.seconds, api_base=server.url, seconds=1.0))
    yield made
    await made.close()


def order(account_id: str, payout_id: str = "p1", cents: int = 950) -> Order:
    return Order(payout_id, Details(account=account_id), cents * 10_000)


async def test_an_account_is_opened_once_filled_in_and_paid_once(
    server: StripeServer, payouts: StripePayouts
) -> None:
    account_id = await payouts.open_account("u1")
    assert await payouts.open_account("u1") == account_id
    assert await payouts.link(account_id, BACK) == f"{server.url}/setup/{account_id}"
    assert not await payouts.is_ready(account_id)
    server.fill_in(account_id)
    assert await payouts.is_ready(account_id)
    [first, again] = [await payouts.send("b1", [order(account_id)]) for _ in range(2)]
    assert first == again
    [transfer] = server.transfers.values()
    assert (transfer["amount"], transfer["destination"]) == (950, account_id)
    assert await payouts.look(transfer["id"]) == {"p1": Progress(is_paid=True)}
    server.reverse(transfer["id"])
    returned = Progress(failed=FailReason.RETURNED)
    assert await payouts.payout_of(transfer["id"]) == ("p1", returned)


async def test_a_transfer_whose_answer_was_lost_is_found_also_without_its_key(
    server: StripeServer, payouts: StripePayouts
) -> None:
    account_id = await payouts.open_account("u1")
    server.fill_in(account_id)
    server.faults = [Fault(), Fault(500, has_effect=True)]
    with pytest.raises(ProviderError) as caught:
        await payouts.send("b1", [order(account_id)])
    assert not caught.value.is_final
    assert not caught.value.has_no_effect
    server.forget_keys()
    assert await payouts.send("b1", [order(account_id)]) in server.transfers
    assert len(server.transfers) == 1


async def test_each_refusal_has_its_reason_and_moves_nothing(
    server: StripeServer, payouts: StripePayouts
) -> None:
    account_id = await payouts.open_account("u1")
    invalid, refused = FailReason.METHOD_INVALID, FailReason.REFUSED
    for batch, receiver in (("b1", account_id), ("b2", "acct_none")):
        found = await payouts.send(batch, [order(receiver)])
        assert isinstance(found, Refusal)
        assert (found.reasons, found.is_of_batch) == ({"p1": invalid}, False)
    server.fill_in(account_id)
    server.balance = 949
    found = await payouts.send("b3", [order(account_id)])
    assert isinstance(found, Refusal)
    assert found.is_of_batch
    server.faults = [Fault(), Fault(400, b'{"error": {"code": "amount_too_small"}}')]
    found = await payouts.send("b4", [order(account_id)])
    assert isinstance(found, Refusal)
    assert found.reasons == {"p1": refused}
    for fault in (Fault(401), Fault(429), Fault(200, b"[]"), Fault(400, b"<html>")):
        server.faults = [Fault(), fault]
        with pytest.raises(ProviderError) as caught:
            await payouts.send("b5", [order(account_id)])
        assert not caught.value.is_final, fault
        assert KEY not in str(caught.value)
        if fault.status == 429:
            payouts = StripePayouts(StripeApi(KEY, clock.seconds, api_base=server.url))
    await payouts.close()
    assert server.transfers == {}

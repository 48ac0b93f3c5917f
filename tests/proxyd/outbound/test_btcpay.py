"""The client for a BTCPay Server, against a stand-in over HTTP."""

import time
from collections.abc import AsyncIterator

import pytest
from support.payments import btcpay_server
from support.payments.btcpay_server import KEY, SECRET, STORE, BtcPayServer

from market.money.money import MICRO
from market.payments.provider import HookError, NewPayment, ProviderError
from proxyd.outbound.btcpay import BtcPayProvider


def now() -> int:
    return int(time.time())


@pytest.fixture
async def server() -> AsyncIterator[BtcPayServer]:
    async with btcpay_server.running() as running:
        yield running


@pytest.fixture
async def provider(server: BtcPayServer) -> AsyncIterator[BtcPayProvider]:
    made = BtcPayProvider(server.url, STORE, KEY, SECRET, now)
    yield made
    await made.close()


def new() -> NewPayment:
    return NewPayment("p1", 20 * MICRO, "proxyd: 20", "https://x.example/", now() + 3_600)


async def test_a_payment_is_opened_once_seen_and_refunded(
    server: BtcPayServer, provider: BtcPayProvider
) -> None:
    opened = await provider.create(new())
    assert await provider.create(new()) == opened
    assert server.invoices[opened.provider_id]["checkout"]["expirationMinutes"] in (59, 60)
    assert (await provider.look(opened.provider_id)).state == "open"
    with pytest.raises(ProviderError) as refused:
        await provider.refund(opened.provider_id, "", MICRO, "r1")
    assert refused.value.is_final
    server.settle(opened.provider_id)
    seen = await provider.look(opened.provider_id)
    assert (seen.state, seen.amount, seen.currency, seen.payment_id, seen.returns) == (
        "paid",
        20 * MICRO,
        "usd",
        "p1",
        (),
    )
    refund = await provider.refund(opened.provider_id, "", 7_420_000, "r1")
    assert await provider.refund(opened.provider_id, "", 7_420_000, "r1") == refund
    assert (await provider.look(opened.provider_id)).returns == (refund,)
    assert (refund.amount, refund.own_id, refund.state) == (7_420_000, "r1", "done")
    assert server.pulls[refund.ref]["currency"] == "USD"
    server.archive(refund.ref)
    assert (await provider.look(opened.provider_id)).returns[0].state == "void"
    again = await provider.refund(opened.provider_id, "", 7_420_000, "r1")
    assert (again.ref, again.state, len(server.pulls)) == (refund.ref, "void", 1)


async def test_a_refund_that_was_claimed_is_not_taken_back_by_its_archiving(
    server: BtcPayServer, provider: BtcPayProvider
) -> None:
    opened = await provider.create(new())
    server.settle(opened.provider_id)
    refund = await provider.refund(opened.provider_id, "", 7_420_000, "r1")
    server.claim(refund.ref, "7.42")
    server.archive(refund.ref)
    assert (await provider.look(opened.provider_id)).returns == (refund,)
    assert await provider.refund(opened.provider_id, "", 7_420_000, "r1") == refund


async def test_a_refund_has_the_currency_of_its_invoice(
    server: BtcPayServer, provider: BtcPayProvider
) -> None:
    opened = await provider.create(new())
    server.invoices[opened.provider_id].update(currency="EUR", amount="18.00")
    server.settle(opened.provider_id)
    refund = await provider.refund(opened.provider_id, "", 9 * MICRO, "r1")
    made = server.pulls[refund.ref]
    assert (made["amount"], made["currency"], refund.amount) == ("9.00", "EUR", 9 * MICRO)
    # The rest of the ratio is not known, or the amount is more than was paid: by hand.
    for amount, additional in ((19 * MICRO, "None"), (MICRO, "PaidOver")):
        server.settle(opened.provider_id, additional)
        with pytest.raises(ProviderError) as refused:
            await provider.refund(opened.provider_id, "", amount, "r2")
        assert refused.value.is_final
    assert len(server.pulls) == 1


async def test_refunds_of_an_invoice_in_coins_never_exceed_it(
    server: BtcPayServer, provider: BtcPayProvider
) -> None:
    opened = await provider.create(new())
    server.invoices[opened.provider_id].update(currency="BTC", amount="0.00030099")
    server.settle(opened.provider_id)
    seen = await provider.look(opened.provider_id)
    assert (seen.amount, seen.currency, seen.step) == (300, "btc", 1)
    first = await provider.refund(opened.provider_id, "", 299, "r1")
    assert server.pulls[first.ref]["amount"] == "0.000299"
    for amount in (0, 2, 300):
        with pytest.raises(ProviderError) as refused:
            await provider.refund(opened.provider_id, "", amount, "r2")
        assert refused.value.is_final
    await provider.refund(opened.provider_id, "", 1, "r2")
    server.archive(first.ref)  # its coins come back, so they can be returned once more
    await provider.refund(opened.provider_id, "", 299, "r3")
    assert len(server.pulls) == 3


async def test_another_amount_is_left_to_the_operator(
    server: BtcPayServer, provider: BtcPayProvider
) -> None:
    opened = await provider.create(new())
    server.settle(opened.provider_id, "PaidOver")
    assert (await provider.look(opened.provider_id)).amount == 0
    server.invoices[opened.provider_id].update(status="Expired", additionalStatus="PaidLate")
    late = await provider.look(opened.provider_id)
    assert (late.state, late.amount) == ("paid", 0)
    for status, state in (("New", "open"), ("Expired", "paid"), ("Invalid", "paid")):
        change = {"status": status, "additionalStatus": "PaidPartial"}
        server.invoices[opened.provider_id].update(change)
        partial = await provider.look(opened.provider_id)
        assert (partial.state, partial.amount) == (state, 0), status
    server.invoices[opened.provider_id].update(status="Expired", additionalStatus="None")
    assert (await provider.look(opened.provider_id)).state == "expired"
    for change in ({"status": "Odd"}, {"amount": "x"}, {"amount": None}):
        server.invoices[opened.provider_id].update(
            {"status": "Settled", "additionalStatus": "None", "amount": "20", **change}
        )
        with pytest.raises(ProviderError):
            await provider.look(opened.provider_id)


async def test_a_notice_is_read_only_with_a_right_signature(server: BtcPayServer) -> None:
    provider = BtcPayProvider(server.url, STORE, KEY, SECRET, now)
    body, signature = server.notice("invoice1")
    assert provider.read_hook({"BTCPay-Sig": signature}, body, 0).provider_id == "invoice1"
    for wrong in ("", "sha256=", signature.replace("sha256", "sha1"), signature[:-1] + "g"):
        with pytest.raises(HookError):
            provider.read_hook({"btcpay-sig": wrong}, body, 0)
    with pytest.raises(HookError):
        provider.read_hook({"btcpay-sig": signature}, body + b" ", 0)
    with pytest.raises(HookError):
        provider.read_hook({}, body, 0)

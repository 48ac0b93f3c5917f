"""The client for Stripe, against a stand-in over HTTP that the provider's own SDK judges."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from support.payments import stripe_server
from support.payments.sdk_types import problems
from support.payments.stripe_server import KEY, SECRET, Fault, StripeServer

from market.payments.provider import (
    HookError,
    NewCharge,
    NewPayment,
    NewSetup,
    Notice,
    ProviderError,
    SeenSetup,
)
from market.payouts.details import Details
from market.payouts.providers import Order
from proxyd.outbound import stripe_api, stripe_payouts
from proxyd.outbound.stripe import StripeProvider, refund_request, session_request
from proxyd.outbound.stripe_api import StripeApi
from proxyd.outbound.stripe_cards import charge_request, customer_request, setup_request
from proxyd.outbound.stripe_payouts import StripePayouts

CENT = 10_000
LATER = 3_600
ORDER = Order("p1", Details(account="acct_1"), 950 * CENT)


def now() -> int:
    return int(time.time())


@pytest.fixture
async def server() -> AsyncIterator[StripeServer]:
    async with stripe_server.running(now) as running:
        yield running


@pytest.fixture
async def provider(server: StripeServer) -> AsyncIterator[StripeProvider]:
    made = StripeProvider(KEY, (SECRET, ""), now, api_base=server.url, seconds=1.0)
    yield made
    await made.close()


def new(payment_id: str = "p1", cents: int = 2_000) -> NewPayment:
    return NewPayment(payment_id, cents * CENT, "proxyd: 20", "https://x.example/", now() + LATER)


async def test_a_payment_is_opened_once_seen_and_refunded(
    server: StripeServer, provider: StripeProvider
) -> None:
    payment = new()
    opened = await provider.create(payment)
    assert await provider.create(payment) == opened
    assert (await provider.look(opened.provider_id)).state == "open"
    server.pay(opened.provider_id, is_slow=True)
    assert (await provider.look(opened.provider_id)).state == "open"
    server.arrive(opened.provider_id)
    seen = await provider.look(opened.provider_id)
    assert (seen.state, seen.amount, seen.currency, seen.payment_id, seen.has_mode) == (
        "paid",
        2_000 * CENT,
        "usd",
        "p1",
        True,
    )
    for _ in range(2):
        refund = await provider.refund(opened.provider_id, seen.charge_id, 742 * CENT, "r1")
        assert (refund.state, refund.amount, refund.own_id) == ("done", 742 * CENT, "r1")
    dispute = server.dispute(opened.provider_id)
    seen = await provider.look(opened.provider_id)
    assert [(each.kind, each.state) for each in seen.returns] == [
        ("refund", "done"),
        ("dispute", "pending"),
    ]
    server.disputes[dispute]["status"] = "warning_needs_response"
    assert len((await provider.look(opened.provider_id)).returns) == 1
    with pytest.raises(ProviderError) as refused:
        await provider.refund(opened.provider_id, seen.charge_id, CENT, "r2")
    assert refused.value.is_final


async def test_a_saved_card_is_charged_once_refused_and_removed(
    server: StripeServer, provider: StripeProvider
) -> None:
    cards = provider.cards
    assert cards is not None
    page = NewSetup("s1", "", "https://x.example/", now() + LATER)
    opened = await cards.prepare(page)
    assert await cards.prepare(page) == opened
    assert len(server.customers) == 1
    assert (await cards.look(opened.ref)).state == "open"
    method = server.save_card(opened.ref)
    assert await cards.look(opened.ref) == SeenSetup(
        "saved", "s1", True, opened.customer_id, method, "visa …4242"
    )
    again = await cards.prepare(NewSetup("s2", opened.customer_id, "https://x.example/", LATER))
    server.expire(again.ref)
    assert (await cards.look(again.ref)).state == "over"
    charge = NewCharge("p1", 2_000 * CENT, "proxyd: 20", opened.customer_id, method)
    server.faults = [Fault(500, has_effect=True)]
    with pytest.raises(ProviderError):
        await cards.charge(charge)
    assert await cards.find_charge(charge) is not None  # the answer was lost
    charge_id = await cards.charge(charge)
    seen = await provider.look(charge_id)
    assert (seen.state, seen.amount, seen.payment_id, seen.has_mode, seen.charge_id) == (
        "paid",
        2_000 * CENT,
        "p1",
        True,
        charge_id,
    )
    await provider.refund(charge_id, seen.charge_id, 5 * CENT, "r1")
    assert [each.own_id for each in (await provider.look(charge_id)).returns] == ["r1"]
    assert len(server.intents) == 1
    for code, failure in (
        ("card_declined", "refused"),
        ("authentication_required", "authentication"),
    ):
        server.card_error = code
        refused = replace(charge, id=code)
        seen = await provider.look(await cards.charge(refused))
        assert (seen.state, seen.failure) == ("failed", failure)
    subject = server.intents[charge_id]
    body, signature = server.notice("payment_intent.succeeded", subject)
    notice = provider.read_hook({"Stripe-Signature": signature}, body, now())
    assert (notice.payment_id, notice.provider_id) == ("p1", charge_id)
    for _ in range(2):
        await cards.forget(method)
    assert server.methods[method]["customer"] is None
    with pytest.raises(ProviderError) as gone:
        await cards.charge(replace(charge, id="p2"))
    assert gone.value.is_final


async def test_a_page_ends_and_a_customer_goes_with_all_cards(
    server: StripeServer, provider: StripeProvider
) -> None:
    cards = provider.cards
    assert cards is not None
    first = await cards.prepare(NewSetup("s1", "", "https://x.example/", now() + LATER))
    method = server.save_card(first.ref)
    page = NewSetup("s2", first.customer_id, "https://x.example/", now() + LATER)
    second = await cards.prepare(page)
    server.faults = [Fault(500), Fault(401), Fault(429)]
    with pytest.raises(ProviderError):
        await cards.expire(second.ref)
    with pytest.raises(ProviderError):
        await cards.forget_customer(first.customer_id)
    server.faults = []
    for ref in (second.ref, second.ref, first.ref, "cs_none"):
        await cards.expire(ref)
    states = [(await cards.look(each.ref)).state for each in (first, second)]
    assert states == ["saved", "over"]
    for _ in range(2):
        await cards.forget_customer(first.customer_id)
    assert server.customers == {}
    assert server.methods[method]["customer"] is None


async def test_another_mode_than_that_of_the_key_is_seen(
    server: StripeServer, provider: StripeProvider
) -> None:
    """Test or live: money of the test mode is no money."""
    cards = provider.cards
    assert cards is not None
    opened = await provider.create(new())
    page = await cards.prepare(NewSetup("s1", "", "https://x.example/", now() + LATER))
    method = server.save_card(page.ref)
    charge_id = await cards.charge(NewCharge("p2", 500 * CENT, "x", page.customer_id, method))

    async def modes() -> list[bool]:
        seen = [await provider.look(each) for each in (opened.provider_id, charge_id)]
        return [*(each.has_mode for each in seen), (await cards.look(page.ref)).has_mode]

    assert await modes() == [True, True, True]
    for subject in (
        server.sessions[opened.provider_id],
        server.intents[charge_id],
        server.sessions[page.ref],
    ):
        subject["livemode"] = True
    assert await modes() == [False, False, False]


async def test_expired_and_bounced_payments_end(
    server: StripeServer, provider: StripeProvider
) -> None:
    one, other = await provider.create(new("p1")), await provider.create(new("p2"))
    server.expire(one.provider_id)
    server.pay(other.provider_id, is_slow=True)
    server.bounce(other.provider_id)
    assert (await provider.look(one.provider_id)).state == "expired"
    assert (await provider.look(other.provider_id)).state == "failed"


async def test_each_failure_of_the_provider_has_one_outcome(
    server: StripeServer, provider: StripeProvider
) -> None:
    opened = await provider.create(new())
    faults = (
        (Fault(500), False),
        (Fault(401), False),
        (Fault(409), False),
        (Fault(404), True),
        (Fault(302, headers=(("Location", "http://127.0.0.1:1/"),)), False),
        (Fault(200, b"<html>"), False),
        (Fault(200, b"[]"), False),
        (Fault(200, b'{"id": 7}'), False),
        (Fault(200, b" " * 1_100_000), False),
        (Fault(seconds=1.5), False),
    )
    for fault, is_final in faults:
        server.faults = [fault]
        with pytest.raises(ProviderError) as failure:
            await provider.look(opened.provider_id)
        assert failure.value.is_final is is_final, fault
        assert KEY not in str(failure.value)
    assert (await provider.look(opened.provider_id)).state == "open"


async def test_an_answer_that_was_lost_leaves_one_payment(
    server: StripeServer, provider: StripeProvider
) -> None:
    payment = new()
    server.faults = [Fault(500, has_effect=True)]
    with pytest.raises(ProviderError):
        await provider.create(payment)
    await provider.create(payment)
    assert len(server.sessions) == 1


async def test_a_busy_provider_is_left_alone_for_as_long_as_it_wants(
    server: StripeServer, provider: StripeProvider
) -> None:
    opened = await provider.create(new())
    server.faults, before = [Fault(429, headers=(("Retry-After", "1"),))], len(server.calls)
    for _ in range(3):
        with pytest.raises(ProviderError):
            await provider.look(opened.provider_id)
    assert len(server.calls) == before + 1
    await asyncio.sleep(1)
    assert (await provider.look(opened.provider_id)).state == "open"


def test_a_notice_is_read_only_with_a_right_signature() -> None:
    server, provider = StripeServer(now), StripeProvider(KEY, (SECRET, "whsec_old"), now)
    subject = {"object": "checkout.session", "id": "cs_1", "client_reference_id": "p1"}
    body, signature = server.notice("checkout.session.completed", subject)

    def read(header: str, sent: bytes = body, at: int = 0) -> Any:
        return provider.read_hook({"Stripe-Signature": header}, sent, at or now())

    notice = read(signature)
    assert (notice.payment_id, notice.provider_id) == ("p1", "cs_1")
    assert read(server.signature(body, secret="whsec_old")) == notice
    transfer, its_signature = server.notice("transfer.reversed", {"object": "transfer", "id": "t1"})
    assert read(its_signature, transfer) == Notice(transfer_id="t1")
    time_part = signature.partition(",")[0]
    two = f"{signature},v1={'0' * 64},v0=x"
    assert read(two) == notice
    wrong = (
        "",
        time_part,
        f"{time_part},v1=",
        f"{time_part},v1=ü",
        f"t=1,{signature}",
        signature.replace("v1=", "v0="),
        server.signature(body, secret="whsec_third"),
        server.signature(body, secret="\0"),
        f"t={'9' * 400},v1=00",
        f"t=-1,v1={'0' * 64}",
    )
    for header in wrong:
        with pytest.raises(HookError):
            read(header)
    for at in (now() + 302, now() - 302):
        with pytest.raises(HookError):
            read(signature, at=at)
    with pytest.raises(HookError):
        read(signature, body.replace(b"cs_1", b"cs_2"))
    with pytest.raises(HookError):
        provider.read_hook({}, body, now())
    # An empty secret signs nothing.
    with pytest.raises(HookError):
        StripeProvider(KEY, ("", ""), now).read_hook(
            {"stripe-signature": server.signature(body, secret="\0").replace("\0", "")}, body, now()
        )
    for odd in (b"", b"null", b"[]", b'{"data": {"object": []}}', b"{" * 60_000, b"\xff"):
        found = read(server.signature(odd), odd)
        assert found == Notice()


async def use_everything(server: StripeServer, provider: StripeProvider) -> None:
    """Have the daemon's clients make each request that they can make."""
    cards, payouts = provider.cards, StripePayouts(StripeApi(KEY, now, api_base=server.url))
    assert cards is not None
    opened = await provider.create(new())
    server.pay(opened.provider_id)
    seen = await provider.look(opened.provider_id)
    await provider.refund(opened.provider_id, seen.charge_id, 742 * CENT, "r1")
    page = await cards.prepare(NewSetup("s1", "", "https://x.example/", now() + LATER))
    method = server.save_card(page.ref)
    await cards.look(page.ref)
    charge = NewCharge("p2", 500 * CENT, "x", page.customer_id, method)
    charge_id = await cards.charge(charge)
    await cards.find_charge(charge)
    await provider.look(charge_id)
    await provider.refund(charge_id, charge_id, 100 * CENT, "r2")
    again = await cards.prepare(
        NewSetup("s2", page.customer_id, "https://x.example/", now() + LATER)
    )
    await cards.expire(again.ref)
    await cards.forget(method)
    await cards.forget_customer(page.customer_id)
    account = await payouts.open_account("u1")
    await payouts.link(account, "https://x.example/")
    server.fill_in(account)
    await payouts.is_ready(account)
    transfer = await payouts.send("b1", [replace(ORDER, details=Details(account=account))])
    assert isinstance(transfer, str)
    await payouts.look(transfer)
    await payouts.close()


async def test_each_request_is_one_of_the_sdk(
    server: StripeServer, provider: StripeProvider
) -> None:
    """The requests are the recorded ones, with their queries; no kind of them is left out."""
    from stripe import params  # noqa: PLC0415 - takes more than half a second
    from stripe.params import checkout  # noqa: PLC0415

    kinds = {
        ("POST", "/v1/checkout/sessions"): checkout.SessionCreateParams,
        ("GET", "/v1/checkout/sessions/{id}"): checkout.SessionRetrieveParams,
        ("POST", "/v1/checkout/sessions/{id}/expire"): checkout.SessionExpireParams,
        ("POST", "/v1/customers"): params.CustomerCreateParams,
        ("DELETE", "/v1/customers/{id}"): params.CustomerDeleteParams,
        ("POST", "/v1/payment_intents"): params.PaymentIntentCreateParams,
        ("GET", "/v1/payment_intents"): params.PaymentIntentListParams,
        ("GET", "/v1/payment_intents/{id}"): params.PaymentIntentRetrieveParams,
        ("POST", "/v1/payment_methods/{id}/detach"): params.PaymentMethodDetachParams,
        ("POST", "/v1/refunds"): params.RefundCreateParams,
        ("GET", "/v1/refunds"): params.RefundListParams,
        ("GET", "/v1/disputes"): params.DisputeListParams,
        ("POST", "/v1/accounts"): params.AccountCreateParams,
        ("GET", "/v1/accounts/{id}"): params.AccountRetrieveParams,
        ("POST", "/v1/account_links"): params.AccountLinkCreateParams,
        ("POST", "/v1/transfers"): params.TransferCreateParams,
        ("GET", "/v1/transfers"): params.TransferListParams,
        ("GET", "/v1/transfers/{id}"): params.TransferRetrieveParams,
    }
    await use_everything(server, provider)
    judged = set()
    for method, path, sent in server.calls:
        _, version, *names = path.split("/")
        where = "/".join(
            "{id}" if "_" in each and any(map(str.isdigit, each)) else each for each in names
        )
        kind = kinds[method, f"/{version}/{where}"]
        assert problems(sent, kind) == [], (method, path)
        judged.add((method, f"/{version}/{where}"))
    assert judged == set(kinds)
    # The stand-in knows one more: the tests attach cards of the test mode.
    known = {
        (route.method, str(route.resource.canonical))
        for route in server.app().router.routes()
        if route.resource
    }
    of_api = {each for each in known if each[1].startswith("/v1/") and each[0] != "HEAD"}
    assert of_api - set(kinds) == {("POST", "/v1/payment_methods/{id}/attach")}


async def test_the_sdk_of_the_provider_agrees(server: StripeServer) -> None:
    """One test imports the client of the SDK, because this takes more than half a second."""
    import stripe  # noqa: PLC0415 - see above
    from stripe.params import (  # noqa: PLC0415
        AccountCreateParams,
        AccountLinkCreateParams,
        CustomerCreateParams,
        PaymentIntentCreateParams,
        RefundCreateParams,
        TransferCreateParams,
    )
    from stripe.params.checkout import SessionCreateParams  # noqa: PLC0415

    page = NewSetup("s1", "", "https://x.example/", LATER)
    charge = NewCharge("p1", 2_000 * CENT, "proxyd: 20", "cus_1", "pm_1")
    assert stripe.api_version == stripe_api.API_VERSION == stripe_server.VERSION
    for request, kind in (
        (session_request(new()), SessionCreateParams),
        (refund_request("pi_1", CENT, "r1"), RefundCreateParams),
        (customer_request(page), CustomerCreateParams),
        (setup_request(page, "cus_1"), SessionCreateParams),
        (charge_request(charge), PaymentIntentCreateParams),
        (stripe_payouts.account_request(), AccountCreateParams),
        (stripe_payouts.link_request("acct_1", "https://x.example/"), AccountLinkCreateParams),
        (stripe_payouts.transfer_request(ORDER, "b1"), TransferCreateParams),
    ):
        assert problems(request, kind) == []
    for change in (
        {"mode": "pay"},
        {"metadata": "x"},
        {"line_items[0][price_data][unit_amount]": "20.00"},
        {"line_items[0][price_dat][currency]": "usd"},
        {"line_items[2][quantity]": "1"},
    ):
        assert len(problems({**session_request(new()), **change}, SessionCreateParams)) == 1
    of_price = {"line_items[0][price_data][unit_amount]": "2000"}
    missing = problems({"mode": "payment", **of_price}, SessionCreateParams)
    assert missing == [".line_items[0].price_data: currency is missing"]
    body, _ = server.notice("refund.updated", {"object": "refund", "payment_intent": "pi_1"})
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), SECRET)
    provider = StripeProvider(KEY, (SECRET,), now, api_base=server.url)
    assert provider.read_hook({"stripe-signature": header}, body, now()).charge_id == "pi_1"
    event = stripe.Webhook.construct_event(body, server.signature(body), SECRET)
    assert event.type == "refund.updated"

    def walk() -> None:
        client = stripe.StripeClient(KEY, base_addresses={"api": server.url})
        session = client.v1.checkout.sessions.create(
            {
                "mode": "payment",
                "line_items": [
                    {
                        "quantity": 1,
                        "price_data": {
                            "currency": "usd",
                            "unit_amount": 2_000,
                            "product_data": {"name": "x"},
                        },
                    }
                ],
                "client_reference_id": "p9",
            }
        )
        assert (session.status, session.payment_status) == ("open", "unpaid")
        server.pay(session.id)
        session = client.v1.checkout.sessions.retrieve(session.id, {"expand": ["payment_intent"]})
        intent = session.payment_intent
        assert not isinstance(intent, str)
        assert intent is not None
        refund = client.v1.refunds.create({"payment_intent": intent.id, "amount": 5})
        listed = client.v1.refunds.list({"payment_intent": intent.id})
        assert [each.id for each in listed.data] == [refund.id]
        server.dispute(session.id)
        disputes = client.v1.disputes.list({"payment_intent": intent.id})
        assert [each.status for each in disputes.data] == ["needs_response"]
        customer = client.v1.customers.create({"metadata": {"setup_id": "s9"}})
        page = client.v1.checkout.sessions.create(
            {
                "mode": "setup",
                "currency": "usd",
                "customer": customer.id,
                "success_url": "https://x.example/",
                "cancel_url": "https://x.example/",
            }
        )
        method = server.save_card(page.id)
        server.card_error = "authentication_required"
        saved = client.v1.checkout.sessions.retrieve(
            page.id, {"expand": ["setup_intent.payment_method"]}
        )
        assert not isinstance(saved.setup_intent, str)
        with pytest.raises(stripe.CardError) as required:
            client.v1.payment_intents.create(
                {
                    "amount": 500,
                    "currency": "usd",
                    "customer": customer.id,
                    "payment_method": method,
                    "off_session": True,
                    "confirm": True,
                }
            )
        assert required.value.code == "authentication_required"
        [charged] = client.v1.payment_intents.list({"customer": customer.id}).data
        found = client.v1.payment_intents.retrieve(charged.id)
        assert (found.status, found.amount) == ("requires_payment_method", 500)
        assert client.v1.payment_methods.detach(method).customer is None
        card = client.v1.payment_methods.attach("pm_card_visa", {"customer": customer.id})
        assert card.customer == customer.id
        with pytest.raises(stripe.InvalidRequestError):
            client.v1.checkout.sessions.expire(page.id)
        assert client.v1.customers.delete(customer.id).deleted
        with pytest.raises(stripe.InvalidRequestError):
            client.v1.refunds.create({"payment_intent": intent.id, "amount": 5})
        account = client.v1.accounts.create({"type": "express"})
        link = client.v1.account_links.create(
            {
                "account": account.id,
                "type": "account_onboarding",
                "return_url": "https://x.example/",
            }
        )
        assert link.url.endswith(account.id)
        sent: Any = {"amount": 5, "currency": "usd", "destination": account.id}
        with pytest.raises(stripe.InvalidRequestError) as refused:
            client.v1.transfers.create(sent)
        assert refused.value.code in stripe_payouts.OF_ACCOUNT
        server.fill_in(account.id)
        assert client.v1.accounts.retrieve(account.id).payouts_enabled
        transfer = client.v1.transfers.create({**sent, "transfer_group": "b1"})
        [found] = client.v1.transfers.list({"transfer_group": "b1"}).data
        assert (found.id, found.reversed) == (transfer.id, False)
        server.reverse(transfer.id)
        assert client.v1.transfers.retrieve(transfer.id).reversed
        server.balance = 0
        with pytest.raises(stripe.InvalidRequestError) as refused:
            client.v1.transfers.create(sent)
        assert refused.value.code == stripe_payouts.NO_MONEY

    await asyncio.to_thread(walk)
    await provider.close()

"""Payments over the API of a running daemon, with a stand-in for the provider."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons.service import Person, Service, running_in
from support.payments import stripe_server
from support.payments.stripe_server import KEY, SECRET, StripeServer

from proxyd.loop import clock
from storage.engines.store import Transaction

PATH = "/api/payments"
JOB = {"title": "a sum", "job_type": "training", "price_credit": 1, "duration_hrs": 1}
DEPLOY = {
    "job_name": "a model",
    "job_type": "Training",
    "gpu_model": "T4",
    "image": "web:1",
    "payment_type": "credit",
    "strategy": {"min_ready_s": 5},
}


@pytest.fixture
async def stripe() -> AsyncIterator[StripeServer]:
    async with stripe_server.running(clock.seconds) as server:
        yield server


@pytest.fixture
async def service(tmp_path: Path, stripe: StripeServer) -> AsyncIterator[Service]:
    """A daemon that takes payments; its ledger must agree when the test is over."""
    payments = {
        "stripe_secret_key": KEY,
        "stripe_webhook_secret": SECRET,
        "stripe_api_base": stripe.url,
        "seller": "Example Ltd\n1 Road",
        "tax_name": "VAT",
        "tax_percent": 20,
    }
    async with running_in(tmp_path, payments=payments) as running:
        stripe.hook_url = f"{running.url}/hooks/stripe"
        yield running
        await running.assert_audit()


async def begun(service: Service, person: Person, usd: float = 20) -> dict[str, Any]:
    answer = await service.call("POST", PATH, {"amount_usd": usd}, token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body["payment"])


async def paid(service: Service, stripe: StripeServer, person: Person, usd: float = 20) -> str:
    payment = await begun(service, person, usd)
    stripe.pay(stripe.session_of(payment["id"]))
    shown = await service.call("GET", f"{PATH}/{payment['id']}", token=person.token)
    assert shown.body["payment"]["status"] == "paid", shown.body
    return str(payment["id"])


async def balance(service: Service, person: Person) -> float:
    return float((await service.call("GET", "/api/wallet", token=person.token)).body["usd_balance"])


async def test_the_returning_user_sees_the_payment_arrive(
    service: Service, stripe: StripeServer
) -> None:
    ada = await service.person()
    payment = await begun(service, ada)
    assert payment["status"] == "open"
    assert payment["url"].startswith(stripe.url)
    session = stripe.sessions[stripe.session_of(payment["id"])]
    assert session["amount_total"] == 2_000
    assert session["success_url"].endswith(payment["id"])
    stripe.pay(session["id"])
    shown = await service.call("GET", f"{PATH}/{payment['id']}", token=ada.token)
    assert shown.body["payment"]["status"] == "paid"
    assert shown.body["refundable_usd"] == 20
    assert await balance(service, ada) == 20
    listed = await service.call("GET", PATH, token=ada.token)
    assert [each["id"] for each in listed.body["payments"]] == [payment["id"]]


async def test_twenty_notices_at_once_credit_once(service: Service, stripe: StripeServer) -> None:
    ada = await service.person()
    payment = await begun(service, ada)
    session_id = stripe.session_of(payment["id"])
    stripe.pay(session_id)
    notices = [
        stripe.notify("checkout.session.completed", stripe.sessions[session_id]) for _ in range(20)
    ]
    assert await asyncio.gather(*notices) == [200] * 20
    assert await balance(service, ada) == 20


async def test_an_unspent_part_goes_back_to_the_card(
    service: Service, stripe: StripeServer
) -> None:
    ada = await service.person()
    payment_id = await paid(service, stripe, ada)
    path, keyed = f"{PATH}/{payment_id}/refund", {"Idempotency-Key": "once"}
    for _ in range(2):
        answer = await service.call(
            "POST", path, {"amount_usd": 7.42}, token=ada.token, headers=keyed
        )
        assert answer.status == 200, answer.body
    too_much = await service.call("POST", path, {"amount_usd": 12.59}, token=ada.token)
    assert too_much.code == "refund_too_large"
    (refund,) = stripe.refunds.values()
    assert refund["amount"] == 742
    assert await balance(service, ada) == 12.58
    shown = (await service.call("GET", f"{PATH}/{payment_id}", token=ada.token)).body
    assert shown["payment"]["refunded_usd"] == 7.42
    assert [(each["kind"], each["status"]) for each in shown["payment"]["returns"]] == [
        ("refund", "done")
    ]


async def test_a_dispute_freezes_the_rest_and_its_loss_is_a_debt(
    service: Service, stripe: StripeServer
) -> None:
    ada = await service.person(credit="1000")
    payment_id = await paid(service, stripe, ada)
    await service.buy(ada, quota=8 * 10**9)
    made = await service.call("POST", "/api/deploy/job", DEPLOY, token=ada.token)
    deploy = f"/api/deploy/job/{made.body['job_id']}"
    revised = await service.call("POST", f"{deploy}/revision", {"image": "b"}, token=ada.token)
    assert revised.body["ok"]
    session_id = stripe.session_of(payment_id)
    dispute = stripe.disputes[stripe.dispute(session_id)]
    await notified(service, stripe, "charge.dispute.created", dispute)
    assert await balance(service, ada) == 0
    refused = await service.call("POST", PATH, {"amount_usd": 20}, token=ada.token)
    assert refused.code == "account_restricted"
    wants = (
        ("/api/bandwidth/create", {"gb": 0.1, "price_per_gb": 1}),
        ("/api/jobs", JOB),
        ("/api/deploy/job", DEPLOY),
        (f"{deploy}/revision", {"image": "another"}),
        (f"{deploy}/scale", {"replicas": 2}),
        (f"{deploy}/restart", None),
        (f"{deploy}/rollback", {"revision": 1}),
    )
    for path, body in wants:  # `call` checks that the document declares the refusal
        bought = await service.call("POST", path, body, token=ada.token)
        assert (path, bought.code) == (path, "account_restricted")
    dispute["status"] = "lost"
    await notified(service, stripe, "charge.dispute.closed", dispute)
    offer = (await service.call("GET", f"{PATH}/offer", token=ada.token)).body
    assert (offer["debt_usd"], offer["is_disputed"]) == (8, False)
    await paid(service, stripe, ada, 10)
    assert await balance(service, ada) == 2
    offer = (await service.call("GET", f"{PATH}/offer", token=ada.token)).body
    assert offer["debt_usd"] == 0
    await service.buy(ada, quota=10**9)


async def notified(
    service: Service, stripe: StripeServer, kind: str, subject: dict[str, Any]
) -> None:
    """Send a notice after the pause between two looks."""

    async def end_pause(tx: Transaction) -> None:
        await tx.run("UPDATE payments SET looked_at = 0")

    await service.daemon.store.write(end_pause)
    assert await stripe.notify(kind, subject) == 200


async def test_a_notice_counts_only_with_a_signature_of_now(
    service: Service, stripe: StripeServer
) -> None:
    ada = await service.person()
    payment = await begun(service, ada)
    session = stripe.sessions[stripe.session_of(payment["id"])]
    stripe.pay(session["id"])
    body, signature = stripe.notice("checkout.session.completed", session)
    changed = body.replace(b"cs_test", b"cs_tesu")
    old = stripe.signature(body, at=clock.seconds() - 301)
    foreign = stripe.signature(body, secret="whsec_other")
    for sent, signed in ((changed, signature), (body, old), (body, foreign), (body, "t=,v1=é")):
        assert await stripe.post(sent, signed) == 400
    assert await stripe.post(b" " * 10_000_000, signature) == 413
    assert await balance(service, ada) == 0
    unknown, signed = stripe.notice("customer.created", {"object": "customer", "id": "cus_1"})
    assert await stripe.post(unknown, signed) == 200
    assert await stripe.post(body, signature) == 200
    assert await stripe.post(body, signature) == 200
    assert await balance(service, ada) == 20


async def test_payments_are_private_and_bounded(service: Service, stripe: StripeServer) -> None:
    ada, eve = await service.person(), await service.person()
    payment_id = await paid(service, stripe, ada)
    for method, path in (("GET", ""), ("POST", "/refund")):
        body = {"amount_usd": 1} if method == "POST" else None
        answer = await service.call(method, f"{PATH}/{payment_id}{path}", body, token=eve.token)
        assert answer.code == "payment_not_found"
    for amount in (4.99, 1000.01, 20.001, 0, 10**12):
        answer = await service.call("POST", PATH, {"amount_usd": amount}, token=ada.token)
        assert (answer.code, answer.field) == ("invalid_field", "amount_usd")
    over = await service.call("POST", PATH, {"amount_usd": 80.01}, token=ada.token)
    assert over.code == "payment_ceiling"
    other = {"amount_usd": 20, "provider": "btcpay"}
    answer = await service.call("POST", PATH, other, token=ada.token)
    assert answer.code == "payments_not_offered"

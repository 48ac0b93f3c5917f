"""Payouts by PayPal against a stand-in over HTTP: the batch, its repetition, states, nonsense."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from support.base.cases import cases

from market.payments.provider import ProviderError
from market.payouts.details import Details
from market.payouts.providers import Order, Progress, Refusal
from market.payouts.terms import FailReason
from proxyd.outbound.paypal import PayPal

ORDERS = [
    Order(f"payout-{number}", Details(email=f"p{number}@example.com"), 9_500_000)
    for number in range(7)
]
STATES = ("SUCCESS", "FAILED", "BLOCKED", "RETURNED", "REVERSED", "UNCLAIMED", "PENDING")


class Stand:
    """PayPal's three calls, with the memory of batches that the real one has for 30 days."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[str, Any]] = {}
        self.tokens = 0
        self.answer: web.Response | None = None
        self.batch_status = "SUCCESS"
        self.url = ""

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        if request.headers["Authorization"] != "Basic aWQ6c2VjcmV0":
            return web.json_response({"error": "invalid_client"}, status=401)
        assert form["grant_type"] == "client_credentials"
        self.tokens += 1
        return web.json_response({"access_token": "T", "expires_in": 32_400})

    async def create(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer T"
        if self.answer is not None:
            return self.answer
        body = await request.json()
        name = body["sender_batch_header"]["sender_batch_id"]
        if name in self.batches:
            href = f"{self.url}/v1/payments/payouts/OUT-{name}"
            error = {
                "name": "USER_BUSINESS_ERROR",
                "message": "The batch was sent before.",
                "debug_id": "1",
                "links": [{"rel": "self", "href": href}],
            }
            return web.json_response(error, status=400)
        self.batches[name] = body
        return web.json_response({"batch_header": self.header(name, "PENDING")}, status=201)

    def header(self, name: str, status: str) -> dict[str, Any]:
        """Return the header of a batch in replies."""
        return {
            "payout_batch_id": f"OUT-{name}",
            "batch_status": status,
            "sender_batch_header": self.batches[name]["sender_batch_header"],
        }

    async def show(self, request: web.Request) -> web.Response:
        name = request.match_info["name"].removeprefix("OUT-")
        items = [
            {
                "payout_item_id": f"ITEM-{item['sender_item_id']}",
                "payout_batch_id": f"OUT-{name}",
                "transaction_status": state,
                "payout_item": item,
            }
            for item, state in zip(self.batches[name]["items"], STATES, strict=True)
        ]
        header = self.header(name, self.batch_status)
        return web.json_response({"batch_header": header, "items": items})


@contextlib.asynccontextmanager
async def paypal_at(url: str, secret: str = "secret") -> AsyncIterator[PayPal]:
    paypal = PayPal("id", secret, lambda: 0, url)
    yield paypal
    await paypal.close()


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    made, app = Stand(), web.Application()
    app.router.add_post("/v1/oauth2/token", made.token)
    app.router.add_post("/v1/payments/payouts", made.create)
    app.router.add_get("/v1/payments/payouts/{name}", made.show)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


async def test_a_batch_is_sent_once_and_its_states_are_read(stand: Stand) -> None:
    async with paypal_at(stand.url) as paypal:
        for _ in range(2):
            assert await paypal.send("batch-1", ORDERS) == "OUT-batch-1"
        progress = await paypal.look("OUT-batch-1")
        stand.batch_status = "DENIED"
        denied = await paypal.look("OUT-batch-1")
    [batch] = stand.batches.values()
    assert batch["items"][0] == {
        "recipient_type": "EMAIL",
        "receiver": "p0@example.com",
        "amount": {"value": "9.50", "currency": "USD"},
        "sender_item_id": "payout-0",
        "note": "Your earnings",
    }
    assert list(progress.values()) == [
        Progress(is_paid=True),
        Progress(failed=FailReason.REFUSED),
        Progress(failed=FailReason.REFUSED),
        Progress(failed=FailReason.UNCLAIMED),
        Progress(failed=FailReason.RETURNED),
        Progress(),
        Progress(),
    ]
    assert stand.tokens == 1
    assert set(denied.values()) == {Progress(failed=FailReason.NOT_SENT)}


@cases(
    ("status", "body", "is_final"),
    [
        (500, "{}", False),
        (503, "{}", False),
        (429, "{}", False),
        (401, "{}", False),
        (422, '{"name": "INSUFFICIENT_FUNDS"}', True),
        # It may be a repetition of a batch that is paid, so its money does not come back.
        (400, '{"name": "USER_BUSINESS_ERROR", "links": "nonsense"}', False),
        (400, '{"name": "USER_BUSINESS_ERROR", "links": [{"href": "https://x/help"}]}', False),
        (400, '{"name": "INSUFFICIENT_FUNDS"}', True),
        (201, "[]", False),
        (201, "not json", False),
        (201, "{}", False),
        (302, "{}", False),
        (201, "{" + " " * 5_000_000 + "}", False),
    ],
)
async def test_an_answer_that_is_no_success_is_an_error(
    stand: Stand, status: int, body: str, is_final: bool
) -> None:
    stand.answer = web.Response(
        status=status, text=body, content_type="application/json", headers={"Location": "/"}
    )
    async with paypal_at(stand.url) as paypal:
        with pytest.raises(ProviderError) as caught:
            await paypal.send("batch-1", ORDERS)
    assert caught.value.is_final is is_final
    assert "secret" not in str(caught.value)


@cases(
    ("status", "details", "reasons"),
    [
        (400, [{"field": "items[1].receiver"}], {"payout-1": FailReason.METHOD_INVALID}),
        (
            422,
            [{"field": "/items/0/amount/value"}, {"field": "items[6].receiver"}],
            {"payout-0": FailReason.REFUSED, "payout-6": FailReason.METHOD_INVALID},
        ),
        # Any payout may be the cause.
        (400, [], {}),
        (400, "nonsense", {}),
        (400, [{"field": "items[7].receiver"}, {"field": "items[-1].x"}, {"field": 7}, 8], {}),
    ],
)
async def test_a_refusal_names_the_wrong_payouts(
    stand: Stand, status: int, details: Any, reasons: dict[str, FailReason]
) -> None:
    body = {"name": "VALIDATION_ERROR", "details": details}
    stand.answer = web.json_response(body, status=status)
    async with paypal_at(stand.url) as paypal:
        refused = await paypal.send("batch-1", ORDERS)
    assert refused == Refusal(f"it answered with status {status}", reasons)


async def test_a_wrong_secret_and_a_silent_host_lose_no_batch(stand: Stand) -> None:
    for url, secret in ((stand.url, "wrong"), ("http://127.0.0.1:1", "secret")):
        async with paypal_at(url, secret) as paypal:
            with pytest.raises(ProviderError) as caught:
                await paypal.send("batch-1", ORDERS)
        assert (caught.value.is_final, caught.value.has_no_effect) == (False, True)
        assert "127.0.0.1" not in str(caught.value)


async def test_a_busy_service_is_left_alone_for_as_long_as_it_wants(stand: Stand) -> None:
    async with paypal_at(stand.url) as paypal:
        await paypal.send("batch-1", ORDERS)
        stand.answer = web.json_response({}, status=429, headers={"Retry-After": "60"})
        for _ in range(2):
            with pytest.raises(ProviderError):
                await paypal.send("batch-2", ORDERS)
            stand.answer = None
    assert list(stand.batches) == ["batch-1"]

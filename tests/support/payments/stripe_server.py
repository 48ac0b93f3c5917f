"""A stand-in for Stripe over HTTP: Checkout with a page to pay on, and accounts with transfers.

It keeps state as Stripe does, honours Idempotency-Keys, and signs its notices. The provider's own
SDK judges its answers (`tests/proxyd/outbound/test_stripe.py`). Money is in whole cents.
"""

import asyncio
import hashlib
import hmac
import io
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html import escape
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import aiohttp
from aiohttp import web

KEY = "sk_test_stand_in"
SECRET = "whsec_stand_in"
VERSION = "2026-10-28.endive"
# The cards of the test mode, and the refusals of payments from them.
TEST_CARDS = {
    "pm_card_visa": "",
    "pm_card_chargeCustomerFail": "card_declined",
    "pm_card_authenticationRequired": "authentication_required",
    "pm_card_createDispute": "",
}


class Fault(NamedTuple):
    """A fault of the next call: before its effect, or only of its answer."""

    status: int = 0
    body: bytes = b""
    seconds: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    has_effect: bool = False


class StripeServer:
    """The state of the provider. Tests change it as a payer, a bank or an operator does."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.url = ""
        self.hook_url = ""
        self.secret = SECRET
        self.sessions: dict[str, dict[str, Any]] = {}
        self.intents: dict[str, dict[str, Any]] = {}
        self.refunds: dict[str, dict[str, Any]] = {}
        self.disputes: dict[str, dict[str, Any]] = {}
        self.customers: dict[str, dict[str, Any]] = {}
        self.methods: dict[str, dict[str, Any]] = {}
        self.test_cards: dict[str, str] = {}  # by the method that was made of one
        self.accounts: dict[str, dict[str, Any]] = {}
        self.transfers: dict[str, dict[str, Any]] = {}
        self.balance = 1_000_000  # cents that can be transferred
        self.refund_status = "succeeded"
        self.card_error = ""  # of the refusal of saved cards; "" for none
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        self.faults: list[Fault] = []
        self.hooks: list[tuple[bytes, str]] = []
        self._numbers = itertools.count(1)
        self._kept: dict[str, tuple[str, int, bytes]] = {}

    # Acts of a payer, a bank and an operator.

    def pay(self, session_id: str, *, is_slow: bool = False) -> None:
        """Pay a session; by a slow bank the money comes with `arrive`."""
        session = self.sessions[session_id]
        assert session["status"] == "open"
        intent = self._intent(session, "processing" if is_slow else "succeeded")
        session.update(status="complete", payment_intent=intent["id"])
        if not is_slow:
            session["payment_status"] = "paid"

    def save_card(self, session_id: str, last4: str = "4242") -> str:
        """Save a card on a page in the mode for it; return the payment method."""
        session = self.sessions[session_id]
        assert (session["status"], session["mode"]) == ("open", "setup")
        method_id = self._card(session["customer"], last4)
        session["setup_intent"] = {
            "id": self._id("seti"),
            "object": "setup_intent",
            "status": "succeeded",
            "usage": "off_session",
            "payment_method": self.methods[method_id],
        }
        session["status"] = "complete"
        return method_id

    def arrive(self, session_id: str) -> None:
        """Have the money of a slow bank arrive."""
        session = self.sessions[session_id]
        session["payment_status"] = "paid"
        self.intents[session["payment_intent"]]["status"] = "succeeded"

    def bounce(self, session_id: str) -> None:
        """Have a slow bank refuse the payment."""
        self.intents[self.sessions[session_id]["payment_intent"]]["status"] = (
            "requires_payment_method"
        )

    def expire(self, session_id: str) -> None:
        """End the time of a session."""
        self.sessions[session_id].update(status="expired", url=None)

    def dispute(self, session_id: str, cents: int | None = None) -> str:
        """Have the bank of the payer dispute a payment; return the dispute."""
        session = self.sessions[session_id]
        return self._dispute(session["payment_intent"], cents or session["amount_total"])

    def _dispute(self, intent: str, cents: int) -> str:
        dispute_id = self._id("du")
        self.disputes[dispute_id] = {
            "id": dispute_id,
            "object": "dispute",
            "amount": cents,
            "currency": "usd",
            "charge": f"ch_{intent}",
            "payment_intent": intent,
            "status": "needs_response",
            "reason": "fraudulent",
            "created": self.now(),
            "livemode": False,
            "metadata": {},
            "balance_transactions": [],
            "evidence": {},
            "evidence_details": {
                "due_by": None,
                "has_evidence": False,
                "past_due": False,
                "submission_count": 0,
            },
            "is_charge_refundable": False,
        }
        return dispute_id

    def refund_outside(self, session_id: str, cents: int) -> str:
        """Refund a part of a payment at the provider, without the service."""
        intent = self.sessions[session_id]["payment_intent"]
        return str(self._refund(intent, cents, {})["id"])

    def fill_in(self, account_id: str) -> None:
        """Have a user fill in all pages of an account."""
        self.accounts[account_id].update(
            payouts_enabled=True, details_submitted=True, capabilities={"transfers": "active"}
        )

    def reverse(self, transfer_id: str) -> dict[str, Any]:
        """Take a whole transfer back; return it."""
        found = self.transfers[transfer_id]
        found.update(reversed=True, amount_reversed=found["amount"])
        self.balance += found["amount"]
        return found

    def forget_keys(self) -> None:
        """Forget the keys of requests, as the provider does after a day."""
        self._kept.clear()

    def session_of(self, payment_id: str) -> str:
        """Return the session of a payment of the service."""
        (found,) = (
            each["id"]
            for each in self.sessions.values()
            if each["client_reference_id"] == payment_id
        )
        return str(found)

    # Notices.

    def notice(self, kind: str, subject: dict[str, Any]) -> tuple[bytes, str]:
        """Return the body and the signature of a notice."""
        event = {
            "id": self._id("evt"),
            "object": "event",
            "api_version": VERSION,
            "created": self.now(),
            "livemode": False,
            "pending_webhooks": 1,
            "type": kind,
            "data": {"object": subject},
        }
        body = json.dumps(event).encode()
        return body, self.signature(body)

    def signature(self, body: bytes, *, at: int | None = None, secret: str | None = None) -> str:
        """Return the header that signs a body."""
        moment = self.now() if at is None else at
        signed = f"{moment}.".encode() + body
        digest = hmac.new((secret or self.secret).encode(), signed, hashlib.sha256).hexdigest()
        return f"t={moment},v1={digest}"

    async def notify(self, kind: str, subject: dict[str, Any]) -> int:
        """Send a notice to the service; return the status of its answer, 0 without an address."""
        body, signature = self.notice(kind, subject)
        self.hooks.append((body, signature))
        return await self.post(body, signature)

    async def post(self, body: bytes, signature: str) -> int:
        """Send a body with a signature to the service."""
        if not self.hook_url:
            return 0
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                self.hook_url,
                data=io.BytesIO(body),
                headers={"Stripe-Signature": signature, "Content-Type": "application/json"},
            ) as response,
        ):
            return response.status

    # The API.

    def app(self) -> web.Application:
        """Return the server."""
        app = web.Application()
        app.router.add_post("/v1/checkout/sessions", self._api(self._create))
        app.router.add_get("/v1/checkout/sessions/{id}", self._api(self._session))
        app.router.add_post("/v1/checkout/sessions/{id}/expire", self._api(self._expire))
        app.router.add_post("/v1/customers", self._api(self._create_customer))
        app.router.add_delete("/v1/customers/{id}", self._api(self._delete_customer))
        app.router.add_post("/v1/payment_intents", self._api(self._charge))
        app.router.add_get("/v1/payment_intents", self._api(self._list_intents))
        app.router.add_get("/v1/payment_intents/{id}", self._api(self._found_intent))
        app.router.add_post("/v1/payment_methods/{id}/attach", self._api(self._attach))
        app.router.add_post("/v1/payment_methods/{id}/detach", self._api(self._detach))
        app.router.add_post("/v1/refunds", self._api(self._create_refund))
        app.router.add_get("/v1/refunds", self._api(self._list(self.refunds, "/v1/refunds")))
        app.router.add_get("/v1/disputes", self._api(self._list(self.disputes, "/v1/disputes")))
        app.router.add_post("/v1/accounts", self._api(self._open_account))
        app.router.add_get("/v1/accounts/{id}", self._api(self._one(self.accounts)))
        app.router.add_post("/v1/account_links", self._api(self._link))
        app.router.add_post("/v1/transfers", self._api(self._transfer))
        app.router.add_get("/v1/transfers", self._api(self._list_transfers))
        app.router.add_get("/v1/transfers/{id}", self._api(self._one(self.transfers)))
        app.router.add_get("/setup/{id}", self._setup)
        app.router.add_get("/pay/{id}", self._page)
        app.router.add_post("/pay/{id}/{action}", self._press)
        return app

    def _api(self, handler: Callable[..., tuple[int, Any]]) -> Callable[..., Any]:
        async def answer(request: web.Request) -> web.Response:
            sent = dict(parse_qsl((await request.read()).decode(), keep_blank_values=True))
            self.calls.append((request.method, request.path, {**request.query, **sent}))
            fault = self.faults.pop(0) if self.faults else Fault()
            await asyncio.sleep(fault.seconds)
            if fault.status and not fault.has_effect:
                return web.Response(
                    status=fault.status, body=fault.body, headers=dict(fault.headers)
                )
            status, body = self._answer(request, sent, handler)
            if fault.status:
                return web.Response(status=fault.status, body=fault.body)
            return web.Response(status=status, body=body, content_type="application/json")

        return answer

    def _answer(
        self, request: web.Request, sent: dict[str, str], handler: Callable[..., tuple[int, Any]]
    ) -> tuple[int, bytes]:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return 401, _error("invalid_request_error", "Invalid API Key provided.")
        if request.headers.get("Stripe-Version") != VERSION:
            return 400, _error("invalid_request_error", "Another version of the API.")
        key = request.headers.get("Idempotency-Key", "")
        mark = f"{request.path} {sorted(sent.items())}"
        if request.method == "POST" and key in self._kept:
            kept, status, body = self._kept[key]
            if kept != mark:
                return 400, _error("idempotency_error", "Keys are for the same parameters.")
            return status, body
        status, found = handler(request, sent)
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        if request.method == "POST" and key:
            self._kept[key] = mark, status, body
        return status, body

    def _create(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        if sent.get("mode") == "setup":
            return self._create_setup(sent)
        price = "line_items[0][price_data]"
        if sent.get("mode") != "payment" or f"{price}[unit_amount]" not in sent:
            return 400, _error("invalid_request_error", "A parameter is missing.")
        until = int(sent.get("expires_at", self.now() + 86_400))
        if not 1_800 <= until - self.now() <= 86_400:
            return 400, _error("invalid_request_error", "expires_at is out of range.")
        session_id = self._id("cs_test")
        amount = int(sent[f"{price}[unit_amount]"]) * int(sent["line_items[0][quantity]"])
        self.sessions[session_id] = {
            "id": session_id,
            "object": "checkout.session",
            "amount_subtotal": amount,
            "amount_total": amount,
            "cancel_url": sent.get("cancel_url"),
            "client_reference_id": sent.get("client_reference_id"),
            "created": self.now(),
            "currency": sent[f"{price}[currency]"],
            "expires_at": until,
            "livemode": False,
            "metadata": _metadata(sent),
            "mode": "payment",
            "payment_intent": None,
            "payment_status": "unpaid",
            "status": "open",
            "success_url": sent.get("success_url"),
            "title": sent[f"{price}[product_data][name]"],
            "url": f"{self.url}/pay/{session_id}",
        }
        return 200, self.sessions[session_id]

    def _create_setup(self, sent: dict[str, str]) -> tuple[int, Any]:
        if sent.get("customer") not in self.customers:
            return 400, _error("invalid_request_error", "No such customer.")
        session_id = self._id("cs_test")
        self.sessions[session_id] = {
            "id": session_id,
            "object": "checkout.session",
            "amount_total": None,
            "cancel_url": sent["cancel_url"],
            "client_reference_id": sent.get("client_reference_id"),
            "created": self.now(),
            "customer": sent["customer"],
            "livemode": False,
            "metadata": _metadata(sent),
            "mode": "setup",
            "payment_status": "no_payment_required",
            "setup_intent": None,
            "status": "open",
            "success_url": sent["success_url"],
            "title": "Save a card",
            "url": f"{self.url}/pay/{session_id}",
        }
        return 200, self.sessions[session_id]

    def _create_customer(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        customer_id = self._id("cus")
        self.customers[customer_id] = {
            "id": customer_id,
            "object": "customer",
            "created": self.now(),
            "livemode": False,
            "metadata": _metadata(sent),
        }
        return 200, self.customers[customer_id]

    def _delete_customer(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        customer_id = request.match_info["id"]
        if self.customers.pop(customer_id, None) is None:
            return 404, _error("invalid_request_error", "No such customer.", "resource_missing")
        for method in self.methods.values():
            if method["customer"] == customer_id:
                method["customer"] = None
        return 200, {"id": customer_id, "object": "customer", "deleted": True}

    def _charge(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        method = self.methods.get(sent["payment_method"])
        if method is None or method["customer"] != sent["customer"]:
            return 400, _error("invalid_request_error", "No such payment method.")
        assert (sent["off_session"], sent["confirm"]) == ("true", "true")
        card = self.test_cards.get(method["id"], "")
        intent_id, error = self._id("pi"), TEST_CARDS.get(card, "") or self.card_error
        self.intents[intent_id] = {
            "id": intent_id,
            "object": "payment_intent",
            "amount": int(sent["amount"]),
            "currency": sent["currency"],
            "customer": sent["customer"],
            "status": "requires_payment_method" if error else "succeeded",
            "last_payment_error": {"type": "card_error", "code": error} if error else None,
            "livemode": False,
            "created": self.now(),
            "metadata": _metadata(sent),
        }
        if error:
            refused = {
                "type": "card_error",
                "code": error,
                "message": "The card was refused.",
                "payment_intent": self.intents[intent_id],
            }
            return 402, {"error": refused}
        if card == "pm_card_createDispute":
            self._dispute(intent_id, int(sent["amount"]))
        return 200, self.intents[intent_id]

    def _found_intent(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        found = self.intents.get(request.match_info["id"])
        if found is None:
            return 404, _error("invalid_request_error", "No such payment intent.")
        return 200, found

    def _list_intents(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        customer, most = request.query["customer"], int(request.query.get("limit", "10"))
        found = [each for each in self.intents.values() if each.get("customer") == customer][::-1]
        return 200, {
            "object": "list",
            "url": "/v1/payment_intents",
            "has_more": len(found) > most,
            "data": found[:most],
        }

    def _attach(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        card = request.match_info["id"]
        if card not in TEST_CARDS or sent.get("customer") not in self.customers:
            return 404, _error("invalid_request_error", "There is none.", "resource_missing")
        method_id = self._card(sent["customer"], "4242")
        self.test_cards[method_id] = card
        return 200, self.methods[method_id]

    def _card(self, customer: str, last4: str) -> str:
        method_id = self._id("pm")
        self.methods[method_id] = {
            "id": method_id,
            "object": "payment_method",
            "type": "card",
            "customer": customer,
            "created": self.now(),
            "livemode": False,
            "card": {"brand": "visa", "last4": last4, "exp_month": 12, "exp_year": 2034},
        }
        return method_id

    def _detach(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        method = self.methods.get(request.match_info["id"])
        if method is None or method["customer"] is None:
            return 400, _error("invalid_request_error", "The method is not attached.")
        method["customer"] = None
        return 200, method

    def _session(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        session = self.sessions.get(request.match_info["id"])
        if session is None:
            return 404, _error("invalid_request_error", "No such checkout session.")
        expanded = [value for name, value in request.query.items() if name.startswith("expand[")]
        intent = self.intents.get(session.get("payment_intent") or "")
        if "payment_intent" in expanded and intent is not None:
            return 200, {**session, "payment_intent": intent}
        return 200, session

    def _expire(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        session = self.sessions.get(request.match_info["id"])
        if session is None:
            return 404, _error("invalid_request_error", "No such checkout session.")
        if session["status"] != "open":
            return 400, _error("invalid_request_error", "Only open sessions can be expired.")
        self.expire(request.match_info["id"])
        return 200, self.sessions[request.match_info["id"]]

    def _create_refund(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        intent, cents = sent["payment_intent"], int(sent["amount"])
        found = self.intents.get(intent)
        gone = sum(
            each["amount"]
            for each in self.refunds.values()
            if each["payment_intent"] == intent and each["status"] in ("succeeded", "pending")
        )
        disputed = any(each["payment_intent"] == intent for each in self.disputes.values())
        if found is None or found["status"] != "succeeded" or disputed:
            return 400, _error("invalid_request_error", "The charge cannot be refunded.")
        if cents + gone > found["amount"]:
            return 400, _error("invalid_request_error", "More than the charge.")
        return 200, self._refund(intent, cents, _metadata(sent))

    def _open_account(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        account_id = self._id("acct")
        self.accounts[account_id] = {
            "id": account_id,
            "object": "account",
            "type": sent["type"],
            "payouts_enabled": False,
            "details_submitted": False,
            "capabilities": {"transfers": "inactive"},
        }
        return 200, self.accounts[account_id]

    def _link(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        if sent.get("account") not in self.accounts:
            return 400, _error("invalid_request_error", "No such account.", "account_invalid")
        return 200, {
            "object": "account_link",
            "created": self.now(),
            "expires_at": self.now() + 300,
            "url": f"{self.url}/setup/{sent['account']}",
        }

    def _transfer(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        account, cents = self.accounts.get(sent["destination"]), int(sent["amount"])
        if account is None:
            return 400, _error("invalid_request_error", "No such account.", "account_invalid")
        if account["capabilities"]["transfers"] != "active":
            code = "insufficient_capabilities_for_transfer"
            return 400, _error("invalid_request_error", "It is not complete.", code)
        if cents > self.balance:
            return 400, _error("invalid_request_error", "No money.", "balance_insufficient")
        self.balance -= cents
        transfer_id = self._id("tr")
        self.transfers[transfer_id] = {
            "id": transfer_id,
            "object": "transfer",
            "amount": cents,
            "amount_reversed": 0,
            "created": self.now(),
            "currency": sent["currency"],
            "destination": sent["destination"],
            "livemode": False,
            "metadata": _metadata(sent),
            "reversed": False,
            "transfer_group": sent.get("transfer_group"),
        }
        return 200, self.transfers[transfer_id]

    def _list_transfers(self, request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
        group = request.query["transfer_group"]
        found = [each for each in self.transfers.values() if each["transfer_group"] == group]
        return 200, {"object": "list", "url": "/v1/transfers", "has_more": False, "data": found}

    def _one(self, rows: dict[str, dict[str, Any]]) -> Callable[..., tuple[int, Any]]:
        def answer(request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
            found = rows.get(request.match_info["id"])
            missing = _error("invalid_request_error", "There is none.", "resource_missing")
            return (404, missing) if found is None else (200, found)

        return answer

    def _list(self, rows: dict[str, dict[str, Any]], url: str) -> Callable[..., tuple[int, Any]]:
        def answer(request: web.Request, sent: dict[str, str]) -> tuple[int, Any]:
            intent = request.query["payment_intent"]
            found = [each for each in rows.values() if each["payment_intent"] == intent]
            return 200, {"object": "list", "url": url, "has_more": False, "data": found[::-1]}

        return answer

    # The hosted page.

    async def _page(self, request: web.Request) -> web.Response:
        session = self.sessions[request.match_info["id"]]
        buttons = "".join(
            f'<form method="post" action="/pay/{session["id"]}/{action}">'
            f'<button id="{action}">{words}</button></form>'
            for action, words in (
                ("pay", "Pay"),
                ("slow", "Pay by slow bank"),
                ("cancel", "Cancel"),
                ("dispute", "Pay, then dispute"),
            )
        )
        if session["mode"] == "setup":
            buttons = (
                f'<form method="post" action="/pay/{session["id"]}/save">'
                '<button id="save">Save the card</button></form>'
            )
        return web.Response(
            text=f"<!DOCTYPE html><title>Stand-in</title><h1>{escape(session['title'])}</h1>"
            f"<p>{(session['amount_total'] or 0) / 100:.2f} USD</p>{buttons}",
            content_type="text/html",
        )

    async def _setup(self, request: web.Request) -> web.Response:
        text = f"<!DOCTYPE html><title>Setup</title><h1>{escape(request.match_info['id'])}</h1>"
        return web.Response(text=text, content_type="text/html")

    async def _press(self, request: web.Request) -> web.Response:
        session_id, action = request.match_info["id"], request.match_info["action"]
        session = self.sessions[session_id]
        if action == "save":
            self.save_card(session_id)
            await self.notify("checkout.session.completed", session)
        elif action != "cancel":
            self.pay(session_id, is_slow=action == "slow")
            await self.notify("checkout.session.completed", session)
        if action == "dispute":
            disputed = self.disputes[self.dispute(session_id)]
            await self.notify("charge.dispute.created", disputed)
        target = session["cancel_url" if action == "cancel" else "success_url"]
        raise web.HTTPSeeOther(target)

    def _intent(self, session: dict[str, Any], status: str) -> dict[str, Any]:
        intent_id = self._id("pi")
        self.intents[intent_id] = {
            "id": intent_id,
            "object": "payment_intent",
            "amount": session["amount_total"],
            "currency": session["currency"],
            "status": status,
            "livemode": False,
            "created": self.now(),
            "metadata": session["metadata"],
        }
        return self.intents[intent_id]

    def _refund(self, intent: str, cents: int, metadata: dict[str, str]) -> dict[str, Any]:
        refund_id = self._id("re")
        self.refunds[refund_id] = {
            "id": refund_id,
            "object": "refund",
            "amount": cents,
            "charge": f"ch_{intent}",
            "created": self.now(),
            "currency": "usd",
            "metadata": metadata,
            "payment_intent": intent,
            "reason": None,
            "status": self.refund_status,
        }
        return self.refunds[refund_id]

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers):024d}"


def _metadata(sent: dict[str, str]) -> dict[str, str]:
    return {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in sent.items()
        if name.startswith("metadata[")
    }


def _error(kind: str, message: str, code: str | None = None) -> bytes:
    error = {"type": kind, "message": message} | ({"code": code} if code else {})
    return json.dumps({"error": error}).encode()


@asynccontextmanager
async def running(now: Callable[[], int]) -> AsyncIterator[StripeServer]:
    """Run a stand-in on a free port of this machine."""
    server = StripeServer(now)
    runner = web.AppRunner(server.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()

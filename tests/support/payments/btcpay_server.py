"""A stand-in for a BTCPay Server: invoices and pull payments over HTTP, and signed notices."""

import hashlib
import hmac
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

KEY, STORE, SECRET = "key", "store", "secret"


class BtcPayServer:
    """The state of the server. Tests change it as a payer does."""

    def __init__(self) -> None:
        self.url = ""
        self.invoices: dict[str, dict[str, Any]] = {}
        self.pulls: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, list[dict[str, Any]]] = {}  # by the pull payment
        self._numbers = itertools.count(1)

    def settle(self, invoice_id: str, additional: str = "None") -> None:
        """Have an invoice be paid and confirmed."""
        self.invoices[invoice_id].update(status="Settled", additionalStatus=additional)

    def claim(self, pull_id: str, amount: str) -> None:
        """Have the payer claim some of a pull payment, and the server pay it."""
        claims = self.claims.setdefault(pull_id, [])
        claims.append({"id": f"claim{len(claims)}", "originalAmount": amount, "state": "Completed"})

    def archive(self, pull_id: str) -> None:
        """Archive a pull payment: claims that wait are cancelled, and paid ones stay."""
        self.pulls[pull_id]["archived"] = True

    def notice(self, invoice_id: str) -> tuple[bytes, str]:
        """Return the body and the signature of a notice."""
        body = json.dumps({"type": "InvoiceSettled", "invoiceId": invoice_id}).encode()
        return body, f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"

    def app(self) -> web.Application:
        """Return the server."""
        store = f"/api/v1/stores/{STORE}"
        app = web.Application(middlewares=[self._check])
        app.router.add_get(f"{store}/invoices", self._list)
        app.router.add_post(f"{store}/invoices", self._create)
        app.router.add_get(f"{store}/invoices/{{id}}", self._invoice)
        app.router.add_post(f"{store}/invoices/{{id}}/refund", self._refund)
        app.router.add_get(f"{store}/pull-payments", self._pulls)
        app.router.add_get("/api/v1/pull-payments/{id}/payouts", self._claims)
        return app

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"token {KEY}":
            return web.json_response({"code": "unauthenticated"}, status=401)
        return await handler(request)

    async def _list(self, request: web.Request) -> web.Response:
        order = request.query["orderId"]
        found = [each for each in self.invoices.values() if each["metadata"]["orderId"] == order]
        return web.json_response(found)

    async def _create(self, request: web.Request) -> web.Response:
        sent = await request.json()
        invoice_id = f"invoice{next(self._numbers)}"
        self.invoices[invoice_id] = {
            "id": invoice_id,
            "storeId": STORE,
            "status": "New",
            "additionalStatus": "None",
            "amount": sent["amount"],
            "currency": sent["currency"],
            "metadata": sent["metadata"],
            "checkout": sent["checkout"],
            "checkoutLink": f"{self.url}/i/{invoice_id}",
        }
        return web.json_response(self.invoices[invoice_id])

    async def _invoice(self, request: web.Request) -> web.Response:
        found = self.invoices.get(request.match_info["id"])
        if found is None:
            return web.json_response({"code": "invoice-not-found"}, status=404)
        return web.json_response(found)

    async def _refund(self, request: web.Request) -> web.Response:
        invoice, sent = self.invoices[request.match_info["id"]], await request.json()
        if invoice["status"] != "Settled":
            return web.json_response({"code": "non-refundable"}, status=422)
        pull_id = f"pull{next(self._numbers)}"
        self.pulls[pull_id] = {
            "id": pull_id,
            "name": sent["name"],
            "amount": sent["customAmount"],
            "currency": sent["customCurrency"],
            "archived": False,
        }
        return web.json_response(self.pulls[pull_id])

    async def _claims(self, request: web.Request) -> web.Response:
        return web.json_response(self.claims.get(request.match_info["id"], []))

    async def _pulls(self, request: web.Request) -> web.Response:
        has_archived = request.query.get("includeArchived") == "true"
        pulls = [each for each in self.pulls.values() if has_archived or not each["archived"]]
        return web.json_response(pulls)


@asynccontextmanager
async def running() -> AsyncIterator[BtcPayServer]:
    """Run a stand-in on a free port of this machine."""
    server = BtcPayServer()
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()

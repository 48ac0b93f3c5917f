"""A daemon that takes payments by a stand-in for Stripe, and pays earnings out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyd.loop import clock
from storage.accounts import users
from storage.engines.store import Transaction
from support.daemons.service import Person, Service, running_in
from support.payments import stripe_server
from support.payments.stripe_server import KEY, SECRET, StripeServer

SELLER = "Example Ltd\n1 Road <b>"
PAYOUTS = {
    "methods": ["bank", "paypal", "manual", "stripe"],
    "fee_usd": 0.5,
    "method_wait_hours": 0,
    "first_wait_days": 0,
}


@dataclass
class Shop:
    """The daemon, and the provider of its payments."""

    service: Service
    stripe: StripeServer

    async def begin(self, person: Person, usd: float = 20) -> str:
        """Begin a payment; return its identifier."""
        body = {"amount_usd": usd}
        answer = await self.service.call("POST", "/api/payments", body, token=person.token)
        assert answer.status == 200, answer.body
        return str(answer.body["payment"]["id"])

    async def pay(self, person: Person, usd: float = 20) -> str:
        """Begin a payment, pay it, and let the service look; return its identifier."""
        payment_id = await self.begin(person, usd)
        self.stripe.pay(self.stripe.session_of(payment_id))
        path = f"/api/payments/{payment_id}"
        shown = await self.service.call("GET", path, token=person.token)
        assert shown.body["payment"]["status"] == "paid", shown.body
        return payment_id

    async def look(self, person: Person, payment_id: str) -> dict[str, Any]:
        """Let the service look at a payment; return the payment."""
        path = f"/api/payments/{payment_id}"
        return dict((await self.service.call("GET", path, token=person.token)).body["payment"])

    async def confirm(self, person: Person) -> None:
        """Confirm the e-mail address of a user."""

        async def unit(tx: Transaction) -> None:
            await users.set_email_verified(tx, person.user_id, 1)

        await self.service.daemon.store.write(unit)


@asynccontextmanager
async def shop(folder: Path, **sections: dict[str, Any]) -> AsyncIterator[Shop]:
    """Run both, on a database in a folder; the books must agree at the end."""
    async with stripe_server.running(clock.seconds) as stripe:
        payments = {
            "stripe_secret_key": KEY,
            "stripe_webhook_secret": SECRET,
            "stripe_api_base": stripe.url,
            "seller": SELLER,
            "tax_name": "VAT",
            "tax_percent": 20,
            "top_up_month_usd": 200,
        }
        sections = {"payments": payments, "payouts": PAYOUTS, **sections}
        async with running_in(folder, **sections) as service:
            stripe.hook_url = f"{service.url}/hooks/stripe"
            yield Shop(service, stripe)
            await service.assert_audit()

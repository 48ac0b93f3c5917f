"""The route of receipts."""

from typing import Any

from msgspec import Struct

from api.http.identifiers import in_path
from api.routing.codec import money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.payments.payments import Payments, ReceiptView


class Receipt(Struct):
    """A receipt: its texts are those of the day of the payment, the buyer's are those of now.

    `seller` has lines. The tax is part of the amount: `net_usd` and `tax_usd` add up to
    `amount_usd`. Without a tax `tax_name` is "".
    """

    number: int
    issued_at: Timestamp
    payment_id: str
    provider: str
    seller: str
    buyer_name: str
    buyer_email: str
    amount_usd: float
    net_usd: float
    tax_usd: float
    tax_name: str
    tax_percent: float


class ReceiptReply(Reply, kw_only=True):
    """The receipt of a payment that has arrived."""

    receipt: Receipt


class ReceiptRoutes:
    """The route of receipts."""

    def __init__(self, payments: Payments) -> None:
        self._payments = payments

    def table(self) -> list[Route]:
        """Return the declaration."""
        return [
            Route(
                "GET",
                "/api/payments/{payment_id}/receipt",
                "The receipt of a payment of mine",
                self.receipt,
                ReceiptReply,
                scope=Scope.WALLET_READ,
                errors=(Code.PAYMENT_NOT_FOUND,),
            )
        ]

    async def receipt(self, call: Call[Nothing, Any]) -> ReceiptReply:
        """Return a receipt of the caller."""
        payment_id = in_path(call.path["payment_id"], Code.PAYMENT_NOT_FOUND)
        return ReceiptReply(
            receipt=_receipt(await self._payments.receipt(call.user_id, payment_id))
        )


def _receipt(view: ReceiptView) -> Receipt:
    row, amount = view.receipt, view.payment.amount
    return Receipt(
        number=row.number,
        issued_at=timestamp(row.issued_at),
        payment_id=row.payment_id,
        provider=view.payment.provider,
        seller=row.seller,
        buyer_name=view.username,
        buyer_email=view.email,
        amount_usd=money(amount),
        net_usd=money(amount - view.tax),
        tax_usd=money(view.tax),
        tax_name=row.tax_name,
        tax_percent=row.tax_basis_points / 100,
    )

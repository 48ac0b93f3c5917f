"""Routes of receipts: the data of a receipt for a page, and the receipt as a PDF."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from api.http.identifiers import in_path
from api.payments.pdf import Line, page
from api.routing.codec import money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Download, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.money.money import as_decimal
from market.payments.payments import Payments, ReceiptView


class ReceiptItem(Struct):
    """The receipt of a payment. `number` has no gaps; amounts include the tax, if there is one.

    `seller` are the lines about the operator on the day of the payment.
    """

    number: int
    issued_at: Timestamp
    payment_id: str
    seller: list[str]
    buyer_name: str
    buyer_email: str
    description: str
    amount_usd: float
    net_usd: float
    tax_usd: float
    tax_name: str
    tax_percent: float


class ReceiptReply(Reply, kw_only=True):
    """The receipt of a payment of the caller."""

    receipt: ReceiptItem


class ReceiptRoutes:
    """The routes of receipts."""

    def __init__(self, payments: Payments) -> None:
        self._payments = payments

    def table(self) -> list[Route]:
        """Return the declarations."""
        missing = (Code.PAYMENT_NOT_FOUND,)
        return [
            Route(
                "GET",
                "/api/payments/{payment_id}/receipt",
                "Show the receipt of my payment",
                self.show,
                ReceiptReply,
                scope=Scope.WALLET_READ,
                errors=missing,
            ),
            Route(
                "GET",
                "/api/payments/{payment_id}/receipt.pdf",
                "Download the receipt of my payment",
                self.download,
                Reply,
                scope=Scope.WALLET_READ,
                errors=missing,
                has_file=True,
            ),
        ]

    async def show(self, call: Call[Nothing, Any]) -> ReceiptReply:
        """Return the receipt of a payment of the caller."""
        return ReceiptReply(receipt=_item(await self._find(call)))

    async def download(self, call: Call[Nothing, Any]) -> Download:
        """Return the receipt of a payment of the caller as a PDF."""
        item = _item(await self._find(call))
        document = page(f"Receipt {item.number}", _lines(item))
        name = f"receipt-{item.number}"
        return Download(name=f"{name}.pdf", etag=name, content=_Bytes(document))

    async def _find(self, call: Call[Nothing, Any]) -> ReceiptView:
        payment_id = in_path(call.path["payment_id"], Code.PAYMENT_NOT_FOUND)
        return await self._payments.receipt(call.user_id, payment_id)


class _Bytes:
    """A file in memory, for `Download`."""

    def __init__(self, document: bytes) -> None:
        self.size_bytes = len(document)
        self._document = document

    async def read(self, offset: int, size: int) -> bytes:
        """Return some bytes."""
        return self._document[offset : offset + size]

    def close(self) -> None:
        """Close nothing."""


def _item(view: ReceiptView) -> ReceiptItem:
    receipt, amount = view.receipt, view.payment.amount
    return ReceiptItem(
        number=receipt.number,
        issued_at=timestamp(receipt.issued_at),
        payment_id=receipt.payment_id,
        seller=[line.strip() for line in receipt.seller.splitlines() if line.strip()],
        buyer_name=view.username,
        buyer_email=view.email,
        description=f"Balance of {as_decimal(amount)} USD",
        amount_usd=money(amount),
        net_usd=money(amount - view.tax),
        tax_usd=money(view.tax),
        tax_name=receipt.tax_name,
        tax_percent=receipt.tax_basis_points / 100,
    )


def _lines(item: ReceiptItem) -> Iterator[Line]:
    """Yield the lines of the page of a receipt."""
    yield Line(f"Receipt {item.number}", 20, is_bold=True)
    yield Line("")
    yield from (Line(line) for line in item.seller)
    yield Line("")
    yield Line(f"Date: {item.issued_at[:10]}")
    yield Line(f"Payment: {item.payment_id}")
    yield Line(f"For: {item.buyer_name}, {item.buyer_email}")
    yield Line("", 16)
    yield Line(item.description, is_bold=True)
    if item.tax_name:
        yield Line(f"Net: {item.net_usd:.2f} USD")
        yield Line(f"{item.tax_name} {item.tax_percent:g} %: {item.tax_usd:.2f} USD")
    yield Line(f"Total paid: {item.amount_usd:.2f} USD", 12, is_bold=True)

"""Routes of receipts: the data of a receipt for a page, and the receipt as a PDF."""

import asyncio
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from api.http.identifiers import in_path
from api.payments.particulars import BuyerItem
from api.payments.pdf import Line, document, has_codes
from api.payments.picture import Picture, picture_of
from api.routing.codec import money
from api.routing.in_memory import InMemory
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Download, Nothing, Reply, Route
from api.site.look import Logo
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.money.money import as_decimal
from market.payments.payments import Payments, ReceiptView
from storage.payments.payments import ReceiptRow


class CreditNoteItem(Struct):
    """The credit note of a refund. `number` has no gaps; the particulars are those of the receipt.

    It `is_cancelled` when the card refused the money later.
    """

    number: int
    issued_at: Timestamp
    amount_usd: float
    net_usd: float
    tax_usd: float
    is_cancelled: bool


class ReceiptItem(Struct):
    """The receipt of a payment. `number` has no gaps; amounts include the tax, if there is one.

    `seller` are the lines about the operator on the day of the payment, and `buyer` are the
    particulars of the user on that day. With them it is an invoice (`is_invoice`); without, `buyer`
    is null. `credit_notes` are those of its refunds.
    """

    number: int
    is_invoice: bool
    issued_at: Timestamp
    payment_id: str
    seller: list[str]
    buyer: BuyerItem | None
    buyer_name: str
    buyer_email: str
    description: str
    amount_usd: float
    net_usd: float
    tax_usd: float
    tax_name: str
    tax_percent: float
    credit_notes: list[CreditNoteItem]


class ReceiptReply(Reply, kw_only=True):
    """The receipt of a payment of the caller."""

    receipt: ReceiptItem


class ReceiptRoutes:
    """The routes of receipts.

    Args:
        payments: have the receipts.
        logo: is decoded for the first document, and kept small.
    """

    def __init__(self, payments: Payments, logo: Logo | None = None) -> None:
        self._payments = payments
        self._logo = logo
        self._decoding = asyncio.Lock()
        self._picture: Picture | None = None
        self._tag = "" if logo is None else f"-{logo.digest}"

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
            Route(
                "GET",
                "/api/payments/{payment_id}/credit-notes/{number}",
                "Download the credit note of a refund",
                self.download_note,
                Reply,
                scope=Scope.WALLET_READ,
                errors=(*missing, Code.CREDIT_NOTE_NOT_FOUND),
                has_file=True,
            ),
        ]

    async def show(self, call: Call[Nothing, Any]) -> ReceiptReply:
        """Return the receipt of a payment of the caller."""
        return ReceiptReply(receipt=_item(await self._find(call)))

    async def download(self, call: Call[Nothing, Any]) -> Download:
        """Return the receipt of a payment of the caller as a PDF."""
        item = _item(await self._find(call))
        written = document(f"{_kind(item)} {item.number}", _lines(item), await self._drawn())
        name = f"{_kind(item).lower()}-{item.number}"
        tag = name + self._tag
        return Download(name=f"{name}.pdf", etag=tag, content=InMemory(written))

    async def download_note(self, call: Call[Nothing, Any]) -> Download:
        """Return the credit note of a refund of the caller's payment as a PDF."""
        item = _item(await self._find(call))
        number = call.path["number"]
        note = next((each for each in item.credit_notes if str(each.number) == number), None)
        if note is None:
            raise MarketError(Code.CREDIT_NOTE_NOT_FOUND)
        lines = _lines(item, note)
        written = document(f"Credit note {note.number}", lines, await self._drawn())
        name = f"credit-note-{note.number}"
        tag = (f"{name}-cancelled" if note.is_cancelled else name) + self._tag
        return Download(name=f"{name}.pdf", etag=tag, content=InMemory(written))

    async def _drawn(self) -> Picture | None:
        """Return the logo; it is decoded in a thread once, so no requests decode it side by side.

        It takes up to 50 MB meanwhile, and at most 230 KB from then on.
        """
        if self._logo is None:
            return None
        async with self._decoding:
            if self._picture is None:
                self._picture = await asyncio.to_thread(picture_of, self._logo)
        return self._picture

    async def _find(self, call: Call[Nothing, Any]) -> ReceiptView:
        payment_id = in_path(call.path["payment_id"], Code.PAYMENT_NOT_FOUND)
        return await self._payments.receipt(call.user_id, payment_id)


def _item(view: ReceiptView) -> ReceiptItem:
    receipt, amount = view.receipt, view.payment.amount
    return ReceiptItem(
        number=receipt.number,
        is_invoice=receipt.is_invoice,
        issued_at=timestamp(receipt.issued_at),
        payment_id=receipt.payment_id,
        seller=[line.strip() for line in receipt.seller.splitlines() if line.strip()],
        buyer=_buyer(receipt),
        buyer_name=view.username,
        buyer_email=view.email,
        description=f"Balance of {as_decimal(amount)} USD",
        amount_usd=money(amount),
        net_usd=money(amount - view.tax),
        tax_usd=money(view.tax),
        tax_name=receipt.tax_name,
        tax_percent=receipt.tax_basis_points / 100,
        credit_notes=[
            CreditNoteItem(
                number=each.number,
                issued_at=timestamp(each.issued_at),
                amount_usd=money(each.amount),
                net_usd=money(each.amount - view.tax_in(each.amount)),
                tax_usd=money(view.tax_in(each.amount)),
                is_cancelled=each.cancelled_at is not None,
            )
            for each in view.notes
        ],
    )


def _buyer(row: ReceiptRow) -> BuyerItem | None:
    """Return the particulars of the buyer on an invoice; None on a receipt."""
    if not row.is_invoice:
        return None
    return BuyerItem(
        row.buyer_name, row.buyer_address.split("\n"), row.buyer_country, row.buyer_tax_number
    )


def _kind(item: ReceiptItem) -> str:
    """Return the name of a document."""
    return "Invoice" if item.is_invoice else "Receipt"


def _for(item: ReceiptItem) -> list[str]:
    """Return the lines about the buyer: particulars, or the name of the account."""
    if item.buyer is None:
        return [f"For: {item.buyer_name}, {item.buyer_email}"]
    buyer = item.buyer
    number = [f"Tax number: {buyer.tax_number}"] if buyer.tax_number else []
    return [f"For: {buyer.name}", *buyer.address, buyer.country, *number]


def _lines(item: ReceiptItem, note: CreditNoteItem | None = None) -> Iterator[Line]:
    """Yield the lines of the page of a receipt, or of one of its credit notes."""
    paper = item if note is None else note
    name = _kind(item) if note is None else "Credit note"
    yield Line(f"{name} {paper.number}", 20, is_bold=True)
    if note is not None:
        yield Line(f"for {_kind(item).lower()} {item.number} of {item.issued_at[:10]}")
        if note.is_cancelled:
            yield Line("CANCELLED: the bank did not take the money back.", is_bold=True)
    yield Line("")
    yield from (Line(line) for line in item.seller)
    yield Line("")
    yield Line(f"Date: {paper.issued_at[:10]}")
    yield Line(f"Payment: {item.payment_id}")
    yield from map(Line, _for(item))
    yield Line("", 16)
    yield Line(item.description if note is None else f"Refund of: {item.description}", is_bold=True)
    if item.tax_name:
        yield Line(f"Net: {paper.net_usd:.2f} USD")
        yield Line(f"{item.tax_name} {item.tax_percent:g} %: {paper.tax_usd:.2f} USD")
    total = "Total paid" if note is None else "Total returned"
    yield Line(f"{total}: {paper.amount_usd:.2f} USD", 12, is_bold=True)
    if any(map(has_codes, (*_for(item), item.tax_name, *item.seller))):
        yield Line("")
        yield Line("Letters that this file cannot show are written as <U+...>, their number in")
        yield Line("Unicode. The page of this receipt in the console shows the letters.")

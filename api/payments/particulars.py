"""Routes of the particulars of a buyer: what the next documents of the caller have."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.payments import particulars
from market.payments.particulars import BuyerParticulars, Particulars

PATH = "/api/payments/particulars"
Line = Annotated[str, Meta(max_length=200)]


class BuyerItem(Struct):
    """The receiver of a document; `country` is a code of ISO 3166, `tax_number` may be empty."""

    name: str
    address: list[str]
    country: str
    tax_number: str


class ParticularsReply(Reply, kw_only=True):
    """The particulars on the caller's next documents, which are invoices with them.

    Without particulars (null) they are receipts. `countries` are the codes that a country can have.
    """

    particulars: BuyerItem | None
    countries: list[str]


class ParticularsRequest(Struct):
    """The particulars on the next documents: at most four lines of `address`."""

    name: Line
    address: Annotated[list[Line], Meta(max_length=10)]
    country: Annotated[str, Meta(max_length=10)]
    tax_number: Annotated[str, Meta(max_length=100)] = ""


class ParticularsRoutes:
    """The routes of the particulars of a buyer."""

    def __init__(self, buyers: BuyerParticulars) -> None:
        self._buyers = buyers

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                PATH,
                "Which particulars my next invoices have",
                self.show,
                ParticularsReply,
                scope=Scope.ACCOUNT_READ,
            ),
            Route(
                "PUT",
                PATH,
                "Set the particulars on my next invoices",
                self.put,
                ParticularsReply,
                auth=Auth.JWT,
                body=ParticularsRequest,
                errors=(Code.ACCOUNT_CLOSED,),
                example={
                    "name": "Lovelace Ltd",
                    "address": ["1 Engine Road", "London"],
                    "country": "GB",
                    "tax_number": "GB123456789",
                },
            ),
            Route(
                "DELETE",
                PATH,
                "Have receipts without my particulars again",
                self.remove,
                ParticularsReply,
                auth=Auth.JWT,
            ),
        ]

    async def show(self, call: Call[Nothing, Any]) -> ParticularsReply:
        """Return the particulars of the caller."""
        return _reply(await self._buyers.find(call.user_id))

    async def put(self, call: Call[ParticularsRequest, Any]) -> ParticularsReply:
        """Set the particulars of the caller."""
        body = call.body
        new = Particulars(body.name, tuple(body.address), body.country, body.tax_number)
        return _reply(await self._buyers.put(call.user_id, new))

    async def remove(self, call: Call[Nothing, Any]) -> ParticularsReply:
        """Remove the particulars of the caller."""
        await self._buyers.remove(call.user_id)
        return _reply(None)


def _item(found: Particulars) -> BuyerItem:
    """Return particulars as replies have them."""
    return BuyerItem(found.name, list(found.address), found.country, found.tax_number)


def _reply(found: Particulars | None) -> ParticularsReply:
    return ParticularsReply(
        particulars=None if found is None else _item(found),
        countries=list(particulars.COUNTRIES),
    )

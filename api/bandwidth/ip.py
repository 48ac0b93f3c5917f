"""The route that returns a client's visible address, and the location of that."""

from typing import Any

from api.http.accept import prefers_text
from api.routing.routes import Call, Nothing, Reply, Route, Text
from market.exits.consents import Exits


class IpReply(Reply, kw_only=True):
    """The address of the client, and its location; "" and 0 for unknown fields.

    `opinions` has the country (ISO 3166, in lower case) that each source names; `country` is set if
    all sources that know the address name the same one. Through a proxy, `ip` is the address that
    targets see. `attribution` names the sources of the data; show it with them.
    """

    # One field for each thing that is known of an address.
    ip: str
    country: str
    state: str
    city: str
    asn: int
    kind: str
    opinions: dict[str, str]
    sources_agree: bool
    attribution: list[str]


class IpRoutes:
    """The route of the client's own address."""

    def __init__(self, exits: Exits) -> None:
        self._exits = exits

    def table(self) -> list[Route]:
        """Return the declaration."""
        return [
            Route(
                "GET",
                "/ip",
                "By which address I am seen, and where it is",
                self.ip,
                IpReply,
                has_text=True,
            ),
        ]

    async def ip(self, call: Call[Nothing, Any]) -> Reply:
        """Return the client's address: as one line of text where that is preferred."""
        attached = self._exits.attached
        where = attached.locate(call.address)
        if prefers_text(call.accept):
            words = (call.address, where.country, where.city, f"AS{where.asn}" if where.asn else "")
            return Text(line=" ".join(word for word in words if word))
        return IpReply(
            ip=call.address,
            country=where.country,
            state=where.state,
            city=where.city,
            asn=where.asn,
            kind=where.kind,
            opinions=dict(where.opinions),
            sources_agree=len(set(where.opinions.values()) - {""}) < 2,
            attribution=list(attached.attribution()),
        )

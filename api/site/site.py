"""Routes of the public side of the service, without a login."""

from typing import Any, Literal

from api.routing.routes import Call, Nothing, Reply, Route
from market.site.gate import SiteTerms


class SiteReply(Reply, kw_only=True):
    """The name of the service, its contact ("" for none), and the mode of registration."""

    name: str
    support: str
    registration: Literal["open", "invited", "closed"]


class SiteRoutes:
    """The routes of the public side.

    Args:
        terms: the operator's name, contact and mode of registration.
    """

    def __init__(self, terms: SiteTerms) -> None:
        self._terms = terms

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [Route("GET", "/api/site", "This service", self.site, SiteReply)]

    async def site(self, _: Call[Nothing, Any]) -> SiteReply:
        """Return what a visitor needs to know before an account."""
        terms = self._terms
        return SiteReply(name=terms.name, support=terms.support, registration=terms.registration)

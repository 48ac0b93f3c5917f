"""Routes of the public side of the service, without a login."""

from typing import Any, Literal

from msgspec import Struct

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, Route
from market.site.gate import SiteTerms
from market.site.texts import Texts


class PublishedText(Struct):
    """A version of a text, which is at `url` in its languages; one that is not valid yet follows.

    `POST /auth/register` and `POST /auth/login` take the versions that a user accepts.
    """

    kind: Literal["terms", "privacy", "imprint"]
    version: int
    locales: list[str]
    valid_from: Timestamp
    is_valid: bool
    url: str


class SiteReply(Reply, kw_only=True):
    """The name of the service, its contact ("" for none), and the mode of registration."""

    name: str
    support: str
    registration: Literal["open", "invited", "closed"]
    texts: list[PublishedText]


class SiteRoutes:
    """The routes of the public side.

    Args:
        terms: the operator's name, contact and mode of registration.
        texts: the published texts.
    """

    def __init__(self, terms: SiteTerms, texts: Texts) -> None:
        self._terms = terms
        self._texts = texts

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [Route("GET", "/api/site", "This service", self.site, SiteReply)]

    async def site(self, _: Call[Nothing, Any]) -> SiteReply:
        """Return what a visitor needs to know before an account."""
        terms = self._terms
        return SiteReply(
            name=terms.name,
            support=terms.support,
            registration=terms.registration,
            texts=[
                PublishedText(
                    kind=each.kind,  # type: ignore[arg-type] # a constraint of the table
                    version=each.version,
                    locales=list(each.locales),
                    valid_from=timestamp(each.valid_from),
                    is_valid=each.is_valid,
                    url=f"/{each.kind}?version={each.version}",
                )
                for each in await self._texts.versions()
            ],
        )

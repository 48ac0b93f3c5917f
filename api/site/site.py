"""Routes of the public side of the service, without a login."""

from typing import Any, Literal

from msgspec import Struct

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, Route
from market.site.gate import SiteTerms
from market.site.status import Status
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


class PublicComponent(Struct):
    """A part of the service, and the shares of time in which it worked.

    `off` is a part that this service does not offer; `unknown`, that the newest look is older than
    30 s. A share is null while the service is younger than two hours.
    """

    name: str
    state: Literal["working", "failing", "off", "unknown"]
    day: float | None
    ninety_days: float | None


class PublicNotice(Struct):
    """A notice of the operator; `ended_at` is null while it lasts."""

    severity: Literal["info", "warning", "outage"]
    title: str
    text: str
    began_at: Timestamp
    ended_at: Timestamp | None


class StatusReply(Reply, kw_only=True):
    """The status of the service; `at` is the newest look, null before the first one."""

    at: Timestamp | None
    components: list[PublicComponent]
    notices: list[PublicNotice]


class SiteRoutes:
    """The routes of the public side.

    Args:
        terms: the operator's name, contact and mode of registration.
        texts: the published texts.
        status: the status of the service.
    """

    def __init__(self, terms: SiteTerms, texts: Texts, status: Status) -> None:
        self._status = status
        self._terms = terms
        self._texts = texts

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route("GET", "/api/site", "This service", self.site, SiteReply),
            Route("GET", "/status.json", "Status of the service", self.status, StatusReply),
        ]

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

    async def status(self, _: Call[Nothing, Any]) -> StatusReply:
        """Return the status, as the page at `/status` shows it."""
        report = await self._status.report()
        return StatusReply(
            at=timestamp(report.at) if report.at else None,
            components=[
                PublicComponent(each.name, each.state, each.day, each.ninety_days)
                for each in report.components
            ],
            notices=[
                PublicNotice(
                    severity=each.severity,  # type: ignore[arg-type] # a constraint of the table
                    title=each.title,
                    text=each.body,
                    began_at=timestamp(each.began_at),
                    ended_at=None if each.ended_at is None else timestamp(each.ended_at),
                )
                for each in report.notices
            ],
        )

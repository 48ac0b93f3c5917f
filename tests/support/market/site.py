"""The public side of a marketplace of a test: modes of registration, invitations and texts."""

from market.site.gate import Registration
from market.staff.site import site
from market.staff.site.site import DAY_SECONDS, Invited, Publication, TextKind
from storage.site.texts import TextRow
from support.market.market import Market
from support.market.staff import ROOT

ADA = {"username": "ada", "email": "ada@example.com", "password": "long enough"}


def admit(market: Market, registration: Registration) -> None:
    """Change who may open an account."""
    market.gate.registration = registration


async def invite(market: Market, uses: int = 1, days: int = 30) -> Invited:
    """Make an invitation, by a command on the machine."""
    return await site.invite(market.context, ROOT, uses=uses, days=days, why="a friend")


async def publish(
    market: Market,
    kind: TextKind = TextKind.TERMS,
    *,
    body: str = "Be kind.",
    days: int = 0,
    locale: str = "en",
    version: int | None = None,
) -> TextRow:
    """Publish a text that is valid in some days, by a command on the machine."""
    at = market.clock.now + days * DAY_SECONDS
    new = Publication(kind, locale, body, at, version)
    return await site.publish(market.context, ROOT, new, "new terms")

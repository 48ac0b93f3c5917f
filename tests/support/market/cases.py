"""Cases of a test: exits with a failed canary, and their judges."""

from market.accounts.letters import Letters
from market.staff.base.roles import Author
from market.staff.cases.base import Decision, Kind
from market.staff.cases.cases import Cases
from market.staff.money.approvals import Limits, Outcome
from storage.accounts import users as user_queries
from storage.engines.store import Transaction
from support.market.exits import ExitDevice, exit_device
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import LIMITS

WHY = "the site had a new page"


def cases_of(market: Market) -> Cases:
    """Return the decisions about cases."""
    return Cases(market.context, Letters(market.emails, "https://app.example.com"))


async def verify(market: Market, user: str) -> None:
    """Confirm the e-mail address of a user, so that letters go there."""
    await market.store.write(user_queries.set_email_verified, user, market.clock.now)


async def failed_canary(
    market: Market, owner: str | None = None, kind: str = "content"
) -> tuple[ExitDevice, str]:
    """Bar an exit for a finding, and return both."""
    made = await exit_device(market, owner)
    await market.exit_canaries.bar(made.id, kind, "evil bytes")
    [newest] = await cases_of(market).listed(ROOT, Kind.CANARY, limit=1)
    return made, newest.case.id


async def decide(
    market: Market,
    kind: Kind,
    case_id: str,
    decision: Decision,
    author: Author = ROOT,
    limits: Limits = LIMITS,
    percent: int = 100,
) -> Outcome:
    """Decide a case."""
    return await cases_of(market).decide(
        author, kind, case_id, decision, limits, WHY, percent=percent
    )


async def letters_about(market: Market, case_id: str) -> int:
    """Return the number of waiting e-mails about a decision."""
    return await letters_named(market, f"case decided:{case_id}")


async def letters_named(market: Market, name: str) -> int:
    """Return the number of waiting e-mails of a name."""

    async def read(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT id FROM outbox WHERE item_key = :key", key=name)

    return len(await market.store.read(read))

"""Units of the staff; each one locks the head of their log."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from support.market.staff import FACTORS

from market.accounts.letters import Letters
from market.erasure import erasing
from market.erasure.closing import Closed
from market.money.money import MICRO, Currency
from market.staff.abuse import tickets
from market.staff.base.roles import Machine, Role, Via
from market.staff.finding import users
from market.staff.leaving import closing
from market.staff.members import accounts, attempts, rescue
from market.staff.members.attempts import Attempt
from market.staff.members.logins import StaffLogins
from market.staff.members.rescue import Post
from market.staff.money import deposits, money, second_person, user_limits
from market.staff.money.user_limits import NewLimits
from market.staff.site import site
from market.staff.stopping import suspending
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.sessions import buys

ROOT = Machine("root")


async def _locks(name: str, side: Side) -> Any:
    member = side.world.people_have.staff[name]
    await accounts.lock(side.market.context, ROOT, member, "left")


async def _gives_role(name: str, side: Side) -> Any:
    member = side.world.people_have.staff[name]
    await accounts.set_role(side.market.context, ROOT, member, Role.SUPPORT, "moved")


async def _notes(side: Side) -> Any:
    await users.note(side.market.context, ROOT, side.buyer, "asked for a refund")


def _letters(side: Side) -> Letters:
    return Letters(side.market.emails, "https://app.example.com")


async def _suspends(side: Side) -> Any:
    ordered = await suspending.suspend(
        side.market.context,
        _letters(side),
        ROOT,
        side.buyer,
        parts=suspending.ALL,
        ends_at=side.market.clock.now + 60,
        shown="spam",
        why="a ticket",
    )
    return ordered.parts


async def _resumes(side: Side) -> Any:
    ordered = await suspending.resume(
        side.market.context, _letters(side), ROOT, side.buyer, why="resolved"
    )
    return ordered.parts


async def _ends_suspensions(side: Side) -> Any:
    return await side.market.suspensions.end_due()


LIMITS = dict.fromkeys(Currency, 5 * MICRO)
ANY_AMOUNT = dict.fromkeys(Currency, 10**15)


async def corrects(whole: int, side: Side) -> Any:
    """Correct the balance of the buyer by whole credits."""
    outcome = await money.correct(
        side.market.context,
        ROOT,
        side.buyer,
        LIMITS,
        amount=whole * MICRO,
        currency=Currency.CREDIT,
        reference=f"correction-{side.label}",
        why="asked",
    )
    return outcome.state


async def _pays_in(whole: int, side: Side) -> Any:
    """Pay whole credits into the wallet of the buyer."""
    [outcome] = await deposits.deposit(
        side.market.context,
        ROOT,
        side.buyer,
        LIMITS,
        amounts={Currency.CREDIT: whole * MICRO},
        reference=f"deposit-{side.label}",
    )
    return outcome.state


async def _declares(name: str, side: Side) -> Any:
    member = side.world.people_have.staff[name]
    await accounts.declare(side.market.context, ROOT, member, side.buyer, "own account")


async def _approves(side: Side) -> Any:
    request = side.world.people_have.request
    outcome = await second_person.approve(side.market.context, Machine("second"), request)
    return outcome.state


async def _refuses(side: Side) -> Any:
    request = side.world.people_have.request
    await second_person.refuse(side.market.context, Machine("third"), request, "no")


async def _changes_limits(side: Side) -> Any:
    new = NewLimits(price_percent=90)
    await user_limits.change(side.market.context, ROOT, side.buyer, new, "agreed")


async def _closes_ticket(outcome: tickets.Outcome, side: Side) -> Any:
    ticket = side.world.people_have.ticket
    closed = await tickets.close(side.market.context, ROOT, ticket, outcome, "over")
    return closed.state


async def _publishes(side: Side) -> Any:
    new = site.Publication(site.TextKind.TERMS, "en", "# Terms", side.market.clock.now)
    published = await site.publish(side.market.context, ROOT, new, "new terms")
    return published.version


async def _withdraws(side: Side) -> Any:
    invitation = side.world.people_have.invitation
    await site.withdraw(side.market.context, ROOT, invitation, "given away")


async def _attempts_to_log_in(side: Side) -> Any:
    member = side.world.people_have.staff["first"]
    attempt = Attempt(member, member, "192.0.2.0/24", Via.API)
    await attempts.begin(side.market.context, attempt, most=1)


async def _closes_account(side: Side) -> Any:
    letters = _letters(side)
    context = side.market.context
    closed = await closing.close(
        context, letters, ANY_AMOUNT, ROOT, side.buyer, waives=True, why="asked"
    )
    assert isinstance(closed, Closed)
    return closed.due_at


async def _erases_account(side: Side) -> Any:
    write = side.market.store.write
    return await write(erasing.erase_again, side.market.context, side.buyer)


async def _rescues(name: str, side: Side) -> Any:
    market, member = side.market, side.world.people_have.staff[name]
    logins = StaffLogins(market.context, market.passwords, FACTORS, b"k" * 32)
    login = await rescue.rescue(
        market.context, logins, Post(market.emails, "x"), ROOT, member, "all lost"
    )
    return login.expires_at


STAFF: Mapping[str, Action] = {
    "rescues the first operator": partial(_rescues, "first"),
    "locks the first operator": partial(_locks, "first"),
    "locks the second operator": partial(_locks, "second"),
    "makes the second operator support": partial(_gives_role, "second"),
    "writes a note": _notes,
    "buys a session": buys,
    "suspends the buyer": _suspends,
    "resumes the buyer": _resumes,
    "ends suspensions": _ends_suspensions,
    "corrects by most of the limit": partial(corrects, 4),
    "pays in most of the limit": partial(_pays_in, 4),
    "declares the buyer": partial(_declares, "first"),
    "approves a correction": _approves,
    "refuses a correction": _refuses,
    "changes the price of a user": _changes_limits,
    "closes a ticket": partial(_closes_ticket, tickets.Outcome.NO_MATCH),
    "closes a ticket as unfounded": partial(_closes_ticket, tickets.Outcome.UNFOUNDED),
    "closes the account of the buyer": _closes_account,
    "erases the account of the buyer": _erases_account,
    "attempts to log in": _attempts_to_log_in,
    "publishes the terms": _publishes,
    "withdraws an invitation": _withdraws,
}

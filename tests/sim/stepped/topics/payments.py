"""Units of one payment: its credit, refunds and dispute, beside the purchases of its user."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from support.market.market import RULES

from market.accounts.letters import Letters
from market.accounts.scopes import Maker
from market.money.money import MICRO, Currency
from market.payments import booking
from market.payments.booking import Booking
from market.payments.provider import OpenedSetup, Seen, SeenReturn, SeenSetup
from market.payments.top_ups import NewTopUp
from market.staff.money import doubts, forgiving
from market.staff.money import payments as staff_payments
from storage.payments import payments as queries
from tests.sim.stepped.side import Action, Side
from tests.sim.stepped.topics.sessions import buys
from tests.sim.stepped.topics.staff import ROOT

AMOUNT = 20 * MICRO
DISPUTED = SeenReturn("dispute", "dispute", "pending", 15 * MICRO)
LOST = SeenReturn("dispute", "dispute", "done", 15 * MICRO)
OUTSIDE = SeenReturn("outside", "refund", "done", 3 * MICRO)


def _booking(side: Side) -> Booking:
    letters = Letters(side.market.emails, "https://app.example.com")
    return Booking(side.market.context, RULES.payments, letters)


async def _books(name: str, *returns: SeenReturn, side: Side) -> None:
    payment_id = side.world.payments[name]
    seen = Seen("paid", AMOUNT, "usd", payment_id, True, f"charge-{payment_id}", returns)
    book = partial(booking.book, planned=None)
    await side.market.store.write(book, _booking(side), payment_id, seen)


async def _credits(side: Side) -> Any:
    await _books("open", side=side)


async def _disputes(side: Side) -> Any:
    await _books("paid", DISPUTED, side=side)


async def _loses(side: Side) -> Any:
    await _books("paid", LOST, side=side)


async def _refunds_outside(side: Side) -> Any:
    await _books("paid", OUTSIDE, side=side)


async def _refuses_refund(side: Side) -> Any:
    names = side.world.payments
    await side.market.store.write(
        booking.book_refund, _booking(side), names["paid"], names["refund"], None
    )


async def _refunds(side: Side) -> Any:
    await side.market.payments.refund(side.buyer, side.world.payments["paid"], 10 * MICRO)


async def _refunds_by_staff(side: Side) -> Any:
    outcome = await staff_payments.refund(
        side.market.context,
        ROOT,
        side.world.payments["paid"],
        dict.fromkeys(Currency, 50 * MICRO),
        amount=10 * MICRO,
        reference=f"refund-{side.label}",
        why="asked",
    )
    return outcome.state


async def _forgives(side: Side) -> Any:
    outcome = await forgiving.forgive(
        side.market.context,
        ROOT,
        side.buyer,
        dict.fromkeys(Currency, 50 * MICRO),
        amount=MICRO,
        reference=f"forgiven-{side.label}",
        why="a fraud",
    )
    return outcome.state


async def _begins(side: Side) -> Any:
    await side.market.payments.create(side.buyer, 5 * MICRO)


async def _ends_unknown(side: Side) -> Any:
    row = await side.market.store.read(queries.find, side.world.payments["unknown"])
    assert row is not None
    await side.market.store.write(side.market.payments._expire, row)


async def _gives_up(side: Side) -> Any:
    payment_id = side.world.payments["doubtful"]
    return (await doubts.give_up(side.market.context, ROOT, payment_id, "no answer")).status


async def _credits_doubtful(side: Side) -> Any:
    await _books("doubtful", side=side)


async def _deposits(side: Side) -> Any:
    await side.market.deposit("person1@example.com", MICRO, f"by-{side.label}")


async def _tops_up(side: Side) -> Any:
    return await side.market.top_ups.sweep()


async def _switches_on(side: Side) -> Any:
    new = NewTopUp(500 * MICRO, 10 * MICRO, 30 * MICRO)
    await side.market.top_ups.set_on(side.buyer, new, Maker())


async def _switches_off(side: Side) -> Any:
    await side.market.top_ups.end(side.buyer)


async def _removes_card(side: Side) -> Any:
    await side.market.store.write(side.market.payments.cards._remove, side.buyer)


async def _saves_card(side: Side) -> Any:
    user, setup_id = side.world.people["other"], side.world.pages["other"]
    seen = SeenSetup("saved", setup_id, True, "customer", "card", "visa …4242")
    finish = side.market.payments.cards._finish
    await side.market.store.write(finish, user, f"page-{setup_id}", seen)


async def _begins_page(side: Side) -> Any:
    return bool(await side.market.payments.cards.save(side.world.people["other"]))


async def _begins_first_page(side: Side) -> Any:
    cards = side.market.payments.cards
    row = await side.market.store.write(cards._begin, side.world.people["worker"])
    opened = OpenedSetup("page", "customer", "https://bank.example/page")
    await side.market.store.write(cards._set_opened, row, opened)


PAYMENTS: Mapping[str, Action] = {
    "credits a payment": _credits,
    "books a dispute": _disputes,
    "books a lost dispute": _loses,
    "books a refund at the provider": _refunds_outside,
    "books a refused refund": _refuses_refund,
    "refunds a payment": _refunds,
    "refunds a payment by the staff": _refunds_by_staff,
    "begins a payment": _begins,
    "forgives a debt": _forgives,
    "tops up": _tops_up,
    "switches a top-up on": _switches_on,
    "switches a top-up off": _switches_off,
    "removes a card": _removes_card,
    "saves a card": _saves_card,
    "returns an open page": _begins_page,
    "begins a page": _begins_first_page,
    "ends a payment without a page": _ends_unknown,
    "gives a doubtful payment up": _gives_up,
    "credits a doubtful payment": _credits_doubtful,
    "deposits by hand": _deposits,
    "buys a session": buys,
}

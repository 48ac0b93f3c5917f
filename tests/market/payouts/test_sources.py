"""Bonuses that come back as earnings by a second account: signs, and no automatic approval."""

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.market.books import available
from support.market.jobs import device_of, wanted
from support.market.market import PAYOUT_METHODS, Market
from support.market.payouts import (
    BANK,
    confirm,
    earn,
    earned_part,
    earner,
    request,
    reward,
    state_of,
)
from support.market.staff import ROOT

from market.money.money import MICRO, Currency
from market.payouts.terms import MethodKind, RejectReason
from market.staff.money import paying
from storage.engines.store import Transaction, insert_row
from storage.payouts import sources as queries
from storage.payouts.payouts import PayoutRow
from storage.payouts.sources import SignsRow

CREDIT = Currency.CREDIT


async def _networks(market: Market, tx: Transaction, *users: str) -> None:
    for user in users:
        await insert_row(
            tx, "login_sessions", id=market.identifiers.new(), user_id=user, created_at=1,
            expires_at=2, network="203.0.113.0/24",
        )  # fmt: skip


async def _addresses(market: Market, tx: Transaction, *users: str) -> None:
    for user in users:
        device = await tx.one(str, "SELECT MIN(id) FROM devices WHERE user_id = :u", u=user)
        await insert_row(
            tx, "device_origins", device_id=device, began_at=1, address="203.0.113.9", ended_at=2
        )


async def _referral(market: Market, tx: Transaction, *users: str) -> None:
    await insert_row(
        tx, "referrals", user_id=users[0], referrer_id=users[1], referrer_bonus=1,
        referred_bonus=1, created_at=1,
    )  # fmt: skip


async def _cards(market: Market, tx: Transaction, *users: str) -> None:
    for user in users:
        await insert_row(
            tx, "saved_cards", user_id=user, provider="stripe", customer_id=user, card_id=user,
            shown="visa \u20264242", saved_at=1,
        )  # fmt: skip


async def _methods(market: Market, tx: Transaction, *users: str) -> None:
    await tx.run("UPDATE payout_methods SET shown = 'DE\u20263000'")


async def source(market: Market, user: str) -> SignsRow:
    [found] = await market.store.read(queries.buyers, user, limit=9)
    return await market.store.read(queries.signs, user, found.buyer_id)


async def paid_by_bonus(market: Market) -> tuple[str, PayoutRow, str]:
    """Return a user, a payout that would be approved without a person, and the rewarded buyer."""
    market.payouts.terms = replace(market.payouts.terms, automatic=100 * MICRO)
    buyer = await market.person()
    await reward(market, buyer, 2_000)
    user = await market.person()
    await confirm(market, user)
    await earn(market, user, 2_000, buyer)
    assert await available(market, buyer, CREDIT) == 0
    market.clock.now += 7 * 86_400
    for each in (user, buyer):
        method = await market.payouts.add_method(each, MethodKind.BANK, BANK)
        await device_of(market, each)
        if each == user:
            mine = method
    await market.store.write(lambda tx: tx.run("UPDATE payout_methods SET shown = id"))
    market.clock.now += market.payouts.terms.method_wait_seconds
    return user, await request(market, user, mine), buyer


@pytest.mark.both_engines
async def test_each_sign_makes_a_bonus_of_the_buyer_circular(market: Market) -> None:
    signs = {
        "network": _networks,
        "address": _addresses,
        "referral": _referral,
        "card": _cards,
        "payout_method": _methods,
    }
    user, row, buyer = await paid_by_bonus(market)
    assert row.state == "approved"  # no sign yet
    found = await source(market, user)
    assert (found.has_bonus, found.names) == (1, ())
    assert not await market.store.read(queries.has_deposited, buyer)
    assert not found.is_circular
    seen: tuple[str, ...] = ()
    for name, happen in signs.items():
        await market.store.write(lambda tx, act=happen: act(market, tx, user, buyer))
        found = await source(market, user)
        seen = (*seen, name)
        assert (found.names, found.is_circular) == (seen, True)
    shown = await paying.show(market.context, ROOT, row.id, PAYOUT_METHODS)
    assert [each.signs.is_circular for each in shown.sources] == [True]


@cases("mixed", [False, True])
async def test_a_circular_payout_waits_for_a_person(market: Market, mixed: bool) -> None:
    """Also if honest earnings and a deposit of the buyer are beside the bonus."""
    user, method = await earner(market)
    buyer = await market.person(credit="5" if mixed else "0")
    await reward(market, buyer, 500)
    await earn(market, user, 500, buyer)
    await market.store.write(lambda tx: _referral(market, tx, user, buyer))
    market.payouts.terms = replace(market.payouts.terms, automatic=100 * MICRO)
    row = await request(market, user, method, 700)
    assert (row.state, await state_of(market, row.id)) == ("requested", "requested")
    circular = RejectReason.CIRCULAR_EARNINGS
    await paying.reject(market.context, ROOT, row.id, circular, "one person")
    assert await earned_part(market, user) == 2_250 * MICRO


@cases("hidden_by", ["returned holds", "small payments"])
async def test_entries_hide_no_circular_buyer(
    market: Market, hidden_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold that comes back is free, and a small payment nearly so."""
    monkeypatch.setattr(queries, "EARNINGS_MAX", 4)
    user, method = await earner(market)
    buyer = await market.person()
    await reward(market, buyer, 500)
    await earn(market, user, 500, buyer)
    await market.store.write(lambda tx: _referral(market, tx, user, buyer))
    market.payouts.terms = replace(market.payouts.terms, automatic=100 * MICRO)
    for _ in range(4):
        if hidden_by == "returned holds":
            await market.jobs.cancel(user, await market.jobs.create(user, wanted(price=MICRO)))
        else:
            await earn(market, user, 1)
    assert (await request(market, user, method, 700)).state == "requested"


async def test_a_family_without_a_bonus_is_approved_at_once(market: Market) -> None:
    user, method = await earner(market)
    buyer = await market.person(credit="500")
    await earn(market, user, 500, buyer)
    await market.store.write(lambda tx: _networks(market, tx, user, buyer))
    market.payouts.terms = replace(market.payouts.terms, automatic=100 * MICRO)
    assert (await request(market, user, method, 700)).state == "approved"

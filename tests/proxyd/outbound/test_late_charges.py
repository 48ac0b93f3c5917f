"""A charge that reaches the provider late, over HTTP: credited once, without a notice."""

import pytest
from support.base.clock import Clock
from support.market.books import available
from support.market.market import Market
from support.market.payouts import confirm
from support.payments import stripe_server
from support.payments.stripe_server import KEY, SECRET, Fault

from market.accounts.scopes import Maker
from market.money.audit import audit_ledger
from market.money.money import MICRO
from market.payments.provider import NewCharge
from market.payments.top_ups import NewTopUp
from proxyd.outbound.stripe import StripeProvider
from storage.engines.store import Store
from storage.payments import cards as card_queries
from storage.payments.payments import PaymentRow

HOUR = 3_600
PLAN = NewTopUp(5 * MICRO, 20 * MICRO, 60 * MICRO)


async def only(market: Market, user: str) -> PaymentRow:
    """Return the only payment of a user."""
    (view,) = await market.payments.page(user, before="", limit=2)
    return view.row


@pytest.mark.both_engines
async def test_a_request_that_arrives_after_the_payment_expired_is_credited_once(
    store: Store, clock: Clock
) -> None:
    async with stripe_server.running(clock.seconds) as server:
        provider = StripeProvider(KEY, (SECRET,), clock.seconds, api_base=server.url)
        market = Market(store, clock, providers={"stripe": provider})
        user = await market.person()
        clock.now += 40 * 24 * HOUR
        await confirm(market, user)
        await market.payments.cards.save(user)
        (session_id,) = server.sessions
        server.save_card(session_id)
        clock.now += 3
        await market.payments.cards.receive("stripe", session_id)
        await market.top_ups.set_on(user, PLAN, Maker())
        server.faults = [Fault(500)]  # a broken gateway, which keeps the request
        assert await market.top_ups.sweep() == 1
        await market.top_ups.end(user)
        clock.now += 700
        await market.payments.sweep()
        row = await only(market, user)
        assert (row.status, server.intents) == ("expired", {})
        card = await store.read(card_queries.find, user)
        assert card is not None
        assert provider.cards is not None
        charge = NewCharge(
            row.id, row.amount, row.title, card.customer_id or "", card.card_id or ""
        )
        await provider.cards.charge(charge)  # now it arrives, and the notice is lost
        for _ in range(30):
            clock.now += HOUR
            await market.payments.sweep()
        assert (await only(market, user)).status == "paid"
        (intent,) = server.intents.values()
        body, signature = server.notice("payment_intent.succeeded", intent)
        await market.payments.receive("stripe", {"Stripe-Signature": signature}, body)
        assert await available(market, user) == PLAN.amount
        await provider.close()
        market.passwords.close()
        report = await audit_ledger(store)
        assert report.passed, report

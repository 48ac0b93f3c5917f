"""An erasure leaves no text of the user in any table, and the books as they were."""

import pytest
from support.market.books import available, refusal, revenue
from support.market.cases import verify
from support.market.jobs import device_of
from support.market.leaving import EMAIL, MARKER, PASSWORD, fill, hits, person, tools
from support.market.market import Market
from support.market.payouts import approved, send
from support.market.staff import ROOT

from market.accounts.keys import NewKey
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.erasure import erasing
from market.money.money import MICRO, Currency
from market.payouts import steps
from market.payouts.terms import FailReason
from market.staff.audit import audit_all
from market.staff.stopping import stopping
from storage.accounts import closures, outbox
from storage.engines.store import Transaction


async def erase(market: Market, user: str, *, waives: bool = False) -> None:
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=waives)


async def send_letters(market: Market) -> list[str]:
    """Take all e-mails out of the queue; return their content."""
    sent = []
    for row in await market.emails.due(again=False, limit=100):
        sent.append((market.emails.opened(row) or b"").decode())
        await market.store.write(outbox.delete, row.id)
    return sent


@pytest.mark.both_engines
async def test_no_text_of_the_user_stays(market: Market) -> None:
    who = await person(market)
    found = await hits(market)
    assert {"users", "jobs", "events", "texts", "job_attempts", "api_keys"} <= set(found)
    await market.bandwidth.end(who.id, who.session)
    await send_letters(market)
    assert await fill(market, who.id) > 20
    assert (
        await refusal(
            market.store.write(erasing.erase, market.context, tools(market), who.id, waives=False)
        )
        is Code.ACCOUNT_NOT_EMPTY
    )
    left = await available(market, who.id)
    before = await revenue(market)
    await erase(market, who.id, waives=True)
    letters = await send_letters(market)
    assert len(letters) == 1
    assert EMAIL in letters[0]
    assert await hits(market) == {}
    assert await available(market, who.id) == 0
    assert await available(market, who.id, Currency.CREDIT) == 0
    assert await revenue(market) == before + left
    assert (await audit_all(market.store)).passed
    await market.accounts.register(username=MARKER, email=EMAIL, password=PASSWORD)


async def test_the_letter_about_a_revoked_key_goes_with_its_user(market: Market) -> None:
    user = await market.person()
    await verify(market, user)
    key = await market.keys.create(user, NewKey(name="k", scopes=(Scope.USAGE_READ,)))
    await stopping.revoke_key(market.context, market.letters, ROOT, key.row.id, "it was stolen")
    names = [row.item_key for row in await market.emails.due(again=False, limit=9)]
    assert f"key revoked:{key.row.id}" in names
    await erase(market, user)
    names = [row.item_key for row in await market.emails.due(again=False, limit=9)]
    assert names == [f"account erased:{user}"]


async def test_a_second_erasure_is_refused(market: Market) -> None:
    user = await market.person()
    await erase(market, user)
    assert (
        await refusal(
            market.store.write(erasing.erase, market.context, tools(market), user, waives=True)
        )
        is Code.ACCOUNT_CLOSED
    )
    assert not await market.store.write(erasing.erase_again, market.context, user)


async def test_a_stranger_cannot_take_the_names_of_a_stub(market: Market) -> None:
    user = await market.person()
    await market.accounts.register(
        username=f"erased-{user}", email=f"erased-{user}@erased.invalid", password=PASSWORD
    )
    await erase(market, user)
    assert await market.store.read(closures.is_shut, user)


@pytest.mark.both_engines
async def test_the_address_of_a_suspended_user_opens_no_account_for_two_years(
    market: Market,
) -> None:
    who = await person(market)

    async def suspend(tx: Transaction) -> None:
        await tx.run(
            """
            INSERT INTO suspended_parts (user_id, part, shown_id, began_at)
            VALUES (:user, 'keys', 'x', 1)
            """,
            user=who.id,
        )

    await market.store.write(suspend)
    await market.bandwidth.end(who.id, who.session)
    await erase(market, who.id, waives=True)
    again = {"username": "other", "email": EMAIL.upper(), "password": PASSWORD}
    assert await refusal(market.accounts.register(**again)) is Code.EMAIL_REFUSED
    assert "barred_emails" not in await hits(market)
    market.clock.now += erasing.BARRED_SECONDS
    await market.accounts.register(**again)


async def test_a_restored_database_is_erased_again_with_its_money(market: Market) -> None:
    who = await person(market)
    money = await available(market, who.id)
    assert await market.store.write(erasing.erase_again, market.context, who.id)
    assert await available(market, who.id) == money
    assert await hits(market) == {}
    assert (await audit_all(market.store)).passed
    assert not await market.store.write(erasing.erase_again, market.context, "nobody")


async def test_a_deposit_after_the_closing_is_not_given_up(market: Market) -> None:
    user = await market.person(usd="2")
    market.clock.now += 60
    due_at = market.clock.now + 1
    await market.store.write(closures.close, user, waives=True, now=market.clock.now, due_at=due_at)
    market.clock.now += 60
    await market.deposit("person1@example.com", 20 * MICRO)
    before = await revenue(market)
    refused = market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    assert await refusal(refused) is Code.ACCOUNT_NOT_EMPTY
    assert (await available(market, user), await revenue(market)) == (22 * MICRO, before)


async def test_a_deposit_in_the_second_of_the_closing_is_not_given_up(market: Market) -> None:
    user = await market.person(usd="2")
    market.clock.now += 60
    now = market.clock.now
    await market.store.write(closures.close, user, waives=True, now=now, due_at=now + 1)
    await market.deposit("person1@example.com", 20 * MICRO)
    refused = market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    assert await refusal(refused) is Code.ACCOUNT_NOT_EMPTY
    assert await available(market, user) == 22 * MICRO


async def test_a_payout_that_comes_back_after_the_closing_is_not_given_up(market: Market) -> None:
    user = await market.person()
    row = await approved(market, user)
    await send(market, row)
    await market.store.write(steps.pay, market.context, row.id)
    left = await available(market, user, Currency.CREDIT)
    market.clock.now += 60
    due_at = market.clock.now + 1
    await market.store.write(closures.close, user, waives=True, now=market.clock.now, due_at=due_at)
    market.clock.now += 60
    await market.store.write(steps.fail, market.context, row.id, FailReason.RETURNED)
    refused = market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    assert await refusal(refused) is Code.ACCOUNT_NOT_EMPTY
    assert await available(market, user, Currency.CREDIT) == left + row.amount


@pytest.mark.both_engines
async def test_a_report_that_waits_brings_no_text_back(market: Market) -> None:
    user = await market.person()
    device = await device_of(market, user)
    market.devices.heartbeat(device, {"hostname": MARKER})
    await erase(market, user, waives=True)
    await market.devices.reports.flush()
    assert await hits(market) == {}
    market.devices.heartbeat(device, {"hostname": MARKER})
    await market.devices.reports.flush()
    assert await hits(market) == {}

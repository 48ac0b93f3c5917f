"""Earnings of exits are posted by the hour during sessions, and paid for when these end."""

import asyncio

import pytest
from support.market.books import available, balance, revenue
from support.market.exits import exit_device, through
from support.market.market import Market

from market.exits.earnings import USUAL_PACE, AdvancePace
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO
from storage.engines.store import Transaction

WEEK = 7 * 86_400


async def pending(market: Market, user: str) -> int:
    return await balance(market, ledger.pending(user))


async def test_earnings_of_a_session_that_goes_on_are_posted_by_the_hour(
    market: Market,
) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 4, (made, GB // 4))
    assert await market.exit_advances.advance_due() == 1
    assert await pending(market, made.owner) == 150_000
    assert await balance(market, ledger.exit_payable()) == -150_000
    await session.report(GB // 2, (made, GB // 2))
    market.clock.now += 3_599 - market.clock.now % 3_600
    assert await market.exit_advances.advance_due() == 0
    market.clock.now += 1
    await asyncio.gather(*(market.exit_advances.advance_due() for _ in range(3)))
    assert await pending(market, made.owner) == 300_000
    assert await revenue(market) == 0  # the buyer has not paid yet
    assert (await audit_ledger(market.store)).passed
    await session.end()
    assert await pending(market, made.owner) == 300_000
    assert await balance(market, ledger.exit_payable()) == 0
    assert await revenue(market) == 200_000
    assert (await audit_ledger(market.store)).passed


async def test_advances_are_paid_out_while_the_session_goes_on(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 4, (made, GB // 4))
    await market.exit_advances.advance()
    market.clock.now += WEEK - 1
    await session.report(GB // 2, (made, GB // 2))
    await market.exit_advances.advance()
    assert await market.exit_payouts.pay_due() == 0
    market.clock.now += 1
    assert await market.exit_payouts.pay_due() == 1
    assert await available(market, made.owner) == 150_000
    assert await pending(market, made.owner) == 150_000
    await session.end()
    assert (await audit_ledger(market.store)).passed


async def test_an_amount_that_is_not_worth_a_row_waits_for_more_or_for_the_end(
    market: Market,
) -> None:
    made, session = await exit_device(market), await through(market, price=MICRO)
    enough = USUAL_PACE.least * GB * 100 // (60 * MICRO) + 1
    await session.report(enough // 2, (made, enough // 2))
    assert await market.exit_advances.advance() == 0
    await session.report(enough, (made, enough))
    assert await market.exit_advances.advance() == 1
    assert await market.exit_advances.advance() == 0
    await session.report(enough + 2_000, (made, enough + 2_000))
    assert await market.exit_advances.advance() == 0
    assert await pending(market, made.owner) == USUAL_PACE.least
    await session.end()
    assert await pending(market, made.owner) == USUAL_PACE.least + 1


async def test_more_sessions_and_exits_than_one_transaction_takes_are_posted(
    market: Market,
) -> None:
    market.exit_advances.pace = AdvancePace(sessions=2, earnings=3)
    made = [await exit_device(market) for _ in range(4)]
    sessions = [await through(market) for _ in range(5)]
    for session in sessions:
        await session.report(GB, *((each, GB // 4) for each in made))
    assert await market.exit_advances.advance() == 20
    assert [await pending(market, each.owner) for each in made] == [5 * 150_000] * 4


async def test_a_session_that_cannot_be_posted_for_does_not_hold_up_the_others(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    made = [await exit_device(market) for _ in range(2)]
    for each in made:
        session = await through(market)
        await session.report(GB, (each, GB))
    account = ledger.pending(made[0].owner)

    async def change(tx: Transaction, by: int) -> None:
        await tx.run(
            "UPDATE accounts SET balance = balance + :by WHERE id = :id", by=by, id=account
        )

    full = 1_000_000_000_000_000_000
    await market.store.write(change, full)
    assert await market.exit_advances.advance() == 1
    assert "the earnings of its exits cannot be posted" in caplog.text
    await market.store.write(change, -full)
    assert await market.exit_advances.advance() == 1

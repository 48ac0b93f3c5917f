"""Earnings of exits: from buyers' payments, pending for a while, paid or reversed once."""

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace
from support.base.brief import brief
from support.market.books import available, balance, refusal, revenue
from support.market.exits import claw_back, exit_device, through
from support.market.leaving import tools
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import LIMITS

from market.base.errors import Code
from market.erasure import erasing
from market.exits.payouts import ClawedBack, ExitPayouts
from market.money import ledger
from market.money.audit import _audit, audit_ledger
from market.money.money import GB, MICRO, Currency
from market.staff.cases import clawing
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.exits.exits import PendingRow, UseRow

WEEK = 7 * 86_400
USD = Currency.USD


async def pending(market: Market, user: str) -> int:
    return await balance(market, ledger.pending(user))


async def test_a_gigabyte_at_a_dollar_pays_sixty_cents(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    assert await pending(market, made.owner) == 0
    await session.end()
    assert await pending(market, made.owner) == 600_000
    assert await available(market, made.owner) == 0
    assert await market.exits.pending(made.owner) == 600_000
    assert await revenue(market) == 400_000


async def test_bytes_that_left_directly_are_the_houses(market: Market) -> None:
    first, second = await exit_device(market), await exit_device(market)
    session = await through(market)
    await session.report(GB, (first, GB // 4), (second, GB // 2))
    await session.end()
    assert await pending(market, first.owner) == 150_000
    assert await pending(market, second.owner) == 300_000
    assert await revenue(market) == MICRO - 450_000


async def test_shares_are_rounded_down_and_never_pass_the_captured_amount(market: Market) -> None:
    owner = await market.person()
    made = [await exit_device(market, owner) for _ in range(7)]
    session = await through(market, price=123_457)
    await session.report(7 * 999_983, *((each, 999_983) for each in made))
    await session.end()
    each = 999_983 * 123_457 * 60 // (GB * 100)
    assert await pending(market, owner) == 7 * each
    assert await revenue(market) == 7 * 999_983 * 123_457 // GB - 7 * each


@pytest.mark.parametrize("share_percent", [0, 1, 99, 100])
async def test_owners_may_get_nothing_or_all(market: Market, share_percent: int) -> None:
    market.bandwidth._exit_terms = replace(market.exits.terms, share_percent=share_percent)
    made, session = await exit_device(market), await through(market, price=MICRO)
    await session.report(999_999_999, (made, 999_999_999))
    await session.end()
    assert await pending(market, made.owner) == 999_999_999 * share_percent // (100 * 1_000)
    assert await pending(market, made.owner) + await revenue(market) == 999_999
    report = await audit_ledger(market.store)
    assert report.passed, report


@pytest.mark.both_engines
@pytest.mark.parametrize("price", brief([1_000_000_000_000, 1, 123_457, MICRO, 999_999_999_999], 2))
@pytest.mark.parametrize("size", [1, 999_999, 1_000_001, 123_456_789_012, 9_999_999_999_999])
async def test_the_audit_recomputes_a_share_of_any_size(
    market: Market, price: int, size: int
) -> None:
    """The product of bytes, price and share has more than 64 bits."""
    made, buyer = await exit_device(market), await market.person("1000000000")
    session = await through(market, buyer=buyer, quota=1_000)

    async def enlarge(tx: Transaction) -> None:
        await tx.run("UPDATE bandwidth_sessions SET price_per_gb = :price", price=price)
        await tx.run("UPDATE bandwidth_leases SET granted_bytes = :s, used_bytes = :s", s=size)
        for earned, expected in ((size * price * 60 // (GB * 100), 0), (7, 1)):
            use = UseRow(session.lease_id, made.id, session.bought.session_id, 0, 0, size, earned)
            await exit_queries.write_use(tx, [use], [])
            assert len(await exit_queries.earned_against_price(tx)) == expected
        raise _LookedAtError([])

    with pytest.raises(_LookedAtError):
        await market.store.write(enlarge)


async def test_several_leases_of_a_session_are_one_earning(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 2, (made, GB // 2))
    await market.leases.recover()
    grant = await market.lease(session.bought)
    assert grant is not None
    session.lease_id = grant.lease_id or ""
    await session.report(GB // 4, (made, GB // 4))
    await session.end()
    assert await pending(market, made.owner) == 450_000


async def test_a_claw_back_takes_back_advanced_and_pending_amounts(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 4, (made, GB // 4))
    await market.exit_advances.advance()
    market.clock.now += WEEK
    await market.exit_payouts.pay_due()
    await session.report(GB // 2, (made, GB // 2))
    await market.exit_advances.advance()
    back = await claw_back(market.context, made.id, "injects")
    assert back == ClawedBack(earnings=1, amount=150_000, refunded=0)
    assert await pending(market, made.owner) == 0
    assert await available(market, made.owner) == 150_000  # the earlier payout stays
    assert (await audit_ledger(market.store)).passed
    await session.report(GB, (made, GB))
    assert await market.exit_advances.advance() == 0
    await session.end()
    # The buyer pays only for the amount that was paid out.
    assert await available(market, session.buyer) == 100 * MICRO - 250_000
    assert await revenue(market) == 100_000
    assert await balance(market, ledger.exit_payable()) == 0
    assert (await audit_ledger(market.store)).passed


async def test_a_claw_back_goes_on_behind_amounts_that_are_paid_meanwhile(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, pending_of = await exit_device(market), exit_queries.pending_of
    for wait in (WEEK, 0):
        session = await through(market)
        await session.report(GB, (made, GB))
        await session.end()
        market.clock.now += wait
    every = partial(pending_of, until=market.clock.now, limit=2)
    found = [await market.store.read(every, made.id)]
    await market.exit_payouts.pay_due()
    assert await available(market, made.owner) == 600_000

    async def as_before(
        tx: Transaction, device_id: str, *, until: int, limit: int
    ) -> list[PendingRow]:
        """Return the rows that another connection found just before the first one was paid."""
        if found:
            both = found.pop()
            return [each for each in both if each not in await every(tx, device_id)]
        return await pending_of(tx, device_id, until=until, limit=limit)

    monkeypatch.setattr(exit_queries, "pending_of", as_before)
    back = await claw_back(market.context, made.id, "injects", reversed_max=1)
    assert back == ClawedBack(earnings=1, amount=600_000, refunded=MICRO)
    assert await pending(market, made.owner) == 0


async def test_a_claw_back_of_a_settled_session_refunds_its_advances(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    for used in (GB // 4, GB // 2):
        await session.report(used, (made, used))
        await market.exit_advances.advance()
        market.clock.now += 3_600
    await session.report(GB, (made, GB))
    await session.end()
    back = await claw_back(market.context, made.id, "injects")
    assert back == ClawedBack(earnings=3, amount=600_000, refunded=MICRO)
    assert await available(market, session.buyer) == 100 * MICRO
    assert await revenue(market) == 0
    assert (await audit_ledger(market.store)).passed


async def test_owners_that_cannot_be_paid_never_hide_the_others(market: Market) -> None:
    market.exit_payouts.due_max = 2
    broken, other = await exit_device(market), await exit_device(market)
    for made, times in ((broken, 3), (other, 1)):
        for _ in range(times):
            session = await through(market)
            await session.report(GB, (made, GB))
            await session.end()
            market.clock.now += 1
    account = ledger.pending(broken.owner)

    async def change(tx: Transaction, by: int) -> None:
        await tx.run(
            "UPDATE accounts SET balance = balance + :by WHERE id = :id", by=by, id=account
        )

    await market.store.write(change, -3 * 600_000)
    market.clock.now += WEEK
    assert [await market.exit_payouts.pay_due() for _ in range(2)] == [0, 1]
    assert await available(market, other.owner) == 600_000
    await market.store.write(change, 3 * 600_000)


@pytest.mark.both_engines
async def test_earnings_are_paid_once_and_not_before_their_time(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    await session.end()
    market.clock.now += WEEK - 1
    assert await market.exit_payouts.pay_due() == 0
    assert await available(market, made.owner) == 0
    market.clock.now += 1
    await asyncio.gather(*(market.exit_payouts.pay_due() for _ in range(3)))
    assert await market.exit_payouts.pay_due() == 0
    assert await available(market, made.owner) == 600_000
    assert await pending(market, made.owner) == 0
    [change] = await market.wallet.page(made.owner, before="", limit=10)
    assert (change.kind, change.amount, change.reference) == ("earning", 600_000, "exits")


async def test_each_owner_is_paid_all_that_is_due(market: Market) -> None:
    owners = [await market.person() for _ in range(2)]
    made = [await exit_device(market, owner) for owner in owners for _ in range(2)]
    for _ in range(3):
        session = await through(market)
        await session.report(GB, *((each, GB // 4) for each in made))
        await session.end()
    market.clock.now += WEEK
    late = await through(market)
    await late.report(GB, (made[0], GB))
    await late.end()
    assert await market.exit_payouts.pay_due() == 2
    assert [await available(market, owner) for owner in owners] == [900_000, 900_000]
    assert [await pending(market, owner) for owner in owners] == [600_000, 0]


@pytest.mark.both_engines
async def test_an_owner_that_cannot_be_paid_does_not_hold_up_the_others(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    made = [await exit_device(market) for _ in range(2)]
    session = await through(market)
    await session.report(GB, *((each, GB // 2) for each in made))
    await session.end()
    market.clock.now += WEEK
    account = ledger.pending(made[0].owner)

    async def change(tx: Transaction, by: int) -> None:
        await tx.run(
            "UPDATE accounts SET balance = balance + :by WHERE id = :id", by=by, id=account
        )

    await market.store.write(change, -1)
    assert await market.exit_payouts.pay_due() == 1
    assert f"earnings of user {made[0].owner} cannot be paid out" in caplog.text
    await market.store.write(change, 1)
    assert await ExitPayouts(market.context, WEEK).pay_due() == 1


async def test_a_claw_back_returns_the_price_to_the_buyers(market: Market) -> None:
    made, honest = await exit_device(market), await exit_device(market)
    session, paid = await through(market), await through(market)
    await paid.report(GB // 2, (made, GB // 2))
    await paid.end()
    market.clock.now += WEEK
    await market.exit_payouts.pay_due()
    await session.report(GB, (made, GB // 2), (honest, GB // 4))
    await session.end()
    before = await available(market, session.buyer)
    back = await claw_back(market.context, made.id, "injects")
    assert back == ClawedBack(earnings=1, amount=300_000, refunded=500_000)
    assert await pending(market, made.owner) == 0
    assert await available(market, made.owner) == 300_000  # the earlier payout stays
    assert await pending(market, honest.owner) == 150_000
    assert await available(market, session.buyer) == before + 500_000
    change, *_ = await market.wallet.page(session.buyer, before="", limit=1)
    assert (change.kind, change.amount) == ("refund", 500_000)
    again = await claw_back(market.context, made.id, "injects")
    assert again == ClawedBack(0, 0, 0)
    market.clock.now += WEEK
    assert await market.exit_payouts.pay_due() == 1
    assert await available(market, made.owner) == 300_000


@pytest.mark.both_engines
async def test_a_claw_back_for_an_erased_buyer_stays_with_the_house(market: Market) -> None:
    made, session, other = await exit_device(market), await through(market), await through(market)
    for each in (session, other):
        await each.report(GB, (made, GB))
        await each.end()
    await market.store.write(
        erasing.erase, market.context, tools(market), session.buyer, waives=True
    )
    assert await claw_back(market.context, made.id, "injects") == ClawedBack(
        2, 1_200_000, 2 * MICRO
    )
    assert await available(market, session.buyer) == 0
    assert await balance(market, ledger.unclaimed(USD)) == MICRO
    assert await available(market, other.buyer) == 100 * MICRO
    assert (await audit_ledger(market.store)).passed


@pytest.mark.both_engines
async def test_earnings_of_an_owner_who_was_erased_before_the_session_ended_stay_with_the_house(
    market: Market,
) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    await market.store.write(erasing.erase, market.context, tools(market), made.owner, waives=True)
    await session.end()
    assert await pending(market, made.owner) == 600_000
    market.clock.jump(WEEK)
    assert await market.exit_payouts.pay_due() == 1
    assert (await pending(market, made.owner), await available(market, made.owner)) == (0, 0)
    assert await balance(market, ledger.unclaimed(USD)) == 600_000
    assert (await audit_ledger(market.store)).passed


async def test_the_amount_that_was_taken_back_is_shown(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 2, (made, GB // 2))
    await market.exit_advances.advance()
    await session.report(GB, (made, GB))
    market.clock.now += 86_400
    await claw_back(market.context, made.id, "injects")
    await session.end()
    [mine] = await market.exits.page(made.owner, before="", limit=1)
    assert (mine.sums.earned, mine.sums.pending, mine.sums.taken_back) == (600_000, 0, 600_000)
    days = await market.exits.earnings(made.owner)
    assert [(day.earned, day.taken_back) for day in days] == [(0, 600_000), (600_000, 0)]


async def _set_barred(tx: Transaction, device_id: str, barred_at: int | None) -> None:
    await tx.run(
        "UPDATE exits SET barred_at = CAST(:at AS BIGINT) WHERE device_id = :id",
        at=barred_at,
        id=device_id,
    )


@pytest.mark.both_engines
async def test_the_pending_amount_of_a_barred_exit_is_not_paid_out(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    await session.end()
    market.clock.now += WEEK
    await market.store.write(_set_barred, made.id, market.clock.now)
    assert await market.exit_payouts.pay_due() == 0
    await market.store.write(_set_barred, made.id, None)
    assert await market.exit_payouts.pay_due() == 1
    assert await available(market, made.owner) == 600_000


async def test_a_reversed_amount_stays_free_if_the_exit_is_not_barred_any_more(
    market: Market,
) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 4, (made, GB // 4))
    await market.exit_advances.advance()
    assert (await claw_back(market.context, made.id, "injects")).amount == 150_000
    await market.store.write(_set_barred, made.id, None)
    await session.report(GB, (made, GB))
    await market.exit_advances.advance()
    assert (await audit_ledger(market.store)).passed
    await session.end()
    assert await pending(market, made.owner) == 450_000
    assert await available(market, session.buyer) == 100 * MICRO - 750_000
    assert await revenue(market) == 300_000
    assert (await audit_ledger(market.store)).passed


async def test_bytes_of_a_barred_exit_are_free_where_they_are_not_settled(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB // 2, (made, GB // 2))
    await claw_back(market.context, made.id, "blackholes")
    await session.report(GB, (made, GB))
    await session.end()
    assert await pending(market, made.owner) == 0
    assert await revenue(market) == 0  # no buyer pays for falsified bytes
    assert await available(market, session.buyer) == 100 * MICRO
    exits = market.exits
    assert await refusal(exits.authorize(made.token, exits.terms_hash)) is Code.EXIT_BARRED
    assert await refusal(exits.current(made.id)) is Code.EXIT_BARRED
    agreeing = exits.consent(made.owner, made.id, exits.terms_hash)
    assert await refusal(agreeing) is Code.EXIT_BARRED
    assert [each.state for each in await exits.page(made.owner, before="", limit=1)] == ["barred"]


@pytest.mark.parametrize(("used", "share_percent"), [(GB, 0), (1_001, 60), (3, 60)])
async def test_bytes_of_a_barred_exit_are_free_even_if_it_earns_nothing(
    market: Market, used: int, share_percent: int
) -> None:
    market.bandwidth._exit_terms = replace(market.exits.terms, share_percent=share_percent)
    cheats, session = await exit_device(market), await through(market, price=MICRO)
    other = await exit_device(market)
    await session.report(used, (cheats, used - used // 2), (other, used // 2))
    for each in (cheats, other):
        await claw_back(market.context, each.id, "blackholes")
    await session.end()
    assert await revenue(market) == 0
    assert await available(market, session.buyer) == 100 * MICRO
    report = await audit_ledger(market.store)
    assert report.passed, report


async def test_only_an_exit_can_be_clawed_back(market: Market) -> None:
    attempt = claw_back(market.context, "none", "injects")
    assert await refusal(attempt) is Code.TOKEN_NOT_FOUND
    for reason in ("", "x" * 501):
        made = await exit_device(market)
        attempt = clawing.claw_back(market.context, ROOT, LIMITS, made.id, reason)
        assert await refusal(attempt) is Code.INVALID_FIELD


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        (
            "UPDATE bandwidth_leases SET exit_bytes = exit_bytes - 1",
            "exits carried no more of a lease than it has used, and their counts add up",
        ),
        (
            "UPDATE exit_days SET earned = earned + 1",
            "exits carried no more of a lease than it has used, and their counts add up",
        ),
        (
            "UPDATE exit_usage SET earned = earned + 1",
            "every settled session paid its exits their earnings",
        ),
        (
            "UPDATE exit_usage SET earned = earned - 1",
            "exits earn their share of the price of their bytes",
        ),
        (
            "UPDATE accounts SET balance = balance - 1 WHERE kind = 'exit_payable'",
            "the house's debt to exits equals its advances for active sessions",
        ),
        (
            "UPDATE exit_usage SET earned = 1",
            "the house's debt to exits equals its advances for active sessions",
        ),
        (
            "UPDATE holds SET amount = 1 WHERE resolved_at IS NULL",
            "the house's debt to exits equals its advances for active sessions",
        ),
        (
            "UPDATE exit_earnings SET paid_at = 7",
            "pending money is the sum of earnings that are neither paid out nor reversed",
        ),
        (
            "UPDATE accounts SET balance = 7 WHERE kind = 'pending'",
            "pending money is the sum of earnings that are neither paid out nor reversed",
        ),
    ],
)
async def test_the_audit_finds_damage_to_the_books_of_exits(
    market: Market, statement: str, promise: str
) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB // 2))
    await session.end()
    goes_on = await through(market)
    await goes_on.report(GB, (made, GB // 2))
    await market.exit_advances.advance()

    async def tamper(tx: Transaction) -> None:
        await tx.run(statement)
        raise _LookedAtError(await _broken(tx))

    with pytest.raises(_LookedAtError) as caught:
        await market.store.write(tamper)
    assert promise in caught.value.promises


class _LookedAtError(Exception):
    """Ends a unit, so that its damage is not kept."""

    def __init__(self, promises: list[str]) -> None:
        super().__init__(promises)
        self.promises = promises


async def _broken(tx: Transaction) -> list[str]:
    return [check.promise for check in (await _audit(tx)).checks if check.differences]


@pytest.mark.both_engines
async def test_a_resolved_earning_is_never_changed(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    await session.end()
    market.clock.now += WEEK
    await market.exit_payouts.pay_due()
    for statement in (
        "UPDATE exit_earnings SET paid_at = NULL",
        "UPDATE exit_earnings SET amount = 1",
        "DELETE FROM exit_earnings",
    ):

        async def tamper(tx: Transaction, statement: str = statement) -> None:
            await tx.run(statement)

        with pytest.raises(ConstraintError):
            await market.store.write(tamper)
    assert (await audit_ledger(market.store)).passed

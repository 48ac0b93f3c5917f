"""New accounts: lower limits until they are older, have paid for traffic, or the staff says so."""

import pytest
from msgspec.structs import replace
from support.market.market import Market
from support.market.staff import ROOT

from market.accounts.levels import SETTLED_SECONDS, Level, Limited, NewAccounts
from market.bandwidth.leases import Usage
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.money.money import GB
from market.staff.audit import audit_all
from market.staff.money import user_limits
from market.staff.money.user_limits import NewLimits
from storage.engines.store import Transaction

WEEK = 7 * 86_400
POLICY = NewAccounts(seconds=WEEK, bytes_per_day=GB // 4, needs_email=False)


async def test_an_account_is_new_for_a_time_or_until_a_day_after_its_first_paid_session(
    market: Market,
) -> None:
    user, opened = await market.person(usd="20"), market.clock.now
    assert await market.leases.limited(user) is None  # off unless the operator sets days
    market.leases.new_accounts = POLICY
    expected = Limited(opened + WEEK, 50, frozenset((80, 443)), GB // 4)
    assert await market.leases.limited(user) == expected
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.limited == expected
    await market.leases.settle(
        bought.session_id, SessionStatus.ENDED, Usage(bought.session_id, grant.lease_id or "", 9)
    )
    ended = market.clock.now
    market.clock.now = ended + SETTLED_SECONDS - 1
    assert await market.leases.limited(user) == replace(expected, until=ended + SETTLED_SECONDS)
    market.clock.now += 1
    assert await market.leases.limited(user) is None
    other = await market.person(usd="20")  # a deposit alone changes nothing
    market.clock.now += WEEK - 1
    assert await market.leases.limited(other) is not None
    market.clock.now += 1
    assert await market.leases.limited(other) is None


async def test_the_staff_sets_the_level_of_one_account(market: Market) -> None:
    user = await market.person()

    async def give(level: Level | None) -> Limited | None:
        await user_limits.change(market.context, ROOT, user, NewLimits(level=level), "a ticket")
        return await market.leases.limited(user)

    assert await give(Level.NEW) == Limited(None, 50, frozenset((80, 443)), 2 * GB, True)
    market.leases.new_accounts = POLICY
    assert await give(Level.KNOWN) is None
    assert await give(None) is not None
    until = market.clock.now + 60
    await user_limits.change(
        market.context, ROOT, user, NewLimits(level=Level.KNOWN, until=until), "for a minute"
    )
    assert await market.leases.limited(user) is None
    market.clock.now = until
    assert await market.leases.limited(user) is not None
    assert (await audit_all(market.store)).passed


async def test_a_purchase_of_a_new_account_needs_a_confirmed_address(market: Market) -> None:
    user = await market.person(usd="20")
    market.leases.new_accounts = replace(POLICY, needs_email=True)
    with pytest.raises(MarketError) as refused:
        await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert refused.value.code is Code.EMAIL_NOT_CONFIRMED
    market.clock.now += WEEK
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)


@pytest.mark.both_engines
async def test_the_bytes_of_a_day_halt_until_midnight(market: Market) -> None:
    user = await market.person(usd="20")
    market.leases.new_accounts = POLICY
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    other = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(bought)
    assert grant is not None

    async def halt() -> int:
        return await market.rule_stops.halt_used_days(market.leases.new_accounts)

    usage = Usage(bought.session_id, grant.lease_id or "", GB // 4 - 1)
    await market.leases.report([usage])
    assert await halt() == 0
    await market.leases.report([replace(usage, used_bytes=GB // 4)])
    assert await halt() == 1
    assert await halt() == 0
    midnight = market.clock.now - market.clock.now % 86_400 + 86_400
    halted = (await market.bandwidth.one(user, bought.session_id)).session.halted
    assert halted is not None
    assert (halted.until, "at most 0.25 GB a day" in halted.reason) == (midnight, True)
    refused = await market.lease(other)  # another session of the user is no way around it
    assert refused is not None
    assert (refused.status, refused.lease_id) == (SessionStatus.ENDED, None)
    market.clock.now = midnight
    assert await market.suspensions.release_due() == 1
    assert await halt() == 0
    again = await market.lease(other)
    assert again is not None
    assert again.lease_id is not None


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_session_that_cannot_be_halted_delays_no_other(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    market.leases.new_accounts = POLICY
    sessions = []
    for user in [await market.person(usd="20") for _ in range(2)]:
        bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
        grant = await market.lease(bought)
        assert grant is not None
        await market.leases.report([Usage(bought.session_id, grant.lease_id or "", GB // 4)])
        sessions.append((user, bought.session_id))
    broken = min(sessions)[1]

    async def damage(tx: Transaction) -> None:
        await tx.run(
            "CREATE TRIGGER broken BEFORE UPDATE ON bandwidth_sessions "
            f"WHEN OLD.id = '{broken}' BEGIN SELECT RAISE(ABORT, 'broken'); END"
        )

    await market.store.write(damage)
    assert await market.rule_stops.halt_used_days(POLICY) == 1
    assert await market.rule_stops.halt_used_days(POLICY) == 0
    [record] = caplog.records
    assert record.getMessage() == f"session {broken} of a new account cannot be halted"

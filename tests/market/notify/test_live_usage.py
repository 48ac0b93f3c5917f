"""Moving sessions are shown: from memory if one daemon has all of them, else by their reports."""

from collections.abc import Collection

import pytest
from support.market.market import Market

from market.bandwidth.leases import Usage
from market.money.money import GB
from market.notify.live_usage import LiveUsage, LiveUse, UsageFrame

MIB = 1024 * 1024


class Uses:
    """Counters in memory that a test sets."""

    def __init__(self) -> None:
        self.uses: list[LiveUse] = []

    def live(self, user_ids: Collection[str]) -> list[LiveUse]:
        return [use for use in self.uses if use.user_id in user_ids]


async def leased(market: Market) -> tuple[str, str, str]:
    """Return a buyer, their session and its lease."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None
    return user, bought.session_id, grant.lease_id


async def test_a_session_that_moves_is_shown_until_it_stands(market: Market) -> None:
    user, session, lease = await leased(market)
    uses = Uses()
    usage = LiveUsage(market.context, market.leases, uses, market.clock.steady)
    shown = []
    for used in (0, 4 * MIB, 6 * MIB, 6 * MIB, 6 * MIB):
        market.clock.now += 2
        uses.uses = [LiveUse(session, user, lease, used, 3)]
        await market.leases.report([Usage(session, lease, used // 2)])  # changes nothing
        shown.append(await usage.frames({user}))
    assert shown == [
        [(user, UsageFrame(session, 0, GB, 0, 3), True)],
        [(user, UsageFrame(session, 4 * MIB, GB - 4 * MIB, 2 * MIB, 3), True)],
        [(user, UsageFrame(session, 6 * MIB, GB - 6 * MIB, MIB, 3), True)],
        [(user, UsageFrame(session, 6 * MIB, GB - 6 * MIB, 0, 3), True)],
        [(user, UsageFrame(session, 6 * MIB, GB - 6 * MIB, 0, 3), False)],
    ]


async def test_bytes_used_under_an_earlier_lease_count(market: Market) -> None:
    user, session, lease = await leased(market)
    await market.leases.release([Usage(session, lease, MIB)])
    grant = await market.leases.open(session)
    assert grant is not None
    assert grant.lease_id is not None
    uses = Uses()
    usage = LiveUsage(market.context, market.leases, uses, market.clock.steady)
    for used in (1, MIB):
        market.clock.now += 1
        uses.uses = [LiveUse(session, user, grant.lease_id, used, 1)]
        frames = await usage.frames({user})
    [(_, frame, _)] = frames
    assert (frame.bytes_used, frame.bytes_left) == (2 * MIB, GB - 2 * MIB)


@pytest.mark.both_engines
async def test_among_several_nodes_the_reported_bytes_are_shown(market: Market) -> None:
    user, session, lease = await leased(market)
    usage = LiveUsage(market.context, market.leases, None, market.clock.steady)
    assert [shown.frame.bytes_used for shown in await usage.frames({user})] == [0]
    market.clock.now += 1
    await market.leases.report([Usage(session, lease, MIB)])
    assert await usage.frames({user}) == [
        (user, UsageFrame(session, MIB, GB - MIB, MIB, None), True)
    ]
    assert await usage.frames(set()) == []


async def test_no_session_of_another_user_is_shown(market: Market) -> None:
    user, session, lease = await leased(market)
    uses = Uses()
    usage = LiveUsage(market.context, market.leases, uses, market.clock.steady)
    for used in (0, MIB):
        market.clock.now += 1
        uses.uses = [LiveUse(session, user, lease, used, 1)]
        assert await usage.frames({"somebody else"}) == []

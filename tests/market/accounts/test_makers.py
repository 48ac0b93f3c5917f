"""Makers of worker tokens and webhooks: none makes one after the end of the key or login."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.market.events import said
from support.market.market import Market

from market.accounts.keys import NewKey
from market.accounts.scopes import Grant, Maker, Scope
from market.base.errors import Code, MarketError

if TYPE_CHECKING:
    from collections.abc import Awaitable

SCOPES = (Scope.DEVICES_WRITE, Scope.WEBHOOKS_WRITE)
RIG: dict[str, Any] = {"name": "rig", "device_type": "server", "min_price_usd": None}


def hook(number: int) -> dict[str, Any]:
    return {"url": f"https://h{number}.example.com/", "types": ["*"], "description": ""}


async def key_of(market: Market, user_id: str) -> tuple[str, Grant]:
    """Make a key. Return its identifier and its grant."""
    issued = await market.keys.create(user_id, NewKey(name="x", scopes=SCOPES))
    grant = (await market.keys.authenticate(issued.key, "")).key
    assert grant is not None
    return issued.row.id, grant


@pytest.mark.both_engines
@pytest.mark.parametrize("by_key", [True, False])
async def test_nothing_is_made_by_a_key_or_login_that_ended_since_the_request_began(
    market: Market, by_key: bool
) -> None:
    me = await market.person()
    made = await market.webhooks.create(me, **hook(0))
    mine = made.endpoint.id
    key_id, grant = await key_of(market, me)
    await market.keys.revoke(me, key_id)
    await market.made_by_keys.end(me, key_id)
    late_maker = Maker(key_id, grant) if by_key else Maker("a login that is over")
    for late in (
        market.devices.create(me, **RIG, maker=late_maker),
        market.webhooks.create(me, **hook(1), maker=late_maker),
        market.webhooks.change(me, mine, url=hook(1)["url"], maker=late_maker),
        market.webhooks.roll(me, mine, maker=late_maker),
    ):
        with pytest.raises(MarketError) as raised:
            await late
        assert raised.value.code is Code.UNAUTHORIZED
    assert [row.id for row in await market.webhooks.all_of(me)] == [mine]
    assert await said(market, me, "device.created") == []
    assert await said(market, me, "webhook.changed") == []


@pytest.mark.both_engines
async def test_all_that_was_under_way_when_a_key_ended_ends_with_it(market: Market) -> None:
    me = await market.person()
    key_id, grant = await key_of(market, me)

    async def ended() -> None:
        await market.keys.revoke(me, key_id)
        await market.made_by_keys.end(me, key_id)

    made: list[Awaitable[Any]] = []
    for number in range(4):
        made.append(market.webhooks.create(me, **hook(number), maker=Maker(key=grant)))
        made.append(market.devices.create(me, **RIG, maker=Maker(key=grant)))
    await asyncio.gather(*made[:4], ended(), *made[4:], return_exceptions=True)
    assert {row.disabled_reason for row in await market.webhooks.all_of(me)} <= {"key"}
    assert key_id not in await market.made_by_keys.counts(me)

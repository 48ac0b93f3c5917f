"""Tokens and webhooks of API keys: counted by line of keys, ended with them; on both engines."""

import pytest
from support.market.events import said, types_of
from support.market.market import Market

from market.accounts.keys import NewKey
from market.accounts.scopes import Grant, Maker, Scope
from market.base.errors import MarketError
from storage.notify import webhooks as queries

SCOPES = (Scope.DEVICES_WRITE, Scope.WEBHOOKS_WRITE)


async def key_of(market: Market, user_id: str) -> tuple[str, Grant]:
    """Make a key. Return its identifier and its grant."""
    issued = await market.keys.create(user_id, NewKey(name="x", scopes=SCOPES))
    return issued.row.id, await grant_of(market, issued.key)


async def grant_of(market: Market, key: str) -> Grant:
    grant = (await market.keys.authenticate(key, "")).key
    assert grant is not None
    return grant


async def device(market: Market, user_id: str, key: Grant | None) -> str:
    """Make a worker token, show it once, and return it."""
    made = await market.devices.create(
        user_id, name="rig", device_type="server", min_price_usd=None, maker=Maker(key=key)
    )
    await market.devices.authenticate(made.token)
    return made.token


async def hook(market: Market, user_id: str, number: int, key: Grant | None) -> str:
    url = f"https://h{number}.example.com/"
    made = await market.webhooks.create(
        user_id, url=url, types=["job.completed"], description="", maker=Maker(key=key)
    )
    return made.endpoint.id


async def works(market: Market, token: str) -> bool:
    try:
        await market.devices.authenticate(token)
    except MarketError:
        return False
    return True


async def reasons(market: Market, user_id: str) -> list[str | None]:
    return [row.disabled_reason for row in await market.webhooks.all_of(user_id)]


async def test_the_objects_of_a_stolen_key_end_with_it_if_its_owner_wants_that(
    market: Market,
) -> None:
    me, other = await market.person(), await market.person()
    key_id, stolen = await key_of(market, me)
    _, kept = await key_of(market, me)
    _, foreign = await key_of(market, other)
    tokens = [await device(market, me, each) for each in (stolen, kept, None)]
    tokens.append(await device(market, other, foreign))
    makers = enumerate((stolen, kept, None))
    hooks = [await hook(market, me, number, each) for number, each in makers]
    await hook(market, other, 4, foreign)
    await market.keys.revoke(me, key_id)
    assert [await works(market, each) for each in tokens] == [True] * 4
    made = (await market.made_by_keys.counts(me))[key_id]
    assert (made.devices, made.webhooks) == (1, 1)
    await market.made_by_keys.end(other, key_id)  # not theirs
    assert [await works(market, each) for each in tokens] == [True] * 4
    for _ in range(2):
        await market.made_by_keys.end(me, key_id)
        assert [await works(market, each) for each in tokens] == [False, True, True, True]
        assert await reasons(market, me) == ["key", None, None]
        assert await reasons(market, other) == [None]
    assert key_id not in await market.made_by_keys.counts(me)
    told = await said(market, me, "webhook.disabled")
    assert [(each["webhook_id"], each["reason"]) for each in told] == [(hooks[0], "key")]


async def test_a_line_of_keys_that_was_rolled_counts_as_one(market: Market) -> None:
    me = await market.person()
    key_id, first = await key_of(market, me)
    token = await device(market, me, first)
    rolled = await market.keys.roll(me, key_id, overlap_hours=0)
    second = await grant_of(market, rolled.key)
    await hook(market, me, 1, second)
    made = await market.made_by_keys.counts(me)
    assert [(row.devices, row.webhooks) for row in made.values()] == [(1, 1)]
    await market.made_by_keys.end(me, rolled.row.id)
    assert not await works(market, token)
    assert await reasons(market, me) == ["key"]


@pytest.mark.both_engines
async def test_an_endpoint_that_a_key_leads_elsewhere_is_the_keys(market: Market) -> None:
    me = await market.person()
    key_id, stolen = await key_of(market, me)
    moved, rolled, described = [await hook(market, me, number, None) for number in range(3)]
    await market.webhooks.change(
        me, moved, url="https://thief.example.com/", maker=Maker(key=stolen)
    )
    await market.webhooks.roll(me, rolled, maker=Maker(key=stolen))
    await market.webhooks.change(me, described, description="x", maker=Maker(key=stolen))
    assert [each["key_id"] for each in await said(market, me, "webhook.changed")] == [key_id] * 2
    await market.made_by_keys.end(me, key_id)
    assert await reasons(market, me) == ["key", "key", None]
    await market.webhooks.change(me, moved, is_enabled=True)  # its owner has looked at it
    assert await market.made_by_keys.counts(me) == {}


@pytest.mark.parametrize("by_key", [True, False])
async def test_an_owner_gets_the_list_of_objects_and_their_keys(
    market: Market, by_key: bool
) -> None:
    me = await market.person()
    key_id, grant = await key_of(market, me)
    watching = await market.webhooks.create(
        me, url="https://w.example.com/", types=["*"], description=""
    )
    await device(market, me, grant if by_key else None)
    new = await hook(market, me, 1, grant if by_key else None)
    expected = key_id if by_key else None
    (device_event,) = await said(market, me, "device.created")
    created = {each["webhook_id"]: each for each in await said(market, me, "webhook.created")}
    assert device_event["key_id"] == created[new]["key_id"] == expected
    assert created[watching.endpoint.id]["key_id"] is None
    url = watching.endpoint.url
    await market.store.write(queries.end_failing, watching.endpoint.id, url, market.clock.now)
    due = await market.webhooks.due(but=(), limit=100)
    assert {row.endpoint_id for row in due} == {watching.endpoint.id}
    await market.webhooks.roll(me, watching.endpoint.id)
    assert len(await market.webhooks.due(but=(), limit=100)) == len(due), "not told of itself"
    assert await types_of(market, me) == [
        "key.created",
        "webhook.created",
        "device.created",
        "webhook.created",
        "webhook.changed",
    ]

"""Notifications to users of a marketplace without a network."""

import json
from typing import Any

from storage.events import events as queries
from storage.events.events import EventRow
from support.market.market import Market

MOST = 1_000


async def rows_of(market: Market, user_id: str, *types: str) -> list[EventRow]:
    """Return the events of a user, the oldest first."""
    rows, behind = await market.store.read(
        queries.page_on, user_id, types=types, after="", limit=MOST
    )
    assert not behind
    return rows


async def types_of(market: Market, user_id: str) -> list[str]:
    """Return the types of the events of a user, the oldest first."""
    return [row.type for row in await rows_of(market, user_id)]


async def said(market: Market, user_id: str, kind: str) -> list[dict[str, Any]]:
    """Return the data of a user's events of one type, the oldest first."""
    return [json.loads(row.data) for row in await rows_of(market, user_id, kind)]

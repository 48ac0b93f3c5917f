"""How long the pages and searches of the staff take in a market of a size."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from support.database.grown import Grown

from market.staff.base.roles import Machine
from market.staff.finding import history, search, users
from market.staff.money import approvals, money
from proxyd.ops.books import context_of
from storage.engines.open import open_store

REPEATS = 101
LIMIT = 50
AUTHOR = Machine("bench")

Call = Callable[[], Awaitable[object]]


def figures(url: str, market: Grown) -> dict[str, float]:
    """Return the median and the 99th percentile of each page and search, in milliseconds."""
    return asyncio.run(_figures(url, market))


async def _figures(url: str, market: Grown) -> dict[str, float]:
    store = await open_store(url)
    context = context_of(store)
    middle = max(market.users // 2, 1)
    user, work = f"user{middle}", f"{market.work // 2:012}"

    def who(text: str) -> Call:
        return lambda: search.who(context, AUTHOR, text)

    def page(name: str) -> Call:
        return lambda: users.view(context, AUTHOR, name)

    def of_money(name: str) -> Call:
        return lambda: money.history(context, AUTHOR, name, limit=LIMIT)

    calls: dict[str, Call] = {
        "search: an e-mail address": who(f"{user}@example.com"),
        "search: the beginning of addresses": who("user1@"),
        "search: the beginning of names": who("user"),
        "search: a domain of all users": who("@example.com"),
        "search: a text without a hit": who("nobody-has-this-name"),
        "search: a user": who(f"01900000-0000-7000-8001-{middle:012}"),
        "search: a session or job": who(f"01900000-0000-7000-8003-{work}"),
        "search: a transfer": who(f"01900000-0000-7000-8006-{work}"),
        "search: a payment": who(str(middle)),
        "search: an address of a client": who("8.8.8.8"),
        "search: a network": who("8.8.8.0/24"),
        "page: a user": page(user),
        "page: the user with the most open work": page(market.buyer_id),
        "page: the money of a user": of_money(user),
        "page: the money of the largest user": of_money(market.buyer_id),
        "page: approvals": lambda: approvals.listed(context, AUTHOR, limit=LIMIT),
        "page: the log": lambda: history.read(context, AUTHOR, limit=LIMIT),
        "page: the log of a user": lambda: history.read(context, AUTHOR, user=user, limit=LIMIT),
    }
    found: dict[str, float] = {}
    try:
        for name, call in calls.items():
            taken = sorted([await _seconds(call) for _ in range(REPEATS)])
            found[f"{name}, ms"] = statistics.median(taken) * 1000
            found[f"{name}, p99 ms"] = taken[REPEATS * 99 // 100 - 1] * 1000
    finally:
        await store.close()
    return found


async def _seconds(call: Call) -> float:
    begin = time.perf_counter()
    await call()
    return time.perf_counter() - begin

"""api.reverse.known_apps: answers that are kept for a moment, and answers that are not."""

import asyncio

from api.reverse.known_apps import KnownApps
from market.deploys.apps import App


class Store:
    """Store that answers when a test sets the result."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[App | None]] = []

    async def find(self, app_id: str) -> App | None:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


async def asking(known: KnownApps, store: Store, app_id: str) -> "asyncio.Task[App | None]":
    """Ask, and return when the store was."""
    before = len(store.asked)
    task = asyncio.create_task(known.find(app_id))
    while len(store.asked) == before:
        await asyncio.sleep(0)
    return task


async def test_an_app_that_was_found_before_a_change_is_not_kept() -> None:
    store = Store()
    known = KnownApps(store.find)
    old = await asking(known, store, "a")
    known.forget("a")
    new = await asking(known, store, "a")
    store.asked[1].set_result(App("a", "new"))
    await new
    store.asked[0].set_result(App("a", "old"))
    await old
    assert await known.find("a") == App("a", "new")
    assert len(store.asked) == 2


async def test_a_change_of_one_app_is_none_of_another() -> None:
    store = Store()
    known = KnownApps(store.find)
    task = await asking(known, store, "a")
    known.forget("b")
    store.asked[0].set_result(App("a", "hash"))
    await task
    assert known.recent("a")

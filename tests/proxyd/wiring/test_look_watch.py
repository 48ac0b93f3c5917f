"""A question about an exit reaches the records of every machine; the answer names silent nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.daemons.service import settings_for
from support.market.market import Market

from market.staff.abuse import looks
from market.staff.abuse.exit_use import Destination, Found, Question
from proxyd.access_records import Access, Reached
from proxyd.ops.access_log.access_answers import find
from proxyd.ops.access_log.access_log import AccessLog
from proxyd.ops.access_log.access_place import access_key
from proxyd.wiring.look_watch import LookWatch
from storage.staff.abuse import looks as queries

EXIT = "203.0.113.9"


def machine(folder: Path, session: str, now: int) -> Callable[[Question], Found]:
    """Write the records of a machine, and return its search."""
    settings = settings_for(
        f"sqlite:///{folder.parent}/none", access_log={"enabled": "on", "folder": str(folder)}
    )
    log = AccessLog(
        folder,
        target="hash",
        client="network",
        keep_days=90,
        key=access_key(settings),
        now=lambda: now,
    )
    log.put(Reached(1, session, "192.0.2.1", "tcp", "198.51.100.7", 22, (), 9, "device", EXIT, ""))
    log.put(Access(1, session, "192.0.2.1", "198.51.100.7", 22, 1, 2, 0.1, "ended", "device", EXIT))
    log.close()
    return lambda question: find(settings, question, now)


@asynccontextmanager
async def nodes(
    market: Market, finds: dict[str, Callable[[Question], Found] | None]
) -> AsyncIterator[None]:
    """Run the task of each node; all are called once, as by a notice."""
    watches = {
        name: LookWatch(market.context, lambda name=name: name, search)
        for name, search in finds.items()
    }
    tasks = [asyncio.create_task(each.run()) for each in watches.values()]

    async def call() -> None:
        while True:
            for each in watches.values():
                each.hear("halts 1")
                each.hear(looks.NOTICE)
            await asyncio.sleep(0.05)

    tasks.append(asyncio.create_task(call()))
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.both_engines
async def test_all_machines_answer_and_silent_nodes_are_named(
    market: Market, tmp_path: Path
) -> None:
    market.clock.now += 1_800  # in the middle of an hour
    now = market.clock.now
    question = Question(EXIT, now, "198.51.100.7", 22)
    first = machine(tmp_path / "one", "session-1", now)
    second = machine(tmp_path / "two", "session-2", now)
    own = first(question)
    async with nodes(market, {"a": first, "a-2": None, "b": second}):
        names = ["a", "a-2", "b"]
        found = await looks.ask(market.context, question, names, own, seconds=30.0)
        assert sorted(each.session_id for each in found.uses) == ["session-1", "session-2"]
        assert {each.destination for each in found.uses} == {Destination.EQUAL}
        assert found.gaps == []
        found = await looks.ask(market.context, question, [*names, "c"], own, seconds=0.5)
        assert ["silent: c." in each for each in found.gaps] == [True]
    assert len(await market.store.read(queries.unanswered, "c", since=0, limit=9)) == 2
    market.clock.now += queries.LIVES_SECONDS
    assert await market.store.write(queries.delete_old, now=market.clock.now) == 2


@pytest.mark.both_engines
async def test_a_damaged_file_or_question_is_a_gap_and_ends_no_task(
    market: Market, tmp_path: Path
) -> None:
    market.clock.now += 1_800
    now = market.clock.now
    whole = machine(tmp_path / "one", "session-1", now)

    def damaged(_: Question) -> Found:
        raise EOFError

    question = Question(EXIT, now, "198.51.100.7", 22)
    async with nodes(market, {"a": whole, "b": damaged}):
        # Another version has asked something else before.
        other = queries.LookRow("other", '{"asked": 1}')
        await market.store.write(queries.insert, other, now=now)
        found = await looks.ask(market.context, question, ["a", "b"], Found((), ()), seconds=30.0)
        assert [each.session_id for each in found.uses] == ["session-1"]
        assert found.gaps == [f"Node b: {looks.UNREADABLE}"]
        assert await market.store.read(queries.answered, "other") == ["a", "b"]


async def test_an_answer_of_another_version_is_a_gap(market: Market) -> None:
    async def write() -> None:
        while not (rows := await market.store.read(queries.unanswered, "b", since=0, limit=1)):
            await asyncio.sleep(0.01)
        await market.store.write(queries.answer, rows[0].id, "b", '{"uses": 7}')

    task = asyncio.create_task(write())
    question = Question(EXIT, market.clock.now)
    found = await looks.ask(market.context, question, ["b"], Found((), ()), seconds=30.0)
    await task
    assert found.gaps == [f"Node b: {looks.OTHER_VERSION}"]

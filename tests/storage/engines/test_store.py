"""Promises of a transaction on both engines."""

import asyncio

import pytest

from storage.engines.errors import ConstraintError, UnavailableError
from storage.engines.store import Store, Transaction, probe

TABLE = """
    CREATE TABLE things (
        id TEXT PRIMARY KEY,
        size BIGINT CONSTRAINT things_small CHECK (size < 10)
    )
"""


async def make_table(tx: Transaction) -> None:
    await tx.run(TABLE)


async def add(tx: Transaction, name: str, size: int = 1) -> int:
    return await tx.run("INSERT INTO things (id, size) VALUES (:id, :size)", id=name, size=size)


async def names(tx: Transaction) -> list[str]:
    return await tx.all(str, "SELECT id FROM things ORDER BY id")


async def add_and_fail(tx: Transaction, name: str) -> None:
    await add(tx, name)
    raise LookupError(name)


async def test_a_unit_is_committed_and_its_result_returned(store: Store) -> None:
    await store.write(make_table)
    assert await store.write(add, "a") == 1
    assert await store.read(names) == ["a"]


async def test_an_exception_rolls_the_unit_back_and_reaches_the_caller(store: Store) -> None:
    await store.write(make_table)
    with pytest.raises(LookupError):
        await store.write(add_and_fail, "a")
    assert await store.read(names) == []


async def test_units_of_one_group_stand_or_fall_by_themselves(store: Store) -> None:
    await store.write(make_table)
    outcomes = await asyncio.gather(
        *(
            store.write(add_and_fail if index % 3 == 0 else add, f"{index:02}")
            for index in range(30)
        ),
        return_exceptions=True,
    )
    assert [isinstance(outcome, LookupError) for outcome in outcomes] == [
        index % 3 == 0 for index in range(30)
    ]
    assert await store.read(names) == [f"{index:02}" for index in range(30) if index % 3]


async def test_a_broken_rule_names_its_constraint_and_leaves_the_rest(store: Store) -> None:
    await store.write(make_table)
    outcomes = await asyncio.gather(
        store.write(add, "a"),
        store.write(add, "b", 99),
        store.write(add, "c"),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], ConstraintError)
    assert outcomes[1].constraint == "things_small"
    assert await store.read(names) == ["a", "c"]


async def test_reading_cannot_write(store: Store) -> None:
    await store.write(make_table)
    with pytest.raises(UnavailableError):
        await store.read(add, "a")
    assert await store.read(names) == []


async def test_a_reader_sees_one_snapshot(store: Store) -> None:
    await store.write(make_table)
    await store.write(add, "a")

    async def twice(tx: Transaction) -> tuple[list[str], list[str]]:
        return await names(tx), await names(tx)

    async def write_much() -> None:
        for index in range(20):
            await store.write(add, f"b{index}")

    writing = asyncio.create_task(write_much())
    while not writing.done():
        first, second = await store.read(twice)
        assert first == second
    await writing


async def test_a_lost_caller_does_not_stop_the_others(store: Store) -> None:
    await store.write(make_table)
    tasks = [asyncio.create_task(store.write(add, f"{index}")) for index in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[3], asyncio.CancelledError)
    assert [outcome for outcome in outcomes if not isinstance(outcome, BaseException)] == [1] * 9


async def test_the_null_and_the_large_come_back(store: Store) -> None:
    await store.write(make_table)

    async def insert(tx: Transaction) -> None:
        await tx.run("INSERT INTO things (id, size) VALUES (:id, :size)", id="größe", size=-(2**62))
        await tx.run("INSERT INTO things (id, size) VALUES (:id, :size)", id="none", size=None)

    async def both(tx: Transaction) -> list[tuple[str, int | None]]:
        return await tx.all(lambda *row: row, "SELECT id, size FROM things ORDER BY id")

    await store.write(insert)
    assert await store.read(both) == [("größe", -(2**62)), ("none", None)]


async def test_a_probe_answers_until_the_store_is_closed(store: Store) -> None:
    await store.read(probe)
    await store.close()
    with pytest.raises(UnavailableError):
        await store.read(probe)
    with pytest.raises(UnavailableError):
        await store.write(probe)


async def test_a_call_after_a_commit_is_not_made_after_a_rollback(store: Store) -> None:
    await store.write(make_table)
    called: list[str] = []

    async def add_and_call(tx: Transaction, name: str, *, fails: bool) -> None:
        tx.after_commit(lambda: called.append(name))
        await add(tx, name)
        assert called == []
        if fails:
            raise LookupError(name)

    with pytest.raises(LookupError):
        await store.write(add_and_call, "a", fails=True)
    assert called == []
    await store.write(add_and_call, "b", fails=False)
    assert called == ["b"]
    assert await store.read(names) == ["b"]

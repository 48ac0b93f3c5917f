"""The time of a store's calls is counted, also of failures, and of calls without a metric."""

import pytest

from proxyd.counters import Latency
from proxyd.ops.metrics.timed_store import TimedStore
from storage.engines.store import Store, Transaction


async def number(tx: Transaction) -> int:
    return (await tx.all(int, "SELECT 7"))[0]


async def fail(tx: Transaction) -> None:
    raise LookupError("of its own")


def count(latency: Latency) -> int:
    return sum(latency.counts)


async def test_each_read_and_write_is_counted_once_and_returns_the_stores_result(
    store: Store,
) -> None:
    timed = TimedStore(store)
    assert await timed.read(number) == await timed.write(number) == 7
    assert await timed.read(number) == 7
    assert (count(timed.reads), count(timed.writes)) == (2, 1)
    assert timed.reads.seconds > 0
    assert timed.writes.seconds > 0
    assert timed.version() == store.version()


async def test_a_failed_call_is_counted(store: Store) -> None:
    timed = TimedStore(store)
    for ask in (timed.read, timed.write):
        with pytest.raises(LookupError):
            await ask(fail)
    assert (count(timed.reads), count(timed.writes)) == (1, 1)


async def test_calls_that_are_set_aside_are_counted_with_the_rest(store: Store) -> None:
    timed = TimedStore(store)
    aside = timed.set_aside()
    assert await aside.read(number) == 7
    assert count(timed.reads) == 1

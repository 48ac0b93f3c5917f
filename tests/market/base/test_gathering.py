"""Questions that wait go together; no answer comes from a read that began before its question."""

import asyncio
from collections.abc import Sequence

import pytest
from support.base.waiting import until

from market.base.gathering import READS_MAX, Gathering
from storage.engines.errors import UnavailableError

MOST = 4


class Store:
    """Answers with the number of the read, once it may; knows nothing of "unknown"."""

    def __init__(self) -> None:
        self.reads: list[Sequence[str]] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, keys: Sequence[str]) -> dict[str, int]:
        self.reads.append(keys)
        number = len(self.reads)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return dict.fromkeys((key for key in keys if key != "unknown"), number)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def gathering(store: Store) -> Gathering[str, int]:
    return Gathering(store.read, MOST)


async def asked(gathering: Gathering[str, int], *keys: str) -> list[asyncio.Task[int | None]]:
    tasks = [asyncio.create_task(gathering.ask(key)) for key in keys]
    await asyncio.sleep(0)
    return tasks


async def test_requests_that_wait_during_a_query_go_together(
    store: Store, gathering: Gathering[str, int]
) -> None:
    [first] = await asked(gathering, "first")
    await until(lambda: store.reads == [["first"]], "the first one is asked at once")
    others = await asked(gathering, *"abcdef")
    store.may_answer.set()
    assert await first == 1
    assert await asyncio.gather(*others) == [2, 2, 2, 2, 3, 3]
    assert store.reads[1:] == [["a", "b", "c", "d"], ["e", "f"]]


async def test_a_question_is_not_answered_by_a_read_that_began_before_it(
    store: Store, gathering: Gathering[str, int]
) -> None:
    [early] = await asked(gathering, "same")
    await until(lambda: len(store.reads) == 1, "it is asked")
    late = await asked(gathering, "same", "same")
    store.may_answer.set()
    assert [await early, *await asyncio.gather(*late)] == [1, 2, 2]


async def test_many_are_read_by_several_at_once(
    store: Store, gathering: Gathering[str, int]
) -> None:
    tasks = await asked(gathering, *(str(number) for number in range(100)))
    await until(lambda: len(store.reads) == READS_MAX, "several read")
    store.may_answer.set()
    assert None not in await asyncio.gather(*tasks)
    assert len(store.reads) == 100 / MOST


async def test_a_failure_reaches_only_the_callers_of_its_query(
    store: Store, gathering: Gathering[str, int]
) -> None:
    store.error = UnavailableError("away")
    store.may_answer.set()
    tasks = await asked(gathering, "a", "b")
    assert await asyncio.gather(*tasks, return_exceptions=True) == [store.error] * 2
    store.error = None
    assert await gathering.ask("a") == 2
    assert await gathering.ask("unknown") is None


async def test_a_caller_that_gives_up_takes_the_answer_from_no_other(
    store: Store, gathering: Gathering[str, int]
) -> None:
    impatient, patient = await asked(gathering, "same", "same")
    impatient.cancel()
    store.may_answer.set()
    assert await patient == 1
    assert impatient.cancelled()

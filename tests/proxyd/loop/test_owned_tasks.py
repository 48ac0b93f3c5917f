import asyncio
import logging

import pytest

from proxyd.loop.owned_tasks import OwnedTasks


@pytest.fixture
async def tasks() -> OwnedTasks:
    return OwnedTasks(asyncio.get_running_loop(), logging.getLogger("owner"), "work failed")


async def test_one_that_is_done_is_owned_no_more(tasks: OwnedTasks) -> None:
    task = tasks.spawn(asyncio.sleep(0, "done"))
    assert len(tasks) == 1
    assert await task == "done"
    await tasks.wait()
    assert not tasks


async def test_a_failure_is_logged_and_the_others_go_on(
    tasks: OwnedTasks, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("a mistake")

    other = tasks.spawn(asyncio.Event().wait())
    failed = tasks.spawn(fail())
    await asyncio.wait({failed})
    [told] = caplog.records
    assert told.getMessage() == "work failed"
    assert told.exc_info is not None
    assert told.exc_info[1] is failed.exception()
    assert not other.done()
    tasks.cancel()
    await tasks.wait()


async def test_a_task_that_is_cancelled_before_its_first_step_is_cleaned_up(
    tasks: OwnedTasks,
) -> None:
    cleaned: list[str] = []

    async def finish() -> None:
        """End in the first step."""

    tasks.spawn(asyncio.Event().wait(), lambda: cleaned.append("not begun"))
    done = tasks.spawn(finish(), lambda: cleaned.append("done"))
    await asyncio.wait({done})
    begun = tasks.spawn(asyncio.Event().wait(), lambda: cleaned.append("begun"))
    await asyncio.sleep(0)
    last = tasks.spawn(finish(), lambda: cleaned.append("last"))
    tasks.cancel()
    await tasks.wait()
    assert last.cancelled()
    assert begun.cancelled()
    assert sorted(cleaned) == ["begun", "last", "not begun"]


async def test_those_that_are_cancelled_are_over_and_not_logged(
    tasks: OwnedTasks, caplog: pytest.LogCaptureFixture
) -> None:
    spawned = [tasks.spawn(asyncio.Event().wait()) for _ in range(3)]
    tasks.cancel()
    await tasks.wait()
    assert all(task.cancelled() for task in spawned)
    assert not tasks
    assert not caplog.records
    await tasks.wait()  # for nothing

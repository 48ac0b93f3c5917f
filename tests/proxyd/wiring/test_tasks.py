"""Background tasks: one owner ends them, and none ends unnoticed."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
from support.base.waiting import until

from proxyd.wiring.tasks import Tasks


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    made = Tasks(lambda: True)
    yield made
    await made.end()


@pytest.fixture
async def stops() -> AsyncIterator[list[int]]:
    """The SIGTERM signals that this process got, as a running daemon gets them."""
    heard: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.append, signal.SIGTERM)
    yield heard
    loop.remove_signal_handler(signal.SIGTERM)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_task_that_fails_stops_the_daemon_and_is_named(
    tasks: Tasks, stops: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise LookupError("no meter")

    tasks.spawn("meter", fail())
    await until(lambda: stops == [signal.SIGTERM], "the daemon is told to stop")
    assert tasks.has_failed
    assert "without its meter task; the daemon stops" in caplog.text


async def test_writers_end_before_the_others_and_stop_nothing(
    tasks: Tasks, stops: list[int]
) -> None:
    writer = tasks.spawn("meter", for_ever(), is_writer=True)
    other = tasks.spawn("mail", for_ever())
    await tasks.end_writers()
    assert (writer.done(), other.done()) == (True, False)
    await tasks.end()
    assert other.done()
    assert (stops, tasks.has_failed) == ([], False)


async def test_only_the_daemon_that_sweeps_runs_a_sweep() -> None:
    sweeping, runs = [False], []
    tasks = Tasks(lambda: sweeping[0])

    async def sweep() -> None:
        runs.append(None)

    tasks.every(0, "expiry", sweep, "expired sessions")
    await asyncio.sleep(0.02)
    assert runs == []
    sweeping[0] = True
    await until(lambda: len(runs) > 1, "it is run again and again")
    await tasks.end()

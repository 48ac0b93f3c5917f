"""Tasks end within a bound, whatever they do with a cancellation."""

import asyncio
import logging
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest

from proxyd.loop import cancellation


async def ignore(cancellations: int) -> None:
    """Do what a library may: lose so many cancellations."""
    while cancellations:
        cancellations -= 1
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "ATTEMPT_SECONDS", 0.05)


async def test_a_cancellation_that_is_lost_is_repeated() -> None:
    task = asyncio.create_task(ignore(2))
    await asyncio.sleep(0)
    assert not await cancellation.end([task])
    assert task.cancelled()


async def test_a_task_that_ignores_every_cancellation_is_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deaf = asyncio.create_task(ignore(cancellation.ATTEMPTS), name="deaf")
    other = asyncio.create_task(ignore(0))
    await asyncio.sleep(0)
    assert await cancellation.end([deaf, other]) == {deaf}
    assert other.cancelled()
    assert "the task deaf ignores every cancellation" in caplog.text
    assert not await cancellation.end([deaf])


async def test_nothing_is_ended_at_once() -> None:
    assert not await cancellation.end([])


async def test_a_task_that_closes_in_time_is_waited_for() -> None:
    closed = asyncio.Event()

    async def close() -> None:
        await asyncio.sleep(0)
        closed.set()

    await cancellation.within(10, close(), "closing it")
    assert closed.is_set()


async def test_a_task_that_fails_in_time_says_so() -> None:
    async def close() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await cancellation.within(10, close(), "closing it")


async def test_a_task_that_never_closes_is_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    await cancellation.within(0.05, ignore(1), "closing the library")
    assert "closing the library takes longer" in caplog.text


def test_a_command_ends_the_process_though_a_task_ignores_its_cancellation() -> None:
    program = """
        import asyncio, sys
        from contextlib import suppress
        from proxyd.loop import runner
        from proxyd.loop import cancellation

        cancellation.ATTEMPT_SECONDS = 0.05

        async def deaf():
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        async def command():
            running.append(asyncio.create_task(deaf(), name="deaf"))
            await asyncio.sleep(0)
            return 7

        running = []
        sys.exit(runner.run(command()))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 7
    assert "the task deaf ignores every cancellation" in run.stderr

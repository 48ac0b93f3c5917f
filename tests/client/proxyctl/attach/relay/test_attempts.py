"""Attempts end once. Deadlines end in time, also a deadline that begins at the end of another."""

import asyncio
import errno
import socket

import pytest
from support.base.waiting import until

from proxyctl.attach.relay.attempts import TICK_SECONDS, Deadlines, TaskAttempt

A_WHILE = 0.02


class Timed:
    def __init__(self, deadlines: Deadlines, again: float = 0.0) -> None:
        self.deadlines = deadlines
        self.again = again
        self.expired: list[float] = []

    def expire(self) -> None:
        self.expired.append(asyncio.get_running_loop().time())
        if self.again:
            self.deadlines.add(self, self.again)
            self.again = 0.0


async def test_each_deadline_ends_one_and_no_other() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    late, early, gone = (Timed(deadlines) for _ in range(3))
    began = loop.time()
    deadlines.add(late, A_WHILE + 2 * TICK_SECONDS)
    deadlines.add(early, A_WHILE)
    deadlines.add(gone, A_WHILE)
    deadlines.discard(gone)
    deadlines.discard(gone)
    await until(lambda: bool(late.expired))
    assert len(early.expired) == len(late.expired) == 1
    assert early.expired[0] - began >= A_WHILE
    assert late.expired[0] - began >= A_WHILE + 2 * TICK_SECONDS
    assert not gone.expired
    assert deadlines._timer is None, "a loop without deadlines has no timer"


async def test_a_deadline_that_begins_at_the_end_of_another_delays_no_third() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    again, other = Timed(deadlines, again=3600.0), Timed(deadlines)
    deadlines.add(again, A_WHILE)
    deadlines.add(other, A_WHILE + 2 * TICK_SECONDS)
    await until(lambda: bool(other.expired))
    assert len(again.expired) == 1
    deadlines.close()
    assert deadlines._timer is None


async def test_a_mistake_at_one_deadline_delays_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    wrong, same, late = (Timed(deadlines) for _ in range(3))
    wrong.expired = None  # type: ignore[assignment]
    deadlines.add(wrong, A_WHILE)
    deadlines.add(same, A_WHILE)
    deadlines.add(late, A_WHILE + TICK_SECONDS)
    await until(lambda: bool(same.expired and late.expired))
    assert "AttributeError" in caplog.text
    assert deadlines._timer is None


async def outcome_of(attempt_of: object) -> object:
    outcomes: list[object] = []
    TaskAttempt(asyncio.get_running_loop(), attempt_of, outcomes.append, pytest.fail)  # type: ignore[arg-type]
    await until(lambda: bool(outcomes))
    [outcome] = outcomes
    return outcome


async def test_a_coroutine_reports_its_result_or_its_error() -> None:
    refused = ConnectionRefusedError()

    async def give(result: object) -> object:
        await asyncio.sleep(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert await outcome_of(give(5)) == 5
    assert await outcome_of(give(refused)) is refused


async def test_a_mistake_of_a_coroutine_is_logged_and_ends_its_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("a mistake")

    outcome = await outcome_of(fail())
    assert isinstance(outcome, OSError)
    assert outcome.errno == errno.ECANCELED
    await until(lambda: "a mistake" in caplog.text)


async def test_a_result_that_comes_with_the_cancellation_goes_to_nobody() -> None:
    spare: list[int] = []
    ready = asyncio.get_running_loop().create_future()

    async def give() -> int:
        return int(await ready)

    attempt = TaskAttempt(asyncio.get_running_loop(), give(), pytest.fail, spare.append)
    await asyncio.sleep(0)
    ready.set_result(7)
    await asyncio.sleep(0)  # the coroutine has ended, and the callback is still to come
    assert attempt.task.done()
    attempt.cancel()
    await until(lambda: spare == [7])


async def test_a_cancelled_coroutine_reports_nothing() -> None:
    attempt = TaskAttempt(asyncio.get_running_loop(), asyncio.sleep(60), pytest.fail, pytest.fail)
    attempt.cancel()
    await until(attempt.task.done)
    await asyncio.sleep(0)
    assert attempt.task.cancelled()


async def test_a_socket_is_closed_with_an_attempt_that_never_began() -> None:
    async def keep(sock: socket.socket) -> None:
        pytest.fail(f"{sock} is used")

    loop = asyncio.get_running_loop()
    sock = socket.socket()
    attempt = TaskAttempt(loop, keep(sock), pytest.fail, pytest.fail, sock)
    attempt.cancel()
    await until(lambda: sock.fileno() == -1)


async def test_a_socket_that_was_kept_stays_open() -> None:
    outcomes: list[object] = []
    with socket.socket() as sock:
        TaskAttempt(
            asyncio.get_running_loop(), asyncio.sleep(0), outcomes.append, pytest.fail, sock
        )
        await until(lambda: outcomes == [None])
        assert sock.fileno() != -1

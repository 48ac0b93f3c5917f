"""Work that goes on although its caller is cancelled."""

import asyncio
import gc

import pytest

from market.base.finishing import finished


class Work:
    """Work that waits until it may end, and then has an error or none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = asyncio.Event()
        self.began = asyncio.Event()
        self.outcome = ""
        self._error = error

    async def run(self) -> str:
        self.began.set()
        try:
            await self.may_end.wait()
            if self._error is not None:
                raise self._error
        except BaseException as error:
            self.outcome = type(error).__name__
            raise
        self.outcome = "done"
        return self.outcome


async def test_the_result_and_the_error_of_the_work_are_the_callers() -> None:
    work, failing = Work(), Work(ValueError("it broke"))
    work.may_end.set()
    failing.may_end.set()
    assert await finished(work.run()) == "done"
    with pytest.raises(ValueError, match="it broke"):
        await finished(failing.run())


@pytest.mark.parametrize("error", [None, ValueError("it broke")])
async def test_a_cancelled_caller_waits_for_the_end_of_the_work(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(error)
    caller = asyncio.create_task(finished(work.run()))
    await work.began.wait()
    caller.cancel()
    await asyncio.wait([caller], timeout=0)
    assert not caller.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.outcome == ("done" if error is None else "ValueError")
    gc.collect()
    assert not caplog.records  # asyncio would log the lost error


async def test_a_second_cancellation_also_cancels_the_work() -> None:
    work = Work()
    caller = asyncio.create_task(finished(work.run()))
    await work.began.wait()
    caller.cancel()
    await asyncio.wait([caller], timeout=0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.wait_for(asyncio.gather(*_others(), return_exceptions=True), 5)
    assert work.outcome == "CancelledError"


def _others() -> list[asyncio.Task[object]]:
    return [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]

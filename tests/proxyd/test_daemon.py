"""The daemon's own loops go on whatever one turn of them meets."""

import pytest
from support.service import Service
from support.waiting import until

from storage.errors import UnavailableError


@pytest.mark.parametrize("error", [LookupError("has no hold"), UnavailableError("gone")])
async def test_a_sweep_that_fails_is_told_once_and_tried_again(
    service: Service, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    outcomes: list[Exception | None] = [error, error, None, error, None]
    done = []

    async def sweep() -> None:
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome
        done.append(None)

    service.daemon.tasks.every(0, "lost", sweep, "lost things")
    await until(lambda: len(done) >= 3, "it goes on")
    told = [each for each in caplog.records if "lost things wait" in each.getMessage()]
    assert len(told) == 2
    assert not service.daemon.tasks.has_failed

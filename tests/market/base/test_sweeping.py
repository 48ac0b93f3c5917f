"""A sweep handles the objects that are due: one that fails is put off and holds up nothing else."""

import logging

import pytest

from market.base.sweeping import PUT_OFF_SECONDS, Sweep
from storage.engines.errors import UnavailableError

LOGGER = logging.getLogger("sweeping")


class Due:
    """Objects that are due, oldest first, and the exceptions of acting on some of them."""

    def __init__(self, *due: str, **failures: Exception) -> None:
        self.due = list(due)
        self.failures = failures
        self.acted: list[str] = []

    async def find(self, most: int) -> list[str]:
        return self.due[:most]

    async def act(self, each: str) -> None:
        if each in self.failures:
            raise self.failures[each]
        self.due.remove(each)
        self.acted.append(each)


async def test_the_sweeps_of_a_turn_are_bounded_the_first_ones_first() -> None:
    sweep, due = Sweep("%s", LOGGER), Due("a", "b", "c")
    assert await sweep.run(due.find, due.act, most=2, now=0) == 2
    assert due.acted == ["a", "b"]
    assert await sweep.run(due.find, due.act, most=2, now=0) == 1
    assert due.due == []


async def test_a_failed_sweep_is_logged_put_off_and_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sweep, due = Sweep("cannot do %s", LOGGER), Due("a", "b", "c", a=LookupError("no hold"))
    assert await sweep.run(due.find, due.act, most=2, now=100) == 1
    assert [record.getMessage() for record in caplog.records] == ["cannot do a"]
    # The object that is put off takes no other's turn, although it is still the first that is due.
    assert await sweep.run(due.find, due.act, most=1, now=101) == 1
    assert due.acted == ["b", "c"]
    due.failures.clear()
    assert await sweep.run(due.find, due.act, most=1, now=100 + PUT_OFF_SECONDS - 1) == 0
    assert await sweep.run(due.find, due.act, most=1, now=100 + PUT_OFF_SECONDS) == 1
    assert len(caplog.records) == 1


async def test_a_store_that_is_away_ends_the_sweep_and_puts_nothing_off() -> None:
    sweep, due = Sweep("%s", LOGGER), Due("a", "b", a=UnavailableError("gone"))
    with pytest.raises(UnavailableError):
        await sweep.run(due.find, due.act, most=2, now=0)
    assert due.acted == []
    due.failures.clear()
    assert await sweep.run(due.find, due.act, most=2, now=0) == 2

"""The life cycles: every table whole, way by way."""

import itertools

import pytest
from support.base.cases import cases

from market.base.states import TRANSITIONS, JobStatus, SessionStatus, Status

WAYS = {
    (SessionStatus.ACTIVE, SessionStatus.ENDED),
    (SessionStatus.ACTIVE, SessionStatus.EXHAUSTED),
    (SessionStatus.ACTIVE, SessionStatus.EXPIRED),
    (JobStatus.WAITING, JobStatus.RUNNING),
    (JobStatus.WAITING, JobStatus.CANCELLED),
    (JobStatus.RUNNING, JobStatus.WAITING),
    (JobStatus.RUNNING, JobStatus.COMPLETED),
    (JobStatus.RUNNING, JobStatus.FAILED),
    (JobStatus.RUNNING, JobStatus.CANCELLED),
}
CYCLES = [SessionStatus, JobStatus]
EVERY = [pair for cycle in CYCLES for pair in itertools.product(cycle, cycle)]


def test_the_states_are_the_words_that_are_stored_and_shown() -> None:
    assert [str(status) for status in SessionStatus] == ["active", "ended", "exhausted", "expired"]
    assert [str(status) for status in JobStatus] == [
        "waiting",
        "running",
        "completed",
        "failed",
        "cancelled",
    ]


@cases("cycle", CYCLES)
def test_the_table_knows_every_state(cycle: type[Status]) -> None:
    assert set(TRANSITIONS[cycle]) == set(cycle)


@cases(("before", "after"), EVERY)
def test_there_are_only_the_ways_that_the_table_says(before: Status, after: Status) -> None:
    if (before, after) in WAYS:
        before.require_before(after)
    else:
        with pytest.raises(ValueError, match=f"no transition from {before} to {after}"):
            before.require_before(after)


@cases("cycle", CYCLES)
def test_every_state_but_the_first_is_reached(cycle: type[Status]) -> None:
    reached = set().union(*TRANSITIONS[cycle].values())
    first = next(iter(cycle))
    assert reached | {first} == set(cycle)

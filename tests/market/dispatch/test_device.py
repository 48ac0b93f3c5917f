"""The states of a device that asks for work, and the arrows between them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.base.cases import cases
from support.market.work import ask

from market.attempts.attempts import Action
from market.dispatch.asks import Agent, DispatchPace
from market.dispatch.device import (
    TRANSITIONS,
    Answers,
    AskingDevice,
    Attendance,
    Holding,
    Knowledge,
    Presence,
    Request,
    moved,
)

ONE, TWO = ("one", 1), ("two", 1)
PACE = DispatchPace(away_seconds=100.0, broken_off_seconds=10.0)


def row_of(key: tuple[str, int]) -> Any:
    return SimpleNamespace(job_id=key[0], attempt=key[1])


def request_of(device: AskingDevice) -> Request:
    row: Any = SimpleNamespace(id="device", user_id="owner")
    return Request(row, device, ask(), None)


@cases("states", [Knowledge, Presence])
def test_every_state_is_reached_and_left_by_arrows_of_its_own_kind(states: Any) -> None:
    for state in states:
        assert TRANSITIONS[state]
        assert set(TRANSITIONS[state]) <= set(states) - {state}
        assert any(state in TRANSITIONS[other] for other in states)
    assert len(TRANSITIONS) == len(Knowledge) + len(Presence)  # no two have the same number


@cases("states", [Knowledge, Presence])
def test_a_state_without_an_arrow_is_never_entered(states: Any) -> None:
    for before in states:
        for after in states:
            if after in TRANSITIONS[before]:
                assert moved(before, after) is after
            else:
                with pytest.raises(AssertionError):
                    moved(before, after)


def test_the_attempts_are_known_once_they_were_looked_up() -> None:
    holding = Holding()
    assert not holding.is_known
    look = holding.look()
    assert not holding.is_known
    holding.found(look, frozenset((ONE,)))
    assert holding.is_known
    holding.add(row_of(TWO))
    assert (holding.is_known, holding.attempts) == (True, {ONE, TWO})
    for _ in range(2):
        holding.doubt()
        assert not holding.is_known
    assert holding.attempts == {ONE, TWO}


def test_an_event_during_a_look_has_the_device_looked_up_again() -> None:
    holding = Holding()
    look = holding.look()
    holding.doubt()
    holding.found(look, frozenset((ONE,)))
    assert (holding.is_known, holding.attempts) == (False, {ONE})
    holding.found(holding.look(), frozenset())
    assert (holding.is_known, holding.attempts) == (True, frozenset())


def test_of_two_looks_the_later_one_counts() -> None:
    holding = Holding()
    first, second = holding.look(), holding.look()
    assert not holding.found(first, frozenset((ONE,)))
    assert (holding.is_known, holding.attempts) == (False, frozenset())
    assert holding.found(second, frozenset((TWO,)))
    assert (holding.is_known, holding.attempts) == (True, {TWO})
    holding.failed(first)
    holding.found(first, frozenset((ONE,)))
    assert (holding.is_known, holding.attempts) == (True, {TWO})


def test_a_look_that_fails_leaves_the_attempts_unknown() -> None:
    holding = Holding()
    holding.found(holding.look(), frozenset((ONE,)))
    look = holding.look()  # the device names other attempts
    holding.failed(look)
    assert (holding.is_known, holding.attempts) == (False, {ONE})


async def test_later_requests_wait_until_no_job_is_being_given() -> None:
    holding = Holding()
    await holding.settle()
    for _ in range(2):
        holding.begin_claim()
    waiting = [asyncio.create_task(holding.settle()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting.pop().cancel()  # the others go on waiting
    holding.end_claim()
    await asyncio.sleep(0)
    assert not waiting[0].done()
    holding.end_claim()
    await waiting[0]


def test_an_agent_that_breaks_off_is_away_sooner() -> None:
    device, presence = AskingDevice(), Attendance()
    for is_broken_off, seconds in ((False, 100.0), (True, 10.0), (False, 100.0)):
        for _ in range(2):  # the second one takes the place of the first
            presence.begin(request_of(device))
        assert presence.is_asking(1e9, PACE)
        presence.end(5.0, is_broken_off=is_broken_off)
        assert presence.is_asking(5.0 + seconds, PACE)
        assert not presence.is_asking(5.1 + seconds, PACE)
    with pytest.raises(AssertionError):
        presence.end(6.0, is_broken_off=False)


def test_an_earlier_agent_gets_jobs_once_the_later_one_is_away() -> None:
    presence = Attendance()
    old, new = Agent("old", 1), Agent("new", 2)
    assert presence.is_for(old, 0.0, PACE)
    assert presence.is_for(new, 0.0, PACE)
    assert not presence.is_for(old, 100.0, PACE)
    assert presence.is_for(old, 100.1, PACE)
    assert presence.has_other(new)
    assert not presence.has_other(Agent())


def test_an_answer_is_repeated_until_the_device_has_seen_it() -> None:
    answers, stop = Answers(), Action("job", 1, "stop", "over")
    number = answers.add(ask(), [ONE], [stop])
    assert answers.is_unseen(row_of(ONE), ask(seen=number - 1))
    assert not answers.is_unseen(row_of(ONE), ask(seen=number))  # it does not take it
    assert answers.new([stop], number - 1) == [stop]
    answers.add(ask(), [], [stop])
    assert answers.new([stop], answers.acted_at) == []
    assert answers.new([], answers.acted_at) == []
    assert answers.new([stop], answers.acted_at) == [stop]  # anew
    answers.keep({ONE}, {ONE})
    assert (answers.given, set(answers.agents)) == ({}, {ONE})
    answers.keep((), ())
    assert answers.agents == {}


def test_an_attempt_is_given_again_only_to_its_own_agent() -> None:
    answers, mine = Answers(), Agent("mine", 1)
    answers.add(ask(agent=mine), [ONE], [])
    assert answers.is_unseen(row_of(ONE), ask(agent=mine))
    assert not answers.is_unseen(row_of(ONE), ask(agent=Agent("other", 2)))
    assert answers.is_unseen(row_of(TWO), ask(agent=mine))

"""What is remembered of the addresses that open sessions, and forgotten."""

import asyncio

import pytest
from support.waiting import until

from market.leases import Grant
from market.states import SessionStatus
from proxyd.metering.allowlist import Addresses, Name
from proxyd.metering.session import LiveSession
from proxyd.metering.single_flight import LOOKUPS_MAX
from proxyd.wire.events import Refusal

HERE, THERE = (0, "192.0.2.1"), (0, "192.0.2.2")


def session(*names: Name) -> LiveSession:
    grant = Grant("id", "name", "hash", SessionStatus.ACTIVE, 2**40, "lease", 100, names)
    return LiveSession(grant, lambda _: None)


class Asked:
    """What `find` of an `Addresses` is, without a store; it opens nothing until told."""

    def __init__(self) -> None:
        self.names: list[Name] = []
        self.go = asyncio.Event()

    async def __call__(self, name: Name) -> LiveSession | None:
        self.names.append(name)
        await self.go.wait()
        return None


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_session_that_is_forgotten_leaves_the_next_one_its_addresses(asked: Asked) -> None:
    known, outcomes = Addresses(asked), []
    first, second = session(HERE, THERE), session(HERE)
    known.opens(first)
    first.status = SessionStatus.ENDED
    known.opens(second)
    known.forget(first)
    hear(outcomes, known.ask(HERE, HERE[1], outcomes.append))
    assert outcomes == [second]
    known.forget(second)
    known.forget(second)


def hear(outcomes: list, answer: object) -> None:
    """Note an answer that is known at once."""
    if answer is not None:
        outcomes.append(answer)


async def test_what_is_forgotten_is_asked_for_again(asked: Asked) -> None:
    known, outcomes = Addresses(asked), []
    first = session(HERE, THERE)
    known.opens(first)
    known.forget(first)
    asked.go.set()
    for name in (HERE, THERE):
        hear(outcomes, known.ask(name, name[1], outcomes.append))
    await until(lambda: len(outcomes) == 2)
    assert asked.names == [HERE, THERE]
    assert outcomes == [Refusal.WRONG] * 2


async def test_an_address_that_was_proved_elsewhere_is_asked_for_once() -> None:
    known_by_another, questions, outcomes = session(HERE), [], []

    async def find(name: Name) -> LiveSession | None:
        questions.append(name)
        return known_by_another

    known = Addresses(find)
    known.opens(known_by_another)
    for number in range(1, 4):
        hear(outcomes, known.ask(THERE, THERE[1], outcomes.append))
        await until(lambda expected=number: len(outcomes) == expected)
    assert questions == [THERE]
    assert outcomes == [known_by_another] * 3
    known.forget(known_by_another)
    hear(outcomes, known.ask(THERE, THERE[1], outcomes.append))
    await until(lambda: len(outcomes) == 4)
    assert questions == [THERE] * 2


async def test_many_who_ask_the_same_are_one_question(asked: Asked) -> None:
    known, outcomes = Addresses(asked), []
    for _ in range(100):
        hear(outcomes, known.ask(HERE, HERE[1], outcomes.append))
    await until(lambda: bool(asked.names))
    asked.go.set()
    await until(lambda: bool(outcomes))
    assert asked.names == [HERE]
    assert outcomes == [Refusal.WRONG] * 100


async def test_no_more_is_asked_at_once_than_there_is_room_for(asked: Asked) -> None:
    known, outcomes = Addresses(asked), []
    for each in range(LOOKUPS_MAX):
        hear(outcomes, known.ask((0, str(each)), str(each), outcomes.append))
    assert outcomes == []
    hear(outcomes, known.ask(HERE, HERE[1], outcomes.append))
    assert outcomes == [Refusal.UNAVAILABLE]
    hear(outcomes, known.ask((0, "0"), "0", outcomes.append))
    assert outcomes == [Refusal.UNAVAILABLE]
    await known.stop()
    hear(outcomes, known.ask((0, "0"), "0", outcomes.append))
    assert outcomes == [Refusal.UNAVAILABLE] * 2

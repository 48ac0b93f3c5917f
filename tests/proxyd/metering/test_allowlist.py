"""What is remembered of the addresses that open sessions, and forgotten."""

import asyncio

import pytest
from support.base.waiting import until

from market.bandwidth.leases import Grant
from market.base.states import SessionStatus
from proxyd.metering.allowlist import Allowlist
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Entry, Sessions
from proxyd.metering.single_flight import LOOKUPS_MAX
from proxyd.wire.events import Refusal

HERE, THERE = (0, "192.0.2.1"), (0, "192.0.2.2")


def grant(*entries: Entry, session_id: str = "id") -> Grant:
    return Grant(session_id, session_id, "hash", SessionStatus.ACTIVE, 2**40, "lease", 100, entries)


def known(sessions: Sessions, *entries: Entry, session_id: str = "id") -> LiveSession:
    """Return a session that is known, and opened by client addresses."""
    made = grant(*entries, session_id=session_id)
    session = LiveSession(made, lambda _: None)
    sessions.add(session, made)
    return session


def ask(
    allowlist: Allowlist, entry: Entry, outcomes: list[LiveSession | Refusal], asker: str = ""
) -> None:
    """Ask, and have the answer among the outcomes, now or later."""
    answer = allowlist.ask(entry, asker or entry[1], outcomes.append)
    if answer is not None:
        outcomes.append(answer)


class Asked:
    """What `find` of an `Allowlist` is, without a store; it opens nothing until told."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.go = asyncio.Event()

    async def __call__(self, entry: Entry) -> LiveSession | None:
        self.entries.append(entry)
        await self.go.wait()
        return None


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_session_that_is_forgotten_leaves_the_next_one_its_addresses(asked: Asked) -> None:
    sessions, outcomes = Sessions(), []
    allowlist = Allowlist(sessions, asked)
    first = known(sessions, HERE, THERE, session_id="first")
    first.status = SessionStatus.ENDED
    second = known(sessions, HERE, session_id="second")
    sessions.drop(first)
    ask(allowlist, HERE, outcomes)
    assert outcomes == [second]
    sessions.drop(second)
    sessions.drop(second)


async def test_a_forgotten_address_is_asked_for_again(asked: Asked) -> None:
    sessions, outcomes = Sessions(), []
    allowlist = Allowlist(sessions, asked)
    sessions.drop(known(sessions, HERE, THERE))
    asked.go.set()
    for entry in (HERE, THERE):
        ask(allowlist, entry, outcomes)
    await until(lambda: len(outcomes) == 2)
    assert asked.entries == [HERE, THERE]
    assert outcomes == [Refusal.WRONG] * 2


async def test_an_address_that_was_proved_elsewhere_is_asked_for_once() -> None:
    sessions, questions, outcomes = Sessions(), [], []
    session = known(sessions, HERE)

    async def find(entry: Entry) -> LiveSession | None:
        questions.append(entry)
        return session

    allowlist = Allowlist(sessions, find)
    for number in range(1, 4):
        ask(allowlist, THERE, outcomes)
        await until(lambda expected=number: len(outcomes) == expected)
    assert questions == [THERE]
    assert outcomes == [session] * 3
    sessions.drop(session)
    ask(allowlist, THERE, outcomes)
    await until(lambda: len(outcomes) == 4)
    assert questions == [THERE] * 2


async def test_many_clients_with_the_same_question_are_one_question(asked: Asked) -> None:
    allowlist, outcomes = Allowlist(Sessions(), asked), []
    for _ in range(100):
        ask(allowlist, HERE, outcomes)
    await until(lambda: bool(asked.entries))
    asked.go.set()
    await until(lambda: bool(outcomes))
    assert asked.entries == [HERE]
    assert outcomes == [Refusal.WRONG] * 100


async def test_no_more_queries_are_open_than_there_is_room_for(asked: Asked) -> None:
    allowlist, outcomes = Allowlist(Sessions(), asked), []
    for each in range(LOOKUPS_MAX):
        ask(allowlist, (0, str(each)), outcomes)
    assert outcomes == []
    ask(allowlist, HERE, outcomes)
    assert outcomes == [Refusal.UNAVAILABLE]
    ask(allowlist, (0, "0"), outcomes)
    assert outcomes == [Refusal.UNAVAILABLE]
    await allowlist.stop()
    ask(allowlist, (0, "0"), outcomes)
    assert outcomes == [Refusal.UNAVAILABLE] * 2

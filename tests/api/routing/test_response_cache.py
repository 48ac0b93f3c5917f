"""Answers are kept only as long as nothing was changed, by whomever."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.daemons import process
from support.daemons.service import Person, Service

from api.routing.response_cache import Answers
from api.routing.routes import Reply
from market.money.money import Currency


class Asked:
    """A question whose answers are counted."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> Reply:
        self.times += 1
        return Reply()


async def test_a_question_is_asked_once_for_each_version() -> None:
    version = b"1"
    answers, asked = Answers(lambda: version), Asked()
    for _ in range(3):
        assert (await answers.get("a", asked)).body == b'{"ok":true}\n'
    assert asked.times == 1
    await answers.get("b", asked)
    version = b"2"
    await answers.get("a", asked)
    assert asked.times == 3


async def test_without_a_version_nothing_is_kept() -> None:
    answers, asked = Answers(lambda: None), Asked()
    for _ in range(3):
        await answers.get("a", asked)
    assert asked.times == 3


async def test_a_value_that_changed_during_the_query_is_not_kept() -> None:
    versions = iter([b"1", b"2", b"2"])
    answers, asked = Answers(lambda: next(versions)), Asked()
    await answers.get("a", asked)
    await answers.get("a", asked)
    await answers.get("a", asked)
    assert asked.times == 2


async def test_a_value_that_was_read_before_a_change_is_not_kept_after_it() -> None:
    version = b"1"
    answers, asked = Answers(lambda: version), Asked()

    async def slowly() -> Reply:
        nonlocal version
        version = b"2"
        await answers.get("b", asked)
        return Reply()

    await answers.get("a", slowly)
    await answers.get("b", asked)
    assert asked.times == 1
    await answers.get("a", asked)
    assert asked.times == 2


async def test_the_bytes_of_all_answers_are_bounded() -> None:
    most = len(b'{"ok":true}\n') * 2
    answers, asked = Answers(lambda: b"1", kept_max_bytes=most), Asked()
    for question in "abab":
        await answers.get(question, asked)
    assert asked.times == 2
    await answers.get("c", asked)
    await answers.get("b", asked)
    assert asked.times == 4
    answers = Answers(lambda: b"1", kept_max_bytes=1)
    for _ in range(2):
        await answers.get("long", asked)
    assert asked.times == 6


@pytest.fixture
async def buyer(service: Service) -> Person:
    person = await service.person(usd="10")
    await service.fund(person.email, "10", Currency.CREDIT)
    return person


async def jobs(service: Service) -> list[dict[str, Any]]:
    return list((await service.call("GET", "/api/marketplace/jobs")).body["jobs"])


async def test_a_change_is_read_at_once(service: Service, buyer: Person) -> None:
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    for number in range(1, 6):
        assert len(await jobs(service)) == number - 1
        made = await service.call("POST", "/api/jobs", job, token=buyer.token)
        assert (await jobs(service))[0]["id"] == made.body["job_id"]
        me = await service.call("GET", "/auth/me", token=buyer.token)
        assert me.body["credit_balance"] == 10 - number
    await service.call("POST", f"/api/jobs/{made.body['job_id']}/cancel", token=buyer.token)
    assert len(await jobs(service)) == 4
    await service.call("POST", "/auth/logout", token=buyer.token)
    assert (await service.call("GET", "/auth/me", token=buyer.token)).status == 401


async def test_a_change_by_another_program_is_read_at_once(
    service: Service, buyer: Person, tmp_path: Path
) -> None:
    assert await service.balance(buyer) == 10
    url = f"sqlite:///{tmp_path}/proxyd.db"
    # In a thread: a daemon that stands still may hold the write lock of the database.
    done = await asyncio.to_thread(process.run, url, "wallet", "deposit", buyer.email, "--usd", "5")
    assert done.returncode == 0, done.stderr
    assert await service.balance(buyer) == 15

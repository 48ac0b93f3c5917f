"""Limits of one user, as the operator sets them and as the API returns them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.daemons.service import Answer, Person, Service, running_in

JOB = {"title": "t", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
DEPLOY = {"job_name": "d", "job_type": "Docker", "gpu_model": "any", "replicas": 2}
SESSION = {"gb": 0.001}
DEVICE = {"name": "rig"}


async def post(service: Service, person: Person, path: str, body: dict[str, Any]) -> Answer:
    return await service.call("POST", path, body, token=person.token)


@pytest.mark.parametrize(
    ("limit", "path", "body", "code"),
    [
        ("sessions_per_user", "/api/bandwidth/create", SESSION, "too_many_sessions"),
        ("devices_per_user", "/api/worker/token/create", DEVICE, "too_many_devices"),
        ("jobs_per_user", "/api/jobs", JOB, "too_many_jobs"),
        ("free_jobs_per_user", "/api/jobs", {**JOB, "price_credit": 0}, "too_many_free_jobs"),
    ],
)
async def test_one_more_than_a_user_may_have_is_refused_until_the_operator_allows_it(
    tmp_path: Path, limit: str, path: str, body: dict[str, Any], code: str
) -> None:
    async with running_in(tmp_path, limits={limit: 2}) as service:
        person, other = [await service.person(usd="10", credit="10") for _ in range(2)]
        answers = [await post(service, person, path, body) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert answers[2].code == code
        assert "The bound is 2." in answers[2].body["error"]["message"]
        assert (await post(service, other, path, body)).status == 200
        settings = service.daemon.settings
        limits = msgspec.structs.replace(settings.limits, **{limit: 3})
        service.daemon.reload(msgspec.structs.replace(settings, limits=limits))
        answers = [await post(service, person, path, body) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 400]
        await service.assert_audit()


async def test_a_deploy_is_as_many_jobs_as_it_has_replicas(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"jobs_per_user": 3}) as service:
        person = await service.person(usd="10", credit="10")
        assert (await post(service, person, "/api/deploy/job", DEPLOY)).status == 200
        refused = await post(service, person, "/api/deploy/job", DEPLOY)
        assert (refused.status, refused.code) == (400, "too_many_jobs")
        assert (await post(service, person, "/api/jobs", JOB)).status == 200
        await service.assert_audit()


async def test_the_bytes_of_a_users_jobs_are_bounded(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"job_bytes_per_user": 100_000}) as service:
        person = await service.person(credit="10")
        body = {**JOB, "description": "\N{GRINNING FACE}" * 20_000}
        answers = [await post(service, person, "/api/jobs", body) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 400]
        assert answers[1].code == "too_much_job_text"


async def test_an_operator_sells_nothing_that_is_worth_less_than_he_says(tmp_path: Path) -> None:
    market = {"session_cost_floor_usd": "0.01"}
    async with running_in(tmp_path, market=market) as service:
        person = await service.person(usd="10")
        refused = await post(service, person, "/api/bandwidth/create", {"gb": 0.009})
        assert (refused.status, refused.code, refused.field) == (400, "session_too_small", "gb")
        assert (await post(service, person, "/api/bandwidth/create", {"gb": 0.01})).status == 200

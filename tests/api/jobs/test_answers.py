"""Answers over HTTP: the worker answers, the staff reads it, and after the decision it is late."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.staff import StaffApi, staffed

from market.staff.base.roles import Role
from tests.api.jobs.test_reviews import say
from tests.api.staff.test_jobs import WHY, disputed


@pytest.fixture
async def staff(tmp_path: Path) -> AsyncIterator[StaffApi]:
    async with staffed(tmp_path) as running:
        yield running


async def test_a_worker_answers_a_dispute_until_the_decision(staff: StaffApi) -> None:
    job_id, buyer, owner = await disputed(staff)
    service, token = staff.service, await staff.token(Role.FINANCE)
    [device] = (await service.call("GET", "/api/worker/devices", token=owner.token)).body["devices"]
    jobs = f"/api/worker/devices/{device['id']}/jobs"
    for wrong in ({}, {"text": ""}, {"text": "x" * 2_001}, {"text": 1}):
        assert (await say(service, owner, job_id, "answer", wrong)).status == 400, wrong
    for person, code in ((buyer, "not_reviewable"), (await service.person(), "job_not_found")):
        assert (await say(service, person, job_id, "answer", {"text": "x"})).code == code
    for text in ("the log has the sum", "<b>the</b> log has the sum"):
        answer = await say(service, owner, job_id, "answer", {"text": text})
        assert answer.status == 200, answer.body
    [had] = (await service.call("GET", jobs, token=owner.token)).body["jobs"]
    assert had["answer"] == "<b>the</b> log has the sum"
    assert had["disputed_at"] <= answer.body["answered_at"]
    [read] = (await staff.call("GET", f"/jobs/{job_id}", token=token)).body["answers"]
    assert read == {
        "worker": owner.user_id,
        "answered_at": answer.body["answered_at"],
        "answer": "<b>the</b> log has the sum",
    }
    of_buyer = (await service.call("GET", f"/api/jobs/{job_id}", token=buyer.token)).body
    assert "log has the sum" not in str(of_buyer)
    await staff.call("POST", f"/jobs/{job_id}/uphold", WHY, token=token)
    late = await say(service, owner, job_id, "answer", {"text": "x"})
    assert (late.status, late.code) == (400, "not_reviewable")
    [had] = (await service.call("GET", jobs, token=owner.token)).body["jobs"]
    assert "disputed_at" not in had

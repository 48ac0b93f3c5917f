"""Appeals over HTTP: the buyer appeals, a second member lets it succeed, and the list shows it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.staff import StaffApi, staffed

from market.staff.base.roles import Role
from tests.api.jobs.test_reviews import say, wallet
from tests.api.staff.test_jobs import WHY, disputed


@pytest.fixture
async def staff(tmp_path: Path) -> AsyncIterator[StaffApi]:
    async with staffed(tmp_path) as running:
        yield running


async def test_a_buyer_appeals_and_another_member_decides(staff: StaffApi) -> None:
    job_id, buyer, _ = await disputed(staff)
    service, first = staff.service, await staff.token(Role.FINANCE)
    early = await say(service, buyer, job_id, "appeal", {"reason": "x"})
    assert (early.status, early.code) == (400, "not_reviewable")
    await staff.call("POST", f"/jobs/{job_id}/uphold", WHY, token=first)
    made = await say(service, buyer, job_id, "appeal", {"reason": "the log shows it"})
    again = await say(service, buyer, job_id, "appeal", {"reason": "other words"})
    assert made.status == 200, made.body
    assert again.body["appeal_id"] == made.body["appeal_id"]
    one = f"/cases/appeal/{made.body['appeal_id']}"
    refused = await staff.call("POST", f"{one}/void", WHY, token=first)
    assert refused.code == "not_permitted"
    other = await staff.login(await staff.hire(Role.OPERATOR, "other"))
    page = (await staff.call("GET", one, token=other)).body["case"]
    assert (page["user_id"], page["amount"], page["due_at"]) == (
        buyer.user_id,
        10,
        made.body["due_at"],
    )
    done = await staff.call("POST", f"{one}/void", {**WHY, "percent": 60}, token=other)
    assert (done.status, done.body["amount"]) == (200, 6)
    assert (await wallet(service, buyer))[0] == 6
    listed = await service.call("GET", "/api/appeals", token=buyer.token)
    [appeal] = listed.body["appeals"]
    assert (appeal["decision"], appeal["amount"], appeal["job_id"]) == ("voided", 6, job_id)

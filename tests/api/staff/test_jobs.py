"""Disputes at the staff API: listed, shown with their log, and decided each way."""

from typing import Any

from support.clients.staff import StaffApi

from market.staff.base.roles import Role
from proxyd import slices
from storage.logs.files import Attempt, LogFiles
from tests.api.jobs.test_reviews import done, say, wallet

WHY = {"reason": "read the log"}


async def disputed(staff: StaffApi, reason: str = "an empty file") -> tuple[str, Any, Any]:
    """Have a job for 10 credits done and disputed; return it, its buyer and its worker."""
    service = staff.service
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id = await done(service, buyer, owner)
    assert (await say(service, buyer, job_id, "dispute", {"reason": reason})).status == 200
    return job_id, buyer, owner


async def test_a_dispute_is_shown_with_its_log(staff: StaffApi) -> None:
    job_id, buyer, owner = await disputed(staff, "<b>empty</b>")
    terms = slices.log_terms(staff.service.daemon.settings)
    logs = LogFiles(terms.folder, keep_bytes=terms.keep_bytes)
    logs.write(Attempt(job_id, 1), "out", 0, b"one\ntwo\nNo space left on device\n")
    token = await staff.token(Role.SUPPORT)
    [listed] = (await staff.call("GET", "/disputes", token=token)).body["disputes"]
    assert (listed["job_id"], listed["price"], listed["buyer"]) == (job_id, 10, buyer.user_id)
    page = (await staff.call("GET", f"/jobs/{job_id}", token=token)).body
    assert page["statements"][0]["reason"] == "<b>empty</b>"
    assert page["attempts"][0]["outcome"] == "completed"
    assert (page["devices"][0]["owner"], page["buyer"]["disputes"]) == (owner.user_id, 1)
    found = await staff.call("POST", f"/jobs/{job_id}/log", {"text": "no SPACE"}, token=token)
    assert [each["number"] for each in found.body["lines"] if each["is_hit"]] == [3]
    for wrong in ({"stream": "x"}, {"attempt": 0}, {"text": "x" * 201}):
        answer = await staff.call("POST", f"/jobs/{job_id}/log", wrong, token=token)
        assert answer.status == 400, wrong
    none = await staff.call("POST", f"/jobs/{job_id}/log", {"attempt": 2}, token=token)
    assert (none.status, none.code) == (404, "attempt_not_found")
    other = await staff.call("GET", "/jobs/none", token=token)
    assert (other.status, other.code) == (404, "job_not_found")


async def test_a_dispute_is_decided_each_way_once(staff: StaffApi) -> None:
    token = await staff.token(Role.FINANCE)
    for word, more, of_buyer, of_worker in (
        ("uphold", {}, 0, 9),
        ("reverse", {}, 10, 0),
        ("split", {"percent": 40}, 4, 5.4),
    ):
        job_id, buyer, owner = await disputed(staff)
        for state in ("done", "done_before"):
            body = {**WHY, **more}
            answer = await staff.call("POST", f"/jobs/{job_id}/{word}", body, token=token)
            assert (answer.status, answer.body["state"]) == (200, state), answer.body
        assert (await wallet(staff.service, buyer))[0] == of_buyer
        assert (await wallet(staff.service, owner))[0] == of_worker
        late = {"reverse": "uphold"}.get(word, "reverse")
        refused = await staff.call("POST", f"/jobs/{job_id}/{late}", WHY, token=token)
        assert refused.code == "not_reviewable"


async def test_nobody_judges_a_dispute_of_an_own_account(staff: StaffApi) -> None:
    job_id, buyer, owner = await disputed(staff)
    for index, party in enumerate((buyer, owner)):
        member = await staff.hire(Role.FINANCE, f"party{index}")
        token = await staff.login(member)
        declare = {"user": party.user_id, "reason": "mine"}
        await staff.call("POST", f"/staff/{member.id}/declare", declare, token=token)
        refused = await staff.call("POST", f"/jobs/{job_id}/uphold", WHY, token=token)
        assert (refused.status, refused.code) == (401, "not_permitted")

"""Disputes at the staff API: listed, shown with log and files, and decided each way."""

from typing import Any

from support.clients.staff import PREFIX, StaffApi
from support.clients.story import worker_token
from support.workers.artifacts import announced, as_device, upload

from market.staff.base.roles import Role
from proxyd.wiring import slices
from storage.logs.files import Attempt, LogFiles
from tests.api.jobs.test_reviews import done, say, wallet

WHY = {"reason": "read the log"}
PAGE = b"<script>alert(1)</script>"
WANTED = {
    "title": "x",
    "job_type": "script",
    "price_credit": 1,
    "duration_hrs": 1,
    "payload": {"script": "print(1)"},
}


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


async def left_files(staff: StaffApi) -> tuple[str, str, str, Any, Any]:
    """Have a job done with a file, and with one that has not arrived; return all and both sides."""
    service = staff.service
    buyer, owner = await service.person(credit="1"), await service.person()
    made = await service.call("POST", "/api/jobs", WANTED, token=buyer.token)
    job_id, device = str(made.body["job_id"]), as_device(await worker_token(service, owner))
    assert (await service.call("POST", f"/api/jobs/{job_id}/accept", headers=device)).status == 200
    files = f"/api/worker/jobs/{job_id}/artifacts"
    file_id = await upload(service, device, PAGE, files, name="out/a.html", attempt=1)
    begun = await service.call(
        "POST", files, announced(b"x", "b", attempt=1, kind="checkpoint"), headers=device
    )
    finished = await service.call("POST", f"/api/worker/jobs/{job_id}/complete", headers=device)
    assert finished.status == 200, finished.body
    return job_id, file_id, str(begun.body["artifact_id"]), buyer, owner


async def saved(staff: StaffApi, path: str, token: str) -> tuple[int, bytes, Any]:
    """Download a file from the staff API."""
    asked = staff.service.http.get(
        f"{staff.url}{PREFIX}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    async with asked as response:
        return response.status, await response.read(), response.headers


async def test_a_file_of_a_disputed_job_is_saved_by_judges_alone(staff: StaffApi) -> None:
    job_id, file_id, partial_id, buyer, owner = await left_files(staff)
    token, path = await staff.token(Role.FINANCE), f"/jobs/{job_id}/files/{file_id}"
    early = await staff.call("GET", path, token=token)
    assert (early.status, early.code) == (401, "not_permitted")
    assert (await say(staff.service, buyer, job_id, "dispute", {"reason": "empty"})).status == 200
    listed = (await staff.call("GET", f"/jobs/{job_id}", token=token)).body["files"]
    assert [each["id"] for each in listed if each["whole_at"]] == [file_id]
    status, content, headers = await saved(staff, path, token)
    assert (status, content) == (200, PAGE)
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment; ")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    where = await staff.call("GET", f"{path}/address", token=token)
    assert where.body["url"] == f"{PREFIX}{path}"
    support = await staff.token(Role.SUPPORT)
    party = await staff.hire(Role.FINANCE, "party")
    own = await staff.login(party)
    declare = {"user": owner.user_id, "reason": "mine"}
    await staff.call("POST", f"/staff/{party.id}/declare", declare, token=own)
    other_job, *_ = await disputed(staff)
    for refused, asker, code in (
        (path, support, "not_permitted"),
        (f"{path}/address", support, "not_permitted"),
        (path, own, "not_permitted"),
        (f"/jobs/{other_job}/files/{file_id}", token, "artifact_not_found"),
        (f"/jobs/{job_id}/files/{partial_id}", token, "artifact_not_found"),
        (f"/jobs/{job_id}/files/none", token, "artifact_not_found"),
        (f"/jobs/none/files/{file_id}", token, "job_not_found"),
    ):
        assert (await staff.call("GET", refused, token=asker)).code == code, refused
    reader = await staff.token(Role.OPERATOR)
    acts = (await staff.call("GET", "/log?action=job.file", token=reader)).body["acts"]
    assert [each["changes"] for each in acts] == [{"file": {"old": None, "new": file_id}}] * 2
    assert {each["subject_id"] for each in acts} == {job_id}


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
        for method, path, body in (
            ("POST", "/uphold", WHY),
            ("GET", "", None),
            ("POST", "/log", {}),
        ):
            refused = await staff.call(method, f"/jobs/{job_id}{path}", body, token=token)
            assert (refused.status, refused.code) == (401, "not_permitted"), path
        [listed] = (await staff.call("GET", "/disputes", token=token)).body["disputes"]
        assert (listed["job_id"], listed["reason"]) == (job_id, None)

"""Appeals over HTTP: the buyer appeals, a second member lets it succeed, and the list shows it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.staff import StaffApi, staffed
from support.clients.story import worker_token
from support.workers.process import environment

from market.staff.base.roles import Role
from proxyctl.worker.base import names
from proxyctl.worker.base.record import Consent, Lend, save
from tests.api.jobs.test_reviews import done, say, wallet
from tests.api.staff.test_jobs import WHY, disputed


@pytest.fixture
async def staff(tmp_path: Path) -> AsyncIterator[StaffApi]:
    async with staffed(tmp_path) as running:
        yield running


async def proxyctl(folder: Path, *words: str) -> tuple[int | None, str]:
    """Run `proxyctl worker`; return the exit status and the output."""
    command = [sys.executable, "-m", "proxyctl", "worker", *words, "--folder", str(folder)]
    child = await asyncio.create_subprocess_exec(
        *command,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await child.communicate()
    return child.returncode, output.decode()


async def test_a_worker_sees_until_when_an_appeal_is_possible(staff: StaffApi) -> None:
    job_id, _, owner = await disputed(staff)
    await staff.call("POST", f"/jobs/{job_id}/reverse", WHY, token=await staff.token(Role.FINANCE))
    service, token = staff.service, owner.token
    [device] = (await service.call("GET", "/api/worker/devices", token=token)).body["devices"]
    jobs = f"/api/worker/devices/{device['id']}/jobs"
    [had] = (await service.call("GET", jobs, token=token)).body["jobs"]
    assert had["appeal_until"] > had["accepted_at"]
    assert (await say(service, owner, job_id, "appeal", {"reason": "x"})).status == 200
    [had] = (await service.call("GET", jobs, token=token)).body["jobs"]
    assert "appeal_until" not in had


async def test_a_worker_appeals_by_the_program_of_the_device(
    staff: StaffApi, tmp_path: Path
) -> None:
    service, folder = staff.service, tmp_path / "agent"
    buyer, owner = await service.person(credit="10"), await service.person()
    device, second = [await worker_token(service, owner, name) for name in ("rig", "second")]
    job_id = await done(service, buyer, owner, device=device)
    assert (await say(service, buyer, job_id, "dispute", {"reason": "empty"})).status == 200
    await staff.call("POST", f"/jobs/{job_id}/reverse", WHY, token=await staff.token(Role.FINANCE))
    folder.mkdir(mode=0o700)
    known = "appealed; another person decides until 20"
    for token, why, status, said in (
        (second, "the log shows the sum", 1, "There is no such job"),
        (device, "the log shows the sum", 0, known),
        (device, "the log shows the sum", 0, known),
        (device, "the sum is right", 1, "has appealed with another reason, which stays"),
    ):
        agreed = Consent(service.url, token, "2026-01-01T00:00:00+00:00", Lend(cores=1))
        save(folder / names.CONSENT, agreed)
        words = ("appeal", job_id, "--reason", why)
        returned, output = await proxyctl(folder, *words)
        assert (returned, said in output) == (status, True), output
    [appeal] = (await service.call("GET", "/api/appeals", token=owner.token)).body["appeals"]
    assert appeal["job_id"] == job_id


async def test_a_buyer_appeals_and_another_member_decides(staff: StaffApi) -> None:
    job_id, buyer, _ = await disputed(staff)
    service, first = staff.service, await staff.token(Role.FINANCE)
    early = await say(service, buyer, job_id, "appeal", {"reason": "x"})
    assert (early.status, early.code) == (400, "not_reviewable")
    await staff.call("POST", f"/jobs/{job_id}/uphold", WHY, token=first)
    made = await say(service, buyer, job_id, "appeal", {"reason": "the log shows it"})
    again = await say(service, buyer, job_id, "appeal", {"reason": "the log shows it"})
    assert made.status == 200, made.body
    assert again.body == made.body
    other_words = await say(service, buyer, job_id, "appeal", {"reason": "other words"})
    assert (other_words.status, other_words.code) == (400, "already_appealed")
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

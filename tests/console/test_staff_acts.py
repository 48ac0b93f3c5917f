"""Stories of the staff in a browser: money, disputes, a spammer, a stolen key, a cheating exit."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.base.brief import brief
from support.base.waiting import until, until_true
from support.clients.socks import Client
from support.clients.staff import StaffApi, staffed
from support.console.axe import faults, needs_axe
from support.console.browser import Tab, Visit, needs_chromium
from support.console.console import opened
from support.exits.canaries import EVIL, answer, saying, serving_pages
from support.exits.device import EXITS, Consented, Device, Obey, carry, consented
from support.market.staff import PASSWORD
from support.targets import targets

from market.staff.base.roles import Role
from market.staff.members.accounts import Created
from proxyd.exits.attached.certificate import own_certificate
from proxyd.ops.processes.listening import bound_port
from storage.engines.store import Transaction
from tests.api.jobs.test_reviews import say, wallet
from tests.api.staff.test_jobs import disputed, left_files

pytestmark = [
    needs_chromium,
    needs_axe,
    pytest.mark.parametrize("engine", brief(["sqlite", "postgres"])),
]
WHY = "asked by letter 12"


@pytest.fixture
async def staff(store_url: str, tmp_path: Path) -> AsyncIterator[StaffApi]:
    log = {"folder": str(tmp_path / "access"), "enabled": "on"}
    async with staffed(tmp_path, store_url, access_log=log) as running:
        yield running


async def entered(visit: Visit, staff: StaffApi, member: Created, code: int = 0) -> Tab:
    """Log a member in, and return the tab with the queue."""
    visit.expect("401")  # before the login
    tab = await visit.open(f"{staff.url}/staff")
    await log_in(tab, member, code)
    return tab


async def log_in(tab: Tab, member: Created, code: int) -> None:
    await tab.until_text("Staff login", "h1")
    await tab.fill("E-mail address", member.email)
    await tab.fill("Password", PASSWORD)
    await tab.fill("Code", member.factor.codes[code])
    await tab.click("Log in")
    await tab.until_text("Queue", "h1")


async def go(tab: Tab, page: str, title: str) -> None:
    await tab.run(f"location.hash = {page!r}")
    await tab.until_text(title, "h1")


async def test_a_deposit_is_refunded_with_its_consequence_before(
    visit: Visit, staff: StaffApi
) -> None:
    person, ada = await staff.service.person(), await staff.hire(Role.FINANCE, "ada")
    tab = await entered(visit, staff, ada)
    await tab.press("/")
    assert await tab.run("document.activeElement.id") == "q"
    await tab.fill("Search for", person.email)
    await tab.press("Enter")
    await tab.click("person1")
    await tab.click("main a[href^='#/money/']")
    await tab.until_text("Money of person1", "h1")
    assert not await faults(tab)
    await tab.click("Pay money in")
    await tab.fill("Amount paid in", "20")
    await tab.fill("Reference of the payment", "inv-1")
    await tab.fill("details[open] [name=reason]", WHY)
    await tab.click("Pay in")
    await tab.until_text("done: 20 usd")
    await tab.click("Refund a deposit")
    await tab.fill("Amount to refund", "25")
    await tab.until_text("after: -5: more than is available")
    await tab.fill("Amount to refund", "7.42")
    await tab.until_text("available usd before: 20, after: 12.58")
    await tab.fill("Reference of the deposit", "inv-1")
    await tab.fill("Reference of this refund", "<b>r</b>")
    await tab.fill("details[open] [name=reason]", WHY)
    await tab.fill("Reference of this refund", "r-1")

    async def age(tx: Transaction) -> None:
        await tx.run("UPDATE staff_logins SET factor_at = 0")

    await staff.service.daemon.store.write(age)
    await tab.click("Refund")
    await tab.until_text("within the last five minutes")
    await tab.fill("Code of your second factor", ada.factor.codes[1])
    await tab.click("Refund")
    await tab.until_text("done: -7.42 usd")
    await tab.until_text("12.58 usd + 0 held")
    assert not await faults(tab)


async def test_a_dispute_is_decided_each_way(visit: Visit, staff: StaffApi) -> None:
    jobs = [await disputed(staff, f"<img src=x> {word}") for word in ("a", "b", "c")]
    ada = await staff.hire(Role.FINANCE, "ada")
    tab = await entered(visit, staff, ada)
    await tab.until_text("<img src=x> a", "main")  # as text, not as a picture
    choices = [("uphold", "", 0, 9.0), ("reverse", "", 10, 0), ("split", "40", 4, 5.4)]
    for letter, job, choice in zip("abc", jobs, choices, strict=True):
        (job_id, buyer, owner), (word, percent, back, paid) = job, choice
        await go(tab, f"#/job/{job_id}", "Job train")
        await tab.until_text(f"<img src=x> {letter}", "main")
        await tab.click("Show the log")
        await tab.until_text("no lines")
        visit.expect("404")
        await tab.fill("Attempt, empty for the newest", "2")
        await tab.click("Show the log")
        await tab.until_text("This job has no attempt 2: its attempts are 1.")
        assert "no lines" not in await tab.text("main")
        await tab.fill("Decision", word)
        if percent:
            await tab.fill("Percent for the buyer", percent)
        await tab.until_text(f"The buyer gets {back} of 10 credit back")
        if word == "split":
            assert not await faults(tab)
        await tab.fill("Reason, which buyer", "read the log")
        await tab.click("Decide")
        await tab.until_text("decided: ")
        assert (await wallet(staff.service, buyer))[0] == back
        assert (await wallet(staff.service, owner))[0] == paid


async def test_an_appeal_from_the_console_is_judged_on_the_page_of_its_case(
    visit: Visit, staff: StaffApi
) -> None:
    job_id, buyer, _ = await disputed(staff)
    first = await staff.token(Role.OPERATOR)
    await staff.call("POST", f"/jobs/{job_id}/uphold", {"reason": WHY}, token=first)
    tab = await opened(visit, staff.service, buyer, f"/console/jobs/{job_id}")
    await tab.click("Appeal")
    await tab.fill("Objection to the decision", "<b>six</b> of ten")
    await tab.click("button[type=submit]")
    await tab.until_text("You have appealed", "main")
    ada = await staff.hire(Role.FINANCE, "ada")
    tab = await entered(visit, staff, ada)
    await tab.click("main a[href^='#/case/appeal/']")
    await tab.until_text("Case appeal of the buyer", "h1")
    await tab.until_text("<b>six</b> of ten", "main")
    assert not await faults(tab)
    await tab.fill("Decision", "void")
    await tab.until_text("The user gets up to 10 credit.")
    await tab.fill("Percent of the whole claim", "60")
    await tab.fill("Reason, which the user reads", "six of ten files were right")
    await tab.click("Decide")
    await tab.until_text("decided: void")
    assert (await wallet(staff.service, buyer))[0] == 6
    await tab.click("Cases")
    await tab.click("Rewards for photos")
    await tab.until_text("Rewards for photos", "h1")


async def test_a_worker_appeals_on_the_page_of_the_device(visit: Visit, staff: StaffApi) -> None:
    job_id, _, owner = await disputed(staff)
    first = await staff.token(Role.OPERATOR)
    await staff.call("POST", f"/jobs/{job_id}/reverse", {"reason": WHY}, token=first)
    [device] = (await staff.service.call("GET", "/api/worker/devices", token=owner.token)).body[
        "devices"
    ]
    tab = await opened(visit, staff.service, owner, f"/console/devices/{device['id']}")
    await tab.click("Appeal: train")
    await tab.fill("Objection to the decision", "the sum is right")
    await tab.click("details button[type=submit]")
    await tab.until_text("You have appealed", "main")
    assert not await faults(tab)
    [appeal] = (await staff.service.call("GET", "/api/appeals", token=owner.token)).body["appeals"]
    assert appeal["job_id"] == job_id


async def test_a_worker_answers_a_dispute_on_the_page_of_the_device(
    visit: Visit, staff: StaffApi
) -> None:
    job_id, _, owner = await disputed(staff)
    [device] = (await staff.service.call("GET", "/api/worker/devices", token=owner.token)).body[
        "devices"
    ]
    tab = await opened(visit, staff.service, owner, f"/console/devices/{device['id']}")
    await tab.fill("Your answer", "the sum is right")
    await tab.click("details[open] button[type=submit]")
    await tab.until_text("The operator has your answer", "main")
    assert not await faults(tab)
    member = await staff.hire(Role.FINANCE, "ada")
    page = await entered(visit, staff, member)
    await go(page, f"#/job/{job_id}", "Job train")
    await page.until_text("the sum is right", "main")
    assert not await faults(page)


async def test_a_judge_saves_a_file_of_a_disputed_job(visit: Visit, staff: StaffApi) -> None:
    job_id, file_id, _, buyer, _ = await left_files(staff)
    await say(staff.service, buyer, job_id, "dispute", {"reason": "an empty file"})
    tab = await entered(visit, staff, await staff.hire(Role.FINANCE, "ada"))
    await go(tab, f"#/job/{job_id}", "Job x")
    await tab.until_text("has not arrived", "main")
    await tab.click("button[aria-label='Save out/a.html']")
    operator = await staff.token(Role.OPERATOR)

    async def is_recorded() -> bool:
        acts = (await staff.call("GET", "/log?action=job.file", token=operator)).body["acts"]
        return [each["changes"]["file"]["new"] for each in acts] == [file_id]

    await until(is_recorded)
    assert not await faults(tab)


async def test_a_large_correction_is_approved_by_a_second_person(
    visit: Visit, staff: StaffApi
) -> None:
    person = await staff.service.person()
    ada, olga = await staff.hire(Role.FINANCE, "ada"), await staff.hire(Role.OPERATOR, "olga")
    tab = await entered(visit, staff, ada)
    await go(tab, f"#/money/{person.user_id}", "Money of person1")
    await tab.click("Correct a balance")
    await tab.fill("Amount to correct", "60")
    await tab.fill("Reference of this correction", "c-1")
    await tab.fill("details[open] [name=reason]", WHY)
    await tab.click("Correct")
    await tab.until_text("waits for a second person until")
    await go(tab, "#/approvals", "Approvals")
    await tab.until_text("Withdraw")
    assert "Approve 60" not in await tab.text("main")
    await tab.click("Log out")
    await log_in(tab, olga, 0)
    await tab.until_text("money.correct", "main")
    await go(tab, "#/approvals", "Approvals")
    assert not await faults(tab)
    await tab.click("Approve 60 usd")
    await tab.click("form .button.primary")
    await tab.until_text("done: 60 usd")
    await go(tab, "#/log/action=approval.approve", "Log")
    await tab.until_text("approved", "main")
    await go(tab, "#/site", "Public side")
    assert not await faults(tab)


async def test_a_spammer_is_found_from_the_exit_address_and_the_minute(
    visit: Visit, staff: StaffApi
) -> None:
    service = staff.service
    for _ in range(2):
        person = await service.person(usd="5")
        bought = await service.buy(person)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        assert await client.connect("127.0.0.1", target.port) == 0
        await client.send(b"spam")
        assert await client.receive(4) == b"spam"
        client.writer.close()
        await client.rest()
    folder = Path(service.daemon.settings.access_log.folder)
    until_true(lambda: any('"event":"ended"' in each.read_text() for each in folder.iterdir()))
    tab = await entered(visit, staff, await staff.hire(Role.SUPPORT, "ada"))
    await tab.click("Complaints")
    await tab.click("Open a ticket")
    await tab.fill("The complaint", "<script>alert(1)</script> mail to strangers")
    await tab.fill("Category", "spam")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for label, value in (
        ("Exit address", "127.0.0.1"),
        ("Time with its zone", now),
        ("Destination", f"127.0.0.1:{target.port}"),
    ):
        await tab.fill(label, value)
    await tab.click("Open")
    await tab.until_text("Ticket A-1", "h1")
    await tab.until_text("<script>alert(1)</script>", "main")
    await tab.click("Look up")
    await tab.until_text("One customer: person2")
    await tab.until_text("destination and port")
    assert not await faults(tab)
    await tab.click("Close")
    await tab.fill("Outcome", "customer_warned")
    await tab.fill("details[open] [name=reason]", "first complaint")
    await tab.click("details[open] .button.primary")
    await tab.until_text("the ticket is closed")


async def test_a_stolen_key_is_found_and_revoked_on_the_page_of_its_user(
    visit: Visit, store_url: str, tmp_path: Path
) -> None:
    async with staffed(tmp_path, store_url, api={"trusted_proxies": ["127.0.0.1"]}) as staff:
        service = staff.service
        person = await service.person(usd="20")
        new = {"name": "<b>nightly</b>", "scopes": ["sessions:write"]}
        made = await service.call("POST", "/api/keys", new, token=person.token)
        thief = {
            "token": made.body["key"],
            "headers": {"X-Forwarded-For": "203.0.113.77"},
        }
        path, size = "/api/bandwidth/create", {"gb": 1}
        bought = await service.call("POST", path, size, **thief)
        proxy = bought.body["proxy"]
        async with targets.echo() as target:
            client = await Client.open(service.proxy_port)
            assert await client.log_in(proxy["username"], proxy["password"]) == 0
            assert await client.connect("127.0.0.1", target.port) == 0
            tab = await entered(visit, staff, await staff.hire(Role.OPERATOR, "ada"))
            await tab.fill("Search for", "203.0.113.77")
            await tab.press("Enter")
            await tab.click("person1")
            await tab.until_text("<b>nightly</b>", "main")
            await act_in_row(tab, "Revoke", "revoked")
            refused = await service.call("POST", path, size, **thief)
            assert refused.code == "unauthorized"
            await act_in_row(tab, "End", "1 connections cut")
            with suppress(ConnectionError):  # a cut connection is reset
                await client.rest()
        answer = await service.call("GET", "/api/events?types=key.revoked", token=person.token)
        assert [each["data"]["name"] for each in answer.body["events"]] == ["<b>nightly</b>"]
        await go(tab, "#/log/action=key.revoke", "Log")
        await tab.until_text(WHY, "main")
        assert not await faults(tab)
        await service.assert_audit()


async def act_in_row(tab: Tab, words: str, result: str) -> None:
    """Press a button in a row of a table, give a reason, and wait for the result there."""
    await tab.click(words)
    await tab.fill(f"Reason to {words.lower()}", WHY)
    await tab.click(words)
    await tab.until_text(result, "main")


async def attached(staff: StaffApi, made: Consented, obey: Obey) -> Device:
    """Attach a device that obeys orders in a way."""
    device = Device(bound_port(staff.service.daemon.listeners.exits))
    device.obey = obey
    return await device.attach(made.first)


async def test_a_cheating_exit_is_barred_its_case_upheld_and_later_pardoned(
    visit: Visit, store_url: str, tmp_path: Path
) -> None:
    certificate = str(own_certificate(tmp_path / "certificate", 1_700_000_000))
    (tmp_path / "pages").mkdir()
    async with serving_pages(tmp_path / "pages") as pages:
        exits = {
            **EXITS["exits"],
            "canaries": pages.urls[:2],
            "ports": pages.ports,
            "tls_cert": certificate,
            "tls_key": certificate,
        }
        async with staffed(tmp_path, store_url, exits=exits, geo=EXITS["geo"]) as staff:
            made = await consented(staff.service)
            cheat = await attached(staff, made, saying(answer(EVIL)))
            await until(lambda: cheat.is_over, "it is found and cut")
            tab = await entered(visit, staff, await staff.hire(Role.OPERATOR, "ada"))
            await tab.click("main a[href^='#/case/canary/']")
            await tab.until_text("barred", "main")
            await tab.until_text("canary: content", "main")  # its history as an exit
            assert not await faults(tab)
            await tab.fill("Reason, which the user reads", "the page has no such script")
            await tab.click("Decide")
            await tab.until_text("decided: uphold")
            await tab.fill("Search for", made.device_id)
            await tab.press("Enter")
            await tab.click("person1")
            await act_in_row(tab, "Bar as an exit", "1 of 1 nodes answered")
            again = await attached(staff, made, carry)
            assert again.sorry is not None
            assert again.sorry.code == "exit_barred"
            await go(tab, "#/log/action=device.bar", "Log")
            await tab.until_text(WHY, "main")
            await go(tab, f"#/user/{made.owner.user_id}", "person1")
            await act_in_row(tab, "Pardon", "1 of 1 nodes answered")
            honest = await attached(staff, made, carry)
            assert honest.welcome is not None
            for device in (cheat, again, honest):
                await device.kill()
            await staff.service.assert_audit()

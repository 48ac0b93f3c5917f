"""The pages of the staff in a browser: users, jobs, members, and the policy of the pages."""

from pathlib import Path

from support.clients.staff import StaffApi, staffed
from support.console.axe import faults, needs_axe
from support.console.browser import Tab, Visit, needs_chromium
from support.market.payment_rows import payment_row
from support.market.staff import FACTORS, PASSWORD, ROOT, code_at

from market.money.money import MICRO
from market.staff.base.roles import Role
from market.staff.members import rescue
from market.staff.members.accounts import Created
from market.staff.members.logins import StaffLogins
from market.staff.members.rescue import Post
from proxyd.loop import clock
from storage.payments import payments
from tests.api.payouts.test_payouts import ask, earner

JOB = {"title": "<b>count</b>", "job_type": "script", "price_credit": 1, "duration_hrs": 1}


async def entered(visit: Visit, staff: StaffApi, member: Created) -> Tab:
    """Log a member in, and return the tab with the queue."""
    visit.expect("401")  # before the login
    tab = await visit.open(f"{staff.url}/staff")
    await log_in(tab, member, PASSWORD, member.factor.codes[0])
    return tab


async def log_in(tab: Tab, member: Created, password: str, code: str) -> None:
    await tab.until_text("Staff login", "h1")
    await tab.fill("E-mail address", member.email)
    await tab.fill("Password", password)
    await tab.fill("Code", code)
    await tab.click("Log in")
    await tab.until_text("Queue", "h1")


async def act_in_row(tab: Tab, words: str, result: str) -> None:
    """Press a button in a row of a table, give a reason, and wait for the result there."""
    await tab.click(words)
    await tab.fill(f"Reason to {words.lower()}", "ticket A-17")
    await tab.click(words)
    await tab.until_text(result, "main")


@needs_chromium
@needs_axe
async def test_a_member_finds_a_user_writes_a_note_and_suspends(
    tmp_path: Path, visit: Visit
) -> None:
    visit.expect("401")  # before the login, and with a wrong code
    async with staffed(tmp_path) as staff:
        person = await staff.service.person(usd="5")
        ada = await staff.hire(Role.SUPPORT, "ada")
        tab = await visit.open(f"{staff.url}/staff")
        await tab.until_text("Staff login", "h1")
        await tab.fill("E-mail address", ada.email)
        await tab.fill("Password", PASSWORD)
        await tab.fill("Code", "wrong")
        await tab.click("Log in")
        await tab.until_text("the code is wrong")
        assert not await faults(tab)
        await tab.fill("Code", code_at(ada, clock.seconds()))
        await tab.click("Log in")
        await tab.until_text("Queue", "h1")
        assert await tab.run("document.cookie") == ""
        assert "Staff" not in await tab.text("nav")  # the role has no list of members
        await tab.fill("Search for", person.email)
        await tab.press("Enter")
        await tab.click("person1")
        await tab.until_text("person1", "h1")
        await tab.until_text("5 usd + 0 held")
        await tab.until_text("p…@e…")
        await tab.click("Show e-mail address and networks")
        await tab.fill("Reason to show e-mail address and networks", "the user telephones")
        await tab.click("Show e-mail address and networks")
        await tab.until_text(person.email)
        await tab.fill("New note", "<b>asked</b> by telephone")
        await tab.click("Write note")
        await tab.until_text("<b>asked</b> by telephone", "table")
        assert not await faults(tab)
        await tab.click("Suspend this user")
        await tab.fill("Reason for the user", "Mail to strangers.")
        await tab.fill("Reason for the staff", "ticket A-17")
        await tab.click("Suspend")
        await tab.until_text("1 of 1 nodes answered")
        await tab.until_text("Mail to strangers.")
        refused = await staff.service.call("GET", "/api/bandwidth/sessions", token=person.token)
        assert refused.code == "account_suspended"
        assert not await faults(tab)
        await tab.fill("Reason to resume", "resolved")
        await tab.click("Resume all")
        await tab.until('!document.body.innerText.includes("Mail to strangers.")')
        answer = await staff.service.call("GET", "/api/bandwidth/sessions", token=person.token)
        assert answer.status == 200
        await tab.click("Log out")
        await tab.until_text("Staff login", "h1")


async def test_the_pages_have_a_strict_policy_and_no_secret(tmp_path: Path) -> None:
    async with staffed(tmp_path) as staff:
        for path in ("/staff", "/staff/", "/staff/assets/staff.js", "/staff/assets/dom.js"):
            async with staff.service.http.get(staff.url + path) as response:
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'; script-src 'self';" in policy
                assert "unsafe" not in policy
                assert response.headers["Cache-Control"] == "no-cache"
            async with staff.service.http.get(staff.service.url + path) as response:
                assert response.status == 404


@needs_chromium
@needs_axe
async def test_an_operator_cancels_a_job_and_sees_the_open_problems_of_its_buyer(
    tmp_path: Path, visit: Visit
) -> None:
    async with staffed(tmp_path) as staff:
        person = await staff.service.person(credit="5")
        answer = await staff.service.call("POST", "/api/jobs", JOB, token=person.token)
        tab = await entered(visit, staff, await staff.hire(Role.OPERATOR, "ada"))
        await tab.run(f"location.hash = '#/job/{answer.body['job_id']}'")
        await tab.until_text("Job <b>count</b>", "h1")
        await act_in_row(tab, "Cancel this job", "nodes answered")
        assert not await faults(tab)
        wallet = await staff.service.call("GET", "/api/wallet", token=person.token)
        assert wallet.body["credit_balance"] == 5
        await tab.run("location.hash = '#/tickets'")
        await tab.until_text("Complaints", "h1")
        token = await staff.token(Role.OPERATOR, "olga")
        body = {
            "amount": 60,
            "currency": "usd",
            "direction": "add",
            "reference": "c-1",
            "reason": "an outage",
        }
        path = f"/users/{person.user_id}/corrections"
        waits = await staff.call("POST", path, body, token=token)
        assert waits.body["state"] == "waits", waits.body
        await tab.run(f"location.hash = '#/user/{person.user_id}'")
        await tab.until_text("waits for a second person", "main")
        await tab.click("main a[href='#/approvals']")
        await tab.until_text("Approvals", "h1")


@needs_chromium
@needs_axe
async def test_an_operator_administers_members_keys_and_rescues(
    tmp_path: Path, visit: Visit
) -> None:
    async with staffed(tmp_path) as staff:
        market = staff.service.daemon.market
        omar = await staff.hire(Role.OPERATOR, "omar")
        ada = await staff.hire(Role.OPERATOR, "ada")
        logins = StaffLogins(market.context, market.passwords, FACTORS, b"k" * 40)
        post = Post(market.emails, "x")
        await rescue.rescue(market.context, logins, post, ROOT, omar.email, "a lost telephone")
        tab = await entered(visit, staff, ada)
        await tab.run("location.hash = '#/staff'")
        await tab.until_text("Staff", "h1")
        assert not await faults(tab)
        await act_in_row(tab, "Acknowledge", "acknowledged")
        await act_in_row(tab, "Make support", "is support now")
        await act_in_row(tab, "Lock", "locked")
        await tab.click("Add a member")
        await tab.fill("E-mail address of the member", "sue@staff.example.com")
        await tab.fill("First password", PASSWORD)
        await tab.fill("details[open] [name=reason]", "hired")
        await tab.click("details[open] .button.primary")
        await tab.until_text("Shown once, for sue@staff.example.com")
        await tab.run("document.querySelector('details[open]').open = false")
        await tab.click("Make a key")
        await tab.fill("E-mail address of its member", "sue@staff.example.com")
        await tab.fill("Name of the key", "reports")
        await tab.fill("Networks of its programs", "192.0.2.7 198.51.100.0/24")
        await tab.fill("details[open] [name=reason]", "a report each month")
        await tab.click("details[open] .button.primary")
        await tab.until_text("Shown once: pxs_")
        await tab.run("location.hash = '#/'")
        await tab.until_text("Queue", "h1")
        await tab.run("location.hash = '#/staff'")
        await tab.until_text("192.0.2.7", "main")
        await act_in_row(tab, "Revoke", "revoked")
        token = await staff.token(Role.OPERATOR, "olga")
        members = (await staff.call("GET", "/staff", token=token)).body["staff"]
        found = {each["email"]: (each["role"], each["locked_at"] is None) for each in members}
        assert found[omar.email] == ("support", False)
        assert found["sue@staff.example.com"] == ("support", True)
        [row] = (await staff.call("GET", "/rescues", token=token)).body["rescues"]
        assert row["acknowledged_by"] == ada.email


@needs_chromium
@needs_axe
async def test_a_member_changes_the_own_password(tmp_path: Path, visit: Visit) -> None:
    async with staffed(tmp_path) as staff:
        person = await staff.service.person()
        sue = await staff.hire(Role.SUPPORT, "sue")
        tab = await entered(visit, staff, sue)
        await tab.click("header a[href='#/me']")
        await tab.until_text("My account", "h1")
        assert not await faults(tab)
        await tab.click("Declare my own account as a user")
        await tab.fill("User", person.email)
        await tab.fill("details[open] [name=reason]", "my own account")
        await tab.click("details[open] .button.primary")
        await tab.until_text("the account is declared")
        await tab.click("Change my password")
        await tab.fill("Present password", PASSWORD)
        await tab.fill("Code of the authenticator", sue.factor.codes[1])
        await tab.fill("New password", "a better password")
        await tab.click("details[open] .button.primary")
        await tab.until_text("the password is changed")
        await tab.click("Log out")
        await log_in(tab, sue, "a better password", sue.factor.codes[2])


@needs_chromium
@needs_axe
async def test_a_payout_and_a_doubtful_payment_are_decided(tmp_path: Path, visit: Visit) -> None:
    async with staffed(tmp_path) as staff:
        market = staff.service.daemon.market
        who = await earner(staff.service)
        payout = (await ask(staff.service, who)).body["payout"]["id"]
        doubtful = payment_row(market, who.person.user_id, "doubtful", 20 * MICRO)
        await market.context.store.write(payments.insert, doubtful)
        tab = await entered(visit, staff, await staff.hire(Role.FINANCE, "fin"))
        await tab.click(f"main a[href='#/payout/{payout}']")
        await tab.until_text("Payout of 10 USD", "h1")
        await tab.until_text("of Ada Lovelace", "main")
        assert not await faults(tab)
        await tab.fill("Reason to approve", "the name is that of the account")
        await tab.click("Approve")
        await tab.until_text("the payout is approved")
        await tab.fill("How it was checked", "passport seen, file 12")
        await tab.click("Record a checked identity")
        await tab.until_text("identity checked", "main")
        await tab.run("location.hash = '#/payouts/approved'")
        await tab.until_text("Payouts: approved", "h1")
        assert not await faults(tab)
        await tab.click("Send the approved payouts")
        await tab.click("Send and download")
        await tab.until_text("is saved as payouts-")
        table = tmp_path / "batch.csv"
        table.write_text(f"payout_id,amount_usd,outcome\n{payout},10.00,paid\nnone,1.00,paid\n")
        await tab.click("Book the outcomes")
        await tab.fill("Table (CSV)", table)
        await tab.click("Book")
        await tab.until_text("1 of 2 lines are booked, 1 refused, 0 wait; line 3: refused")
        assert not await faults(tab)
        await tab.click("Payments")
        await tab.until_text("Payments: doubtful", "h1")
        await tab.click(f"main a[href='#/payment/{doubtful.id}']")
        await tab.until_text("Payment of 20 USD", "h1")
        assert not await faults(tab)
        await tab.fill("Amount that arrived", "12")
        await tab.until_text("and credits 12 USD.")
        await tab.fill("Reason to accept it", "the bank has written")
        await tab.click("Accept")
        await tab.until_text("accepted: 12 usd")
        row = await market.context.store.read(payments.find, doubtful.id)
        assert row is not None
        assert row.accepted == 12 * MICRO


@needs_chromium
@needs_axe
async def test_an_account_is_closed_and_erased_by_two_operators_and_a_text_published(
    tmp_path: Path, visit: Visit
) -> None:
    async with staffed(tmp_path) as staff:
        person = await staff.service.person(usd="5")
        ada, omar = [await staff.hire(Role.OPERATOR, name) for name in ("ada", "omar")]
        tab = await entered(visit, staff, ada)
        await tab.run("location.hash = '#/site'")
        await tab.until_text("Public side", "h1")
        await tab.click("Publish a text")
        await tab.fill("Kind", "imprint")
        await tab.fill("Text in Markdown", "# Imprint\n\nAda Lovelace, London")
        await tab.fill("details[open] [name=reason]", "the first one")
        await tab.click("details[open] .button.primary")
        await tab.until_text("the text is published")
        await tab.run(f"location.hash = '#/user/{person.user_id}'")
        await tab.until_text("person1", "h1")
        await tab.click("Export all data")
        await tab.click("Download export")
        await tab.until_text(f"saved export-{person.user_id}.zip")
        await tab.click("Close this account")
        await tab.fill("details[open] [name=why]", "asked by letter")
        await tab.click("Close account")
        await tab.until_text("The account has money or open work")
        await tab.fill("details[open] [name=waived]", "yes")
        await tab.click("Close account")
        await tab.until_text("the account is closed")
        await tab.click("Erase this account")
        await tab.fill("details[open] [name=waived]", "yes")
        await tab.fill("details[open] [name=why]", "asked by letter")
        await tab.click("Erase account")
        await tab.until_text("waits for a second person: request")
        await tab.click("Log out")
        await log_in(tab, omar, PASSWORD, omar.factor.codes[0])
        await tab.run("location.hash = '#/approvals'")
        await tab.until_text("Approvals", "h1")
        await tab.until_text("the money that is left goes to the house", "main")
        await tab.until_text("Approve user.erase, 5 usd", "main")
        await tab.click("Approve user.erase, 5 usd")
        await tab.click("form .button.primary")
        await tab.until_text("done", "main")
        await tab.run(f"location.hash = '#/user/{person.user_id}'")
        await tab.until_text("This account is erased", "main")
        refused = await staff.service.call("GET", "/auth/me", token=person.token)
        assert refused.code == "unauthorized"

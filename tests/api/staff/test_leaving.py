"""The end of an account at the staff API: closed, or erased with a second person."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from support.clients.staff import StaffApi, staffed

from market.money.audit import audit_ledger
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role
from market.staff.money.money_audit import audit_money
from tests.api.payouts.test_payouts import ask, earner

WHY = {"reason": "asked by letter of 3 May"}
HIRING = ("staff.create", "staff.login")


async def audited(staff: StaffApi) -> None:
    """Check that the ledger and the acts of the staff agree."""
    store = staff.service.daemon.store
    checks = (*(await audit_ledger(store)).checks, *await audit_money(store))
    assert not [each for each in checks if each.differences]


async def test_an_account_is_closed_and_its_waived_money_goes(staff: StaffApi) -> None:
    person, token = await staff.service.person(usd="5"), await staff.token(Role.OPERATOR)
    await staff.service.buy(person)
    close = f"/users/{person.user_id}/close"
    for role in (Role.SUPPORT, Role.FINANCE):
        refused = await staff.call("POST", close, WHY, token=await staff.token(role))
        assert refused.code == "not_permitted"
    kept = await staff.call("POST", close, WHY, token=token)
    assert (kept.status, kept.code) == (400, "account_not_empty")
    assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 200
    headers, waived = {"Idempotency-Key": "one"}, {**WHY, "waived": True}
    answers = [
        await staff.call("POST", close, waived, token=token, headers=headers) for _ in range(2)
    ]
    assert [each.status for each in answers] == [200, 200], answers
    assert answers[0].body == answers[1].body
    assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 401
    page = (await staff.call("GET", f"/users/{person.user_id}", token=token)).body
    assert page["user"]["closure"]["state"] == "closed"
    assert [each["status"] for each in page["sessions"]] == ["ended"]
    await audited(staff)


async def test_a_closing_by_an_address_is_one_search_in_the_log(staff: StaffApi) -> None:
    person, token = await staff.service.person(usd="5"), await staff.token(Role.OPERATOR)
    await staff.service.buy(person)
    close = f"/users/{quote(person.email)}/close"
    closed = await staff.call("POST", close, {**WHY, "waived": True}, token=token)
    assert closed.body["state"] == "done"
    log = (await staff.call("GET", "/log", token=token)).body["acts"]
    actions = [each["action"] for each in log if each["action"] not in HIRING]
    assert actions == ["user.close", "session.end", "search.email"]


async def test_much_waived_money_needs_a_second_operator(staff: StaffApi) -> None:
    person = await staff.service.person(usd="60")
    await staff.service.buy(person)
    first, second = [await staff.token(Role.OPERATOR, name) for name in ("a", "b")]
    finance = await staff.token(Role.FINANCE)
    close, body = f"/users/{person.user_id}/close", {**WHY, "waived": True}
    asked = [await staff.call("POST", close, body, token=first) for _ in range(2)]
    assert [each.body["state"] for each in asked] == ["waits", "waits"]
    assert asked[0].body["id"] == asked[1].body["id"]
    assert asked[0].body["erased_after"] is None
    [session] = await staff.service.sessions(person)
    assert session["status"] == "active"
    [waits] = (await staff.call("GET", "/approvals", token=finance)).body["approvals"]
    assert (waits["action"], waits["amount"]) == ("user.close", None)
    assert waits["waived"] == [{"amount": 60.0, "currency": "usd"}]
    approve = f"/approvals/{waits['id']}/approve"
    for token in (first, finance):
        assert (await staff.call("POST", approve, {}, token=token)).code == "not_permitted"
    [session] = await staff.service.sessions(person)
    assert session["status"] == "active"
    done = await staff.call("POST", approve, {}, token=second)
    assert (done.status, done.body["state"]) == (200, "done")
    assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 401
    page = (await staff.call("GET", f"/users/{person.user_id}", token=second)).body
    assert page["user"]["closure"]["state"] == "closed"
    assert [each["status"] for each in page["sessions"]] == ["ended"]
    await audited(staff)


async def test_a_closing_that_is_refused_ends_no_session(staff: StaffApi) -> None:
    who, token = await earner(staff.service), await staff.token(Role.OPERATOR)
    assert (await ask(staff.service, who)).status == 200
    await staff.service.fund(who.person.email, "5")
    await staff.service.buy(who.person)
    path = f"/users/{who.person.user_id}/close"
    refused = await staff.call("POST", path, {**WHY, "waived": True}, token=token)
    assert refused.code == "account_not_empty"
    assert "1 payout" in str(refused.body)
    [session] = await staff.service.sessions(who.person)
    assert session["status"] == "active"


async def test_a_repeated_closing_ends_no_session_of_a_user_who_came_back(staff: StaffApi) -> None:
    person, token = await staff.service.person(usd="5"), await staff.token(Role.OPERATOR)
    path, headers = f"/users/{person.user_id}/close", {"Idempotency-Key": "one"}
    body = {**WHY, "waived": True}
    closed = await staff.call("POST", path, body, token=token, headers=headers)
    login = {"email": person.email, "password": "long enough"}
    back = await staff.service.call("POST", "/auth/login", login)
    person = replace(person, token=str(back.body["token"]))
    await staff.service.buy(person)
    again = await staff.call("POST", path, body, token=token, headers=headers)
    assert again.body == closed.body
    [session] = await staff.service.sessions(person)
    assert session["status"] == "active"


async def test_an_account_is_erased_by_two_operators(staff: StaffApi) -> None:
    person = await staff.service.person(usd="5")
    first, second = [await staff.token(Role.OPERATOR, name) for name in ("a", "b")]
    finance = await staff.token(Role.FINANCE)
    erase, body = f"/users/{person.user_id}/erase", {**WHY, "waived": True}
    refused = await staff.call("POST", erase, body, token=finance)
    assert refused.code == "not_permitted"
    asked = [await staff.call("POST", erase, body, token=first) for _ in range(2)]
    assert [each.body["state"] for each in asked] == ["waits", "waits"]
    assert asked[0].body["id"] == asked[1].body["id"]
    assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 200
    [waits] = (await staff.call("GET", "/approvals", token=second)).body["approvals"]
    assert (waits["action"], waits["amount"], waits["currency"]) == ("user.erase", None, None)
    approve = f"/approvals/{waits['id']}/approve"
    for token in (first, finance):
        assert (await staff.call("POST", approve, {}, token=token)).code == "not_permitted"
    assert (await staff.call("POST", approve, {}, token=second)).status == 200
    assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 401
    page = (await staff.call("GET", f"/users/{person.user_id}", token=second)).body
    assert (page["user"]["closure"]["state"], person.email in str(page)) == ("erased", False)
    assert page["user"]["username"].startswith("erased")
    again = await staff.call("POST", erase, body, token=first)
    assert again.code == "account_closed"
    await audited(staff)


async def test_a_setting_on_the_machine_lets_one_operator_erase(tmp_path: Path) -> None:
    async with staffed(tmp_path, staff={"second_person_erase": False}) as staff:
        person, token = await staff.service.person(), await staff.token(Role.OPERATOR)
        erased = await staff.call("POST", f"/users/{person.user_id}/erase", WHY, token=token)
        assert (erased.status, erased.body["state"]) == (200, "done")
        assert (await staff.service.call("GET", "/auth/me", token=person.token)).status == 401
        rich = await staff.service.person(usd="60")
        path, waived = f"/users/{rich.user_id}/erase", {**WHY, "waived": True}
        asked = await staff.call("POST", path, waived, token=token)
        assert (asked.status, asked.body["state"]) == (200, "waits")
        assert (await staff.service.call("GET", "/auth/me", token=rich.token)).status == 200


async def test_an_operator_downloads_the_data_of_a_user(staff: StaffApi) -> None:
    person, other = await staff.service.person(usd="5"), await staff.service.person()
    token, path = await staff.token(Role.OPERATOR), f"/users/{person.user_id}/export"
    for role in (Role.SUPPORT, Role.FINANCE):
        refused = await staff.call("GET", path, token=await staff.token(role))
        assert refused.code == "not_permitted"
    key = await staff.key(StaffScope.READ)
    assert (await staff.call("GET", path, token=key)).code == "scope_missing"
    answer, content = await staff.download(path, token)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        text = "".join(archive.read(name).decode() for name in archive.namelist())
    assert person.email in text
    assert other.email not in text
    name = f"export-{person.user_id}.zip"
    assert answer.headers["Content-Disposition"].startswith(f'attachment; filename="{name}"')
    assert answer.headers["Cache-Control"] == "no-store"
    [act] = (await staff.call("GET", "/log?action=user.export", token=token)).body["acts"]
    assert (act["user_id"], act["staff"]) == (person.user_id, "operator@staff.example.com")
    # The user's own export is not used up.
    asked = await staff.service.call("POST", "/auth/me/export", token=person.token)
    assert asked.status == 200
    await staff.age_factors()
    assert (await staff.call("GET", path, token=token)).code == "factor_expired"


async def test_an_erased_user_has_no_export(tmp_path: Path) -> None:
    async with staffed(tmp_path, staff={"second_person_erase": False}) as staff:
        person, token = await staff.service.person(), await staff.token(Role.OPERATOR)
        erased = await staff.call("POST", f"/users/{person.user_id}/erase", WHY, token=token)
        assert erased.body["state"] == "done"
        refused = await staff.call("GET", f"/users/{person.user_id}/export", token=token)
        assert refused.code == "account_closed"

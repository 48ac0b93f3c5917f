"""Payouts at the staff API: listed, looked at, approved by two persons, rejected; identities."""

from pathlib import Path
from typing import Any

from support.clients.staff import StaffApi, staffed

from market.money.audit import audit_ledger
from market.staff.base.roles import Role
from market.staff.money.money_audit import audit_money
from storage.engines.store import Transaction
from tests.api.payouts.test_payouts import Earner, ask, earner

WHY = {"reason": "the name is that of the account"}
REJECT = {"code": "name_mismatch", **WHY}


async def requested(staff: StaffApi) -> tuple[str, Earner]:
    """Have a user request a payout of 10 USD."""
    who = await earner(staff.service)
    made = await ask(staff.service, who)
    assert made.status == 200, made.body
    return str(made.body["payout"]["id"]), who


async def of_user(staff: StaffApi, who: Earner, payout: str) -> Any:
    """Return the payout as its user sees it."""
    path = f"/api/payouts/{payout}"
    return (await staff.service.call("GET", path, token=who.person.token)).body["payout"]


async def test_a_payout_is_looked_at_approved_and_rejected(staff: StaffApi) -> None:
    finance, support = await staff.token(Role.FINANCE), await staff.token(Role.SUPPORT, "sam")
    payout, who = await requested(staff)
    one = f"/payouts/{payout}"
    [listed] = (await staff.call("GET", "/payouts", token=finance)).body["payouts"]
    assert (listed["id"], listed["user_id"], listed["net_usd"]) == (payout, who.person.user_id, 10)
    shown = (await staff.call("GET", one, token=finance)).body
    assert (shown["method_kind"], shown["holder"]) == ("bank", "Ada Lovelace")
    assert "370400440532" not in str(shown)  # the mask of the account
    assert shown["method_shown"].endswith("3000")
    [source] = [each for each in shown["sources"] if each["earned"] == 1_800]
    assert not source["is_circular"]
    assert [each["in_payout"] for each in shown["earnings"]] == [0, 1_000]
    for word, body in (("approve", WHY), ("reject", REJECT)):
        refused = await staff.call("POST", f"{one}/{word}", body, token=support)
        assert refused.code == "not_permitted"
    for word, body in (("approve", WHY), ("reject", REJECT)):  # the log has the reason
        refused = await staff.call("POST", f"{one}/{word}", {**body, "reason": ""}, token=finance)
        assert refused.code == "invalid_field"
    done = await staff.call("POST", f"{one}/approve", WHY, token=finance)
    assert (done.status, done.body["state"], done.body["amount"]) == (200, "done", 10)
    again = await staff.call("POST", f"{one}/approve", WHY, token=finance)
    assert again.body["state"] == "done_before"
    assert (await of_user(staff, who, payout))["state"] == "approved"
    [approved] = (await staff.call("GET", "/payouts?state=approved", token=finance)).body["payouts"]
    assert approved["id"] == payout
    headers = {"Idempotency-Key": "one"}
    answers = [
        await staff.call("POST", f"{one}/reject", REJECT, token=finance, headers=headers)
        for _ in range(2)
    ]
    assert [each.body["payout"]["state"] for each in answers] == ["rejected", "rejected"]
    unknown = {**REJECT, "code": "no_wish"}
    assert (await staff.call("POST", f"{one}/reject", unknown, token=finance)).status == 400
    mine = await of_user(staff, who, payout)
    assert (mine["state"], mine["reason"]) == ("rejected", "name_mismatch")
    missing = await staff.call("GET", "/payouts/none", token=finance)
    assert (missing.status, missing.code) == (404, "payout_not_found")
    operator = await staff.token(Role.OPERATOR)
    acts = (await staff.call("GET", f"/log?user={who.person.user_id}", token=operator)).body["acts"]
    assert {each["action"]: each["text"] for each in acts} == {
        "payout.view": None,
        "payout.approve": WHY["reason"],
        "payout.reject": WHY["reason"],
    }
    store = staff.service.daemon.store
    checks = (*(await audit_ledger(store)).checks, *await audit_money(store))
    assert not [each for each in checks if each.differences]


async def test_a_payout_above_the_limit_is_approved_by_another(tmp_path: Path) -> None:
    async with staffed(tmp_path, staff={"approval_usd": 5}) as staff:
        payout, who = await requested(staff)
        first = await staff.token(Role.FINANCE)
        second = await staff.token(Role.OPERATOR)
        waits = await staff.call("POST", f"/payouts/{payout}/approve", WHY, token=first)
        assert waits.body["state"] == "waits"
        assert (await of_user(staff, who, payout))["state"] == "requested"
        path = f"/approvals/{waits.body['id']}/approve"
        own = await staff.call("POST", path, {}, token=first)
        assert own.status != 200
        assert (await staff.call("POST", path, {}, token=second)).status == 200
        assert (await of_user(staff, who, payout))["state"] == "approved"


async def test_a_login_without_a_new_factor_decides_no_payout(staff: StaffApi) -> None:
    token = await staff.token(Role.FINANCE)

    async def age(tx: Transaction) -> None:
        await tx.run("UPDATE staff_logins SET factor_at = factor_at - 300")

    await staff.service.daemon.store.write(age)
    for path, body in (
        ("/payouts/x/approve", WHY),
        ("/payouts/x/reject", REJECT),
        ("/users/nobody/verify", WHY),
    ):
        answer = await staff.call("POST", path, body, token=token)
        assert answer.code == "factor_expired", path


async def test_a_checked_identity_is_recorded_and_removed(staff: StaffApi) -> None:
    person, finance = await staff.service.person(), await staff.token(Role.FINANCE)
    verify, page = f"/users/{person.user_id}/verify", f"/users/{person.user_id}"
    for is_checked, has_changed in ((True, True), (True, False), (False, True), (False, False)):
        body = {"is_checked": is_checked, "reason": "passport seen, file 12"}
        answer = await staff.call("POST", verify, body, token=finance)
        assert answer.body["has_changed"] is has_changed
        shown = (await staff.call("GET", page, token=finance)).body
        assert shown["user"]["identity_checked"] is is_checked

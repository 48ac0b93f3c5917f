"""Money at the staff API: deposits, refunds, corrections, prices, and the second person."""

import asyncio
from typing import Any

from support.clients.staff import StaffApi

from market.money.audit import audit_ledger
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role
from market.staff.money.money_audit import audit_money
from storage.engines.store import Transaction

WHY = {"reason": "asked by letter 12"}


def moved(amount: float, reference: str, currency: str = "usd") -> dict[str, Any]:
    return {"amount": amount, "currency": currency, "reference": reference, **WHY}


def corrected(amount: float, reference: str, direction: str = "add") -> dict[str, Any]:
    return {**moved(amount, reference), "direction": direction}


async def audited(staff: StaffApi) -> None:
    store = staff.service.daemon.store
    checks = (*(await audit_ledger(store)).checks, *await audit_money(store))
    assert not [each for each in checks if each.differences]


async def test_money_is_paid_in_refunded_corrected_and_listed(staff: StaffApi) -> None:
    person, token = await staff.service.person(), await staff.token(Role.FINANCE)
    path = f"/users/{person.user_id}"
    for state in ("done", "done_before"):
        paid = await staff.call("POST", f"{path}/deposits", moved(20, "inv-1"), token=token)
        assert (paid.status, paid.body["state"], paid.body["amount"]) == (200, state, 20.0)
    refund = {**moved(7.42, "r-1"), "deposit": "inv-1"}
    key = {"Idempotency-Key": "one"}
    answers = [
        await staff.call("POST", f"{path}/refunds", refund, token=token, headers=key)
        for _ in range(2)
    ]
    assert answers[0].body == answers[1].body
    assert answers[0].body["amount"] == -7.42
    too_much = {**moved(20, "r-2"), "deposit": "inv-1"}
    refused = await staff.call("POST", f"{path}/refunds", too_much, token=token)
    assert (refused.code, "12.58 usd" in refused.body["error"]["message"]) == (
        "refund_too_large",
        True,
    )
    await staff.call("POST", f"{path}/corrections", corrected(0.5, "c-1", "take"), token=token)
    page = (await staff.call("GET", path, token=token)).body
    assert page["log"][0]["changes"]["available_usd"] == {"old": 12.58, "new": 12.08}
    for wrong in (
        corrected(0, "c"),
        corrected(1, "a b"),
        corrected(1e30, "c"),
        corrected(-1, "c"),
        corrected(99, "c", "take"),
        moved(1, "c"),
        {**corrected(1, "c", "take"), "leaves_debt": True},  # nothing was earned
        {**corrected(1, "c"), "leaves_debt": True},
    ):
        answer = await staff.call("POST", f"{path}/corrections", wrong, token=token)
        assert answer.status == 400, wrong
    negative = await staff.call("POST", f"{path}/corrections", corrected(-1, "c"), token=token)
    assert negative.field == "amount"
    assert 'send "direction": "take"' in negative.body["error"]["message"]
    history = (await staff.call("GET", f"{path}/money?limit=2", token=token)).body
    assert history["balances"][0] == {
        "currency": "usd",
        "available": 12.08,
        "held": 0.0,
        "owed": 0.0,
    }
    assert [each["kind"] for each in history["transactions"]] == ["correction", "deposit_refund"]
    more = f"{path}/money?limit=2&cursor={history['next_cursor']}"
    rest = (await staff.call("GET", more, token=token)).body
    assert ([each["amount"] for each in rest["transactions"]], rest["next_cursor"]) == ([20], None)
    await audited(staff)


async def test_a_large_amount_waits_and_its_author_never_approves(staff: StaffApi) -> None:
    person = await staff.service.person()
    ada, token = await staff.hire(Role.FINANCE, "ada"), await staff.token(Role.OPERATOR, "olga")
    asking, again = await staff.login(ada, 0), await staff.login(ada, 1)
    path = f"/users/{person.user_id}/corrections"
    waits = (await staff.call("POST", path, corrected(50.01, "c-1"), token=asking)).body
    assert waits["state"] == "waits"
    [request] = (await staff.call("GET", "/approvals", token=token)).body["approvals"]
    assert (request["id"], request["asked_email"]) == (waits["id"], ada.email)
    assert request["payload"]["reference"] == "c-1"
    approve = f"/approvals/{waits['id']}/approve"
    for own in (asking, again):
        refused = await staff.call("POST", approve, {}, token=own)
        assert (refused.status, refused.code) == (401, "not_permitted")
    answers = await asyncio.gather(
        *(staff.call("POST", approve, {}, token=token) for _ in range(4))
    )
    assert sorted(each.status for each in answers) == [200, 400, 400, 400]
    assert (await staff.call("GET", "/approvals", token=token)).body["approvals"] == []
    [done] = (await staff.call("GET", "/approvals?state=all", token=token)).body["approvals"]
    assert done["state"] == "approved"
    second = (await staff.call("POST", path, corrected(60, "c-2"), token=asking)).body["id"]
    withdrawn = await staff.call("POST", f"/approvals/{second}/refuse", WHY, token=asking)
    assert withdrawn.body["is_withdrawn"]
    await audited(staff)


async def test_nobody_pays_or_approves_for_an_own_account(staff: StaffApi) -> None:
    person, ada = await staff.service.person(), await staff.hire(Role.FINANCE, "ada")
    token, other = await staff.login(ada), await staff.token(Role.FINANCE, "other")
    declare = {"user": person.user_id, "reason": "mine"}
    await staff.call("POST", f"/staff/{ada.id}/declare", declare, token=token)
    path = f"/users/{person.user_id}"
    tries = [
        ("deposits", moved(1, "d")),
        ("corrections", corrected(1, "c")),
        ("refunds", {**moved(1, "r"), "deposit": "d"}),
        ("price", {"price_percent": 1, **WHY}),
    ]
    for word, body in tries:
        refused = await staff.call("POST", f"{path}/{word}", body, token=token)
        assert (refused.status, refused.code) == (401, "not_permitted"), word
    waits = await staff.call("POST", f"{path}/corrections", corrected(60, "c"), token=other)
    approve = f"/approvals/{waits.body['id']}/approve"
    assert (await staff.call("POST", approve, {}, token=token)).code == "not_permitted"


async def test_a_login_that_was_left_open_moves_no_money(staff: StaffApi) -> None:
    person, ada = await staff.service.person(), await staff.hire(Role.FINANCE, "ada")
    token = await staff.login(ada)

    async def age(tx: Transaction) -> None:
        await tx.run("UPDATE staff_logins SET factor_at = factor_at - 300")

    await staff.service.daemon.store.write(age)
    path = f"/users/{person.user_id}/deposits"
    refused = await staff.call("POST", path, moved(1, "d"), token=token)
    assert (refused.status, refused.code) == (401, "factor_expired")
    assert (await staff.call("GET", "/approvals", token=token)).status == 200
    wrong = await staff.call("POST", "/factor", {"code": "000000"}, token=token)
    assert (wrong.status, wrong.code) == (401, "second_factor_wrong")
    used = {"code": ada.factor.codes[0]}
    assert (await staff.call("POST", "/factor", used, token=token)).code == "second_factor_wrong"
    proof = {"code": ada.factor.codes[1]}
    assert (await staff.call("POST", "/factor", proof, token=token)).status == 200
    assert (await staff.call("POST", path, moved(1, "d"), token=token)).status == 200
    guesses = [(await staff.call("POST", "/factor", used, token=token)).status for _ in range(4)]
    assert guesses[-1] == 429


async def test_a_key_moves_money_within_the_limit_and_approves_nothing(staff: StaffApi) -> None:
    person, key = await staff.service.person(), await staff.key(StaffScope.MONEY)
    path = f"/users/{person.user_id}/deposits"
    assert (await staff.call("POST", path, moved(50, "d"), token=key)).body["state"] == "done"
    waits = (await staff.call("POST", path, moved(0.01, "e"), token=key)).body
    assert waits["state"] == "waits"
    for path in ("approve", "refuse"):
        answer = await staff.call("POST", f"/approvals/{waits['id']}/{path}", WHY, token=key)
        assert answer.code == "scope_missing"


async def test_limits_and_the_price_of_a_user(staff: StaffApi) -> None:
    person, token = await staff.service.person(), await staff.token(Role.OPERATOR)
    finance = await staff.token(Role.FINANCE)
    path = f"/users/{person.user_id}"
    body = {"sessions": 5, "jobs": 0, "until": "2030-01-31T12:00:00Z", **WHY}
    set_ = (await staff.call("POST", f"{path}/limits", body, token=token)).body
    assert (set_["sessions"], set_["jobs"], set_["devices"]) == (5, 0, None)
    price = {"price_percent": 80, **WHY}
    answer = await staff.call("POST", f"{path}/price", price, token=finance)
    assert (answer.body["price_percent"], answer.body["sessions"]) == (80, 5)
    for member in (finance, token, await staff.key(StaffScope.MONEY)):
        for percent in (1, 49, 201):  # beyond the settings: only a command on the machine
            body = {"price_percent": percent, **WHY}
            refused = await staff.call("POST", f"{path}/price", body, token=member)
            assert (refused.code, refused.body["error"]["field"]) == (
                "not_permitted",
                "price_percent",
            )
    body = {"price_percent": None, **WHY}
    own = (await staff.call("POST", f"{path}/price", body, token=finance)).body
    assert own["price_percent"] is None
    assert (await staff.call("POST", f"{path}/limits", body, token=finance)).code == "not_permitted"
    for wrong in ({}, {"sessions": -1}, {"jobs": 10**9}, {"until": "2001-01-01T00:00:00Z"}):
        refused = await staff.call("POST", f"{path}/limits", {**WHY, **wrong}, token=token)
        assert refused.status == 400, wrong

"""Members of the staff and their keys at the staff API."""

from typing import Any

import pytest
from support.clients.staff import StaffApi, staffed
from support.market.staff import PASSWORD

from market.staff.base.roles import Role
from storage.engines.store import Transaction

KEY: dict[str, Any] = {
    "member": "ada@staff.example.com",
    "name": "reports",
    "scopes": ["read"],
    "allow_ips": ["127.0.0.0/8"],
    "reason": "the monthly report",
}


async def test_an_operator_administers_members(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    new = {"email": "ada@example.com", "password": PASSWORD, "role": "support", "reason": "hired"}
    created = (await staff.call("POST", "/staff", new, token=token)).body
    answer = await staff.try_login("ada@example.com", created["recovery_codes"][0])
    assert answer.status == 200
    ada = answer.body["token"]
    assert (await staff.call("GET", "/staff", token=ada)).code == "not_permitted"
    for role in ("finance", "operator"):  # only the machine makes a second person for money
        for path, body in (("/staff/ada@example.com/role", {}), ("/staff", new)):
            given = {**body, "role": role, "reason": "moved"}
            refused = await staff.call("POST", path, given, token=token)
            assert refused.code == "not_permitted", (path, role)
    members = (await staff.call("GET", "/staff", token=token)).body["staff"]
    assert [(each["email"], each["role"]) for each in members] == [
        ("olga@staff.example.com", "operator"),
        ("ada@example.com", "support"),
    ]
    last = await staff.call(
        "POST", "/staff/olga@staff.example.com/lock", {"reason": "left"}, token=token
    )
    assert last.code == "not_permitted"  # members do not change their own account
    unlock = "/staff/ada@example.com/unlock"
    unchanged = await staff.call("POST", unlock, {"reason": "x"}, token=token)
    assert unchanged.code == "staff_unchanged"


async def test_a_login_that_was_left_open_administers_no_member(staff: StaffApi) -> None:
    olga, ada = await staff.hire(Role.OPERATOR, "olga"), await staff.hire(Role.SUPPORT, "ada")
    token = await staff.login(olga)

    async def age(tx: Transaction) -> None:
        await tx.run("UPDATE staff_logins SET factor_at = factor_at - 300")

    await staff.service.daemon.store.write(age)
    new = {"email": "new@example.com", "password": PASSWORD, "role": "support", "reason": "x"}
    one = f"/staff/{ada.id}"
    for path, body in (
        ("/staff", new),
        (f"{one}/role", {"role": "support", "reason": "x"}),
        (f"{one}/lock", {"reason": "x"}),
        (f"{one}/unlock", {"reason": "x"}),
        (f"{one}/reset-factor", {"reason": "x"}),
        ("/keys", KEY),
    ):
        refused = await staff.call("POST", path, body, token=token)
        assert (refused.status, refused.code) == (401, "factor_expired"), path
    proof = {"code": olga.factor.codes[1]}
    assert (await staff.call("POST", "/factor", proof, token=token)).status == 200
    assert (await staff.call("POST", f"{one}/lock", {"reason": "x"}, token=token)).status == 200


async def test_a_key_permits_its_scopes_only(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    ada, person = await staff.hire(Role.OPERATOR, "ada"), await staff.service.person()
    made = await staff.call("POST", "/keys", KEY, token=token)
    key = made.body["key"]
    assert key.startswith("pxs_")
    me = (await staff.call("GET", "/me", token=key)).body["member"]
    assert (me["email"], me["scopes"]) == (ada.email, ["read"])
    assert (await staff.call("GET", f"/users/{person.user_id}", token=key)).status == 200
    note = {"text": "called"}
    path = f"/users/{person.user_id}/notes"
    assert (await staff.call("POST", path, note, token=key)).code == "scope_missing"
    for forbidden in ("/staff", "/keys", "/attempts"):
        assert (await staff.call("GET", forbidden, token=key)).code == "scope_missing"
    assert (await staff.call("POST", "/logout", token=key)).code == "scope_missing"
    acting = await staff.call("POST", "/keys", {**KEY, "scopes": ["act"]}, token=token)
    assert (await staff.call("POST", path, note, token=acting.body["key"])).status == 200
    listed = (await staff.call("GET", "/keys", token=token)).body["keys"]
    assert [each["status"] for each in listed] == ["active", "active"]
    assert key not in str(listed)
    why = {"reason": "over"}
    end = f"/keys/{made.body['id']}/revoke"
    assert (await staff.call("POST", end, why, token=token)).status == 200
    assert (await staff.call("POST", end, why, token=token)).code == "key_not_found"
    assert (await staff.call("GET", "/me", token=key)).code == "unauthorized"
    assert (await staff.service.call("GET", "/auth/me", token=key)).code == "unauthorized"


async def test_a_key_is_bound_to_its_addresses(tmp_path: Any) -> None:
    async with staffed(tmp_path, api={"trusted_proxies": ["127.0.0.1/32"]}) as staff:
        token = await staff.token(Role.OPERATOR, "olga")
        await staff.hire(Role.SUPPORT, "ada")
        body = {**KEY, "allow_ips": ["192.168.0.7"]}
        key = (await staff.call("POST", "/keys", body, token=token)).body["key"]
        for address, code in (("192.168.0.7", 200), ("192.168.0.8", 401)):
            headers = {"X-Forwarded-For": address}
            assert (await staff.call("GET", "/me", token=key, headers=headers)).status == code


async def test_a_lock_stops_the_keys_of_a_member(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    await staff.hire(Role.SUPPORT, "ada")
    key = (await staff.call("POST", "/keys", KEY, token=token)).body["key"]
    path = "/staff/ada@staff.example.com/lock"
    assert (await staff.call("POST", path, {"reason": "left"}, token=token)).status == 200
    assert (await staff.call("GET", "/me", token=key)).code == "unauthorized"


@pytest.mark.parametrize(
    "change",
    [
        {"allow_ips": []},
        {"allow_ips": ["everywhere"]},
        {"scopes": []},
        {"scopes": ["staff"]},
        {"expires_in_days": 91},
        {"expires_in_days": 0},
        {"name": ""},
    ],
)
async def test_a_key_has_addresses_scopes_and_an_end(
    staff: StaffApi, change: dict[str, Any]
) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    await staff.hire(Role.SUPPORT, "ada")
    answer = await staff.call("POST", "/keys", {**KEY, **change}, token=token)
    assert (answer.status, answer.code) == (400, "invalid_field"), answer.body


async def test_a_key_that_moves_money_is_made_on_the_machine(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR, "olga")
    await staff.hire(Role.FINANCE, "ada")
    answer = await staff.call("POST", "/keys", {**KEY, "scopes": ["money"]}, token=token)
    assert answer.code == "not_permitted"


async def test_a_member_declares_an_account_and_acts_about_it_no_more(staff: StaffApi) -> None:
    person, olga = await staff.service.person(), await staff.hire(Role.OPERATOR, "olga")
    token, other = await staff.login(olga), await staff.token(Role.OPERATOR, "other")
    path, note = f"/users/{person.user_id}/notes", {"text": "called"}
    assert (await staff.call("POST", path, note, token=token)).status == 200
    declare, body = f"/staff/{olga.id}/declare", {"user": person.email, "reason": "mine"}
    assert (await staff.call("POST", declare, body, token=other)).code == "not_permitted"
    declared = await staff.call("POST", declare, body, token=token)
    assert declared.body["user_id"] == person.user_id
    assert (await staff.call("POST", declare, body, token=token)).code == "staff_unchanged"
    assert (await staff.call("POST", path, note, token=token)).code == "not_permitted"
    assert (await staff.call("POST", path, note, token=other)).status == 200

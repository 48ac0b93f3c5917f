"""Users, sessions and keys stopped at the staff API."""

from support.clients.staff import StaffApi

from market.staff.base.roles import Role

SUSPEND = {"parts": ["logins", "sessions"], "shown": "Mail to strangers.", "reason": "ticket A-17"}


async def test_a_user_is_suspended_seen_and_resumed(staff: StaffApi) -> None:
    person = await staff.service.person(usd="5")
    token = await staff.token(Role.OPERATOR)
    path = f"/users/{person.user_id}"
    done = (await staff.call("POST", f"{path}/suspend", SUSPEND, token=token)).body
    assert (done["user_id"], done["parts"], done["until"]) == (
        person.user_id,
        ["logins", "sessions"],
        None,
    )
    assert (done["nodes"], done["silent"]) == (1, [])
    refused = await staff.service.call("GET", "/api/bandwidth/sessions", token=person.token)
    assert (refused.status, refused.code) == (400, "account_suspended")
    assert "Mail to strangers." in refused.body["error"]["message"]
    [logins, sessions] = (await staff.call("GET", path, token=token)).body["suspended"]
    assert (logins["part"], sessions["part"], sessions["shown"]) == (
        "logins",
        "sessions",
        "Mail to strangers.",
    )
    resumed = await staff.call("POST", f"{path}/resume", {"reason": "resolved"}, token=token)
    assert sorted(resumed.body["parts"]) == ["logins", "sessions"]
    assert (await staff.call("GET", path, token=token)).body["suspended"] == []
    again = await staff.call("POST", f"{path}/resume", {"reason": "resolved"}, token=token)
    assert again.code == "not_suspended"


async def test_support_suspends_for_a_day_at_most(staff: StaffApi) -> None:
    person = await staff.service.person()
    token = await staff.token(Role.SUPPORT)
    path = f"/users/{person.user_id}/suspend"
    for until in (None, "2030-01-31T12:00:00Z"):
        answer = await staff.call("POST", path, {**SUSPEND, "until": until}, token=token)
        assert answer.code == "not_permitted"
    for wrong in (
        {**SUSPEND, "parts": []},
        {**SUSPEND, "parts": ["everything"]},
        {**SUSPEND, "until": "2090-01-31T12:00:00"},
        {**SUSPEND, "until": "2001-01-01T00:00:00Z"},
        {**SUSPEND, "shown": ""},
    ):
        assert (await staff.call("POST", path, wrong, token=token)).status == 400, wrong


async def test_a_session_is_halted_let_go_and_ended(staff: StaffApi) -> None:
    person = await staff.service.person(usd="5")
    bought = await staff.service.call(
        "POST", "/api/bandwidth/create", {"gb": 1}, token=person.token
    )
    session = bought.body["session_id"]
    token, why = await staff.token(Role.SUPPORT), {"reason": "ticket A-17"}
    path = f"/sessions/{session}"
    assert (await staff.call("POST", f"{path}/go", why, token=token)).code == "session_not_halted"
    halted = (await staff.call("POST", f"{path}/halt", why, token=token)).body
    assert (halted["session_id"], halted["nodes"], halted["silent"]) == (session, 1, [])
    shown = (await staff.call("GET", path, token=token)).body
    assert (shown["user_id"], shown["status"], shown["state"]) == (
        person.user_id,
        "active",
        "halted",
    )
    assert shown["halted_at"] is not None
    assert (await staff.call("POST", f"{path}/go", why, token=token)).status == 200
    assert (await staff.call("POST", f"{path}/end", why, token=token)).status == 200
    assert (await staff.call("POST", f"{path}/end", why, token=token)).code == "session_not_found"
    shown = (await staff.call("GET", path, token=token)).body
    assert (shown["status"], shown["state"]) == ("ended", None)
    unknown = await staff.call("GET", f"/sessions/{person.user_id}", token=token)
    assert (unknown.status, unknown.code) == (404, "session_not_found")
    [row] = (await staff.call("GET", f"/users/{person.user_id}", token=token)).body["sessions"]
    assert row["status"] == "ended"


async def test_a_key_is_revoked(staff: StaffApi) -> None:
    person = await staff.service.person()
    made = await staff.service.call(
        "POST", "/api/keys", {"name": "leaked", "scopes": ["usage:read"]}, token=person.token
    )
    token, why = await staff.token(Role.SUPPORT), {"reason": "in a public repository"}
    path = f"/users/keys/{made.body['key_id']}/revoke"
    revoked = await staff.call("POST", path, why, token=token)
    assert (revoked.status, revoked.body["name"]) == (200, "leaked")
    assert (await staff.call("POST", path, why, token=token)).code == "key_not_found"
    key = made.body["key"]
    refused = await staff.service.call("GET", "/api/usage", token=key)
    assert refused.code == "unauthorized"


async def test_a_suspended_user_exports_and_closes_the_account(staff: StaffApi) -> None:
    person = await staff.service.person()
    token = await staff.token(Role.OPERATOR)
    await staff.call("POST", f"/users/{person.user_id}/suspend", SUSPEND, token=token)
    asked = await staff.service.call("POST", "/auth/me/export", token=person.token)
    assert asked.status == 200, asked.body
    closed = await staff.service.call(
        "POST", "/auth/me/close", {"password": "long enough"}, token=person.token
    )
    assert closed.status == 200, closed.body

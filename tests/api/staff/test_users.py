"""Users at the staff API: found, shown and noted, and the log of it."""

from support.clients.staff import PREFIX, StaffApi
from support.market.staff import ROOT
from support.market.staff_money import LIMITS

from market.staff.base.roles import Role
from market.staff.finding import history
from market.staff.leaving import closing
from market.staff.money import paying


async def test_a_member_finds_a_user_and_writes_a_note(staff: StaffApi) -> None:
    person = await staff.service.person(usd="5")
    token = await staff.token(Role.SUPPORT)
    found = await staff.call("POST", "/search", {"text": person.email}, token=token)
    [by] = [each for each in found.body["found"] if each["by"] == "e-mail"]
    assert [hit["user_id"] for hit in by["hits"]] == [person.user_id]
    note = {"text": "asked about a deposit"}
    key = {"Idempotency-Key": "a note"}
    path = f"/users/{person.email}/notes"
    for _ in range(2):
        noted = await staff.call("POST", path, note, token=token, headers=key)
        assert noted.body == {"ok": True, "user_id": person.user_id}
    page = (await staff.call("GET", f"/users/{person.user_id}", token=token)).body
    assert (page["user"]["email"], page["user"]["is_masked"]) == ("p…@e…", True)
    assert (page["user"]["identity_checked"], page["user"]["closure"]) == (False, None)
    assert page["balances"][0] == {"currency": "usd", "available": 5.0, "held": 0.0}
    [written] = page["notes"]
    assert (written["text"], written["author"]) == (note["text"], "support@staff.example.com")
    assert [each["action"] for each in page["log"]] == ["user.note"]
    missing = await staff.call("GET", "/users/nobody", token=token)
    assert (missing.status, missing.code) == (404, "user_not_found")


async def test_a_member_reveals_a_user_with_a_reason(staff: StaffApi) -> None:
    person = await staff.service.person()
    token = await staff.token(Role.SUPPORT)
    path = f"/users/{person.user_id}"
    answer = await staff.call("POST", f"{path}/reveal", {"reason": ""}, token=token)
    assert (answer.status, answer.code, answer.field) == (400, "invalid_field", "reason")
    why = {"reason": "the user telephones"}
    answer = await staff.call("POST", f"{path}/reveal", why, token=token)
    assert answer.body["user_id"] == person.user_id
    page = (await staff.call("GET", path, token=token)).body
    assert (page["user"]["email"], page["user"]["is_masked"]) == (person.email, False)
    assert [(each["action"], each["text"]) for each in page["log"]] == [
        ("user.reveal", why["reason"])
    ]
    other = await staff.token(Role.FINANCE)
    page = (await staff.call("GET", path, token=other)).body
    assert page["user"]["is_masked"]


async def test_the_page_shows_a_checked_identity_and_a_closed_account(staff: StaffApi) -> None:
    person, market = await staff.service.person(), staff.service.daemon.market
    await paying.verify(market.context, ROOT, person.user_id, "a passport")
    await closing.close(
        market.context,
        market.letters,
        LIMITS,
        ROOT,
        person.user_id,
        waives=False,
        why="asked by letter",
    )
    token = await staff.token(Role.SUPPORT)
    page = (await staff.call("GET", f"/users/{person.user_id}", token=token)).body
    assert page["user"]["identity_checked"] is True
    closure = page["user"]["closure"]
    assert (closure["state"], closure["erased_at"]) == ("closed", None)
    assert closure["erased_after"] > closure["closed_at"]


async def test_only_an_operator_searches_for_an_address(staff: StaffApi) -> None:
    text = {"text": "203.0.113.9"}
    support = await staff.token(Role.SUPPORT)
    answer = await staff.call("POST", "/search", text, token=support)
    assert (answer.status, answer.code) == (401, "not_permitted")
    operator = await staff.token(Role.OPERATOR)
    assert (await staff.call("POST", "/search", text, token=operator)).status == 200
    log = await staff.call("GET", "/log?action=search.address", token=operator)
    [act] = log.body["acts"]
    assert (act["via"], act["text"]) == ("api", "203.0.113.9")


async def test_no_list_tells_whose_address_a_guess_is_without_the_log(staff: StaffApi) -> None:
    person = await staff.service.person()
    support, operator = await staff.token(Role.SUPPORT), await staff.token(Role.OPERATOR)
    for name, status in ((person.email, 200), ("guess@example.com", 404)):
        for path in (f"/payments?user={name}", f"/users/{name}/money"):
            assert (await staff.call("GET", path, token=support)).status == status
        revealed = await staff.call("POST", f"/users/{name}/reveal", {"reason": ""}, token=support)
        assert revealed.code == "invalid_field"
    acts = (await staff.call("GET", "/log?action=search.email", token=operator)).body["acts"]
    assert [each["changes"]["hits"]["new"] for each in acts] == [0, 0, 1, 1]
    assert {each["staff"] for each in acts} == {"support@staff.example.com"}
    assert person.email not in str(acts)


async def test_no_operation_tells_of_a_guessed_address_without_the_log(staff: StaffApi) -> None:
    token, wrong, number = await staff.token(Role.OPERATOR), [], 0
    context = staff.service.daemon.market.context
    for path, methods in staff.http.openapi["paths"].items():
        for method, operation in methods.items() if "{user}" in path else ():
            number += 1
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("example")
            guess = path.removeprefix(PREFIX).replace("{user}", f"guess{number}@example.com")
            refused = await staff.call(method.upper(), guess, body, token=token)
            acts = await history.read(context, ROOT, action="search.email", limit=1_000)
            if (refused.code, len(acts)) != ("user_not_found", number):
                wrong.append((method, path, refused.code, len(acts)))
    assert number > 15
    assert not wrong


async def test_the_log_is_read_in_parts(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR)  # hired, and logged in
    for each in ("a", "b", "c"):
        await staff.hire(Role.SUPPORT, each)
    numbers, query = [], "?limit=2"
    while query:
        part = (await staff.call("GET", f"/log{query}", token=token)).body
        numbers += [each["number"] for each in part["acts"]]
        query = f"?limit=2&before={part['before']}" if part["before"] else ""
    assert numbers == [5, 4, 3, 2, 1]
    for query in ("action=nothing", "before=0", f"before={10**30}", "limit=0", "limit=1001"):
        wrong = await staff.call("GET", f"/log?{query}", token=token)
        assert (wrong.status, wrong.code) == (400, "invalid_field"), query

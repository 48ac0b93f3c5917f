"""Cases at the staff API: listed, shown, and decided once."""

from support.clients.staff import StaffApi
from support.market.rewards import rewarded

from market.staff.base.roles import Role

WHY = {"reason": "the photo is of a poster"}


async def test_a_reward_is_listed_shown_and_taken_back(staff: StaffApi) -> None:
    context = staff.service.daemon.market.context
    person, other = await staff.service.person(), await staff.service.person()
    made = [await rewarded(context, person.user_id, each) for each in (5, 7)]
    await rewarded(context, other.user_id, 3)
    token = await staff.token(Role.FINANCE)
    path = f"/cases/reward?user={person.user_id}&limit=1"
    first = (await staff.call("GET", path, token=token)).body
    assert [each["id"] for each in first["cases"]] == [made[1]]
    rest = await staff.call("GET", f"{path}&cursor={first['next_cursor']}", token=token)
    assert [each["id"] for each in rest.body["cases"]] == [made[0]]
    one = f"/cases/reward/{made[0]}"
    page = (await staff.call("GET", one, token=token)).body
    assert (page["case"]["amount"], page["case"]["is_open"]) == (-5, True)
    assert {"name": "category", "value": "help"} in page["facts"]
    assert [each["detail"] for each in page["history"]] == ["7.00"]
    for state in ("done", "done_before"):
        done = await staff.call("POST", f"{one}/void", WHY, token=token)
        assert (done.status, done.body["state"], done.body["amount"]) == (200, state, -5)
    late = await staff.call("POST", f"{one}/uphold", WHY, token=token)
    assert (late.status, late.code) == (400, "case_decided")
    page = (await staff.call("GET", one, token=token)).body
    assert (page["case"]["decision"], page["case"]["is_open"]) == ("voided", False)


async def test_wrong_calls_are_refused(staff: StaffApi) -> None:
    token = await staff.token(Role.FINANCE)
    for path in ("/cases/other", "/cases/canary/none", "/cases/other/none"):
        answer = await staff.call("GET", path, token=token)
        assert (answer.status, answer.code) == (404, "case_not_found"), path
    person = await staff.service.person()
    listed = await staff.call("GET", f"/cases/sample?user={person.user_id}", token=token)
    assert (listed.status, listed.code) == (400, "invalid_field")
    case_id = await rewarded(staff.service.daemon.market.context, person.user_id, 1)
    empty = await staff.call("POST", f"/cases/reward/{case_id}/void", {"reason": ""}, token=token)
    assert (empty.status, empty.code) == (400, "invalid_field")
    support = await staff.token(Role.SUPPORT)
    assert (await staff.call("GET", "/cases/canary", token=support)).code == "not_permitted"

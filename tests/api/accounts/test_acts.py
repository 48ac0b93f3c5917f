"""The acts of the staff about a user, as that user reads them over a socket."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.staff import StaffApi, staffed
from support.daemons.service import Answer, Person

from market.staff.base.roles import Role
from storage.erasure import erasing

ACTS = "/auth/me/acts"
SHOWN = "Mail to strangers."
INTERNAL = "seen in ticket A-17"
SUSPEND = {"parts": ["logins", "sessions"], "shown": SHOWN, "reason": INTERNAL}


@pytest.fixture
async def staff(tmp_path: Path) -> AsyncIterator[StaffApi]:
    async with staffed(tmp_path) as running:
        yield running


async def read(staff: StaffApi, person: Person, query: str = "") -> Answer:
    answer = await staff.service.call("GET", f"{ACTS}{query}", token=person.token)
    assert answer.status == 200, answer.body
    return answer


async def do(staff: StaffApi, token: str, person: Person, act: str, body: dict[str, Any]) -> None:
    answer = await staff.call("POST", f"/users/{person.user_id}/{act}", body, token=token)
    assert answer.status == 200, answer.body


async def test_a_user_without_acts_reads_an_empty_list(staff: StaffApi) -> None:
    answer = await read(staff, await staff.service.person())
    assert answer.body == {"ok": True, "acts": []}
    assert (await staff.service.call("GET", ACTS)).status == 401


async def test_a_suspended_user_reads_the_reason_and_no_internal_note(staff: StaffApi) -> None:
    person = await staff.service.person()
    token = await staff.token(Role.OPERATOR, "olga")
    await do(staff, token, person, "notes", {"text": "a rude caller"})
    await do(staff, token, person, "suspend", SUSPEND)
    refused = await staff.service.call("GET", "/api/bandwidth/sessions", token=person.token)
    assert refused.code == "account_suspended"
    answer = await read(staff, person)
    suspended, noted = answer.body["acts"]
    assert (suspended["action"], suspended["reason"]) == ("user.suspend", SHOWN)
    assert suspended["changes"]["logins"] == {"old": "active", "new": "suspended"}
    assert (suspended["subject_kind"], suspended["subject_id"]) == ("user", person.user_id)
    assert (noted["action"], noted["reason"]) == ("user.note", "")
    text = json.dumps(answer.body)
    for hidden in (INTERNAL, "a rude caller", "olga", "operator"):
        assert hidden not in text


async def test_nobody_reads_the_acts_about_another_user(staff: StaffApi) -> None:
    person, other = await staff.service.person(), await staff.service.person()
    token = await staff.token(Role.OPERATOR)
    await do(staff, token, person, "suspend", SUSPEND)
    await do(staff, token, other, "suspend", {**SUSPEND, "shown": "Unpaid."})
    await do(staff, token, other, "resume", {"reason": INTERNAL})
    found = {
        each.user_id: [
            (act["action"], act["reason"]) for act in (await read(staff, each)).body["acts"]
        ]
        for each in (person, other)
    }
    assert found == {
        person.user_id: [("user.suspend", SHOWN)],
        other.user_id: [("user.resume", ""), ("user.suspend", "Unpaid.")],
    }


async def test_an_amount_is_in_usd_and_the_reason_for_the_staff_is_not_there(
    staff: StaffApi,
) -> None:
    person = await staff.service.person(usd="5")
    token = await staff.token(Role.OPERATOR)
    body = {
        "currency": "usd",
        "amount": 1.5,
        "reference": "r1",
        "reason": INTERNAL,
        "direction": "take",
    }
    await do(staff, token, person, "corrections", body)
    acts = (await read(staff, person)).body["acts"]
    [corrected] = [act for act in acts if act["action"] == "money.correct"]
    assert corrected["changes"]["available_usd"] == {"old": 5.0, "new": 3.5}
    assert corrected["reason"] == ""
    assert INTERNAL not in json.dumps(acts)


async def test_parts_follow_each_other_and_a_wrong_cursor_is_refused(staff: StaffApi) -> None:
    person = await staff.service.person()
    token = await staff.token(Role.OPERATOR)
    for number in range(3):
        await do(staff, token, person, "suspend", {**SUSPEND, "shown": f"Reason {number}."})
    first = (await read(staff, person, "?limit=2")).body
    assert [act["reason"] for act in first["acts"]] == ["Reason 2.", "Reason 1."]
    last = (await read(staff, person, f"?limit=2&cursor={first['next_cursor']}")).body
    assert [act["reason"] for act in last["acts"]] == ["Reason 0."]
    assert "next_cursor" not in last
    for query in ("cursor=x", "cursor=-1", f"cursor={'9' * 19}", "limit=0", "limit=1001"):
        wrong = await staff.service.call("GET", f"{ACTS}?{query}", token=person.token)
        assert (wrong.status, wrong.code) == (400, "invalid_field"), query


async def test_the_list_has_the_rows_and_texts_of_the_export(staff: StaffApi) -> None:
    person = await staff.service.person()
    token = await staff.token(Role.OPERATOR)
    await do(staff, token, person, "notes", {"text": "a rude caller"})
    await do(staff, token, person, "suspend", SUSPEND)
    store = staff.service.daemon.store
    exported = {
        table: (await store.read(erasing.exported, table, person.user_id, after=(), limit=100))[0]
        for table in ("staff_log", "texts")
    }
    acts = (await read(staff, person)).body["acts"]
    assert [int(act["id"]) for act in reversed(acts)] == [
        row["number"] for row in exported["staff_log"]
    ]
    assert {(int(act["id"]), act["reason"]) for act in acts if act["reason"]} == {
        (row["log_number"], row["body"]) for row in exported["texts"]
    }

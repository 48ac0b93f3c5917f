"""Complaints at the staff API: tickets, and the look-up of an exit."""

from msgspec.structs import replace
from support.clients.staff import StaffApi

from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role

FIGURES = {"exit_address": "203.0.113.9", "at": "2026-01-31T12:00:00Z", "to": "198.51.100.7:22"}


async def test_a_ticket_is_opened_moved_answered_and_closed(staff: StaffApi) -> None:
    token = await staff.token(Role.SUPPORT)
    new = {"text": "a scan <b>of</b> port 22", "category": "scan", **FIGURES}
    opened = (await staff.call("POST", "/tickets", new, token=token)).body["ticket"]
    assert (opened["number"], opened["state"], opened["is_overdue"]) == (1, "new", False)
    move = {"state": "contacted", "reason": "wrote"}
    assert (await staff.call("POST", "/tickets/1/move", move, token=token)).status == 200
    answer = await staff.call("POST", "/tickets/1/answer", {"text": "done"}, token=token)
    assert answer.body["ticket"]["state"] == "answered"
    legal = {"state": "legal", "reason": "a court asks"}
    assert (await staff.call("POST", "/tickets/1/move", legal, token=token)).code == "not_permitted"
    close = {"outcome": "unfounded", "reason": "no abuse"}
    closed = (await staff.call("POST", "/tickets/1/close", close, token=token)).body["ticket"]
    assert (closed["state"], closed["outcome"]) == ("closed", "unfounded")
    assert (await staff.call("POST", "/tickets/1/move", move, token=token)).code == "ticket_state"
    page = (await staff.call("GET", "/tickets/1", token=token)).body
    assert (page["facts"]["host"], page["facts"]["at"]) == ("198.51.100.7", FIGURES["at"])
    assert page["history"][-1]["text"] == new["text"]
    assert (await staff.call("GET", "/tickets", token=token)).body["tickets"] == []
    listed = await staff.call("GET", "/tickets?state=closed", token=token)
    assert [each["number"] for each in listed.body["tickets"]] == [1]
    for number in ("9", "0", "-1", "x", "\u0661", "9" * 40):
        missing = await staff.call("GET", f"/tickets/{number}", token=token)
        assert missing.code == "ticket_not_found", number


async def test_a_refusal_names_the_field_of_the_request(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR)
    person = await staff.service.person()
    for path, body, field in (
        ("/tickets", {"text": " "}, "text"),
        ("/tickets/1/move", {"state": "contacted", "reason": " "}, "reason"),
        ("/tickets/1/answer", {"text": " "}, "text"),
        ("/tickets/1/close", {"outcome": "unfounded", "reason": " "}, "reason"),
        (f"/users/{person.user_id}/notes", {"text": " "}, "text"),
        (
            f"/users/{person.user_id}/suspend",
            {"parts": ["keys"], "shown": " ", "until": None, "reason": "a ticket"},
            "shown",
        ),
    ):
        answer = await staff.call("POST", path, body, token=token)
        assert (answer.code, answer.field) == ("invalid_field", field), path


async def test_a_look_up_needs_a_ticket_of_the_support_and_leaves_a_row(staff: StaffApi) -> None:
    support, operator = await staff.token(Role.SUPPORT), await staff.token(Role.OPERATOR)
    assert (await staff.call("POST", "/exit-use", FIGURES, token=support)).code == "not_permitted"
    await staff.call("POST", "/tickets", {"text": "a scan"}, token=support)
    looked = await staff.call("POST", "/exit-use", {**FIGURES, "ticket": 1}, token=support)
    assert (looked.body["customer"], looked.body["gaps"]) == (
        None,
        ["access_log is off: no connection is recorded."],
    )
    [ticket] = (await staff.call("GET", "/tickets", token=support)).body["tickets"]
    assert ticket["state"] == "looked_up"
    [act] = (await staff.call("GET", "/log?action=search.exit", token=operator)).body["acts"]
    assert act["text"].startswith("exit 203.0.113.9 at 2026-01-31T12:00:00Z")
    for field, wrong in (
        ("exit_address", "nowhere"),
        ("at", "2026-01-31T12:00:00"),
        ("at", "9999-01-31T12:00:00Z"),
        ("to", "a b"),
        ("within", 3601),
    ):
        answer = await staff.call("POST", "/exit-use", {**FIGURES, field: wrong}, token=operator)
        assert (answer.status, answer.code) == (400, "invalid_field"), (field, wrong)
    lone = await staff.call("POST", "/tickets", {"text": "x", "to": "a"}, token=operator)
    assert lone.code == "invalid_field"


async def test_a_key_for_abuse_handles_tickets_but_no_authorities(staff: StaffApi) -> None:
    key = await staff.key(StaffScope.ABUSE)
    assert (await staff.call("POST", "/tickets", {"text": "a scan"}, token=key)).status == 200
    legal = {"state": "legal", "reason": "a court asks"}
    assert (await staff.call("POST", "/tickets/1/move", legal, token=key)).code == "scope_missing"
    rules = (await staff.call("GET", "/rules", token=key)).body["rules"]
    assert [(each["rule"], each["mode"]) for each in rules] == [
        ("scan", "off"),
        ("mail", "off"),
        ("login", "off"),
    ]


async def test_the_rules_are_those_of_the_reloaded_settings(staff: StaffApi) -> None:
    key = await staff.key(StaffScope.ABUSE)
    settings = staff.service.daemon.settings
    abuse = replace(settings.abuse, scan_targets=77)
    staff.service.daemon.reload(replace(settings, abuse=abuse))
    rules = (await staff.call("GET", "/rules", token=key)).body["rules"]
    assert [each["more_than"] for each in rules if each["rule"] == "scan"] == [77]

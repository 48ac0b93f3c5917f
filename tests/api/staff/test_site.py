"""The public side at the staff API: notices and invitations."""

from support.clients.staff import StaffApi

from market.staff.base.roles import Role

WHY = {"reason": "a new disk"}


async def test_texts_are_published_shown_and_translated(staff: StaffApi) -> None:
    token, support = await staff.token(Role.OPERATOR), await staff.token(Role.SUPPORT)
    key = {"Idempotency-Key": "one"}
    terms = {"kind": "terms", "locale": "en", "text": "# <b>Terms</b>", **WHY}
    assert (await staff.call("POST", "/site/texts", terms, token=support)).code == "not_permitted"
    published = [
        (await staff.call("POST", "/site/texts", terms, token=token, headers=key)).body
        for _ in range(2)
    ]
    assert published[0] == published[1]
    assert published[0]["head"]["version"] == 1
    russian = {**terms, "locale": "ru", "text": "Условия", "version": 1}
    assert (await staff.call("POST", "/site/texts", russian, token=token)).status == 200
    shown = (await staff.call("GET", "/site/texts/terms/1/ru", token=support)).body
    assert (shown["head"]["locale"], shown["text"]) == ("ru", "Условия\n")
    for path in ("terms/2/en", "terms/1/tr", "rules/1/en", "terms/0/en", f"terms/{10**30}/en"):
        missing = await staff.call("GET", f"/site/texts/{path}", token=support)
        assert (missing.status, missing.code) == (404, "text_not_found"), path
    soon = {**terms, "valid_from": "2026-01-01T00:00:00Z"}
    for wrong in (
        soon,
        {**terms, "locale": "xx"},
        {**russian, "text": "Another"},
        {**terms, "text": ""},
    ):
        refused = await staff.call("POST", "/site/texts", wrong, token=token)
        assert (refused.status, refused.code) == (400, "invalid_field"), wrong
    texts = (await staff.call("GET", "/site", token=support)).body["texts"]
    assert [(each["version"], each["locale"]) for each in texts] == [(1, "en"), (1, "ru")]


async def test_notices_and_invitations_are_made_listed_and_ended(staff: StaffApi) -> None:
    token, support = await staff.token(Role.OPERATOR), await staff.token(Role.SUPPORT)
    notice = {"title": "<b>Maintenance</b>", "severity": "warning", **WHY}
    key = {"Idempotency-Key": "one"}
    made = [
        (await staff.call("POST", "/site/notices", notice, token=support, headers=key)).body
        for _ in range(2)
    ]
    assert made[0] == made[1]
    number = made[0]["notice"]["id"]
    for status in (200, 404):
        ended = await staff.call("POST", f"/site/notices/{number}/end", WHY, token=support)
        assert ended.status == status
    body = {"uses": 5, "days": 14, **WHY}
    assert (await staff.call("POST", "/site/invitations", body, token=support)).status == 401
    invited = [
        (await staff.call("POST", "/site/invitations", body, token=token, headers=key)).body
        for _ in range(2)
    ]
    assert invited[0] == invited[1]
    assert invited[0]["link"].endswith(f"/register?invitation={invited[0]['code']}")
    one = invited[0]["invitation"]["id"]
    withdrawn = await staff.call("POST", f"/site/invitations/{one}/withdraw", WHY, token=token)
    assert withdrawn.body["id"] == one
    site = (await staff.call("GET", "/site", token=support)).body
    assert [each["title"] for each in site["notices"]] == ["<b>Maintenance</b>"]
    assert [each["uses_left"] for each in site["invitations"]] == [0]
    assert invited[0]["code"] not in str(site)

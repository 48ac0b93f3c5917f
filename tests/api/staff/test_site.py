"""The public side at the staff API: notices and invitations."""

from support.clients.staff import StaffApi

from market.staff.base.roles import Role

WHY = {"reason": "a new disk"}


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

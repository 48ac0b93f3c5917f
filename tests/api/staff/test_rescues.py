"""Rescues at the staff API: used, listed, and acknowledged by another operator."""

from support.clients.staff import StaffApi
from support.market.staff import FACTORS, ROOT

from market.staff.base.roles import Role
from market.staff.members import rescue
from market.staff.members.logins import StaffLogins
from market.staff.members.rescue import Post

WHY = {"reason": "she lost her telephone"}


async def test_a_rescue_is_used_listed_and_acknowledged(staff: StaffApi) -> None:
    market = staff.service.daemon.market
    omar = await staff.token(Role.OPERATOR, "omar")
    sam = await staff.token(Role.SUPPORT, "sam")
    olga = await staff.hire(Role.OPERATOR, "olga")
    logins = StaffLogins(market.context, market.passwords, FACTORS, b"k" * 40)
    login = await rescue.rescue(
        market.context, logins, Post(market.emails, "x"), ROOT, olga.email, "lost"
    )
    listed = await staff.call("GET", "/rescues", token=login.token)
    [row] = listed.body["rescues"]
    assert (row["email"], row["acknowledged_at"]) == (olga.email, None)
    path = f"/rescues/{row['id']}/acknowledge"
    for token, code in ((login.token, "factor_expired"), (sam, "not_permitted")):
        assert (await staff.call("POST", path, WHY, token=token)).code == code
    assert (await staff.call("GET", "/rescues", token=sam)).code == "not_permitted"
    for wrong in ("x", olga.id):
        missing = await staff.call("POST", f"/rescues/{wrong}/acknowledge", WHY, token=omar)
        assert missing.code == "staff_unchanged"
        assert missing.body["error"]["message"] == "No rescue with this identifier waits."
    key = {"Idempotency-Key": "once"}
    for _ in range(2):
        done = await staff.call("POST", path, WHY, token=omar, headers=key)
        assert (done.status, done.body["email"]) == (200, olga.email)
    assert (await staff.call("POST", path, WHY, token=omar)).code == "staff_unchanged"
    [row] = (await staff.call("GET", "/rescues", token=omar)).body["rescues"]
    assert row["acknowledged_by"] == "omar@staff.example.com"


async def test_a_rescued_login_moves_no_money_and_acknowledges_no_other_rescue(
    staff: StaffApi,
) -> None:
    market = staff.service.daemon.market
    logins = StaffLogins(market.context, market.passwords, FACTORS, b"k" * 40)
    members = [await staff.hire(Role.OPERATOR, name) for name in ("olga", "omar")]
    olga, omar = [
        await rescue.rescue(
            market.context, logins, Post(market.emails, "x"), ROOT, each.email, "lost"
        )
        for each in members
    ]
    rows = (await staff.call("GET", "/rescues", token=olga.token)).body["rescues"]
    [first] = [each["id"] for each in rows if each["email"] == olga.email]
    path = f"/rescues/{first}/acknowledge"
    assert (await staff.call("POST", path, WHY, token=omar.token)).code == "factor_expired"
    correct = {"amount": 1, "currency": "usd", "direction": "add", "reference": "x", **WHY}
    money = await staff.call("POST", "/users/nobody/corrections", correct, token=omar.token)
    assert money.code == "factor_expired"

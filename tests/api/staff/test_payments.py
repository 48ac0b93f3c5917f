"""Payments at the staff API: found, looked at, decided, and debts that are forgiven."""

from support.clients.staff import StaffApi
from support.market.payment_rows import owe, payment_row

from market.money.audit import audit_ledger
from market.money.money import MICRO
from market.staff.base.roles import Role
from market.staff.money.money_audit import audit_money
from storage.payments import payments as queries

WHY = {"reason": "the bank has written"}


async def test_doubtful_payments_are_decided_and_debts_forgiven(staff: StaffApi) -> None:
    person, market = await staff.service.person(), staff.service.daemon.market
    finance = await staff.token(Role.FINANCE)
    support = await staff.token(Role.SUPPORT, "sam")
    rows = [payment_row(market, person.user_id, "doubtful", 20 * MICRO) for _ in range(2)]
    for row in rows:
        await market.context.store.write(queries.insert, row)
    path = "/payments?status=doubtful&limit=1"
    page = (await staff.call("GET", path, token=support)).body
    assert [each["id"] for each in page["payments"]] == [rows[1].id]
    rest = await staff.call("GET", f"{path}&cursor={page['next_cursor']}", token=support)
    assert [each["id"] for each in rest.body["payments"]] == [rows[0].id]
    one, other = (f"/payments/{row.id}" for row in rows)
    shown = (await staff.call("GET", one, token=support)).body
    shown = shown["payment"]
    assert (shown["user_id"], shown["doubt"]) == (person.user_id, "a doubt")
    assert (await staff.call("POST", f"{one}/credit", WHY, token=support)).code == "not_permitted"
    looked = await staff.call("POST", f"{one}/look", WHY, token=finance)
    assert looked.body["payment"]["status"] == "doubtful"
    credited = await staff.call("POST", f"{one}/credit", {"amount": 21, **WHY}, token=finance)
    assert (credited.status, credited.body["state"], credited.body["amount"]) == (200, "done", 21)
    given = await staff.call("POST", f"{other}/give-up", WHY, token=finance)
    assert given.body["payment"]["status"] == "failed"
    again = await staff.call("POST", f"{other}/give-up", WHY, token=finance)
    assert again.code == "payment_not_doubtful"
    missing = await staff.call("GET", "/payments/none", token=finance)
    assert missing.code == "payment_not_found"
    await owe(market, person.user_id, 8)
    forgive = f"/users/{person.user_id}/forgive"
    body = {"amount": 8, "reference": "letter-1", **WHY}
    for state in ("done", "done_before"):
        answer = await staff.call("POST", forgive, body, token=finance)
        assert (answer.status, answer.body["state"]) == (200, state)
    over = await staff.call("POST", forgive, {**body, "reference": "letter-2"}, token=finance)
    assert over.code == "debt_too_small"
    store = staff.service.daemon.store
    checks = (*(await audit_ledger(store)).checks, *await audit_money(store))
    assert not [each for each in checks if each.differences]

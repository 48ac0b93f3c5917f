"""Files for banks at the staff API: made once, downloaded with a second factor, and in the log."""

import csv
import io

from support.clients.staff import StaffApi
from support.daemons.service import Answer

from market.payouts.files import FILE_MAX_BYTES
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Role
from tests.api.payouts.test_payouts import ask, earner

ALL = "/payout_batches"
CSV = {"format": "csv"}
WHY = {"reason": "the name is that of the account"}


async def approved(staff: StaffApi, token: str) -> str:
    """Have a user request a payout, and approve it."""
    made = await ask(staff.service, await earner(staff.service))
    payout = str(made.body["payout"]["id"])
    done = await staff.call("POST", f"/payouts/{payout}/approve", WHY, token=token)
    assert done.body["state"] == "done"
    return payout


async def test_finance_sends_payouts_once_and_downloads_their_file(staff: StaffApi) -> None:
    finance, operator = await staff.token(Role.FINANCE), await staff.token(Role.OPERATOR)
    assert (await staff.call("POST", ALL, CSV, token=finance)).body["batch"] is None
    payout = await approved(staff, finance)
    headers = {"Idempotency-Key": "one"}
    made = [await staff.call("POST", ALL, CSV, token=finance, headers=headers) for _ in range(2)]
    assert made[0].body == made[1].body
    batch = made[0].body["batch"]
    assert (batch["payouts"], batch["usd"]) == (1, 10)
    shown = (await staff.call("GET", f"/payouts/{payout}", token=finance)).body
    assert shown["payout"]["state"] == "sent"
    for _ in range(2):
        answer, content = await staff.download(f"{ALL}/{batch['id']}/file", finance)
        [row] = csv.DictReader(io.StringIO(content.decode()))
        assert payout in row.values()
        assert "DE89370400440532013000" in row.values()
        name = f"payouts-{batch['id']}.csv"
        assert answer.headers["Content-Disposition"].startswith(f'attachment; filename="{name}"')
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
    log = await staff.call("GET", "/log?action=payout.export", token=operator)
    assert [each["staff"] for each in log.body["acts"]] == ["finance@staff.example.com"] * 3
    assert "DE89" not in str(log.body)


async def test_a_message_to_a_bank_needs_the_account_that_pays(staff: StaffApi) -> None:
    finance = await staff.token(Role.FINANCE)
    payout = await approved(staff, finance)
    refused = await staff.call("POST", ALL, {"format": "pain001"}, token=finance)
    assert refused.code == "invalid_field"
    shown = (await staff.call("GET", f"/payouts/{payout}", token=finance)).body
    assert shown["payout"]["state"] == "approved"
    for body in ({"format": "pdf"}, {**CSV, "eur_rate": -1}, {**CSV, "eur_rate": 0.92}, {}):
        assert (await staff.call("POST", ALL, body, token=finance)).code == "invalid_field"


async def test_a_rate_is_near_one(staff: StaffApi) -> None:
    finance = await staff.token(Role.FINANCE)
    payout = await approved(staff, finance)
    for rate in (0, 0.0092, 0.199999, 5.000001, 92):
        body = {"format": "pain001", "eur_rate": rate}
        refused = await staff.call("POST", ALL, body, token=finance)
        assert (refused.code, refused.field) == ("invalid_field", "eur_rate")
    shown = (await staff.call("GET", f"/payouts/{payout}", token=finance)).body
    assert shown["payout"]["state"] == "approved"


async def test_no_key_no_old_login_and_no_support_gets_a_file(staff: StaffApi) -> None:
    finance, support = await staff.token(Role.FINANCE), await staff.token(Role.SUPPORT)
    await approved(staff, finance)
    batch = (await staff.call("POST", ALL, CSV, token=finance)).body["batch"]["id"]
    file, key = f"{ALL}/{batch}/file", await staff.key(StaffScope.MONEY)
    for token, code in ((support, "not_permitted"), (key, "scope_missing"), (None, "unauthorized")):
        for method, path, body in (("POST", ALL, CSV), ("GET", file, None)):
            assert (await staff.call(method, path, body, token=token)).code == code
    other = f"{ALL}/{'0' * 26}/file"
    assert (await staff.call("GET", other, token=finance)).code == "payout_batch_not_found"
    await staff.age_factors()
    assert (await staff.call("GET", file, token=finance)).code == "factor_expired"
    assert (await staff.call("POST", ALL, CSV, token=finance)).code == "factor_expired"


async def send_list(staff: StaffApi, token: str, content: bytes) -> Answer:
    return await staff.upload("/payout_outcomes", content, token)


async def test_a_list_of_outcomes_is_booked_by_finance(staff: StaffApi) -> None:
    finance, operator = await staff.token(Role.FINANCE), await staff.token(Role.OPERATOR)
    payout = await approved(staff, finance)
    batch = (await staff.call("POST", ALL, CSV, token=finance)).body["batch"]["id"]
    _, table = await staff.download(f"{ALL}/{batch}/file", finance)
    [row] = csv.DictReader(io.StringIO(table.decode()))
    filled = io.StringIO(newline="")
    writer = csv.DictWriter(filled, row)
    writer.writeheader()
    writer.writerow({**row, "outcome": "paid"})
    writer.writerow({**row, "outcome": "paid", "amount_usd": "11.00"})
    for result in ("paid", "paid before"):
        booked = await send_list(staff, finance, filled.getvalue().encode())
        assert [each["result"] for each in booked.body["lines"]] == [
            result,
            "refused: the payout has another amount",
        ]
        assert (booked.body["refused"], booked.body["waiting"]) == (1, 0)
    shown = (await staff.call("GET", f"/payouts/{payout}", token=finance)).body
    assert shown["payout"]["state"] == "paid"
    log = (await staff.call("GET", "/log?action=payout.import", token=operator)).body["acts"]
    files = [each["changes"] for each in log if "file" in each["changes"]]
    assert [each["lines"]["new"] for each in files] == [2, 2]
    assert [each["staff"] for each in log] == ["finance@staff.example.com"] * 3
    await staff.service.assert_audit()


async def test_a_list_is_refused_as_a_whole_like_the_command_does(staff: StaffApi) -> None:
    finance, support = await staff.token(Role.FINANCE), await staff.token(Role.SUPPORT)
    table = b"payout_id,amount_usd,outcome\n"
    assert (await send_list(staff, support, table)).code == "not_permitted"
    key = await staff.key(StaffScope.MONEY)
    assert (await send_list(staff, key, table)).code == "scope_missing"
    wrong = await send_list(staff, finance, table + b"x,1.00,perhaps\n")
    assert wrong.code == "payout_file_invalid"
    assert "ine 2" in wrong.body["error"]["message"]
    assert (await send_list(staff, finance, b"\xff")).code == "payout_file_invalid"
    large = table + b"#" * FILE_MAX_BYTES
    assert (await send_list(staff, finance, large)).status == 413
    assert (await send_list(staff, finance, table)).body["lines"] == []
    await staff.age_factors()
    assert (await send_list(staff, finance, table)).code == "factor_expired"

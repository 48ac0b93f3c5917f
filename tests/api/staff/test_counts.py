"""Metrics of the staff API: requests by operation and result, and failed logins."""

from support.clients.staff import StaffApi

from market.staff.base.roles import Role


async def test_requests_are_counted_by_operation_and_result(staff: StaffApi) -> None:
    finance = await staff.hire(Role.FINANCE)
    assert (await staff.try_login(finance.email, "wrong")).code == "invalid_credentials"
    token = await staff.login(finance)
    for _ in range(2):
        assert (await staff.call("GET", "/me", token=token)).status == 200
    refused = await staff.call("POST", "/search", {"text": "203.0.113.9"}, token=token)
    assert refused.code == "not_permitted"
    assert (await staff.call("GET", "/me")).code == "unauthorized"
    lines = staff.service.daemon.helpers.metrics.render().decode().splitlines()
    assert set(lines) >= {
        'proxyd_staff_requests_total{operation="staff.login",result="done"} 1.0',
        'proxyd_staff_requests_total{operation="staff.login",result="refused"} 1.0',
        'proxyd_staff_requests_total{operation="staff.self",result="done"} 2.0',
        'proxyd_staff_requests_total{operation="staff.self",result="refused"} 1.0',
        'proxyd_staff_requests_total{operation="search",result="refused"} 1.0',
        "proxyd_staff_failed_logins_total 1.0",
        'proxyd_staff_waiting{kind="approvals"} 0.0',
    }

"""Receipts by the API: their lines, before the payment, and those of other users."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.payments.taking import SELLER, Shop, shop


@pytest.fixture
async def taking(tmp_path: Path) -> AsyncIterator[Shop]:
    async with shop(tmp_path) as running:
        yield running


async def test_a_receipt_adds_up_and_is_its_payer_s_alone(taking: Shop) -> None:
    service, ada, eve = taking.service, await taking.service.person(), await taking.service.person()
    begun = await taking.begin(ada)
    early = await service.call("GET", f"/api/payments/{begun}/receipt", token=ada.token)
    assert (early.status, early.code) == (404, "payment_not_found")
    paid = await taking.pay(ada, 19.99)
    path = f"/api/payments/{paid}/receipt"
    receipt = (await service.call("GET", path, token=ada.token)).body["receipt"]
    assert (receipt["number"], receipt["seller"]) == (1, SELLER)
    assert (receipt["tax_name"], receipt["tax_percent"]) == ("VAT", 20)
    assert (receipt["net_usd"], receipt["tax_usd"], receipt["amount_usd"]) == (16.66, 3.33, 19.99)
    assert (receipt["buyer_email"], receipt["payment_id"]) == (ada.email, paid)
    for other in (path, "/api/payments/nonsense/receipt"):
        assert (await service.call("GET", other, token=eve.token)).code == "payment_not_found"
    assert (await service.call("GET", path)).status == 401

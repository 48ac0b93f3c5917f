"""Particulars of a buyer over the API: invoices, receipts, and credit notes that name them."""

from pathlib import Path

from support.payments.taking import Shop, shop

PATH = "/api/payments/particulars"
ADA = {"name": "Lovelace (Ltd)", "address": ["1 Engine Road", "London"], "country": "GB"}


async def test_a_document_with_particulars_is_an_invoice(tmp_path: Path) -> None:
    async with shop(tmp_path) as taking:
        service, ada = taking.service, await taking.service.person()
        shown = (await service.call("GET", PATH, token=ada.token)).body
        assert shown["particulars"] is None
        assert "GB" in shown["countries"]
        documents = []
        for new in (None, {**ADA, "tax_number": "GB123"}, {**ADA, "name": "Byron"}, None):
            method = "DELETE" if new is None else "PUT"
            put = await service.call(method, PATH, new, token=ada.token)
            expected = None if new is None else {"tax_number": "", **new}
            assert put.body["particulars"] == expected
            path = f"/api/payments/{await taking.pay(ada)}"
            documents.append((path, expected))
        for number, (path, expected) in enumerate(documents, 1):
            receipt = (await service.call("GET", f"{path}/receipt", token=ada.token)).body[
                "receipt"
            ]
            assert (receipt["number"], receipt["buyer"]) == (number, expected)
            assert receipt["is_invoice"] is (expected is not None)
        path, _ = documents[1]
        await service.call("POST", f"{path}/refund", {"amount_usd": 3}, token=ada.token)
        invoice = await _file(service.url + f"{path}/receipt.pdf", ada.token, taking)
        note = await _file(service.url + f"{path}/credit-notes/1", ada.token, taking)
        for document in (invoice, note):
            for line in (b"For: Lovelace \\(Ltd\\)", b"London", b"GB", b"Tax number: GB123"):
                assert b"(%s) Tj" % line in document
        assert b"(Invoice 2) Tj" in invoice
        assert b"(for invoice 2 of " in note
        plain = await _file(f"{service.url}{documents[0][0]}/receipt.pdf", ada.token, taking)
        assert b"(Receipt 1) Tj" in plain
        assert b"(For: person1, person1@example.com) Tj" in plain
        bad = await service.call("PUT", PATH, {**ADA, "country": "Britain"}, token=ada.token)
        assert (bad.code, bad.field) == ("invalid_field", "country")


async def test_a_key_for_the_wallet_reads_documents_and_no_particulars(tmp_path: Path) -> None:
    async with shop(tmp_path) as taking:
        service, ada = taking.service, await taking.service.person()
        await service.call("PUT", PATH, ADA, token=ada.token)
        receipt = f"/api/payments/{await taking.pay(ada)}/receipt"
        for scope, refused, allowed in (
            ("wallet:read", PATH, receipt),
            ("account:read", receipt, PATH),
        ):
            new = {"name": "k", "scopes": [scope]}
            key = (await service.call("POST", "/api/keys", new, token=ada.token)).body["key"]
            assert (await service.call("GET", refused, token=key)).code == "scope_missing"
            assert (await service.call("GET", allowed, token=key)).status == 200


async def test_the_longest_particulars_hide_no_amount(tmp_path: Path) -> None:
    """Letters outside of Latin scripts are written as numbers, so they take many lines."""
    letter = "\N{SQUARED CJK UNIFIED IDEOGRAPH-624B}"
    async with shop(tmp_path) as taking:
        service, ada = taking.service, await taking.service.person()
        longest = {"name": letter * 100, "address": [letter * 80] * 4, "country": "JP"}
        await service.call("PUT", PATH, longest, token=ada.token)
        path = f"/api/payments/{await taking.pay(ada)}"
        await service.call("POST", f"{path}/refund", {"amount_usd": 3}, token=ada.token)
        invoice = await _file(service.url + f"{path}/receipt.pdf", ada.token, taking)
        note = await _file(service.url + f"{path}/credit-notes/1", ada.token, taking)
        assert b"(Total paid: 20.00 USD) Tj" in invoice
        assert b"(Total returned: 3.00 USD) Tj" in note


async def _file(url: str, token: str, taking: Shop) -> bytes:
    headers = {"Authorization": f"Bearer {token}"}
    async with taking.service.http.get(url, headers=headers) as response:
        assert response.status == 200
        return await response.read()

"""Receipts over the API: their figures, their numbers and their pages."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from support.base.cases import cases
from support.daemons.service import Service, running_in
from support.payments import stripe_server
from support.payments.stripe_server import KEY, SECRET, StripeServer
from support.payments.taking import shop

from api.payments import receipts
from api.payments.pdf import MARGIN, PAGE_HEIGHT, Line, document, has_codes
from api.payments.picture import Picture, picture_of
from api.site.look import Logo
from market.payments.payments import ReceiptView
from proxyd.loop import clock
from storage.payments.payments import PaymentRow, ReceiptRow


@pytest.fixture
async def stripe() -> AsyncIterator[StripeServer]:
    async with stripe_server.running(clock.seconds) as server:
        yield server


async def test_each_payment_has_a_numbered_receipt(
    tmp_path: Path, stripe: StripeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Logo] = []

    def decode(logo: Logo) -> Picture | None:
        decoded.append(logo)
        return picture_of(logo)

    monkeypatch.setattr(receipts, "picture_of", decode)
    payments = {
        "stripe_secret_key": KEY,
        "stripe_webhook_secret": SECRET,
        "stripe_api_base": stripe.url,
        "seller": "Example (Ltd)\n1 Road",
        "tax_name": "VAT",
        "tax_percent": 20,
    }
    logo = tmp_path / "logo.png"
    logo.write_bytes(png((960, 100), "red"))
    async with running_in(tmp_path, payments=payments, site={"logo": str(logo)}) as service:
        ada, eve = await service.person(), await service.person()
        numbers = []
        for usd in (20, 5.01):
            body = {"amount_usd": usd}
            begun = await service.call("POST", "/api/payments", body, token=ada.token)
            path = f"/api/payments/{begun.body['payment']['id']}"
            early = await service.call("GET", f"{path}/receipt", token=ada.token)
            assert early.code == "payment_not_found"
            stripe.pay(stripe.session_of(begun.body["payment"]["id"]))
            await service.call("GET", path, token=ada.token)
            shown = await service.call("GET", f"{path}/receipt", token=ada.token)
            receipt = shown.body["receipt"]
            numbers.append(receipt["number"])
            assert receipt["net_usd"] + receipt["tax_usd"] == pytest.approx(usd)
            assert receipt["buyer_email"] == ada.email
            assert receipt["seller"] == ["Example (Ltd)", "1 Road"]
            foreign = await service.call("GET", f"{path}/receipt", token=eve.token)
            assert foreign.code == "payment_not_found"
            asked = [pdf(service, f"{path}/receipt.pdf", ada.token) for _ in range(4)]
            document, *others = await asyncio.gather(*asked)
            assert others == [document] * 3
            assert b"(Total paid: %.2f USD) Tj" % usd in document
            assert b"(Example \\(Ltd\\)) Tj" in document
            assert b"/Width 480 /Height 50 /ColorSpace /DeviceRGB" in document
        assert numbers == [1, 2]
        assert len(decoded) == 1
        for usd in (3, 0.5):
            refund = {"amount_usd": usd}
            await service.call("POST", f"{path}/refund", refund, token=ada.token)
        notes = (await service.call("GET", f"{path}/receipt", token=ada.token)).body["receipt"]
        notes = notes["credit_notes"]
        assert [(each["number"], each["amount_usd"]) for each in notes] == [(1, 3.0), (2, 0.5)]
        assert notes[0]["net_usd"] + notes[0]["tax_usd"] == pytest.approx(3)
        document = await pdf(service, f"{path}/credit-notes/1", ada.token)
        for line in (
            b"/P1 Do",
            b"(Credit note 1)",
            b"(for receipt 2 of ",
            b"(Total returned: 3.00 USD)",
        ):
            assert line in document
        for number in ("3", "x"):
            missing = await service.call("GET", f"{path}/credit-notes/{number}", token=ada.token)
            assert missing.code == "credit_note_not_found"
        foreign = await service.call("GET", f"{path}/credit-notes/1", token=eve.token)
        assert foreign.code == "payment_not_found"
        await service.assert_audit()


async def pdf(service: Service, path: str, token: str) -> bytes:
    headers = {"Authorization": f"Bearer {token}"}
    async with service.http.get(service.url + path, headers=headers) as response:
        assert response.status == 200
        assert "attachment" in response.headers["Content-Disposition"]
        return await response.read()


def test_a_file_has_a_table_of_its_objects_and_all_lines_on_its_pages() -> None:
    lines = [Line("a (b) \\ ü \N{HANGUL SYLLABLE GA}\n", 12), *[Line("x")] * 200]
    written = document("Receipt 1", lines)
    assert b"(a \\(b\\) \\\\ \xfc <U+AC00> ) Tj" in written
    name = "\N{HANGUL SYLLABLE GA}" * 40
    long = b"".join(re.findall(rb"\((.*)\) Tj", document("Receipt 1", [Line(name)])))
    assert long == b"<U+AC00>" * 40  # in several lines, and no letter is lost
    assert (has_codes(name), has_codes("Zoë Müller, 5 €")) == (True, False)
    table = int(re.findall(rb"startxref\n(\d+)\n", written)[0])
    assert written[table : table + 4] == b"xref"
    offsets = [int(each) for each in re.findall(rb"(\d{10}) 00000 n", written)]
    for number, offset in enumerate(offsets, 1):
        assert written[offset:].startswith(b"%d 0 obj" % number)
    contents = re.findall(rb"\nstream\n(.*?)\nendstream", written, re.DOTALL)
    lengths = [int(each) for each in re.findall(rb"/Length (\d+)", written)]
    assert [len(each) for each in contents] == lengths
    assert max(each.count(b"Tj") for each in contents) < (PAGE_HEIGHT - MARGIN) / 15
    assert b"".join(contents).count(b"(x) Tj") == 200
    kids = re.findall(rb"/Kids \[(.*?)\] /Count %d >>" % len(contents), written)[0]
    assert re.findall(rb"(\d+) 0 obj\n<< /Type /Page /", written) == re.findall(rb"(\d+) 0 R", kids)


def png(size: tuple[int, int], colour: str | tuple[int, ...]) -> bytes:
    """Return a PNG of one colour, which may be transparent."""
    file = BytesIO()
    Image.new("RGBA", size, colour).save(file, "PNG")
    return file.getvalue()


def test_a_logo_is_drawn_on_white_and_small() -> None:
    clear = picture_of(Logo("image/png", png((4, 2), (0, 0, 255, 0))))
    assert clear is not None
    assert (clear.width, clear.height) == (4, 2)
    assert zlib.decompress(clear.pixels) == b"\xff" * 24
    blue = picture_of(Logo("image/png", png((2_000, 2_000), (0, 0, 255, 255))))
    assert blue is not None
    assert (blue.width, blue.height) == (160, 160)
    assert zlib.decompress(blue.pixels)[:3] == b"\x00\x00\xff"
    written = document("Receipt 1", [Line("x")], blue)
    assert b"q 40.00 0 0 40.00 499.00 746.00 cm /P1 Do Q\n" in written
    offsets = [int(each) for each in re.findall(rb"(\d{10}) 00000 n", written)]
    assert len(offsets) == 8
    for number, offset in enumerate(offsets, 1):
        assert written[offset:].startswith(b"%d 0 obj" % number)
    assert blue.pixels in written


async def test_a_logo_is_decoded_once_for_many_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list[Logo]()

    def counted(logo: Logo) -> Picture | None:
        decoded.append(logo)
        return picture_of(logo)

    monkeypatch.setattr(receipts, "picture_of", counted)
    logo = tmp_path / "logo.png"
    logo.write_bytes(png((2_048, 2_048), "red"))
    async with shop(tmp_path, site={"logo": str(logo)}) as taking:
        service, ada = taking.service, await taking.service.person()
        path = f"/api/payments/{await taking.pay(ada)}/receipt.pdf"
        found = await asyncio.gather(*(pdf(service, path, ada.token) for _ in range(8)))
    assert {b"/P1 Do" in each for each in found} == {True}
    assert len(decoded) == 1


def test_a_logo_that_no_pdf_shows_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert picture_of(Logo("image/svg+xml", b"<svg/>")) is None
    assert not caplog.records
    assert picture_of(Logo("image/png", png((4, 2), "red")[:40])) is None
    [record] = caplog.records
    assert "cannot be decoded" in record.getMessage()


@cases(
    "cents, basis_points, tax",
    [(2_000, 2_000, 333), (501, 2_000, 84), (100, 0, 0), (1, 10_000, 1), (100_000, 1_900, 15_966)],
)
def test_the_tax_in_an_amount_is_rounded_to_cents(cents: int, basis_points: int, tax: int) -> None:
    payment = PaymentRow("p", "u", "x", "paid", cents * 10_000, *[None] * 9)
    receipt = ReceiptRow(1, "p", 0, "", "VAT", basis_points)
    assert ReceiptView(receipt, payment, "", "").tax == tax * 10_000

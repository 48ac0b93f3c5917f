"""Particulars of buyers: frozen on invoices, in the export, and gone with the account elsewhere."""

from typing import Any

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.base.clock import Clock
from support.market.books import refusal
from support.market.leaving import tools
from support.market.market import Market
from support.payments.bank import Bank

from market.base.errors import Code, MarketError
from market.erasure import erasing
from market.money.money import MICRO
from market.payments.particulars import COUNTRIES, Particulars, checked
from storage.accounts import closures
from storage.engines.errors import ConstraintError
from storage.engines.store import Store, Transaction
from storage.erasure.treatment import TREATMENT
from storage.payments import particulars as queries

ADA = Particulars("Lovelace Ltd", ("1 Engine Road", "London"), "GB", "GB 123")


async def invoiced(market: Market, bank: Bank, user: str) -> str:
    payment = await market.payments.create(user, 20 * MICRO)
    bank.pay(payment.id)
    await market.payments.find(user, payment.id)
    return payment.id


@pytest.mark.both_engines
async def test_an_invoice_stays_as_it_was_also_after_the_account(
    store: Store, clock: Clock
) -> None:
    bank = Bank()
    market = Market(store, clock, providers={"bank": bank})
    user = await market.person()
    await market.particulars.put(user, ADA)
    payment_id = await invoiced(market, bank, user)
    other = Particulars("Ada", ("2 Road",), "DE")
    await market.particulars.put(user, other)
    assert await market.particulars.find(user) == other
    receipt = (await market.payments.receipt(user, payment_id)).receipt
    frozen = ("Lovelace Ltd", "1 Engine Road\nLondon", "GB", "GB 123")
    assert receipt.is_invoice
    assert receipt[-4:] == frozen
    for sql in ("UPDATE receipts SET buyer_name = 'x'", "DELETE FROM receipts"):
        with pytest.raises(ConstraintError, match="receipts_are_never_changed"):
            await market.store.write(lambda tx, sql=sql: tx.run(sql))
    assert {"buyer_particulars", "receipts"} <= {
        name for name, rows in TREATMENT.items() if rows.exported is not None
    }
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=True)
    assert await market.particulars.find(user) is None
    kept = await market.payments.receipt(user, payment_id)
    assert kept.receipt[-4:] == frozen
    assert kept.username.startswith("erased-")
    assert await refusal(market.particulars.put(user, ADA)) is Code.ACCOUNT_CLOSED
    market.passwords.close()


async def test_a_closed_account_sets_no_particulars(market: Market) -> None:
    user = await market.person()

    async def close(tx: Transaction) -> None:
        assert await closures.close(tx, user, waives=False, now=1, due_at=2)

    await market.store.write(close)
    assert await refusal(market.particulars.put(user, ADA)) is Code.ACCOUNT_CLOSED
    assert await market.store.read(queries.find, user) is None


@cases(
    "field, change",
    [
        ("name", {"name": " "}),
        ("name", {"name": "x" * 101}),
        ("name", {"name": "a\0b"}),
        ("name", {"name": "\u3164\u3164"}),
        ("address", {"address": ("", " ")}),
        ("address", {"address": ("1", "2", "3", "4", "5")}),
        ("address", {"address": ("x" * 81,)}),
        ("country", {"country": "UK"}),
        ("country", {"country": ""}),
        ("tax_number", {"tax_number": "1" * 31}),
        ("tax_number", {"tax_number": "12\N{ARABIC-INDIC DIGIT ONE}"}),
        ("tax_number", {"tax_number": "=1+1"}),
    ],
)
def test_wrong_particulars_are_refused(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(MarketError) as refused:
        checked(replace(ADA, **change))
    assert (refused.value.code, refused.value.field) == (Code.INVALID_FIELD, field)


def test_particulars_have_one_spelling() -> None:
    shown = Particulars(" Ada   L. ", ("1 Road ", "", "x" * 80), "gb", " GB  1/2 ")
    assert checked(shown) == Particulars("Ada L.", ("1 Road", "x" * 80), "GB", "GB 1/2")
    assert len(set(COUNTRIES)) == len(COUNTRIES) == 250

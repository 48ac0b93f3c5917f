"""Files of payouts: no formula in a table, messages as ISO 20022 has them, and outcomes."""

import csv
import io
import re
from decimal import Decimal
from xml.etree import ElementTree as ET

import pytest
from support.base.cases import cases

from market.base.errors import Code, MarketError
from market.money.money import MICRO
from market.payouts.details import Details
from market.payouts.files import (
    COLUMNS,
    NAMESPACE,
    Debtor,
    Format,
    Item,
    Outcome,
    as_csv,
    as_pain,
    harmless,
    read_outcomes,
)
from market.payouts.terms import FailReason, MethodKind

IBAN = "DE89370400440532013000"
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
DEBTOR = Debtor("Müller & Söhne GmbH", IBAN, "COBADEFFXXX")
BANK = Item(ID, MethodKind.BANK, Details(holder="Zoë <Ångström>", iban=IBAN), 9_500_000)

# The part of pain.001.001 that is used: children in their order, "?" for an optional one and "+"
# for one or more; a text has a pattern. The names of the standard, transcribed by hand.
IDENTIFIER, AMOUNT = r"[A-Za-z0-9]{1,35}", r"[0-9]{1,15}\.[0-9]{2}"
NAME = r"[A-Za-z0-9/\-?:().,'+&;<> ]{1,70}"
SCHEMA: dict[str, list[str] | str] = {
    "Document": ["CstmrCdtTrfInitn"],
    "CstmrCdtTrfInitn": ["GrpHdr", "PmtInf+"],
    "GrpHdr": ["MsgId", "CreDtTm", "NbOfTxs", "CtrlSum", "InitgPty"],
    "PmtInf": [
        "PmtInfId", "PmtMtd", "NbOfTxs", "CtrlSum", "PmtTpInf?", "ReqdExctnDt", "Dbtr", "DbtrAcct",
        "DbtrAgt", "ChrgBr", "CdtTrfTxInf+",
    ],
    "CdtTrfTxInf": ["PmtId", "Amt", "CdtrAgt?", "Cdtr", "CdtrAcct", "RmtInf"],
    "PmtTpInf": ["SvcLvl"], "SvcLvl": ["Cd"], "Cd": "SEPA",
    "InitgPty": ["Nm"], "Dbtr": ["Nm"], "Cdtr": ["Nm"], "Nm": NAME,
    "DbtrAcct": ["Id"], "CdtrAcct": ["Id"], "IBAN": r"[A-Z]{2}[0-9]{2}[A-Z0-9]{1,30}",
    "DbtrAgt": ["FinInstnId"], "CdtrAgt": ["FinInstnId"],
    "BIC": r"[A-Z0-9]{8}([A-Z0-9]{3})?", "BICFI": r"[A-Z0-9]{8}([A-Z0-9]{3})?",
    "PmtId": ["EndToEndId"], "Amt": ["InstdAmt"], "RmtInf": ["Ustrd"],
    "MsgId": IDENTIFIER, "PmtInfId": IDENTIFIER, "EndToEndId": IDENTIFIER,
    "CreDtTm": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "NbOfTxs": r"[0-9]{1,15}", "CtrlSum": AMOUNT,
    "PmtMtd": "TRF", "ChrgBr": "SLEV|SHAR", "InstdAmt": AMOUNT, "Ustrd": r".{1,140}",
    "Dt": r"\d{4}-\d\d-\d\d",
}  # fmt: skip


def check(element: ET.Element, version: str) -> None:
    """Compare an element with the schema."""
    space, _, name = element.tag[1:].partition("}")
    assert space == NAMESPACE + version
    children = [each.tag.partition("}")[2] for each in element]
    if name == "Id":
        assert children in (["IBAN"], []), children
    elif name == "FinInstnId":
        bic = "BIC" if version == "03" else "BICFI"
        assert children in ([bic], ["Othr"]), children
    elif name == "ReqdExctnDt":
        assert children == ([] if version == "03" else ["Dt"])
        assert version == "09" or re.fullmatch(r"\d{4}-\d\d-\d\d", element.text or "")
    elif name != "Othr":
        rule = SCHEMA[name]
        if isinstance(rule, str):
            assert re.fullmatch(rule, element.text or ""), (name, element.text)
        else:
            pattern = "".join(
                f"({each[:-1]} ){each[-1]}" if each[-1] in "?+" else f"{each} " for each in rule
            )
            assert re.fullmatch(pattern, "".join(f"{each} " for each in children)), children
    for each in element:
        check(each, version)


@cases(
    ("form", "rate"),
    [(form, rate) for form in (Format.PAIN_3, Format.PAIN_9) for rate in (None, Decimal("0.92"))],
)
def test_a_message_for_a_bank_is_as_the_standard_has_it(form: Format, rate: Decimal | None) -> None:
    other = Item(
        ID[:-1] + "8", MethodKind.BANK, Details(holder="Ada", iban=IBAN, bic="DEUTDEFF"), 10_000
    )
    debtor = Debtor(DEBTOR.name, DEBTOR.iban, DEBTOR.bic, rate)
    text = as_pain([BANK, other], debtor, form, ID, 1_800_000_000).text
    document = ET.fromstring(text)
    check(document, form[-2:])
    space = {"p": NAMESPACE + form[-2:]}
    amounts = document.findall(".//p:InstdAmt", space)
    assert [each.get("Ccy") for each in amounts] == ["EUR" if rate else "USD"] * 2
    assert [each.text for each in amounts] == (["8.74", "0.01"] if rate else ["9.50", "0.01"])
    total = sum(Decimal(each.text or "") for each in amounts)
    assert all(
        Decimal(each.text or "") == total for each in document.findall(".//p:CtrlSum", space)
    )
    names = [each.text for each in document.findall(".//p:Nm", space)]
    assert names[0] == "Muller . Sohne GmbH"
    assert "Zoe .Angstrom." in names


def test_a_message_without_the_account_that_pays_is_refused() -> None:
    with pytest.raises(MarketError) as caught:
        as_pain([BANK], Debtor(), Format.PAIN_9, ID, 1)
    assert caught.value.code is Code.INVALID_FIELD


@cases("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_is_a_formula(start: str) -> None:
    assert harmless(f"{start}1+1") == f"'{start}1+1"
    details = Details(holder=f"{start}SUM(A1)", text=f'{start}x,"y"')
    [row] = csv.DictReader(io.StringIO(as_csv([Item(ID, MethodKind.MANUAL, details, MICRO)]).text))
    assert row["holder"].startswith("'")
    assert row["text"] == f'\'{start}x,"y"'


@cases(
    ("text", "shown"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a\n=1+1", "a\n'=1+1"),
        ("a,@x;-1;+1", "a,'@x;'-1;'+1"),
        ("a; =1", "a;' =1"),
        (" =1", "' =1"),
        ("a=1-2", "a=1-2"),
        ("12-34-56", "12-34-56"),
    ],
)
def test_no_part_of_a_cell_is_a_formula_to_another_separator(text: str, shown: str) -> None:
    assert harmless(text) == shown


def table(*rows: str, head: str = "payout_id,amount_usd,outcome,reason") -> bytes:
    return "\r\n".join((head, *rows, "")).encode()


def test_an_exported_table_comes_back_filled_in() -> None:
    text = as_csv([BANK]).text.replace("9.50,,", "9.50,Paid,")
    [line] = read_outcomes(b"\xef\xbb\xbf" + text.encode())
    assert (line.payout_id, line.net, line.outcome) == (ID, 9_500_000, Outcome.PAID)
    assert read_outcomes(as_csv([BANK]).text.encode()) == []
    [line] = read_outcomes(
        table(f"{ID};1.00;failed;returned", head="payout_id;amount_usd;outcome;reason")
    )
    assert line.reason is FailReason.RETURNED
    assert set(COLUMNS) >= {"outcome", "reason"}


@cases(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"payout_id,amount_usd,outcome\n\0",
        table(head="a,b"),
        table(f"{ID},1.00,maybe,"),
        table(f"{ID},1.00,failed,because"),
        table(f"{ID},1e400,paid,"),
        table(f"{ID},-1,paid,"),
        table(f"{ID},NaN,paid,"),
        table(f"{ID},\u0661,paid,"),
        table(f"{ID},,paid,"),
        b"payout_id,amount_usd,outcome\n" + b"x" * (5 * 1024 * 1024),
        table(*[f"{ID},1,paid," for _ in range(10_001)]),
        table("x" * 200_000 + ",1,paid,"),
    ],
)
def test_a_file_that_is_no_list_of_outcomes_is_refused(content: bytes) -> None:
    with pytest.raises(MarketError) as caught:
        read_outcomes(content)
    assert caught.value.code is Code.PAYOUT_FILE_INVALID


def test_a_reason_of_a_payout_that_arrived_is_refused_with_its_line() -> None:
    with pytest.raises(MarketError, match="Line 3: an outcome of paid has no reason"):
        read_outcomes(table(f"{ID},1.00,failed,returned", f"{ID},1.00,paid,returned"))


def test_a_cell_that_is_too_large_is_refused_with_its_line() -> None:
    words = r"Line 3: a cell has more than 131072 characters\."
    with pytest.raises(MarketError, match=words):
        read_outcomes(table(f"{ID},1.00,paid,", "x" * 200_000 + ",1.00,paid,"))


@cases(
    ("head", "rest", "words"),
    [
        ("payout_id,amount_usd,outcome", "\n" * 4_000_000, "more than 10000 lines"),
        ("payout_id,amount_usd,outcome", "\r" * 4_000_000, "more than 10000 lines"),
        ("payout_id,amount_usd,outcome" + ",a" * 98, "\na,1,paid" * 9, "more than 100 columns"),
        ("payout_id,amount_usd,outcome,amount_usd", "", "names amount_usd twice"),
    ],
)
def test_a_file_that_takes_long_or_means_two_things_is_refused(
    head: str, rest: str, words: str
) -> None:
    with pytest.raises(MarketError, match=words):
        read_outcomes((head + rest).encode())


def test_a_file_without_a_needed_column_is_refused_with_their_names() -> None:
    with pytest.raises(MarketError, match="at least amount_usd, outcome, payout_id"):
        read_outcomes(b"payout_id,amount_usd,outcom\n")

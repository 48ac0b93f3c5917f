"""Files of payouts: lists for a bank as CSV or pain.001, and the list of outcomes that comes back.

A spreadsheet would carry out a cell that begins with `=`, so a user's text that begins like a
formula gets an apostrophe in front of it.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from xml.sax.saxutils import escape

from msgspec import Struct
from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.money.money import MICRO, micro
from market.payouts.details import NAME_MAX_CHARACTERS, Details
from market.payouts.terms import FailReason, MethodKind

COLUMNS = (
    "payout_id",
    "kind",
    "holder",
    "iban",
    "bic",
    "email",
    "text",
    "amount_usd",
    "outcome",
    "reason",
)
NEEDED_COLUMNS = frozenset(("payout_id", "amount_usd", "outcome"))
# EUR for a USD; it was 0.6 to 1.2. One outside is a misplaced point, which would send a hundredfold
# to each account.
EUR_RATE_MIN, EUR_RATE_MAX = Decimal("0.2"), Decimal(5)
# A cell that begins so is a formula to a spreadsheet.
FORMULA = "=+-@\t\r\n"
# A spreadsheet of another country separates cells at other characters.
_FORMULA_PART = re.compile(rf"(?:^|(?<=[;,\t\r\n]))(?= *[{re.escape(FORMULA)}])")
FILE_MAX_BYTES = 4 * 1024 * 1024
LINES_MAX = 10_000
COLUMNS_MAX = 100  # of a list that comes back; each line has a cell of each
# The characters of SEPA (EPC217-08).
_SEPA = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-?:().,'+ ")
_CENT = Decimal("0.01")
_NUMBER = re.compile(r"<NbOfTxs>[0-9]+</NbOfTxs>")
_SUM = re.compile(r"<CtrlSum>[0-9.]+</CtrlSum>")
_AMOUNT = re.compile(r"<InstdAmt[^>]*>([0-9.]+)</InstdAmt>")
NAMESPACE = "urn:iso:std:iso:20022:tech:xsd:pain.001.001."


class Format(StrEnum):
    """A format of a file; `PAIN_3` and `PAIN_9` are versions of the message pain.001.001."""

    CSV = "csv"
    PAIN_3 = "pain001.03"
    PAIN_9 = "pain001.09"


# The words of the staff for the formats; the newest version of a message needs no number.
FORMATS = {"csv": Format.CSV, "pain001": Format.PAIN_9, "pain001.03": Format.PAIN_3}


class Outcome(StrEnum):
    """The outcome of a payout in a list that comes back."""

    PAID = "paid"
    FAILED = "failed"


class Item(Struct, frozen=True):
    """A payout of a file: its identifier, its method, and the amount in micro-USD."""

    payout_id: str
    kind: MethodKind
    details: Details
    net: int


class Sheet(Struct, frozen=True):
    """A file: its head, the part of each payout by its identifier, in order, and its tail."""

    head: str
    lines: dict[str, str]
    tail: str

    @property
    def text(self) -> str:
        """The whole file."""
        return "".join((self.head, *self.lines.values(), self.tail))


class Debtor(Struct, frozen=True):
    """The account that pays.

    With `eur_rate`, the EUR for a USD, the file is in EUR and for SEPA.
    """

    name: str = ""
    iban: str = ""
    bic: str = ""
    eur_rate: Decimal | None = None


class Line(Struct, frozen=True):
    """A line of a list that comes back; `number` counts the lines of the file from 1."""

    number: int
    payout_id: str
    net: int
    outcome: Outcome
    reason: FailReason | None


def require_rate(form: Format, rate: Decimal | None) -> None:
    """Check the rate of exchange for a file, in EUR for a USD; None for a file in USD.

    Raises:
        MarketError: `invalid_field`.
    """
    if rate is None:
        return
    if form is Format.CSV:
        message = "A table is in USD: a rate is for the formats pain001 and pain001.03."
        raise MarketError(Code.INVALID_FIELD, message, field="eur_rate")
    if not EUR_RATE_MIN <= rate <= EUR_RATE_MAX:
        message = f"The rate is a number of EUR for a USD, from {EUR_RATE_MIN} to {EUR_RATE_MAX}."
        raise MarketError(Code.INVALID_FIELD, message, field="eur_rate")


def as_csv(items: Sequence[Item]) -> Sheet:
    """Return payouts as a table (RFC 4180); the outcomes are empty, to be filled in."""
    lines = {}
    for item in items:
        details = item.details
        cells = (details.holder, details.iban, details.bic, details.email, details.text)
        lines[item.payout_id] = _csv_line(
            (item.payout_id, item.kind, *map(harmless, cells), _cents(item.net), "", "")
        )
    return Sheet(_csv_line(COLUMNS), lines, "")


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def shortened(sheet: Sheet) -> Sheet:
    """Return a message to a bank that has lost lines, with the number and the sum of the others."""
    amounts = [Decimal(each) for line in sheet.lines.values() for each in _AMOUNT.findall(line)]
    head = _NUMBER.sub(f"<NbOfTxs>{len(amounts)}</NbOfTxs>", sheet.head)
    return replace(sheet, head=_SUM.sub(f"<CtrlSum>{sum(amounts):.2f}</CtrlSum>", head))


def harmless(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula, also where it separates others."""
    return _FORMULA_PART.sub("'", cell)


def as_pain(
    items: Sequence[Item], debtor: Debtor, version: Format, batch_id: str, now: int
) -> Sheet:
    """Return payouts to bank accounts as a message pain.001 (ISO 20022).

    Raises:
        MarketError: `invalid_field`, when the account that pays is not set.
    """
    if not debtor.name or not debtor.iban:
        message = "Set payouts.debtor_name and payouts.debtor_iban: the account that pays."
        raise MarketError(Code.INVALID_FIELD, message, field="debtor_iban")
    is_sepa, moment = debtor.eur_rate is not None, datetime.fromtimestamp(now, UTC)
    is_nine = version is Format.PAIN_9
    bic, day = ("BICFI" if is_nine else "BIC"), moment.strftime("%Y-%m-%d")
    date = f"<Dt>{day}</Dt>" if is_nine else day
    amounts = [_paid(item.net, debtor.eur_rate) for item in items]
    number, total = str(len(items)), f"{sum(amounts):.2f}"
    currency, reference = ("EUR" if is_sepa else "USD"), batch_id.replace("-", "")
    service = "<PmtTpInf><SvcLvl><Cd>SEPA</Cd></SvcLvl></PmtTpInf>" if is_sepa else ""
    head = [
        '<?xml version="1.0" encoding="UTF-8"?>\n',
        f'<Document xmlns="{NAMESPACE}{version[-2:]}"><CstmrCdtTrfInitn>',
        f"<GrpHdr><MsgId>{reference}</MsgId><CreDtTm>{moment:%Y-%m-%dT%H:%M:%S}</CreDtTm>",
        f"<NbOfTxs>{number}</NbOfTxs><CtrlSum>{total}</CtrlSum>",
        f"<InitgPty><Nm>{_plain(debtor.name)}</Nm></InitgPty></GrpHdr>\n",
        f"<PmtInf><PmtInfId>{reference}</PmtInfId><PmtMtd>TRF</PmtMtd>",
        f"<NbOfTxs>{number}</NbOfTxs><CtrlSum>{total}</CtrlSum>{service}",
        f"<ReqdExctnDt>{date}</ReqdExctnDt><Dbtr><Nm>{_plain(debtor.name)}</Nm></Dbtr>",
        f"<DbtrAcct><Id><IBAN>{escape(debtor.iban)}</IBAN></Id></DbtrAcct>",
        f"<DbtrAgt>{_agent(debtor.bic, bic)}</DbtrAgt>",
        "<ChrgBr>SLEV</ChrgBr>\n" if is_sepa else "<ChrgBr>SHAR</ChrgBr>\n",
    ]
    lines = {}
    for item, amount in zip(items, amounts, strict=True):
        details, name = item.details, item.payout_id.replace("-", "")
        agent = f"<CdtrAgt>{_agent(details.bic, bic)}</CdtrAgt>" if details.bic else ""
        lines[item.payout_id] = (
            f"<CdtTrfTxInf><PmtId><EndToEndId>{name}</EndToEndId></PmtId>"
            f'<Amt><InstdAmt Ccy="{currency}">{amount:.2f}</InstdAmt></Amt>{agent}'
            f"<Cdtr><Nm>{_plain(details.holder)}</Nm></Cdtr>"
            f"<CdtrAcct><Id><IBAN>{details.iban}</IBAN></Id></CdtrAcct>"
            f"<RmtInf><Ustrd>Payout {item.payout_id}</Ustrd></RmtInf></CdtTrfTxInf>\n"
        )
    return Sheet("".join(head), lines, "</PmtInf></CstmrCdtTrfInitn></Document>\n")


def read_outcomes(content: bytes) -> list[Line]:
    """Return the lines of a list of outcomes: the exported table with its last columns filled in.

    Lines without an outcome are left out.

    Raises:
        MarketError: `payout_file_invalid`, naming the line. Nothing of the file is used then.
    """
    if len(content) > FILE_MAX_BYTES:
        raise _invalid(f"It has more than {FILE_MAX_BYTES} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _invalid("It is not UTF-8 text.") from None
    if "\0" in text:
        raise _invalid("It has a character U+0000.")
    if text.count("\n") + text.count("\r") > 2 * LINES_MAX:  # the reader passes empty lines by
        raise _invalid(f"It has more than {LINES_MAX} lines.")
    delimiter = ";" if ";" in text.partition("\n")[0] else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        _check_columns(reader.fieldnames or ())
        lines = []
        for row in reader:
            if reader.line_num > LINES_MAX:
                raise _invalid(f"It has more than {LINES_MAX} lines.")
            line = _line(reader.line_num, row)
            if line is not None:
                lines.append(line)
    except csv.Error as error:  # the limit of a cell: the only error of a lenient reader here
        number, most = reader.reader.line_num, csv.field_size_limit()
        raise _invalid(f"Line {number}: a cell has more than {most} characters.") from error
    return lines


def _check_columns(names: Sequence[str]) -> None:
    if len(names) > COLUMNS_MAX:
        raise _invalid(f"It has more than {COLUMNS_MAX} columns.")
    if not set(names) >= NEEDED_COLUMNS:
        raise _invalid(f"Its first line names at least {', '.join(sorted(NEEDED_COLUMNS))}.")
    for name in COLUMNS:
        if names.count(name) > 1:  # a person may read the first, and this reads the last
            raise _invalid(f"Its first line names {name} twice.")


def _line(number: int, row: dict[str, str | None]) -> Line | None:
    cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
    word = cells["outcome"].lower()
    if not word:
        return None
    if word not in set(Outcome):
        raise _invalid(f"Line {number}: the outcome is paid or failed.")
    outcome, reason = Outcome(word), None
    if outcome is Outcome.PAID and cells["reason"]:
        raise _invalid(f"Line {number}: an outcome of paid has no reason.")
    if outcome is Outcome.FAILED:
        reasons = {str(each) for each in FailReason}
        if cells["reason"] not in reasons:
            raise _invalid(f"Line {number}: the reason is one of {', '.join(sorted(reasons))}.")
        reason = FailReason(cells["reason"])
    text = cells["amount_usd"]
    try:
        if not (text.isascii() and text.replace(".", "", 1).isdigit()):
            raise ValueError
        net = micro(Decimal(text))
    except ValueError:
        raise _invalid(f"Line {number}: the amount is a number such as 9.50.") from None
    return Line(number, cells["payout_id"].lower(), net, outcome, reason)


def _invalid(words: str) -> MarketError:
    return MarketError(Code.PAYOUT_FILE_INVALID, f"{Code.PAYOUT_FILE_INVALID.meaning} {words}")


def _cents(net: int) -> str:
    return f"{Decimal(net) / MICRO:.2f}"


def _paid(net: int, eur_rate: Decimal | None) -> Decimal:
    usd = Decimal(net) / MICRO
    return (usd * (eur_rate or 1)).quantize(_CENT, ROUND_HALF_EVEN)


def _agent(bic: str, tag: str) -> str:
    """Return a bank by its BIC, or as not provided: SEPA needs only the IBAN."""
    inner = f"<{tag}>{escape(bic)}</{tag}>" if bic else "<Othr><Id>NOTPROVIDED</Id></Othr>"
    return f"<FinInstnId>{inner}</FinInstnId>"


def _plain(name: str) -> str:
    """Return a name in the characters that every bank of SEPA takes."""
    letters = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    kept = (each for each in letters if not unicodedata.combining(each))
    plain = "".join(each if each in _SEPA else "." for each in kept)
    return escape(plain[:NAME_MAX_CHARACTERS])

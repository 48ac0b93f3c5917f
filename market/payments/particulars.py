"""Particulars of buyers: the name, address, country and tax number on the next documents.

A document with them is an invoice. Later changes of the user do not change it.
"""

import re

from msgspec import Struct

from market.accounts import bounds
from market.base.errors import Code, MarketError
from market.base.texts import shows_nothing
from market.events.context import Context
from storage.engines.store import Transaction
from storage.payments import particulars as queries
from storage.payments.particulars import ParticularsRow

NAME_MAX_CHARACTERS = 100
# A longer line fits neither into the PDF nor on an envelope.
LINE_MAX_CHARACTERS = 80
LINES_MAX = 4
TAX_NUMBER_MAX_CHARACTERS = 30

# The codes of ISO 3166-1, and that of Kosovo, which tax offices use.
_CODES = """
    AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS
    BT BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE
    EG EH ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM
    HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC
    LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA
    NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW
    SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO
    TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW
"""
COUNTRIES = tuple(_CODES.split())
# Letters and digits, with the marks that tax offices put between them.
_TAX_NUMBER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ./-]*[A-Za-z0-9])?\Z", re.ASCII)


class Particulars(Struct, frozen=True):
    """The receiver of a document: `address` has one to four lines, `tax_number` may be empty."""

    name: str
    address: tuple[str, ...]
    country: str
    tax_number: str = ""


class BuyerParticulars:
    """The particulars that users have set."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._now = context.now

    async def find(self, user_id: str) -> Particulars | None:
        """Return the particulars of a user; None for a user without."""
        row = await self._store.read(queries.find, user_id)
        if row is None:
            return None
        return Particulars(row.name, tuple(row.address.split("\n")), row.country, row.tax_number)

    async def put(self, user_id: str, new: Particulars) -> Particulars:
        """Set the particulars on the next documents of a user; return them as they are stored.

        Raises:
            MarketError: `invalid_field`, `account_closed`.
        """
        new = checked(new)
        row = ParticularsRow(
            user_id, new.name, "\n".join(new.address), new.country, new.tax_number, self._now()
        )
        await self._store.write(_put, row)
        return new

    async def remove(self, user_id: str) -> None:
        """Remove the particulars of a user: the next documents are receipts."""
        await self._store.write(queries.remove, user_id)


def checked(new: Particulars) -> Particulars:
    """Return particulars without needless spaces and empty lines, and with the code in capitals.

    Whether a tax number exists is not checked.

    Raises:
        MarketError: `invalid_field`.
    """
    address = tuple(filter(None, (_line(each, "address") for each in new.address)))
    if not 1 <= len(address) <= LINES_MAX:
        raise _invalid("address", f"An address has 1 to {LINES_MAX} lines.")
    name, country = _line(new.name, "name", NAME_MAX_CHARACTERS), new.country.strip().upper()
    if shows_nothing(name):
        raise _invalid("name", "An invoice needs the name of its receiver.")
    if country not in COUNTRIES:
        raise _invalid("country", "A country is a code of two letters, such as DE.")
    tax_number = " ".join(new.tax_number.split())
    is_long = len(tax_number) > TAX_NUMBER_MAX_CHARACTERS
    if tax_number and (is_long or not _TAX_NUMBER.match(tax_number)):
        raise _invalid(
            "tax_number",
            f"A tax number has at most {TAX_NUMBER_MAX_CHARACTERS} letters, digits, spaces, dots, "
            "slashes and hyphens.",
        )
    return Particulars(name, address, country, tax_number)


def _line(text: str, field: str, most: int = LINE_MAX_CHARACTERS) -> str:
    text = " ".join(text.split())
    if len(text) > most or not text.isprintable():
        raise _invalid(field, f"A line has at most {most} characters that can be shown.")
    return text


def _invalid(field: str, message: str) -> MarketError:
    return MarketError(Code.INVALID_FIELD, message, field=field)


async def _put(tx: Transaction, row: ParticularsRow) -> None:
    """Set the particulars of a user, unless the account is closed: an erasure forgets them."""
    await bounds.lock_open_user(tx, row.user_id)
    await queries.put(tx, row)

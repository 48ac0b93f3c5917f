"""Details of payout methods: their checks, their masks, and their sealed form."""

import re

import msgspec
from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.texts import shows_nothing
from market.base.user_fields import check_email
from market.payouts.terms import MethodKind

METHODS_PURPOSE = b"payout methods"  # of the key that seals them
NAME_MAX_CHARACTERS = 70  # as in pain.001
TEXT_MAX_CHARACTERS = 500
TEXT_MIN_CHARACTERS = 4
IBAN_MIN_CHARACTERS, IBAN_MAX_CHARACTERS = 15, 34
IBAN_MODULUS, IBAN_REST = 97, 1
SHOWN_CHARACTERS = 4
ACCOUNT_MAX_CHARACTERS = 64
PAYPAL_RECEIVER_MAX_BYTES = 127  # PayPal refuses a longer one with the whole batch

_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]+\Z", re.ASCII)
_BIC = re.compile(r"[A-Z0-9]{4}[A-Z]{2}[A-Z0-9]{2}(?:[A-Z0-9]{3})?\Z", re.ASCII)
# Lengths by the registry of IBANs, of countries in SEPA. Others have the bounds above.
IBAN_LENGTHS = {
    "AD": 24, "AL": 28, "AT": 20, "BE": 16, "BG": 22, "CH": 21, "CY": 28, "CZ": 24, "DE": 22,
    "DK": 18, "EE": 20, "ES": 24, "FI": 18, "FR": 27, "GB": 22, "GI": 23, "GR": 27, "HR": 21,
    "HU": 28, "IE": 22, "IS": 26, "IT": 27, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27,
    "MD": 24, "ME": 22, "MK": 19, "MT": 31, "NL": 18, "NO": 15, "PL": 28, "PT": 25, "RO": 24,
    "RS": 22, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TR": 26, "UA": 29, "VA": 22,
}  # fmt: skip


class Details(Struct, frozen=True, omit_defaults=True):
    """Where a payout goes; the fields depend on the kind of the method.

    `holder`, `iban` and `bic` are a bank account, `email` an account at PayPal, `text` what the
    operator needs for a payment by hand, and `account` one at Stripe.
    """

    holder: str = ""
    iban: str = ""
    bic: str = ""
    email: str = ""
    text: str = ""
    account: str = ""


def checked(kind: MethodKind, details: Details) -> Details:
    """Return details in their one spelling, without fields of other kinds.

    Raises:
        MarketError: `invalid_field`.
    """
    if kind is MethodKind.BANK:
        iban, bic = checked_iban(details.iban), _compact(details.bic)
        if bic and not _BIC.match(bic):
            raise _invalid("bic", "A BIC has 8 or 11 letters and digits.")
        return Details(holder=_plain(details.holder, "holder"), iban=iban, bic=bic)
    if kind is MethodKind.PAYPAL:
        check_email(details.email)
        if len(details.email.encode()) > PAYPAL_RECEIVER_MAX_BYTES:
            most = PAYPAL_RECEIVER_MAX_BYTES
            raise _invalid("email", f"PayPal takes addresses of at most {most} bytes.")
        return Details(email=details.email)
    if kind is MethodKind.STRIPE:
        raise _invalid("kind", "An account at Stripe is connected by its own link.")
    text = details.text.strip()
    if not TEXT_MIN_CHARACTERS <= len(text) <= TEXT_MAX_CHARACTERS:
        message = f"The text has {TEXT_MIN_CHARACTERS} to {TEXT_MAX_CHARACTERS} characters."
        raise _invalid("text", message)
    if not all(each.isprintable() or each == "\n" for each in text):
        raise _invalid("text", "The text has characters that cannot be shown.")
    return Details(text=text)


def checked_iban(text: str) -> str:
    """Return an IBAN without spaces and in capitals.

    Raises:
        MarketError: `invalid_field`, when its form, its length or its check digits are wrong.
    """
    iban = _compact(text)
    length = IBAN_LENGTHS.get(iban[:2])
    fits = IBAN_MIN_CHARACTERS <= len(iban) <= IBAN_MAX_CHARACTERS
    if not _IBAN.match(iban) or not fits or length not in (None, len(iban)):
        raise _invalid("iban", "This is not an IBAN: a letter or digit is missing or too many.")
    digits = "".join(str(int(each, 36)) for each in iban[4:] + iban[:4])
    if int(digits) % IBAN_MODULUS != IBAN_REST:
        raise _invalid("iban", "The check digits of the IBAN are wrong; is it mistyped?")
    return iban


def mask(kind: MethodKind, details: Details) -> str:
    """Return a mask of details: its reader recognises them, and cannot use them."""
    if kind is MethodKind.BANK:
        return f"{details.iban[:2]}…{details.iban[-SHOWN_CHARACTERS:]}"
    if kind is MethodKind.PAYPAL:
        name, _, domain = details.email.rpartition("@")
        return f"{name[:1]}…@{domain}"
    if kind is MethodKind.STRIPE:
        return f"…{details.account[-SHOWN_CHARACTERS:]}"
    return f"…{details.text[-2:]}" if details.text[-2:].isalnum() else "…"


def seal(sealing: Sealing, details: Details) -> str:
    """Return details as they are stored."""
    return sealing.close(msgspec.json.encode(details))


def opened(sealing: Sealing, sealed: str) -> Details:
    """Return stored details.

    Raises:
        MarketError: `invalid_field`, when they were sealed with another key.
    """
    content = sealing.open(sealed)
    if content is None:
        raise _invalid(
            "method", "The details of the payout method were sealed with another signing key."
        )
    return msgspec.json.decode(content, type=Details)


def _compact(text: str) -> str:
    return "".join(text.split()).upper()


def _plain(text: str, field: str) -> str:
    text = " ".join(text.split())
    is_short = len(text) <= NAME_MAX_CHARACTERS
    if not is_short or not text.isprintable() or shows_nothing(text):
        raise _invalid(field, f"A {field} has 1 to {NAME_MAX_CHARACTERS} characters.")
    return text


def _invalid(field: str, message: str) -> MarketError:
    return MarketError(Code.INVALID_FIELD, message, field=field)

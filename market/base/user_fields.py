"""Fields of a user (name, e-mail address and password), with their checks and comparison."""

import re
import unicodedata

from market.base.errors import Code, MarketError
from market.base.texts import shows_nothing

USERNAME_MAX_CHARACTERS = 50
EMAIL_MAX_CHARACTERS = 254
PASSWORD_MIN_CHARACTERS = 8
PASSWORD_MAX_CHARACTERS = 128

# References stay in the ledger for ever, so they have no room for an address or a sentence.
_REFERENCE = re.compile(r"[A-Za-z0-9._:/-]{1,64}")

# Characters that an address must quote (RFC 5322, section 3.2.3), or that separate addresses.
_SPECIALS = frozenset('<>()[],;:\\"')


def email_key(email: str) -> str:
    """Return the comparison key of an e-mail address: without case."""
    return unicodedata.normalize("NFC", email).casefold()


def username_key(username: str) -> str:
    """Return the comparison key of a user name: without case, look-alike forms folded together."""
    return unicodedata.normalize("NFKC", username).casefold()


def check_username(username: str) -> None:
    """Check a new user name.

    Raises:
        MarketError: `invalid_field`.
    """
    if not 1 <= len(username) <= USERNAME_MAX_CHARACTERS:
        raise MarketError(
            Code.INVALID_FIELD,
            f"A user name has 1 to {USERNAME_MAX_CHARACTERS} characters.",
            field="username",
        )
    is_plain = not any(each.isspace() or not each.isprintable() for each in username)
    if not is_plain or shows_nothing(username):
        raise MarketError(
            Code.INVALID_FIELD, "A user name has no spaces or control characters.", field="username"
        )


def check_email(email: str) -> None:
    """Check a new e-mail address.

    Raises:
        MarketError: `invalid_field`.
    """
    local, _, domain = email.rpartition("@")
    is_plain = email.isprintable() and not any(
        character.isspace() or character in _SPECIALS for character in email
    )
    has_parts = all((*local.split("."), *domain.split("."))) and "@" not in local
    if not (is_plain and has_parts and len(email) <= EMAIL_MAX_CHARACTERS):
        raise MarketError(
            Code.INVALID_FIELD,
            "This is not an e-mail address like name@example.com.",
            field="email",
        )


def check_password(password: str, *, field: str = "password") -> None:
    """Check the length of a new password, given in `field`.

    Raises:
        MarketError: `invalid_field`.
    """
    if not PASSWORD_MIN_CHARACTERS <= len(password) <= PASSWORD_MAX_CHARACTERS:
        raise MarketError(
            Code.INVALID_FIELD,
            f"A password has {PASSWORD_MIN_CHARACTERS} to {PASSWORD_MAX_CHARACTERS} characters.",
            field=field,
        )


def check_reference(reference: str) -> None:
    """Check a new reference of a deposit, a refund or a correction.

    Raises:
        MarketError: `invalid_field`.
    """
    if not _REFERENCE.fullmatch(reference):
        raise MarketError(
            Code.INVALID_FIELD,
            "A reference has 1 to 64 of these characters: letters, digits and . _ : / -",
            field="reference",
        )

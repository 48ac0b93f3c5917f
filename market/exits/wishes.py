"""Wishes of a buyer for the exits of a session, checked, and as one canonical text.

A client may write the same text behind the user name: `country-de_fr-session-abc`. The values of a
session's sale hold for every connection without other wishes. Only `wants` defines the valid
wishes, so a sold wish is always one that a client can send.
"""

from collections.abc import Sequence

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.exits.wants import ASN_MOST, LIFETIME_LEAST_SECONDS, LIFETIME_MOST_SECONDS, WantsError
from market.exits.wants import from_pairs as wants_of
from market.exits.wants import parse as wants_in

__all__ = [
    "ASN_MOST",
    "COUNTRIES_MAX",
    "LIFETIME_LEAST_SECONDS",
    "LIFETIME_MOST_SECONDS",
    "ExitWishes",
    "canonical",
    "countries_in",
]

COUNTRIES_MAX = 16
# A user name is at most 255 bytes (RFC 1929), and half of that is for the clients' own parameters.
TEXT_MAX_CHARACTERS = 200

_FIELD_OF_KEY = {"lifetime": "lifetime_seconds"}


class ExitWishes(Struct, frozen=True):
    """Wishes of a buyer for an exit; a field with its default accepts any exit.

    `countries` are codes of two letters (ISO 3166), or eu; `session` is a label whose connections
    keep their exit, for `lifetime_seconds` from its first use. With `strict` a connection fails if
    the exit of its label is away, and with `rotate` two connections in a row have different exits.
    With `dns_at_exit` the exit resolves names. `tls_only` allows only port 443. With `secure` the
    traffic to and from the exit is encrypted.
    """

    countries: Sequence[str] = ()
    state: str = ""
    city: str = ""
    asn: int = 0
    kind: str = ""
    session: str = ""
    lifetime_seconds: int = 0
    strict: bool = False
    rotate: bool = False
    dns_at_exit: bool = False
    tls_only: bool = False
    secure: bool = False


def canonical(wishes: ExitWishes) -> str:
    """Return wishes as one text, the same for the same wishes, and never empty.

    Raises:
        MarketError: `invalid_field`, naming the part that cannot be wished for.
    """
    if len(wishes.countries) > COUNTRIES_MAX:
        message = f"exit.country names at most {COUNTRIES_MAX} countries."
        raise MarketError(Code.INVALID_FIELD, message, field="exit.country")
    values = (
        ("country", "_".join(wishes.countries)),
        ("state", wishes.state),
        ("city", wishes.city),
        ("asn", str(wishes.asn) if wishes.asn else ""),
        ("kind", wishes.kind),
        ("session", wishes.session),
        ("lifetime", f"{wishes.lifetime_seconds}s" if wishes.lifetime_seconds else ""),
        ("dns", "exit" if wishes.dns_at_exit else ""),
        ("tls", "only" if wishes.tls_only else ""),
    )
    flags = (("strict", wishes.strict), ("rotate", wishes.rotate), ("secure", wishes.secure))
    pairs = [(key, value) for key, value in values if value]
    pairs += [(key, "") for key, is_wanted in flags if is_wanted]
    try:
        text = wants_of(pairs).text
    except WantsError as error:
        name = _FIELD_OF_KEY.get(error.parameter, error.parameter)
        raise MarketError(Code.INVALID_FIELD, error.message, field=f"exit.{name}") from error
    if len(text) > TEXT_MAX_CHARACTERS:
        message = f"exit has at most {TEXT_MAX_CHARACTERS} characters in all."
        raise MarketError(Code.INVALID_FIELD, message, field="exit")
    return text


def countries_in(text: str) -> tuple[str, ...]:
    """Return the countries of a canonical text, those of eu one by one; none when any will do."""
    return wants_in(text).countries if text else ()

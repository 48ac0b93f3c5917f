"""What a buyer wants of the exits of a session, checked, and as one canonical text.

The text is what a client may also write behind the user name: `country-de_fr-session-abc`. Values
of a session's sale hold for every connection that does not say otherwise.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from market.errors import Code, MarketError

COUNTRIES_MAX = 16
COUNTRY = re.compile(r"[a-z]{2}")
# As the lists of places spell them, and as they fit behind a user name.
PLACE = re.compile(r"[a-z0-9_.]{1,64}")
LABEL = re.compile(r"[a-z0-9_]{1,32}")
ASN_MAX = 2**32 - 1
LIFETIME_MAX_SECONDS = 86_400
KINDS = ("residential", "mobile", "datacenter", "any")
# A user name is at most 255 bytes (RFC 1929), and half of that is for what clients add themselves.
TEXT_MAX_CHARACTERS = 200


class ExitWishes(Struct, frozen=True):
    """What a buyer wants of an exit; what is left at its default may be anything.

    `countries` are codes of two letters (ISO 3166); `session` is a label whose connections keep
    their exit, for `lifetime_seconds` from its first use. With `strict` a connection rather fails
    than has another exit than its label, and with `rotate` no two in a row have the same one.
    `dns_at_exit` has names looked up at the exit, `tls_only` allows no port but 443.
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


def canonical(wishes: ExitWishes) -> str:
    """Return wishes as one text, the same for the same wishes, and never empty.

    Raises:
        MarketError: `invalid_field`, naming the part that cannot be wished for.
    """
    wishes = _folded(wishes)
    _check(wishes)
    minutes, seconds = divmod(wishes.lifetime_seconds, 60)
    lifetime = f"{wishes.lifetime_seconds}s" if seconds else str(minutes)
    words = [
        ("country", "_".join(wishes.countries)),
        ("state", wishes.state),
        ("city", wishes.city),
        ("asn", str(wishes.asn) if wishes.asn else ""),
        ("kind", wishes.kind if wishes.kind != "any" else ""),
        ("session", wishes.session),
        ("lifetime", lifetime if wishes.lifetime_seconds else ""),
        ("dns", "exit" if wishes.dns_at_exit else ""),
        ("tls", "only" if wishes.tls_only else ""),
    ]
    flags = [name for name in ("strict", "rotate") if getattr(wishes, name)]
    text = "-".join([f"{key}-{value}" for key, value in words if value] + flags)
    if len(text) > TEXT_MAX_CHARACTERS:
        raise _invalid("exit", f"has at most {TEXT_MAX_CHARACTERS} characters in all")
    return text or "kind-any"


def countries_in(text: str) -> tuple[str, ...]:
    """Return the countries of a canonical text; none when any will do."""
    first, _, rest = text.partition("-")
    return tuple(rest.partition("-")[0].split("_")) if first == "country" else ()


def _folded(wishes: ExitWishes) -> ExitWishes:
    """Return the same wishes as they are written in a text: lower case, countries in order."""
    return ExitWishes(
        countries=sorted({each.lower() for each in wishes.countries}),
        state=wishes.state.lower(),
        city=wishes.city.lower(),
        asn=wishes.asn,
        kind=wishes.kind.lower(),
        session=wishes.session.lower(),
        lifetime_seconds=wishes.lifetime_seconds,
        strict=wishes.strict,
        rotate=wishes.rotate,
        dns_at_exit=wishes.dns_at_exit,
        tls_only=wishes.tls_only,
    )


def _check(wishes: ExitWishes) -> None:
    if len(wishes.countries) > COUNTRIES_MAX:
        raise _invalid("exit.country", f"names at most {COUNTRIES_MAX} countries")
    if not all(COUNTRY.fullmatch(each) for each in wishes.countries):
        raise _invalid("exit.country", "is a code of two letters (ISO 3166), or several of them")
    for name in ("state", "city"):
        value = getattr(wishes, name)
        if value and not PLACE.fullmatch(value):
            raise _invalid(f"exit.{name}", "has 1 to 64 letters, digits, dots and underscores")
    if not 0 <= wishes.asn <= ASN_MAX:
        raise _invalid("exit.asn", f"is a number from 1 to {ASN_MAX}")
    if wishes.kind and wishes.kind not in KINDS:
        raise _invalid("exit.kind", f"is one of {', '.join(KINDS)}")
    if wishes.session and not LABEL.fullmatch(wishes.session):
        raise _invalid("exit.session", "has 1 to 32 letters, digits and underscores")
    if not 0 <= wishes.lifetime_seconds <= LIFETIME_MAX_SECONDS:
        raise _invalid("exit.lifetime_seconds", f"is at most {LIFETIME_MAX_SECONDS}")
    if wishes.strict and wishes.rotate:
        raise _invalid("exit.rotate", "contradicts strict")


def _invalid(field: str, rule: str) -> MarketError:
    return MarketError(Code.INVALID_FIELD, f"{field} {rule}.", field=field)

"""Wishes of a buyer for exits: their place and kind, and whether connections keep one exit.

A session leaves from the daemon itself unless it was sold with wishes, or its client writes some
behind the user name: `country-de-session-abc`. Both are these parameters, each at most once and in
any order, a key and its value joined by `-`; the keys, and all values but a session's label, in
either case:

    country     codes of ISO 3166 (de), several joined by _ (us_ca), or eu
    state, city a place like sao_paulo: small letters without marks, `_` for the rest
    asn         the number of a network
    kind        residential, mobile, datacenter or any
    session     a label: connections of one label leave through one exit
    lifetime    duration of a label: minutes, or with s, m or h behind the number
    strict      rather no connection than another exit; has no value
    rotate      never the same exit twice in a row; has no value
    dns         names are looked up at the node or at the exit
    tls         only: no port but 443
    secure      traffic to and from the exit is encrypted; has no value
    direct      leave from the daemon itself, even after a sale with wishes; has no value

Other services have other words for some of them (`_SYNONYMS`), which are understood. An unknown
parameter is an error that names it, and is never ignored: a buyer who mistypes `country` must not
pay for another one. Pure: it looks nothing up.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

LIFETIME_SECONDS: Final = 600  # the usual lifetime of a label at other services
LIFETIME_LEAST_SECONDS: Final = 60
LIFETIME_MOST_SECONDS: Final = 86_400
LABEL_MAX_CHARACTERS: Final = 32
PLACE_MAX_CHARACTERS: Final = 64
# More than a user name can hold (RFC 1929): it bounds the text to parse.
PARAMETERS_MAX_CHARACTERS: Final = 512
# Each connection reads its own again, and most of a session's are alike: at most some megabytes.
PARSED_MAX: Final = 4096
SHOWN_MAX_CHARACTERS: Final = 32
ASN_MOST: Final = 4_294_967_295  # RFC 6793

KINDS: Final = ("residential", "mobile", "datacenter")
ANY: Final = "any"

# ISO 3166-1, and of the codes that it leaves to its users those that databases have: xk is Kosovo,
# and an operator may call networks of his own by any of the others.
_ASSIGNED: Final = (
    "ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bl bm bn bo bq br "
    "bs bt bv bw by bz ca cc cd cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz "
    "ec ee eg eh er es et fi fj fk fm fo fr ga gb gd ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw "
    "gy hk hm hn hr ht hu id ie il im in io iq ir is it je jm jo jp ke kg kh ki km kn kp kr kw ky "
    "kz la lb lc li lk lr ls lt lu lv ly ma mc md me mf mg mh mk ml mm mn mo mp mq mr ms mt mu mv "
    "mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt pw py "
    "qa re ro rs ru rw sa sb sc sd se sg sh si sj sk sl sm sn so sr ss st sv sx sy sz tc td tf tg "
    "th tj tk tl tm tn to tr tt tv tw tz ua ug um us uy uz va vc ve vg vi vn vu wf ws ye yt za zm "
    "zw"
)
_MEMBERS: Final = "at be bg cy cz de dk ee es fi fr gr hr hu ie it lt lu lv mt nl pl pt ro se si sk"
COUNTRIES: Final = frozenset(_ASSIGNED.split()) | {f"x{chr(each)}" for each in range(97, 123)}
EUROPEAN_UNION: Final = frozenset(_MEMBERS.split())
_COUNTRY_OF_WORD: Final = {"uk": "gb"}

_SYNONYMS: Final = {
    "cc": "country",
    "st": "state",
    "region": "state",
    "type": "kind",
    "sessid": "session",
    "sid": "session",
    "sesstime": "lifetime",
    "sessionduration": "lifetime",
    "sessttl": "lifetime",
    "const": "strict",
    "oneip": "strict",
    "sessid_oneip": "session",
}
# Name of a label that is also strict.
_STRICT_SESSION: Final = "sessid_oneip"
_FLAGS: Final = frozenset(("strict", "rotate", "secure", "direct"))
# Valid values, in the words of a refusal.
_VALUES: Final = {
    "country": "codes of countries (ISO 3166, two letters) such as de, us_ca or eu",
    "state": "the name of a state, such as california or sao_paulo",
    "city": "the name of a city, such as berlin or new_york",
    "asn": "the number of a network, such as 3320",
    "kind": "residential, mobile, datacenter or any",
    "session": f"a label of 1 to {LABEL_MAX_CHARACTERS} letters, digits and _",
    "lifetime": "minutes from 1 to 1440, or a time from 60s to 24h, such as 90s, 30m or 2h",
    "dns": "node or exit",
    "tls": "only",
}
_KEYS: Final = (*_VALUES, *sorted(_FLAGS))
_WORDS: Final = (*_KEYS, *_SYNONYMS)

_PLACE: Final = re.compile(f"[a-z0-9_.]{{1,{PLACE_MAX_CHARACTERS}}}")
_LABEL: Final = re.compile(f"[A-Za-z0-9_]{{1,{LABEL_MAX_CHARACTERS}}}")
_ASN: Final = re.compile(r"(?:as)?([0-9]{1,10})")
_LIFETIME: Final = re.compile(r"([0-9]{1,5})([smh]?)")
_DNS_OF_WORD: Final = {"node": "node", "exit": "exit", "local": "node", "remote": "exit"}
_SECONDS_OF_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "": 60}
_UNSHOWABLE: Final = re.compile(r"[^A-Za-z0-9_.]")


class WantsError(Exception):
    """A parameter that cannot be followed.

    `parameter` names it as it was written, as far as that is printable; the message is a sentence
    for the buyer, of printable ASCII without quotation marks and backslashes, so that it may stand
    in a header as it is.
    """

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.message = message


@dataclass(frozen=True, slots=True)
class Wants:
    """Wishes of a buyer; each field's default is no wish.

    `countries` are in lower case, and any of them suits. `asn` is 0 for any network, `kind` empty
    for any. `session` is the label, with its upper and lower case as given. `lifetime_seconds`
    counts from the first use of the label. `spelled_out` are the keys with an explicit default
    value: they also override the sale.
    """

    countries: tuple[str, ...] = ()
    state: str = ""
    city: str = ""
    asn: int = 0
    kind: str = ""
    session: str = ""
    lifetime_seconds: int = LIFETIME_SECONDS
    strict: bool = False
    rotate: bool = False
    dns_at_exit: bool = False
    tls_only: bool = False
    secure: bool = False
    direct: bool = False
    spelled_out: frozenset[str] = frozenset()

    def over(self, default: "Wants | None") -> "Wants":
        """Return these wishes, with the sale's wishes for the missing ones.

        A place also replaces the narrower places of the sale: a country replaces its state, city
        and network, a state its city. Rotation replaces a label and its strictness, and vice versa.
        With `direct` on either side the sale's wishes do not count: only the present ones do.
        """
        if default is None or self.direct or default.direct:
            return self
        if self.countries:
            default = replace(default, countries=(), state="", city="", asn=0)
        elif self.state:
            default = replace(default, city="")
        if self.rotate:
            default = replace(default, session="", strict=False)
        elif self.session or self.strict:
            default = replace(default, rotate=False)
        is_silent = self.spelled_out.isdisjoint
        return Wants(
            countries=self.countries or default.countries,
            state=_state_in(self.state, default.countries) or default.state,
            city=self.city or default.city,
            asn=self.asn or default.asn,
            kind=self.kind or (default.kind if is_silent({"kind"}) else ""),
            session=self.session or default.session,
            lifetime_seconds=(
                default.lifetime_seconds
                if self.lifetime_seconds == LIFETIME_SECONDS and is_silent({"lifetime"})
                else self.lifetime_seconds
            ),
            strict=self.strict or default.strict,
            rotate=self.rotate or default.rotate,
            dns_at_exit=self.dns_at_exit or (default.dns_at_exit and is_silent({"dns"})),
            tls_only=self.tls_only or default.tls_only,
            secure=self.secure or default.secure,
        )

    @property
    def text(self) -> str:
        """The parameters in one spelling; never empty, because an empty text means no wish."""
        pairs = [
            ("country", _joined(self.countries)),
            ("state", self.state),
            ("city", self.city),
            ("asn", str(self.asn or "")),
            ("kind", self.kind or self._default("kind", ANY)),
            ("session", self.session),
            ("lifetime", self._lifetime()),
            ("dns", "exit" if self.dns_at_exit else self._default("dns", "node")),
            ("tls", "only" if self.tls_only else ""),
        ]
        words = [f"{key}-{value}" for key, value in pairs if value]
        words += [key for key in ("strict", "rotate", "secure", "direct") if getattr(self, key)]
        return "-".join(words) or f"kind-{ANY}"

    def _default(self, key: str, value: str) -> str:
        return value if key in self.spelled_out else ""

    def _lifetime(self) -> str:
        seconds = self.lifetime_seconds
        if seconds == LIFETIME_SECONDS:
            return self._default("lifetime", str(seconds // 60))
        return f"{seconds}s" if seconds % 60 else str(seconds // 60)


@lru_cache(maxsize=PARSED_MAX)
def parse(parameters: str) -> Wants:
    """Parse the text behind a user name and its first `-`: `country-de-session-abc`.

    Raises:
        WantsError: a parameter is unknown, has an invalid value, is repeated, or contradicts
            another one.
    """
    if len(parameters) > PARAMETERS_MAX_CHARACTERS:
        raise WantsError("", f"More than {PARAMETERS_MAX_CHARACTERS} characters of parameters.")
    pairs = []
    words = iter(parameters.split("-"))
    for word in words:
        key = _key_of(word)
        value = "" if key in _FLAGS else next(words, None)
        if value is None:
            raise WantsError(word, f"The parameter '{word}' needs a value: {_VALUES[key]}.")
        pairs.append((word, value))
    return from_pairs(pairs)


def from_pairs(pairs: Iterable[tuple[str, str]]) -> Wants:
    """Parse parameters that are split already; a flag has an empty value.

    Raises:
        WantsError: as for `parse`.
    """
    wants = Wants()
    words: dict[str, str] = {}
    for word, value in pairs:
        key = _key_of(word)
        if key in words:
            raise WantsError(word, f"The parameter '{words[key]}' is there twice.")
        words[key] = word
        more = _READERS[key](wants, value)
        if more is None:
            takes = _VALUES.get(key, "no value")
            raise WantsError(word, f"The parameter '{word}' takes {takes}, not '{_shown(value)}'.")
        wants = replace(more, strict=True) if word.lower() == _STRICT_SESSION else more
    return _consistent(wants, words)


def _key_of(word: str) -> str:
    """Return the key of a word or of its synonym.

    Raises:
        WantsError: it stands for none.
    """
    lower = word.lower()
    key = _SYNONYMS.get(lower, lower)
    if key in _READERS:
        return key
    shown = _shown(word)
    if not shown:
        raise WantsError("", "The parameters have an extra '-'.")
    close = " or ".join(f"'{each}'" for each in get_close_matches(shown.lower(), _WORDS, n=2))
    hint = f"; did you mean {close}?" if close else "."
    raise WantsError(shown, f"The parameter '{shown}' is not known{hint}")


_Reader = Callable[[Wants, str], Wants | None]


def _consistent(wants: Wants, words: dict[str, str]) -> Wants:
    """Return wishes that do not contradict each other, a state without its country before it.

    Args:
        wants: the wishes.
        words: the written form of each given parameter.

    Raises:
        WantsError: they do.
    """
    if wants.direct and len(words) > 1:
        other = next(word for key, word in words.items() if key != "direct")
        raise WantsError(words["direct"], f"With 'direct' there can be no '{other}'.")
    if wants.rotate and (wants.session or wants.strict):
        other = words["session"] if wants.session else words["strict"]
        raise WantsError(words["rotate"], f"With '{words['rotate']}' there can be no '{other}'.")
    return replace(wants, state=_state_in(wants.state, wants.countries))


def _state_in(name: str, countries: tuple[str, ...]) -> str:
    """Return the name of a state without the code of its country before it."""
    country, _, state = name.partition("_")
    return state if state and country in countries else name


def _country(wants: Wants, value: str) -> Wants | None:
    countries: set[str] = set()
    for code in value.lower().split("_"):
        if code == "eu":
            countries |= EUROPEAN_UNION
        else:
            countries.add(_COUNTRY_OF_WORD.get(code, code))
    if not countries <= COUNTRIES:
        return None
    return replace(wants, countries=tuple(sorted(countries)))


def _asn(wants: Wants, value: str) -> Wants | None:
    digits = _ASN.fullmatch(value.lower())
    asn = int(digits[1]) if digits else 0
    return replace(wants, asn=asn) if 1 <= asn <= ASN_MOST else None


def _kind(wants: Wants, value: str) -> Wants | None:
    kind = value.lower()
    if kind == ANY:
        return _spelled_out(wants, "kind")
    return replace(wants, kind=kind) if kind in KINDS else None


def _session(wants: Wants, value: str) -> Wants | None:
    return replace(wants, session=value) if _LABEL.fullmatch(value) else None


def _lifetime(wants: Wants, value: str) -> Wants | None:
    time = _LIFETIME.fullmatch(value.lower())
    seconds = int(time[1]) * _SECONDS_OF_UNIT[time[2]] if time else 0
    if seconds == LIFETIME_SECONDS:
        return _spelled_out(wants, "lifetime")
    if not LIFETIME_LEAST_SECONDS <= seconds <= LIFETIME_MOST_SECONDS:
        return None
    return replace(wants, lifetime_seconds=seconds)


def _dns(wants: Wants, value: str) -> Wants | None:
    place = _DNS_OF_WORD.get(value.lower())
    if place == "node":
        return _spelled_out(wants, "dns")
    return replace(wants, dns_at_exit=True) if place else None


def _tls(wants: Wants, value: str) -> Wants | None:
    return replace(wants, tls_only=True) if value.lower() == "only" else None


def _place(field: str) -> _Reader:
    """Return the reader of a name of a place."""

    def read(wants: Wants, value: str) -> Wants | None:
        changed: dict[str, Any] = {field: value.lower()}
        return replace(wants, **changed) if _PLACE.fullmatch(value.lower()) else None

    return read


def _flag(field: str) -> _Reader:
    """Return the reader of a parameter without a value."""
    changed: dict[str, Any] = {field: True}
    return lambda wants, value: None if value else replace(wants, **changed)


def _spelled_out(wants: Wants, key: str) -> Wants:
    return replace(wants, spelled_out=wants.spelled_out | {key})


def _joined(countries: tuple[str, ...]) -> str:
    """Return countries as one value; all of the European Union by its own code."""
    if not EUROPEAN_UNION.issubset(countries):
        return "_".join(countries)
    return "_".join(("eu", *(each for each in countries if each not in EUROPEAN_UNION)))


def _shown(text: str) -> str:
    """Return a client's text in a form that is safe in a header and in the log."""
    rest = "..." if len(text) > SHOWN_MAX_CHARACTERS else ""
    return _UNSHOWABLE.sub("?", text[:SHOWN_MAX_CHARACTERS]) + rest


_READERS: Final[dict[str, _Reader]] = {
    "country": _country,
    "state": _place("state"),
    "city": _place("city"),
    "asn": _asn,
    "kind": _kind,
    "session": _session,
    "lifetime": _lifetime,
    "dns": _dns,
    "tls": _tls,
    "strict": _flag("strict"),
    "rotate": _flag("rotate"),
    "secure": _flag("secure"),
    "direct": _flag("direct"),
}

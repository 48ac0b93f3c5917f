"""Admission to apps: clients that show the key of the app; keeps the key from all others.

A key is in the address once, and then in a cookie that no script reads; programs send it as a
bearer token. Neither of them reaches the job. A browser sends the cookie without the person's
choice, so that it counts only for requests of the app's own pages, and for addresses that a person
follows.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote_plus

from api.reverse.places import Place, Places
from api.routing.cookies import SERVICE

KEY_PARAMETER = "key"
BEARER = b"bearer "
COOKIES_MAX_BYTES = 16 * 1024  # of one header; a notebook and the door have a tenth in theirs
# A request with more keys is guessing: a browser has one, or one from before.
KEYS_TRIED_MAX = 4


class Shown(Enum):
    """Way in which a request has shown the key."""

    QUERY = auto()
    BEARER = auto()
    COOKIE = auto()


class Names(NamedTuple):
    """Names of the door's cookies: with the key, and with the replica."""

    key: str
    replica: str

    @classmethod
    def of(cls, places: Places) -> "Names":
        """Return the names, with the prefix that keeps other hosts from setting the cookies.

        A host with `__Host-` in the name of a cookie sets it for itself, and no page of another
        host below the same domain can.
        """
        prefix = ""
        if places.is_secure:
            prefix = "__Host-" if places.has_hosts else "__Secure-"
        return cls(f"{prefix}{SERVICE}-app", f"{prefix}{SERVICE}-replica")


def cookie(place: Place, places: Places, name: str, value: str) -> str:
    """Return the header that sets a cookie of the door."""
    secure = "; Secure" if places.is_secure else ""
    return f"{name}={value}; Path={place.prefix}/; HttpOnly; SameSite=Lax{secure}"


def cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the cookies of a request, as they are written."""
    pairs = []
    for name, value in headers:
        if name.lower() == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                pairs.append((key, text))
    return pairs


def key_in_query(target: str) -> tuple[str, str]:
    """Return the first key in a target's query, "" for none, and the target without it."""
    path, _, query = target.partition("?")
    parts = query.split("&") if query else []
    for index, part in enumerate(parts):
        key = _key_of(part)
        if key is not None:
            rest = "&".join(parts[:index] + parts[index + 1 :])
            return key, f"{path}?{rest}" if rest else path
    return "", target


def without_keys(target: str, opens: Callable[[str], bool]) -> str:
    """Return a target without the keys in its query that open an app; it is read once.

    Args:
        target: the request's.
        opens: says whether a key is the app's.
    """
    path, _, query = target.partition("?")
    parts = query.split("&")
    kept = [part for part in parts if not ((key := _key_of(part)) and opens(key))]
    if len(kept) == len(parts):
        return target
    rest = "&".join(kept)
    return f"{path}?{rest}" if rest else path


def _key_of(part: str) -> str | None:
    """Return the key that a part of a query is; None where it is something else."""
    name, equals, value = part.partition("=")
    if not equals or (name if "%" not in name else unquote_plus(name)) != KEY_PARAMETER:
        return None
    return unquote_plus(value)


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the bearer token of a request; "" for none."""
    for name, value in headers:
        if name.lower() == b"authorization" and value[: len(BEARER)].lower() == BEARER:
            return value[len(BEARER) :].strip().decode("latin-1")
    return ""


def shown(
    target: str,
    headers: Iterable[tuple[bytes, bytes]],
    names: Names,
    opens: Callable[[str], bool],
) -> Shown | None:
    """Return the way in which a request has shown the key of its app; None if it has not.

    Args:
        target: the request's.
        headers: the request's.
        names: the names of the door's cookies.
        opens: says whether a key is the app's.
    """
    headers = tuple(headers)
    token = bearer(headers)
    if token and opens(token):
        return Shown.BEARER
    key, _ = key_in_query(target)
    if key and opens(key):
        return Shown.QUERY
    kept = [value for name, value in cookies(headers) if name == names.key]
    if any(opens(value) for value in kept[:KEYS_TRIED_MAX]):
        return Shown.COOKIE
    return None


def is_from_elsewhere(
    headers: Iterable[tuple[bytes, bytes]], origin: str, *, is_upgrade: bool
) -> bool:
    """Return whether a page of another origin asks, so that a cookie does not count.

    Apps below one domain are one site, so that `SameSite` does not tell them apart. An address that
    a person follows may be anywhere, but leads to a page of its own: people can click a page inside
    another page without seeing it.

    Args:
        headers: the request's.
        origin: the app's.
        is_upgrade: whether the request is for a WebSocket; browsers let any page do that.
    """
    values = {name.lower(): value.strip().lower() for name, value in headers}
    said = values.get(b"origin")
    if said is not None and said != origin.encode():
        return True
    site = values.get(b"sec-fetch-site", b"none")
    if site in (b"same-origin", b"none"):
        return False
    is_page = values.get(b"sec-fetch-dest", b"document") == b"document"
    return is_upgrade or not is_page or values.get(b"sec-fetch-mode") != b"navigate"

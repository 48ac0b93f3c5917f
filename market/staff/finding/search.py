"""The search: the shape of a text decides which indexes can have it, six probes at most."""

from collections.abc import Callable, Coroutine
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from market.accounts.keys import PREFIX, SHOWN_CHARACTERS
from market.bandwidth.credentials import begins_username
from market.base.ids import parsed
from market.base.networks import counted_network, plain, site
from market.base.user_fields import email_key, username_key
from market.events.context import Context
from market.staff.base import masks
from market.staff.base.acts import SEARCH, Act, Changes, Text, TextKind, act, permit, require_name
from market.staff.base.roles import Action, Author
from storage.engines.store import Transaction
from storage.staff.finding import search as queries
from storage.staff.finding.search import HitRow

HITS_MAX = 20
PROXY_NAME_MIN_CHARACTERS = 6

Probe = Callable[[Transaction, int], Coroutine[Any, Any, list[HitRow]]]


class Found(Struct, frozen=True):
    """Hits of one probe, and whether more rows match."""

    by: str
    hits: tuple[HitRow, ...]
    has_more: bool


class _Shape(Struct, frozen=True):
    """The probes for a text, by the name of the compared field.

    A search for personal data is an act of the log: `action`, with the text `logged`, if any.
    """

    probes: dict[str, Probe]
    action: Action = Action.SEARCH
    logged: str = ""


async def who(context: Context, author: Author, text: str) -> list[Found]:
    """Return the rows that a text names, by field, without the fields that have none.

    E-mail addresses are masked, but for users that the author has revealed.

    A search for an address of a client is an act in the log, with the address as its text. So is a
    search for an e-mail address: by the domain and by the beginning, a member could guess an
    address that is masked. Its text is the domain at most: the log keeps no person's address,
    which an erasure could not find there.

    Raises:
        MarketError: `invalid_field`, `not_permitted`.
    """
    text = text.strip()
    require_name(text, "A text to search for")
    shape = _shape(text)
    if shape.action is Action.SEARCH:
        return await context.store.read(_search, author, shape, context.now())

    async def look(tx: Transaction) -> tuple[list[Found], Changes]:
        found = await _masked(tx, author, await _probe(tx, shape), context.now())
        return found, {"hits": (None, sum(len(each.hits) for each in found))}

    logged = Text(TextKind.SEARCH, shape.logged) if shape.logged else None
    new = Act(author, shape.action, SEARCH, text=logged)
    return await context.store.write(act, context, new, look)


async def _search(tx: Transaction, author: Author, shape: _Shape, now: int) -> list[Found]:
    await permit(tx, author, Action.SEARCH)
    return await _masked(tx, author, await _probe(tx, shape), now)


async def _masked(tx: Transaction, author: Author, found: list[Found], now: int) -> list[Found]:
    """Return hits without the e-mail addresses of users that the author has not revealed."""
    users = {hit.user_id for each in found for hit in each.hits}
    clear = await masks.revealed(tx, author, users, now=now)

    def masked(hit: HitRow) -> HitRow:
        if hit.user_id in clear:
            return hit
        email = masks.masked_email(hit.email)
        return hit._replace(email=email, matched=email if hit.matched == hit.email else hit.matched)

    return [replace(each, hits=tuple(map(masked, each.hits))) for each in found]


async def _probe(tx: Transaction, shape: _Shape) -> list[Found]:
    found = []
    for by, probe in shape.probes.items():
        hits = await probe(tx, HITS_MAX + 1)
        if hits:
            found.append(Found(by, tuple(hits[:HITS_MAX]), len(hits) > HITS_MAX))
    return found


def _shape(text: str) -> _Shape:
    """Return the probes for a text. A name or a reference of a payment may have any shape."""
    probes = _address_probes(text)
    action, logged = Action.SEARCH, ""
    if probes:
        action, logged = Action.SEARCH_ADDRESS, text
    elif "@" in text:
        is_domain = text.rfind("@") == 0  # "@ada@example.com" has the address of a person
        action, logged = Action.SEARCH_EMAIL, text if is_domain else ""
    probes |= _other_probes(text)
    probes["payment reference"] = _of(queries.by_reference, text)
    if not text.startswith("@"):
        probes["user name"] = _of(queries.by_username, username_key(text))
    return _Shape(probes, action, logged)


def _address_probes(text: str) -> dict[str, Probe]:
    """Return the probes for an address or a network, none for another text."""
    try:
        if "/" in text:
            address = login = key = str(ip_network(text, strict=False))
        else:
            address = str(plain(ip_address(text)))
            login, key = site(address) or address, counted_network(address)
    except ValueError:
        return {}
    return {
        "client address of a session": _of(queries.by_session_address, address),
        "address of a device": partial(_by_origin, address, key),
        "network of a login": _of(queries.by_login_network, login),
        "network of a key": _of(queries.by_key_network, key),
    }


def _other_probes(text: str) -> dict[str, Probe]:
    probes: dict[str, Probe] = {}
    identifier = _identifier(text)
    if identifier:
        probes["identifier"] = _of(queries.by_id, identifier)
    if text.startswith("@") and len(text) > 1:
        probes["e-mail domain"] = _of(queries.by_domain, email_key(text[1:]))
    elif "@" in text:
        probes["e-mail"] = partial(_by_email, email_key(text))
    if text.startswith(PREFIX) and len(text) >= SHOWN_CHARACTERS:
        probes["key"] = _of(queries.by_key_prefix, text[:SHOWN_CHARACTERS])
    if len(text) >= PROXY_NAME_MIN_CHARACTERS and begins_username(text):
        probes["proxy user name"] = _of(queries.by_proxy_name, text)
    return probes


def _identifier(text: str) -> str:
    """Return an identifier in its canonical spelling, "" for another text."""
    try:
        return parsed(text)
    except ValueError:
        return ""


async def _by_email(key: str, tx: Transaction, limit: int) -> list[HitRow]:
    """Return the user with an address, or those whose addresses begin with it."""
    hits = await queries.by_email(tx, key, limit)
    return hits[:1] if hits and email_key(hits[0].email) == key else hits


async def _by_origin(address: str, network: str, tx: Transaction, limit: int) -> list[HitRow]:
    return await queries.by_origin(tx, address, network, limit)


def _of(
    query: Callable[[Transaction, str, int], Coroutine[Any, Any, list[HitRow]]], text: str
) -> Probe:
    """Return the probe of a query for a text."""

    async def probe(tx: Transaction, limit: int) -> list[HitRow]:
        return await query(tx, text, limit)

    return probe

"""API keys: programs use them to call the API for their owner, within scopes and limits.

A key is `pxd_`, 43 letters and digits of 256 random bits, and 6 of their CRC-32: secret scanners
recognise it, and a mistyped key is refused without a query. Only its digest is stored; since the
key is random, the digest does not reveal it.
"""

import hashlib
import secrets
import string
import zlib
from collections.abc import Sequence
from ipaddress import ip_network

from msgspec import Struct

from market.accounts.accounts import Caller
from market.accounts.bounds import lock_user, require
from market.accounts.letters import Letters
from market.accounts.mail import Message, strong_key_created
from market.accounts.makers import require_current
from market.accounts.scopes import Grant, Maker, Scope, permits
from market.accounts.spending import (
    NO_LIMITS,
    LimitsChange,
    Spender,
    SpendLimits,
    beginning,
    limits_of,
)
from market.accounts.suspensions import Part, refusal
from market.base.errors import Code, MarketError
from market.base.networks import counted_network
from market.events.catalogue import KeyCreated, KeyExpiring, KeyRevoked, timestamp
from market.events.context import Context
from market.events.recording import record
from market.site.gate import Gate
from storage.accounts import keys as queries
from storage.accounts import suspensions as suspension_queries
from storage.accounts import users
from storage.accounts.keys import KeyRow
from storage.accounts.users import LoginRow
from storage.engines.store import Transaction

PREFIX = "pxd_"
SECRET_CHARACTERS = 43  # of 62 kinds: 256 bits
CHECK_CHARACTERS = 6  # the same of 32 bits
SHOWN_CHARACTERS = 10  # of a key in lists: 36 bits of it, which do not help to guess the others
KEYS_MAX = 50  # valid keys of a user: one for each program, and some more
LISTED_MAX = 500
NAME_MAX_CHARACTERS = 100
ADDRESSES_MAX = 20
LIFETIME_DEFAULT_DAYS = 90
LIFETIME_MAX_DAYS = 365
OVERLAP_MAX_HOURS = 168
# Time that ended keys stay in the list.
KEPT_SECONDS = 90 * 86_400
# Shortest time between two records that a key is used.
USED_SECONDS = 3_600
# Time before the expiry of a key at which its owner is notified, unless its lifetime is not much
# longer.
WARNED_SECONDS = 7 * 86_400
TOLD_MAX = 500  # notified in one transaction of the sweep
KNOWN_MAX = 10_000
# After this time a month is over by the clock of every daemon.
SPENT_KEPT_SECONDS = 62 * 86_400
FORGET_MAX = 5_000

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
INVALID = "The API key is malformed, or was not issued by this service."
REVOKED = "The API key was revoked by its owner."
EXPIRED = "The API key has expired; its owner can make another one."


class NewKey(Struct, frozen=True, kw_only=True):
    """Fields of a new key: without `expires_in_days` it does not expire."""

    name: str
    scopes: tuple[Scope, ...]
    expires_in_days: int | None = LIFETIME_DEFAULT_DAYS
    allow_ips: tuple[str, ...] = ()
    spend_limits: SpendLimits = NO_LIMITS


class IssuedKey(Struct, frozen=True):
    """New key: its text, which is shown once, and its row."""

    key: str
    row: KeyRow


class ListedKey(Struct, frozen=True):
    """Key in its owner's view, with the spending of the present period, in micro-units."""

    row: KeyRow
    status: str
    spent_usd: int
    spent_credit: int


class KeyChange(Struct, frozen=True, kw_only=True):
    """Fields of a key to change; None leaves a field unchanged."""

    name: str | None = None
    allow_ips: tuple[str, ...] | None = None
    spend_limits: LimitsChange | None = None


class _Known(Struct, frozen=True):
    """A key as of one version of the store."""

    version: bytes
    found: "_Found"


class _Found(Struct, frozen=True):
    """A key and its owner; `suspended` is the text for an owner whose keys are suspended."""

    row: KeyRow
    owner: LoginRow
    suspended: str | None


class ApiKeys:
    """Makes, lists and ends keys, and authenticates callers with keys.

    Args:
        gate: checks the consents of the owner of a key.
        listed_max: how many keys of a user are listed.
    """

    def __init__(
        self, context: Context, letters: Letters, gate: Gate, listed_max: int = LISTED_MAX
    ) -> None:
        self._gate = gate
        self.listed_max = listed_max
        self._context = context
        self._letters = letters
        self._store = context.store
        self._now = context.now
        self._known: dict[str, _Known] = {}  # by digest

    async def authenticate(self, key: str, address: str) -> Caller:
        """Return the owner of a key and its present rights.

        Args:
            key: the key in the request.
            address: the address of the client, or "" if unknown.

        Raises:
            MarketError: `unauthorized`, `key_address`, `account_suspended`,
                `terms_not_accepted`.
        """
        if not is_well_formed(key):
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        found = await self._find(digest(key))
        row = found.row
        if row.revoked_at is not None:
            raise MarketError(Code.UNAUTHORIZED, REVOKED)
        now = self._now()
        if row.expires_at is not None and row.expires_at <= now:
            raise MarketError(Code.UNAUTHORIZED, EXPIRED)
        if not permits(row.allow_ips, address):
            raise MarketError(Code.KEY_ADDRESS)
        if found.suspended is not None:
            raise refusal(found.suspended)
        await self._gate.check_key(row.user_id)
        if row.last_used_at is None or row.last_used_at <= now - USED_SECONDS:
            await self._store.write(
                queries.note_used,
                row.id,
                network=counted_network(address) if address else "",
                now=now,
                since=now - USED_SECONDS,
            )
        return Caller(found.owner, row.id, _grant(row), address)

    async def _find(self, key_hash: str) -> _Found:
        version = self._store.version()
        known = self._known.get(key_hash)
        if known is not None and known.version == version:
            return known.found
        found = await self._store.read(_with_owner, key_hash)
        if found is None:
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        if version is not None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key_hash] = _Known(version, found)
        return found

    async def create(self, user_id: str, new: NewKey, *, login_id: str | None = None) -> IssuedKey:
        """Make a key, unless the requesting login has ended since the request began.

        Raises:
            MarketError: `invalid_field`, `too_many_keys`, `unauthorized`.
        """

        async def unit(tx: Transaction) -> IssuedKey:
            await lock_user(tx, user_id)
            await require_current(tx, user_id, self._now(), Maker(login_id))
            return await issue(tx, self._context, user_id, new, "login", self._letters)

        issued = await self._store.write(unit)
        self._letters.wake()
        return issued

    async def all_of(self, user_id: str) -> list[ListedKey]:
        """Return the keys of a user, newest first; ended ones for a while."""
        return await self._store.read(_listed, user_id, self._now(), limit=self.listed_max)

    async def one(self, user_id: str, key_id: str) -> ListedKey:
        """Return a key of a user.

        Raises:
            MarketError: `key_not_found`.
        """
        for each in await self.all_of(user_id):
            if each.row.id == key_id:
                return each
        raise MarketError(Code.KEY_NOT_FOUND)

    async def change(self, user_id: str, key_id: str, change: KeyChange) -> ListedKey:
        """Change a valid key; its scopes stay.

        Raises:
            MarketError: `invalid_field`, `key_not_found`.
        """
        await self._store.write(_change, user_id, key_id, change, self._now())
        return await self.one(user_id, key_id)

    async def revoke(self, user_id: str, key_id: str) -> None:
        """End a key immediately; a key that has ended stays unchanged.

        Raises:
            MarketError: `key_not_found`.
        """
        await self._store.write(_revoke, self._context, user_id, key_id)

    async def roll(
        self, user_id: str, key_id: str, *, overlap_hours: int, login_id: str | None = None
    ) -> IssuedKey:
        """Make a successor of a key; the old key ends `overlap_hours` later.

        The spending of both counts against one limit. The new key has the full lifetime of the old
        one.

        Raises:
            MarketError: `key_not_found`; `unauthorized`, if the login has ended meanwhile.
        """
        overlap_seconds = overlap_hours * 3_600

        async def unit(tx: Transaction) -> IssuedKey:
            await lock_user(tx, user_id)  # another transaction that rolls or changes the key waits
            await require_current(tx, user_id, self._now(), Maker(login_id))
            return await self._roll(tx, user_id, key_id, overlap_seconds)

        issued = await self._store.write(unit)
        self._letters.wake()
        return issued

    async def _roll(
        self, tx: Transaction, user_id: str, key_id: str, overlap_seconds: int
    ) -> IssuedKey:
        context, now = self._context, self._now()
        row = await _own(tx, user_id, key_id)
        if overlap_seconds:
            ends_at = now + overlap_seconds
            has_ended = not await queries.end_by(tx, key_id, expires_at=ends_at, now=now)
        else:
            has_ended = not await end(tx, context, row, now)
        if has_ended:
            raise MarketError(Code.KEY_NOT_FOUND)
        lifetime = None if row.expires_at is None else row.expires_at - row.created_at
        text = new_text()
        successor = row._replace(
            id=context.identifiers.new(),
            key_hash=digest(text),
            prefix=text[:SHOWN_CHARACTERS],
            created_at=now,
            expires_at=None if lifetime is None else now + lifetime,
            last_used_at=None,
            last_used_network=None,
        )
        await _add(tx, context, successor, self._letters)
        return IssuedKey(text, successor)

    async def warn(self) -> int:
        """Notify owners of keys that expire soon. Return the number of notified keys.

        The records of spending in past days and months are deleted.

        Raises:
            StoreError: some owners were not notified.
        """
        before = self._now() - SPENT_KEPT_SECONDS
        await self._store.write(queries.forget_spent, before=before, limit=FORGET_MAX)
        return await self._store.write(_warn, self._context)


def is_key(token: str) -> bool:
    """Return whether a bearer token has the prefix of an API key."""
    return token.startswith(PREFIX)


def is_well_formed(key: str) -> bool:
    """Return whether a text can be a key: its length and its check are right."""
    if len(key) != len(PREFIX) + SECRET_CHARACTERS + CHECK_CHARACTERS or not is_key(key):
        return False
    return key.isascii() and key[-CHECK_CHARACTERS:] == _check(key[:-CHECK_CHARACTERS])


def digest(key: str) -> str:
    """Return the stored digest of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_text() -> str:
    """Return the text of a new key."""
    text = PREFIX + _base62(secrets.randbits(256), SECRET_CHARACTERS)
    return text + _check(text)


def check(new: NewKey) -> None:
    """Check the fields of a new key.

    Raises:
        MarketError: `invalid_field`.
    """
    _check_name(new.name)
    if not new.scopes:
        raise MarketError(Code.INVALID_FIELD, "scopes must name one at least.", field="scopes")
    days = new.expires_in_days
    if days is not None and not 1 <= days <= LIFETIME_MAX_DAYS:
        message = f"expires_in_days must be from 1 to {LIFETIME_MAX_DAYS}, or null for never."
        raise MarketError(Code.INVALID_FIELD, message, field="expires_in_days")
    stored_networks(new.allow_ips)


async def issue(
    tx: Transaction,
    context: Context,
    user_id: str,
    new: NewKey,
    created_by: str,
    letters: Letters,
) -> IssuedKey:
    """Make a key in a transaction.

    The owner gets an e-mail about a key with all rights, or without an expiry.

    Args:
        tx: the transaction.
        context: identifiers, the time, and the notifications.
        user_id: the owner of the key; the caller has locked them (`bounds.lock_user`).
        new: the fields of the key.
        created_by: "login", or "device" if a device requested it.
        letters: e-mails to users; the caller wakes their sender.

    Raises:
        MarketError: `invalid_field`, `too_many_keys`.
    """
    check(new)
    now = context.now()
    key_id = context.identifiers.new()
    text = new_text()
    days = new.expires_in_days
    row = KeyRow(
        id=key_id,
        user_id=user_id,
        name=new.name.strip(),
        key_hash=digest(text),
        prefix=text[:SHOWN_CHARACTERS],
        scopes=" ".join(sorted(set(new.scopes))),
        allow_ips=stored_networks(new.allow_ips),
        limit_usd=new.spend_limits.usd,
        limit_credit=new.spend_limits.credit,
        limit_period=new.spend_limits.period,
        purse_id=key_id,
        created_by=created_by,
        created_at=now,
        expires_at=None if days is None else now + days * 86_400,
        revoked_at=None,
        last_used_at=None,
        last_used_network=None,
    )
    await _add(tx, context, row, letters)
    return IssuedKey(text, row)


async def end_all(tx: Transaction, context: Context, user_id: str) -> None:
    """Revoke every key of a user that has lost the password, or whose password was stolen."""
    now = context.now()
    for row in await queries.live_of(tx, user_id, now):
        await end(tx, context, row, now)


def status_of(row: KeyRow, now: int) -> str:
    """Return "active", "expired" or "revoked"."""
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "active"


def _grant(row: KeyRow) -> Grant:
    spender = Spender(row.id, row.user_id)
    return Grant(row.id, row.purse_id, frozenset(row.scopes.split()), spender)


async def _with_owner(tx: Transaction, key_hash: str) -> _Found | None:
    row = await queries.find_by_hash(tx, key_hash)
    if row is None:
        return None
    owner = await users.profile(tx, row.user_id)
    suspended = await suspension_queries.shown(tx, row.user_id, Part.KEYS)
    return _Found(row, owner, suspended) if owner is not None else None


async def _add(tx: Transaction, context: Context, row: KeyRow, letters: Letters) -> None:
    """Add a new key or a successor, and notify its owner."""
    await queries.forget_ended(tx, row.user_id, before=row.created_at - KEPT_SECONDS)
    live = await queries.count_live(tx, row.user_id, row.created_at)
    require(live + 1, KEYS_MAX, Code.TOO_MANY_KEYS)
    await queries.insert(tx, row)
    expires_at = None if row.expires_at is None else timestamp(row.expires_at)
    scopes = row.scopes.split()
    data = KeyCreated(row.id, row.name, scopes, expires_at)
    await record(tx, context, row.user_id, data, subject_id=row.id)
    if expires_at is None or set(scopes) == set(Scope):

        def write(to: str, app_url: str) -> Message:
            return strong_key_created(to, app_url, row.name)

        await letters.put(tx, row.user_id, f"key created:{row.id}", write)


async def _listed(tx: Transaction, user_id: str, now: int, *, limit: int) -> list[ListedKey]:
    rows = await queries.all_of(tx, user_id, now=now, limit=limit)
    purses = {row.purse_id for row in rows}
    begins = {beginning(limits_of(row).period, now) for row in rows}
    spent = {
        (each.purse_id, each.currency, each.period, each.begins_at): each.spent
        for each in await queries.spends(tx, purses, begins)
    }

    def listed(row: KeyRow) -> ListedKey:
        period = limits_of(row).period
        place = (period, beginning(period, now))
        return ListedKey(
            row,
            status_of(row, now),
            spent.get((row.purse_id, "usd", *place), 0),
            spent.get((row.purse_id, "credit", *place), 0),
        )

    return [listed(row) for row in rows]


async def _change(tx: Transaction, user_id: str, key_id: str, change: KeyChange, now: int) -> None:
    await lock_user(tx, user_id)  # the whole row is written
    row = await _own(tx, user_id, key_id)
    if change.name is not None:
        _check_name(change.name)
        row = row._replace(name=change.name.strip())
    if change.allow_ips is not None:
        row = row._replace(allow_ips=stored_networks(change.allow_ips))
    if change.spend_limits is not None:
        limits = change.spend_limits.of(limits_of(row))
        row = row._replace(
            limit_usd=limits.usd, limit_credit=limits.credit, limit_period=limits.period
        )
    if not await queries.change(tx, row, now=now):
        raise MarketError(Code.KEY_NOT_FOUND)


async def _revoke(tx: Transaction, context: Context, user_id: str, key_id: str) -> None:
    await end(tx, context, await _own(tx, user_id, key_id), context.now())


async def end(tx: Transaction, context: Context, row: KeyRow, now: int) -> bool:
    """Revoke a key; False when it has ended already."""
    if not await queries.revoke(tx, row.id, now):
        return False
    await record(tx, context, row.user_id, KeyRevoked(row.id, row.name), subject_id=row.id)
    return True


async def _own(tx: Transaction, user_id: str, key_id: str) -> KeyRow:
    row = await queries.find(tx, user_id, key_id)
    if row is None:
        raise MarketError(Code.KEY_NOT_FOUND)
    return row


async def _warn(tx: Transaction, context: Context) -> int:
    now = context.now()
    told = 0
    for row in await queries.expiring(tx, now=now, before=now + WARNED_SECONDS, limit=TOLD_MAX):
        assert row.expires_at is not None  # noqa: S101 - the query selects these
        if not await queries.note_expiry_told(tx, row.id):
            continue
        data = KeyExpiring(row.id, row.name, timestamp(row.expires_at))
        await record(tx, context, row.user_id, data, subject_id=row.id)
        told += 1
    return told


def _check_name(name: str) -> None:
    if not 1 <= len(name.strip()) <= NAME_MAX_CHARACTERS or not name.isprintable():
        message = f"name must have 1 to {NAME_MAX_CHARACTERS} characters on one line."
        raise MarketError(Code.INVALID_FIELD, message, field="name")


def stored_networks(texts: Sequence[str]) -> str:
    """Return addresses and networks as they are stored.

    Raises:
        MarketError: `invalid_field`.
    """
    if len(texts) > ADDRESSES_MAX:
        message = f"allow_ips may have {ADDRESSES_MAX} addresses or networks."
        raise MarketError(Code.INVALID_FIELD, message, field="allow_ips")
    try:
        networks = [ip_network(text.strip(), strict=False) for text in texts]
        if any("%" in text for text in texts):  # a zone, which may have spaces in it
            raise ValueError
    except ValueError:
        message = "allow_ips takes addresses, as 192.0.2.1, and networks, as 192.0.2.0/24."
        raise MarketError(Code.INVALID_FIELD, message, field="allow_ips") from None
    return " ".join(dict.fromkeys(str(network) for network in networks))


def _check(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), CHECK_CHARACTERS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))

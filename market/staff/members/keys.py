"""Keys of the staff: programs call the staff API with them, within scopes and from addresses."""

import hashlib
import secrets
from collections.abc import Sequence

from msgspec import Struct

from market.accounts.keys import ADDRESSES_MAX, stored_networks
from market.accounts.scopes import permits
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.base.acts import (
    STAFF,
    Act,
    Changes,
    act,
    checked_text,
    permit,
    reason,
    require_name,
)
from market.staff.base.callers import StaffCaller, StaffScope
from market.staff.base.roles import Action, Author, Member, Role, Via, require
from market.staff.members.accounts import find
from storage.engines.store import Transaction
from storage.staff.base.rows import OwnedKeyRow, StaffKeyRow
from storage.staff.members import keys as queries

PREFIX = "pxs_"
SECRET_BYTES = 32
SHOWN_CHARACTERS = 10
NAME_MAX_CHARACTERS = 100
KEYS_MAX = 20  # valid keys of a member
LIFETIME_MAX_DAYS = 90
DAY_SECONDS = 86_400
USED_SECONDS = 3_600  # shortest time between two records that a key is used
KEY = "staff key"  # the kind of a subject
INVALID = "The staff key is malformed, or was not issued by this service."
ENDED = "The staff key has expired or was revoked, or its member is locked."


class NewStaffKey(Struct, frozen=True, kw_only=True):
    """Fields of a new key of a member."""

    name: str
    scopes: Sequence[StaffScope]
    allow_ips: Sequence[str]
    days: int = LIFETIME_MAX_DAYS


class IssuedStaffKey(Struct, frozen=True):
    """A new key: its text, which is shown once, and its row."""

    text: str
    row: StaffKeyRow
    email: str


class StaffKeys:
    """Checks the keys that programs show."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def authenticate(self, text: str, address: str) -> StaffCaller:
        """Return the member whose key this is, as of now.

        Raises:
            MarketError: `unauthorized`, `key_address`.
        """
        store, now = self._context.store, self._context.now()
        owned = await store.read(queries.find_by_hash, _digest(text))
        if owned is None:
            raise MarketError(Code.UNAUTHORIZED, INVALID)
        key = owned.key
        if not _is_valid(owned, now):
            raise MarketError(Code.UNAUTHORIZED, ENDED)
        if not permits(key.allow_ips, address):
            raise MarketError(Code.KEY_ADDRESS)
        if key.last_used_at is None or key.last_used_at <= now - USED_SECONDS:
            await store.write(queries.use, key.id, now)
        return StaffCaller(
            key.id,
            key.staff_id,
            owned.email,
            Role(owned.role),
            Via.API,
            key.expires_at,
            frozenset(key.scopes.split()),
        )

    async def is_current(self, caller: StaffCaller) -> bool:
        """Return whether a key is still valid."""
        owned = await self._context.store.read(queries.find, caller.session_id)
        return owned is not None and _is_valid(owned, self._context.now())


def is_key(text: str) -> bool:
    """Return whether a bearer token has the prefix of a staff key."""
    return text.startswith(PREFIX)


async def create(
    context: Context, author: Author, name: str, new: NewStaffKey, why: str
) -> IssuedStaffKey:
    """Make a key of a member.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `staff_not_found`, `too_many_keys`.
    """
    require(author, Action.STAFF_KEY_CREATE)
    if isinstance(author, Member) and StaffScope.MONEY in new.scopes:
        raise MarketError(
            Code.NOT_PERMITTED,
            "A key that moves money acts as its member, so only a command on the machine makes it.",
        )
    label = checked_text(new.name, "name", NAME_MAX_CHARACTERS)
    if not new.scopes:
        raise MarketError(Code.INVALID_FIELD, "A key has one scope at least.", field="scopes")
    if not new.allow_ips:
        message = f"A staff key names 1 to {ADDRESSES_MAX} addresses or networks."
        raise MarketError(Code.INVALID_FIELD, message, field="allow_ips")
    networks = stored_networks(new.allow_ips)
    if not 1 <= new.days <= LIFETIME_MAX_DAYS:
        message = f"A staff key expires after 1 to {LIFETIME_MAX_DAYS} days."
        raise MarketError(Code.INVALID_FIELD, message, field="expires_in_days")
    member = await context.store.read(find, name)
    text, now = PREFIX + secrets.token_urlsafe(SECRET_BYTES), context.now()
    row = StaffKeyRow(
        id=context.identifiers.new(),
        staff_id=member.id,
        name=label,
        key_hash=_digest(text),
        prefix=text[:SHOWN_CHARACTERS],
        scopes=" ".join(sorted(set(new.scopes))),
        allow_ips=networks,
        created_at=now,
        expires_at=now + new.days * DAY_SECONDS,
        revoked_at=None,
        last_used_at=None,
    )

    async def add(tx: Transaction) -> tuple[IssuedStaffKey, Changes]:
        if await queries.count_live(tx, member.id, now) >= KEYS_MAX:
            message = f"{member.email} has {KEYS_MAX} staff keys; revoke one first."
            raise MarketError(Code.TOO_MANY_KEYS, message)
        await queries.insert(tx, row)
        issued = IssuedStaffKey(text, row, member.email)
        return issued, {"key": (None, row.id), "scopes": (None, row.scopes)}

    action = Action.STAFF_KEY_CREATE
    return await context.store.write(
        act, context, Act(author, action, STAFF, member.id, text=reason(why)), add
    )


async def listed(context: Context, author: Author) -> list[OwnedKeyRow]:
    """Return the newest keys of all members.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_listed, author)


async def revoke(context: Context, author: Author, key_id: str, why: str) -> OwnedKeyRow:
    """End a key, and return it as it was.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `key_not_found`.
    """
    require_name(key_id)
    text = reason(why)

    async def change(tx: Transaction) -> tuple[OwnedKeyRow, Changes]:
        owned = await queries.find(tx, key_id)
        if owned is None or not await queries.revoke(tx, key_id, context.now()):
            raise MarketError(Code.KEY_NOT_FOUND, "There is no such staff key, or it has ended.")
        return owned, {"revoked": (False, True)}

    new = Act(author, Action.STAFF_KEY_REVOKE, KEY, key_id, text=text)
    return await context.store.write(act, context, new, change)


def state_of(row: StaffKeyRow, now: int) -> str:
    """Return "active", "expired" or "revoked"."""
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at <= now else "active"


async def _listed(tx: Transaction, author: Author) -> list[OwnedKeyRow]:
    await permit(tx, author, Action.STAFF_KEY_LIST)
    return await queries.newest(tx)


def _is_valid(owned: OwnedKeyRow, now: int) -> bool:
    return state_of(owned.key, now) == "active" and owned.locked_at is None


def _digest(text: str) -> str:
    """Return the stored hash of a key; a key is random, so its hash needs no salt."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()

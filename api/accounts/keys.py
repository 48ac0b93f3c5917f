"""Routes of API keys: made and shown once, listed, changed, rolled and revoked; for people only."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api.http.identifiers import in_path
from api.http.literals import (
    KEY_PERIODS,
    KEY_SCOPES,
    KEY_SOURCES,
    KEY_STATUSES,
    KeyPeriod,
    KeyScope,
    KeySource,
    KeyStatus,
)
from api.routing.codec import Money, money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.keys import (
    ADDRESSES_MAX,
    LIFETIME_DEFAULT_DAYS,
    LIFETIME_MAX_DAYS,
    NAME_MAX_CHARACTERS,
    OVERLAP_MAX_HOURS,
    ApiKeys,
    KeyChange,
    ListedKey,
    NewKey,
)
from market.accounts.scopes import Scope
from market.accounts.spending import LimitsChange, SpendLimits
from market.base.errors import Code
from market.recovery.made_by_keys import MadeByKeys
from storage.accounts.keys import KeyRow
from storage.devices.made_by_keys import MadeRow

ALL = "/api/keys"
ONE = f"{ALL}/{{key_id}}"

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_CHARACTERS)]
Address = Annotated[str, Meta(max_length=50)]
Addresses = Annotated[list[Address], Meta(max_length=ADDRESSES_MAX)]
Scopes = Annotated[list[KeyScope], Meta(min_length=1, max_length=len(Scope))]
Days = Annotated[int, Meta(ge=1, le=LIFETIME_MAX_DAYS)]


class KeyRequest(Struct):
    """A new key: its name, its scopes, its lifetime, its addresses, and its spending limits.

    With `expires_in_days` null it does not expire. `allow_ips` are addresses and networks; an empty
    list allows all. Limits hold for each `spend_period` (UTC); null is no limit.
    """

    name: Name
    scopes: Scopes
    expires_in_days: Days | None = LIFETIME_DEFAULT_DAYS
    allow_ips: Addresses = []
    spend_limit_usd: Money | None = None
    spend_limit_credit: Money | None = None
    spend_period: KeyPeriod = "month"


class KeyChangeRequest(Struct):
    """Fields of a key to change. A field left out stays, and a null limit removes the limit."""

    name: Name | UnsetType = UNSET
    allow_ips: Addresses | UnsetType = UNSET
    spend_limit_usd: Money | UnsetType | None = UNSET
    spend_limit_credit: Money | UnsetType | None = UNSET
    spend_period: KeyPeriod | UnsetType = UNSET


class RollRequest(Struct):
    """Hours that the old key works beside the new one."""

    overlap_hours: Annotated[int, Meta(ge=0, le=OVERLAP_MAX_HOURS)] = 0


class RevokeKeyRequest(Struct):
    """Whether to end the worker tokens and endpoints of webhooks that the key has made.

    All keys of its line count: the keys before it, and the keys that have replaced it.
    """

    with_created: bool = False


class Key(Struct):
    """A key; `prefix` is how it begins. `last_used_at` is right to the hour.

    `created_webhooks` and `created_devices` are in use and were made by it, or by another key of
    its line: they go on when it is revoked without `with_created`.
    """

    id: str
    name: str
    prefix: str
    scopes: list[KeyScope]
    status: KeyStatus
    created_by: KeySource
    created_at: Timestamp
    expires_at: Timestamp | None
    revoked_at: Timestamp | None
    last_used_at: Timestamp | None
    last_used_network: str | None
    allow_ips: list[str]
    spend_limit_usd: float | None
    spend_limit_credit: float | None
    spend_period: KeyPeriod
    spent_usd: float
    spent_credit: float
    created_webhooks: int
    created_devices: int


class NewKeyReply(Reply, kw_only=True):
    """A new key, and its text, which is shown now and never again."""

    key: str
    key_id: str
    prefix: str
    expires_at: Timestamp | None


class KeysReply(Reply, kw_only=True):
    """The caller's keys, newest first; ended ones for 90 days."""

    keys: list[Key]


class KeyReply(Reply, kw_only=True):
    """One key."""

    key: Key


class KeyRoutes:
    """The routes of keys. None takes a key: the holder of a key must not make others from it."""

    def __init__(self, keys: ApiKeys, made: MadeByKeys) -> None:
        self._keys = keys
        self._made = made

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                ALL,
                "Make an API key, which is shown once",
                self.create,
                NewKeyReply,
                auth=Auth.JWT,
                body=KeyRequest,
                errors=(Code.TOO_MANY_KEYS,),
                example={"name": "backup script", "scopes": ["usage:read"]},
            ),
            Route("GET", ALL, "My API keys", self.all, KeysReply, auth=Auth.JWT),
            Route(
                "PATCH",
                ONE,
                "Change the name, the addresses or the limits of an API key",
                self.change,
                KeyReply,
                auth=Auth.JWT,
                body=KeyChangeRequest,
                errors=(Code.KEY_NOT_FOUND,),
                example={"name": "the other script"},
            ),
            Route(
                "POST",
                f"{ONE}/revoke",
                "End an API key at once",
                self.revoke,
                Reply,
                auth=Auth.JWT,
                body=RevokeKeyRequest,
                body_optional=True,
                errors=(Code.KEY_NOT_FOUND,),
            ),
            Route(
                "POST",
                f"{ONE}/roll",
                "Replace an API key by a new one of the same kind",
                self.roll,
                NewKeyReply,
                auth=Auth.JWT,
                body=RollRequest,
                body_optional=True,
                errors=(Code.KEY_NOT_FOUND, Code.TOO_MANY_KEYS),
            ),
        ]

    async def create(self, call: Call[KeyRequest, Any]) -> NewKeyReply:
        """Make a key."""
        body = call.body
        new = NewKey(
            name=body.name,
            scopes=tuple(Scope(each) for each in body.scopes),
            expires_in_days=body.expires_in_days,
            allow_ips=tuple(body.allow_ips),
            spend_limits=SpendLimits(
                body.spend_limit_usd, body.spend_limit_credit, body.spend_period
            ),
        )
        issued = await self._keys.create(call.user_id, new, login_id=call.caller.session_id)
        return new_key_reply(issued.key, issued.row)

    async def all(self, call: Call[Nothing, Any]) -> KeysReply:
        """List the caller's keys."""
        made = await self._made.counts(call.user_id)
        keys = await self._keys.all_of(call.user_id)
        return KeysReply(keys=[_key(each, made.get(each.row.purse_id)) for each in keys])

    async def change(self, call: Call[KeyChangeRequest, Any]) -> KeyReply:
        """Change a key."""
        body, key_id = call.body, _place(call.path)
        change = KeyChange(
            name=None if isinstance(body.name, UnsetType) else body.name,
            allow_ips=None if isinstance(body.allow_ips, UnsetType) else tuple(body.allow_ips),
            spend_limits=LimitsChange(
                body.spend_limit_usd, body.spend_limit_credit, body.spend_period
            ),
        )
        changed = await self._keys.change(call.user_id, key_id, change)
        made = await self._made.counts(call.user_id)
        return KeyReply(key=_key(changed, made.get(changed.row.purse_id)))

    async def revoke(self, call: Call[RevokeKeyRequest, Any]) -> Reply:
        """End a key, and on request its worker tokens and webhooks."""
        key_id = _place(call.path)
        await self._keys.revoke(call.user_id, key_id)
        if call.body.with_created:
            await self._made.end(call.user_id, key_id)
        return Reply()

    async def roll(self, call: Call[RollRequest, Any]) -> NewKeyReply:
        """Replace a key."""
        issued = await self._keys.roll(
            call.user_id,
            _place(call.path),
            overlap_hours=call.body.overlap_hours,
            login_id=call.caller.session_id,
        )
        return new_key_reply(issued.key, issued.row)


def new_key_reply(key: str, row: KeyRow) -> NewKeyReply:
    """Return the reply that shows a new key."""
    return NewKeyReply(
        key=key, key_id=row.id, prefix=row.prefix, expires_at=_moment(row.expires_at)
    )


def _place(path: dict[str, str]) -> str:
    return in_path(path["key_id"], Code.KEY_NOT_FOUND)


def _key(listed: ListedKey, made: MadeRow | None) -> Key:
    row = listed.row
    return Key(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        scopes=[KEY_SCOPES[each] for each in row.scopes.split()],
        status=KEY_STATUSES[listed.status],
        created_by=KEY_SOURCES[row.created_by],
        created_at=timestamp(row.created_at),
        expires_at=_moment(row.expires_at),
        revoked_at=_moment(row.revoked_at),
        last_used_at=_moment(row.last_used_at),
        last_used_network=row.last_used_network,
        allow_ips=row.allow_ips.split(),
        spend_limit_usd=_amount(row.limit_usd),
        spend_limit_credit=_amount(row.limit_credit),
        spend_period=KEY_PERIODS[row.limit_period],
        spent_usd=money(listed.spent_usd),
        spent_credit=money(listed.spent_credit),
        created_webhooks=0 if made is None else made.webhooks,
        created_devices=0 if made is None else made.devices,
    )


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


def _amount(micro_units: int | None) -> float | None:
    return None if micro_units is None else money(micro_units)

"""Routes of the members of the staff, and of their keys."""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from api.http.identifiers import in_path
from api.http.literals import KEY_STATUSES, KeyStatus
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.words import PREFIX, Name, Reason, ReasonRequest, author, moment
from market.accounts.keys import ADDRESSES_MAX
from market.base.errors import Code
from market.staff.base.callers import StaffScope
from market.staff.base.roles import Action, Role
from market.staff.desk import StaffDesk
from market.staff.members import accounts, keys
from market.staff.members.accounts import Created
from market.staff.members.keys import (
    LIFETIME_MAX_DAYS,
    NAME_MAX_CHARACTERS,
    IssuedStaffKey,
    NewStaffKey,
)
from storage.staff.base.rows import OwnedKeyRow
from storage.staff.base.staff import ListedStaffRow, StaffRow

ALL = f"{PREFIX}/staff"
ONE = f"{ALL}/{{member}}"
KEYS = f"{PREFIX}/keys"


class NewMemberRequest(Struct):
    """A new member of the staff."""

    email: Name
    password: Annotated[str, Meta(max_length=128)]
    role: Role
    reason: Reason


class DeclareRequest(Struct):
    """A user that is the member's own account."""

    user: Name
    reason: Reason


class RoleRequest(Struct):
    """Another role, and the reason."""

    role: Role
    reason: Reason


class NewStaffKeyRequest(Struct):
    """A new key of a member: its scopes, its addresses and its lifetime."""

    member: Name
    name: Annotated[str, Meta(max_length=NAME_MAX_CHARACTERS)]
    scopes: Annotated[list[StaffScope], Meta(min_length=1, max_length=len(StaffScope))]
    allow_ips: Annotated[
        list[Annotated[str, Meta(max_length=50)]], Meta(min_length=1, max_length=ADDRESSES_MAX)
    ]
    reason: Reason
    expires_in_days: Annotated[int, Meta(ge=1, le=LIFETIME_MAX_DAYS)] = LIFETIME_MAX_DAYS


class StaffItem(Struct):
    """A member of the staff, with the number of unused recovery codes."""

    id: str
    email: str
    role: Role
    created_at: Timestamp
    locked_at: Timestamp | None
    codes_left: int


class StaffListReply(Reply, kw_only=True):
    """The members of the staff, the oldest first."""

    staff: list[StaffItem]


class MemberReply(Reply, kw_only=True):
    """The member that an act has changed."""

    id: str
    email: str


class DeclaredReply(Reply, kw_only=True):
    """The user that a member has declared."""

    user_id: str


class FactorReply(Reply, kw_only=True):
    """A member with a new second factor and new recovery codes, which are shown once."""

    id: str
    email: str
    role: Role
    authenticator: str
    recovery_codes: list[str]


class StaffKeyItem(Struct):
    """A key of a member; `last_used_at` is right to the hour."""

    id: str
    member: str
    name: str
    prefix: str
    scopes: list[StaffScope]
    allow_ips: list[str]
    status: KeyStatus
    created_at: Timestamp
    expires_at: Timestamp
    last_used_at: Timestamp | None


class StaffKeysReply(Reply, kw_only=True):
    """The newest keys of all members, the newest first."""

    keys: list[StaffKeyItem]


class NewStaffKeyReply(Reply, kw_only=True):
    """A new key, and its text, which is shown once."""

    key: str
    id: str
    member: str
    prefix: str
    expires_at: Timestamp


class StaffKeyReply(Reply, kw_only=True):
    """The key that an act has ended."""

    id: str
    member: str


class MemberRoutes:
    """The routes of members and keys."""

    def __init__(self, desk: StaffDesk) -> None:
        self._desk = desk

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        changes: tuple[Code, ...] = (
            Code.STAFF_NOT_FOUND,
            Code.STAFF_UNCHANGED,
            Code.LAST_OPERATOR,
        )
        why = {"reason": "moved to the help desk"}
        return [
            StaffRoute(
                "GET",
                ALL,
                "Members of the staff",
                self.all,
                StaffListReply,
                action=Action.STAFF_LIST,
            ),
            StaffRoute(
                "POST",
                ALL,
                "Add a member of the staff",
                self.create,
                FactorReply,
                action=Action.STAFF_CREATE,
                body=NewMemberRequest,
                idempotent=True,
                errors=(Code.EMAIL_TAKEN, Code.TOO_BUSY),
                example={
                    "email": "olga@example.com",
                    "password": "correct horse",
                    "role": "support",
                    **why,
                },
            ),
            StaffRoute(
                "POST",
                f"{ONE}/role",
                "Give a member another role",
                self.role,
                MemberReply,
                action=Action.STAFF_ROLE,
                body=RoleRequest,
                idempotent=True,
                errors=changes,
                example={"role": "support", **why},
            ),
            StaffRoute(
                "POST",
                f"{ONE}/lock",
                "Lock a member; all logins end",
                self.lock,
                MemberReply,
                action=Action.STAFF_LOCK,
                body=ReasonRequest,
                idempotent=True,
                errors=changes,
                example=why,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/unlock",
                "Unlock a member",
                self.unlock,
                MemberReply,
                action=Action.STAFF_UNLOCK,
                body=ReasonRequest,
                idempotent=True,
                errors=changes[:2],
                example=why,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/declare",
                "Declare a user as my own account; I do no act about it from then on",
                self.declare,
                DeclaredReply,
                action=Action.STAFF_DECLARE,
                body=DeclareRequest,
                idempotent=True,
                errors=(Code.STAFF_NOT_FOUND, Code.STAFF_UNCHANGED, Code.USER_NOT_FOUND),
                example={"user": "olga", "reason": "my own account"},
            ),
            StaffRoute(
                "POST",
                f"{ONE}/reset-factor",
                "Replace the second factor of a member; all logins end",
                self.reset_factor,
                FactorReply,
                action=Action.STAFF_RESET_FACTOR,
                body=ReasonRequest,
                idempotent=True,
                errors=changes[:1],
                example=why,
            ),
            StaffRoute(
                "GET",
                KEYS,
                "Keys of the staff",
                self.keys,
                StaffKeysReply,
                action=Action.STAFF_KEY_LIST,
            ),
            StaffRoute(
                "POST",
                KEYS,
                "Make a key of a member",
                self.create_key,
                NewStaffKeyReply,
                action=Action.STAFF_KEY_CREATE,
                body=NewStaffKeyRequest,
                idempotent=True,
                errors=(Code.STAFF_NOT_FOUND, Code.TOO_MANY_KEYS),
                example={
                    "member": "olga@example.com",
                    "name": "reports",
                    "scopes": ["read"],
                    "allow_ips": ["192.0.2.7"],
                    "reason": "the monthly report",
                },
            ),
            StaffRoute(
                "POST",
                f"{KEYS}/{{key_id}}/revoke",
                "End a key",
                self.revoke_key,
                StaffKeyReply,
                action=Action.STAFF_KEY_REVOKE,
                body=ReasonRequest,
                idempotent=True,
                errors=(Code.KEY_NOT_FOUND,),
                example=why,
            ),
        ]

    async def all(self, call: Call[Nothing, Any]) -> StaffListReply:
        """List the members."""
        rows = await accounts.listed(self._desk.context, author(call))
        return StaffListReply(staff=[_member(row) for row in rows])

    async def create(self, call: Call[NewMemberRequest, Any]) -> FactorReply:
        """Add a member."""
        body, desk = call.body, self._desk
        created = await accounts.create(
            desk.context,
            desk.passwords,
            desk.factors,
            author(call, _factor),
            email=body.email,
            password=body.password,
            role=body.role,
            why=body.reason,
        )
        return _factor(created)

    async def role(self, call: Call[RoleRequest, Any]) -> MemberReply:
        """Give a member another role."""
        return _changed(
            await accounts.set_role(
                self._desk.context,
                author(call, _changed),
                call.path["member"],
                call.body.role,
                call.body.reason,
            )
        )

    async def declare(self, call: Call[DeclareRequest, Any]) -> DeclaredReply:
        """Declare a user as the caller's own account."""
        by, body, name = author(call, _declared), call.body, call.path["member"]
        user = await accounts.declare(self._desk.context, by, name, body.user, body.reason)
        return _declared(user)

    async def lock(self, call: Call[ReasonRequest, Any]) -> MemberReply:
        """Lock a member."""
        return await self._change(call, accounts.lock)

    async def unlock(self, call: Call[ReasonRequest, Any]) -> MemberReply:
        """Unlock a member."""
        return await self._change(call, accounts.unlock)

    async def _change(
        self, call: Call[ReasonRequest, Any], change: Callable[..., Any]
    ) -> MemberReply:
        by, reason = author(call, _changed), call.body.reason
        return _changed(await change(self._desk.context, by, call.path["member"], reason))

    async def reset_factor(self, call: Call[ReasonRequest, Any]) -> FactorReply:
        """Replace the second factor of a member."""
        desk, name = self._desk, call.path["member"]
        by = author(call, _factor)
        return _factor(
            await accounts.reset_factor(desk.context, desk.factors, by, name, call.body.reason)
        )

    async def keys(self, call: Call[Nothing, Any]) -> StaffKeysReply:
        """List the keys of all members."""
        context = self._desk.context
        rows, now = await keys.listed(context, author(call)), context.now()
        return StaffKeysReply(keys=[_key(row, now) for row in rows])

    async def create_key(self, call: Call[NewStaffKeyRequest, Any]) -> NewStaffKeyReply:
        """Make a key."""
        body = call.body
        new = NewStaffKey(
            name=body.name,
            scopes=body.scopes,
            allow_ips=body.allow_ips,
            days=body.expires_in_days,
        )
        by = author(call, _issued)
        return _issued(await keys.create(self._desk.context, by, body.member, new, body.reason))

    async def revoke_key(self, call: Call[ReasonRequest, Any]) -> StaffKeyReply:
        """End a key."""
        key_id = in_path(call.path["key_id"], Code.KEY_NOT_FOUND)
        by = author(call, _revoked)
        return _revoked(await keys.revoke(self._desk.context, by, key_id, call.body.reason))


def _member(row: ListedStaffRow) -> StaffItem:
    return StaffItem(
        id=row.id,
        email=row.email,
        role=Role(row.role),
        created_at=timestamp(row.created_at),
        locked_at=moment(row.locked_at),
        codes_left=row.codes_left,
    )


def _declared(user_id: str) -> DeclaredReply:
    return DeclaredReply(user_id=user_id)


def _changed(row: StaffRow) -> MemberReply:
    return MemberReply(id=row.id, email=row.email)


def _factor(created: Created) -> FactorReply:
    return FactorReply(
        id=created.id,
        email=created.email,
        role=created.role,
        authenticator=created.factor.uri,
        recovery_codes=list(created.factor.codes),
    )


def _issued(issued: IssuedStaffKey) -> NewStaffKeyReply:
    return NewStaffKeyReply(
        key=issued.text,
        id=issued.row.id,
        member=issued.email,
        prefix=issued.row.prefix,
        expires_at=timestamp(issued.row.expires_at),
    )


def _revoked(owned: OwnedKeyRow) -> StaffKeyReply:
    return StaffKeyReply(id=owned.key.id, member=owned.email)


def _key(owned: OwnedKeyRow, now: int) -> StaffKeyItem:
    row = owned.key
    return StaffKeyItem(
        id=row.id,
        member=owned.email,
        name=row.name,
        prefix=row.prefix,
        scopes=[StaffScope(each) for each in row.scopes.split()],
        allow_ips=row.allow_ips.split(),
        status=KEY_STATUSES[keys.state_of(row, now)],
        created_at=timestamp(row.created_at),
        expires_at=timestamp(row.expires_at),
        last_used_at=moment(row.last_used_at),
    )

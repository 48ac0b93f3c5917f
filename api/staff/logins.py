"""Routes of the staff's own logins: log in and out, the caller, a new password, the attempts."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.routing.cookies import Cookies
from api.routing.listing import Page, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute, WithCookie
from api.staff.words import PREFIX, moment
from market.base.errors import Code
from market.base.user_fields import EMAIL_MAX_CHARACTERS
from market.staff.base.callers import StaffScope
from market.staff.base.roles import MATRIX, Action, Role, Via
from market.staff.desk import StaffDesk
from market.staff.members import attempts
from market.staff.members.logins import Proof
from storage.staff.base.rows import ShownAttemptRow

Email = Annotated[str, Meta(max_length=EMAIL_MAX_CHARACTERS)]
Password = Annotated[str, Meta(max_length=128)]
FactorCode = Annotated[str, Meta(max_length=64)]


class StaffLoginRequest(Struct):
    """A password, and a code of the authenticator or a recovery code."""

    email: Email
    password: Password
    code: FactorCode


class FactorRequest(Struct):
    """A code of the authenticator, or a recovery code."""

    code: FactorCode


class StaffPasswordRequest(Struct):
    """A new password, with the old one and a code as the proof."""

    old_password: Password
    code: FactorCode
    new_password: Password


class MemberItem(Struct):
    """The member who calls, and the operations that the role permits.

    `scopes` are those of a staff key, null for a login.
    """

    id: str
    email: str
    role: Role
    expires_at: Timestamp
    scopes: list[StaffScope] | None
    may: list[Action]


class StaffLoginReply(Reply, kw_only=True):
    """A login. A page of this origin gets the token in a cookie, and none here."""

    token: str | None
    expires_at: Timestamp
    id: str
    email: str
    role: Role


class StaffMeReply(Reply, kw_only=True):
    """The member who calls."""

    member: MemberItem


class AttemptItem(Struct):
    """An attempt to prove a password and a code; `email` is null for an unknown address."""

    id: str
    at: Timestamp
    email: str | None
    network: str
    via: str
    unix_user: str | None
    right_at: Timestamp | None


class AttemptsReply(Reply, kw_only=True):
    """The newest attempts; `next_cursor` is null at the end."""

    attempts: list[AttemptItem]
    next_cursor: str | None


class LoginRoutes:
    """The routes of the staff's own logins.

    Args:
        cookies: keeps the login of a page.
    """

    def __init__(self, desk: StaffDesk, cookies: Cookies) -> None:
        self._desk = desk
        self._cookies = cookies

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        return [
            StaffRoute(
                "POST",
                f"{PREFIX}/login",
                "Log in with a password and a code",
                self.login,
                StaffLoginReply,
                action=Action.STAFF_LOGIN,
                body=StaffLoginRequest,
                errors=(Code.INVALID_CREDENTIALS, Code.TOO_BUSY, Code.TOO_MANY_ATTEMPTS),
                example={
                    "email": "olga@example.com",
                    "password": "correct horse",
                    "code": "123456",
                },
            ),
            StaffRoute(
                "POST",
                f"{PREFIX}/logout",
                "Log out",
                self.logout,
                Reply,
                action=Action.STAFF_LOGOUT,
            ),
            StaffRoute(
                "GET", f"{PREFIX}/me", "Who am I", self.me, StaffMeReply, action=Action.STAFF_SELF
            ),
            StaffRoute(
                "POST",
                f"{PREFIX}/factor",
                "Prove my second factor again; acts that move money want it every five minutes",
                self.factor,
                Reply,
                action=Action.STAFF_CHECK,
                body=FactorRequest,
                errors=(Code.SECOND_FACTOR_WRONG, Code.TOO_MANY_ATTEMPTS),
                example={"code": "123456"},
            ),
            StaffRoute(
                "POST",
                f"{PREFIX}/password",
                "Change my password; my other logins end",
                self.password,
                Reply,
                action=Action.STAFF_PASSWORD,
                body=StaffPasswordRequest,
                errors=(Code.INVALID_CREDENTIALS, Code.TOO_BUSY, Code.TOO_MANY_ATTEMPTS),
                example={
                    "old_password": "correct horse",
                    "code": "123456",
                    "new_password": "battery staple",
                },
            ),
            StaffRoute(
                "GET",
                f"{PREFIX}/attempts",
                "The newest attempts to log in",
                self.attempts,
                AttemptsReply,
                action=Action.STAFF_ATTEMPTS,
                query=Page,
            ),
        ]

    async def login(self, call: Call[StaffLoginRequest, Any]) -> Reply:
        """Log a member in."""
        body = call.body
        via = Via.PAGE if call.is_console else Via.API
        login = await self._desk.logins.login(
            Proof(body.email, body.password, body.code), address=call.address, via=via
        )
        reply = StaffLoginReply(
            token=None if call.is_console else login.token,
            expires_at=timestamp(login.expires_at),
            id=login.staff_id,
            email=login.email,
            role=login.role,
        )
        if not call.is_console:
            return reply
        return WithCookie(reply=reply, cookie=self._cookies.keep(login.token))

    async def logout(self, call: Call[Nothing, Any]) -> Reply:
        """Log the caller out."""
        await self._desk.logins.logout(call.staff)
        if call.staff.via is Via.PAGE:
            return WithCookie(reply=Reply(), cookie=self._cookies.forget())
        return Reply()

    async def me(self, call: Call[Nothing, Any]) -> StaffMeReply:
        """Return the caller."""
        caller = call.staff
        scopes = None if caller.scopes is None else [StaffScope(each) for each in caller.scopes]
        return StaffMeReply(
            member=MemberItem(
                id=caller.staff_id,
                email=caller.email,
                role=caller.role,
                expires_at=timestamp(caller.expires_at),
                scopes=None if scopes is None else sorted(scopes),
                may=sorted(action for action, roles in MATRIX.items() if caller.role in roles),
            )
        )

    async def factor(self, call: Call[FactorRequest, Any]) -> Reply:
        """Prove the second factor of the caller again."""
        await self._desk.logins.prove(call.staff, call.body.code, address=call.address)
        return Reply()

    async def password(self, call: Call[StaffPasswordRequest, Any]) -> Reply:
        """Change the password of the caller."""
        body, caller = call.body, call.staff
        proof = Proof(caller.email, body.old_password, body.code)
        await self._desk.logins.change_password(
            caller, proof, body.new_password, address=call.address
        )
        return Reply()

    async def attempts(self, call: Call[Nothing, Page]) -> AttemptsReply:
        """List the newest attempts."""
        page = call.query
        rows = await attempts.listed(
            self._desk.context, call.staff.member, before=page.before, limit=page.fetch_limit
        )
        part, cursor = page.cut(rows)
        return AttemptsReply(
            attempts=[_attempt(row) for row in part],
            next_cursor=cursor if isinstance(cursor, str) else None,
        )


def _attempt(row: ShownAttemptRow) -> AttemptItem:
    return AttemptItem(
        id=row.id,
        at=timestamp(row.created_at),
        email=row.staff_email,
        network=row.network,
        via=row.via,
        unix_user=row.unix_user,
        right_at=moment(row.right_at),
    )

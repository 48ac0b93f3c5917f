"""Routes of accounts: register, log in, who am I (specification 4.1 and 4.2)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from api.http.identifiers import in_path
from api.http.programs import program
from api.routing.codec import money
from api.routing.cookies import Cookies
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route, WithCookie
from market.accounts.accounts import Accounts, Login
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.base.user_fields import (
    EMAIL_MAX_CHARACTERS,
    PASSWORD_MAX_CHARACTERS,
    PASSWORD_MIN_CHARACTERS,
    USERNAME_MAX_CHARACTERS,
)
from market.recovery.recovery import Recovery
from market.site.gate import Papers

NOT_CONSOLE = (
    "Only a page of this service keeps its login in a cookie; without keep, the token is in the "
    "reply."
)
RequiredText = Annotated[str, Meta(min_length=1, max_length=1024)]
NewPassword = Annotated[
    str, Meta(min_length=PASSWORD_MIN_CHARACTERS, max_length=PASSWORD_MAX_CHARACTERS)
]


# Place of a browser's token: a cookie that no script reads, and not the reply.
Keep = Literal["cookie"] | None


class Accepted(Struct):
    """The versions of the texts that the caller has read and accepts, as `GET /api/site` names."""

    terms: Annotated[int, Meta(ge=0, le=2**31)] = 0
    privacy: Annotated[int, Meta(ge=0, le=2**31)] = 0


class RegisterRequest(Struct):
    """The fields of a new account; `ref` is the referral code of the user who sent the caller.

    `invitation` is the code of an invitation, where registration needs one. With `keep`, which the
    console alone may ask for, the token is in a cookie.
    """

    username: Annotated[str, Meta(min_length=1, max_length=USERNAME_MAX_CHARACTERS)]
    email: Annotated[str, Meta(min_length=1, max_length=EMAIL_MAX_CHARACTERS)]
    password: NewPassword
    ref: str | None = None
    keep: Keep = None
    invitation: Annotated[str, Meta(max_length=64)] | None = None
    accepted: Accepted | None = None


class LoginRequest(Struct):
    """The credentials of an account; with `keep` and `accepted`, as for registering."""

    email: RequiredText
    password: RequiredText
    keep: Keep = None
    accepted: Accepted | None = None


class LoginUser(Struct):
    """A user as login shows them; balances in credits and in USD."""

    id: str
    username: str
    email: str
    credit_balance: float
    usd_balance: float


class LoginReply(Reply, kw_only=True):
    """A session token, unless it is kept in a cookie, and its user.

    `reopened` is there, and true, when the login has opened a closed account again.
    """

    token: str | UnsetType = UNSET
    user: LoginUser
    reopened: bool | UnsetType = UNSET


class RegisterReply(LoginReply, kw_only=True):
    """Like a reply to a login; `referral_applied` is there when the request had a `ref`."""

    referral_applied: bool | UnsetType = UNSET


class ProfileReply(Reply, kw_only=True):
    """A user as the user sees it, only the fields of specification 4.2; wallets show the rest."""

    id: str
    username: str
    credit_balance: float
    usd_balance: float
    email_verified: bool


class AccountTermsReply(Reply, kw_only=True):
    """The services for accounts; with `has_mail` e-mails are sent, such as those to confirm."""

    has_mail: bool


class TokenReply(Reply, kw_only=True):
    """A new session token, unless it is kept in a cookie."""

    token: str | UnsetType = UNSET


class VerifyRequest(Struct):
    """The secret from the e-mail."""

    token: RequiredText


class ForgotRequest(Struct):
    """An e-mail address, which may or may not have an account."""

    email: RequiredText


class ResetRequest(Struct):
    """The secret from the e-mail, and the new password."""

    token: RequiredText
    password: NewPassword


class ChangePasswordRequest(Struct):
    """The current password, and the new one."""

    old_password: RequiredText
    new_password: NewPassword


class LoginSession(Struct):
    """A login that is valid; `network` and `user_agent` are empty where they are not known.

    `is_present` marks the one that asks; `expires_at` is when it ends by itself.
    """

    id: str
    created_at: Timestamp
    expires_at: Timestamp
    network: str
    user_agent: str
    is_present: bool


class LoginsReply(Reply, kw_only=True):
    """The caller's logins, newest first; a hundred at most."""

    logins: list[LoginSession]


class AccountRoutes:
    """The routes of accounts."""

    def __init__(
        self, accounts: Accounts, recovery: Recovery, cookies: Cookies, *, has_mail: bool
    ) -> None:
        self._accounts = accounts
        self._has_mail = has_mail
        self._cookies = cookies
        self._recovery = recovery

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/auth/register",
                "Open an account",
                self.register,
                RegisterReply,
                body=RegisterRequest,
                example={
                    "username": "ada",
                    "email": "ada@example.com",
                    "password": "correct horse",
                },
                idempotent=True,
                errors=(
                    Code.EMAIL_TAKEN,
                    Code.USERNAME_TAKEN,
                    Code.TOO_BUSY,
                    Code.TOO_MANY_ATTEMPTS,
                    Code.REGISTRATION_CLOSED,
                    Code.INVITATION_REQUIRED,
                    Code.INVITATION_INVALID,
                    Code.TERMS_NOT_ACCEPTED,
                ),
            ),
            Route(
                "POST",
                "/auth/login",
                "Log in",
                self.login,
                LoginReply,
                body=LoginRequest,
                example={"email": "ada@example.com", "password": "correct horse"},
                errors=(
                    Code.INVALID_CREDENTIALS,
                    Code.TOO_BUSY,
                    Code.TOO_MANY_ATTEMPTS,
                    Code.TERMS_NOT_ACCEPTED,
                ),
            ),
            Route(
                "GET",
                "/auth/terms",
                "Services for accounts",
                self.terms,
                AccountTermsReply,
            ),
            Route(
                "GET",
                "/auth/me",
                "Who am I",
                self.me,
                ProfileReply,
                scope=Scope.ACCOUNT_READ,
                while_suspended=True,
            ),
            Route(
                "POST",
                "/auth/logout",
                "Log out",
                self.logout,
                Reply,
                auth=Auth.JWT,
                while_suspended=True,
            ),
            Route(
                "POST",
                "/auth/refresh",
                "Get a new token for this login",
                self.refresh,
                TokenReply,
                auth=Auth.JWT,
                while_suspended=True,
            ),
            Route(
                "GET",
                "/auth/logins",
                "My logins",
                self.logins,
                LoginsReply,
                auth=Auth.JWT,
                while_suspended=True,
            ),
            Route(
                "POST",
                "/auth/logins/{login_id}/end",
                "End one of my logins",
                self.end_login,
                Reply,
                auth=Auth.JWT,
                while_suspended=True,
                errors=(Code.LOGIN_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/auth/logins/end-others",
                "End all my logins but this one",
                self.end_other_logins,
                Reply,
                auth=Auth.JWT,
                while_suspended=True,
            ),
            Route(
                "POST",
                "/auth/verify",
                "Confirm an e-mail address",
                self.verify,
                Reply,
                body=VerifyRequest,
                errors=(Code.INVALID_MAIL_TOKEN,),
            ),
            Route(
                "POST",
                "/auth/verify/resend",
                "Send the e-mail to confirm my address again",
                self.resend,
                Reply,
                auth=Auth.JWT,
                errors=(Code.TOO_MANY_ATTEMPTS,),
            ),
            Route(
                "POST",
                "/auth/password/forgot",
                "Send an e-mail to choose a new password",
                self.forgot,
                Reply,
                body=ForgotRequest,
                errors=(Code.TOO_MANY_ATTEMPTS,),
            ),
            Route(
                "POST",
                "/auth/password/reset",
                "Choose a new password with the secret from that e-mail",
                self.reset,
                Reply,
                body=ResetRequest,
                errors=(Code.INVALID_MAIL_TOKEN, Code.TOO_BUSY, Code.TOO_MANY_ATTEMPTS),
            ),
            Route(
                "POST",
                "/auth/password/change",
                "Change my password; my other logins end",
                self.change_password,
                Reply,
                auth=Auth.JWT,
                while_suspended=True,
                body=ChangePasswordRequest,
                errors=(Code.WRONG_PASSWORD, Code.TOO_BUSY, Code.TOO_MANY_ATTEMPTS),
            ),
        ]

    async def register(self, call: Call[RegisterRequest, Any]) -> Reply:
        """Open an account and log its owner in."""
        body = call.body
        _check_keep(call.is_console, body.keep)

        def reply(registered: tuple[Login, bool]) -> RegisterReply:
            login, referred = registered
            applied = UNSET if body.ref is None else referred
            user = _login_user(login)
            token = UNSET if body.keep else login.token
            return RegisterReply(token=token, user=user, referral_applied=applied)

        registered = await self._accounts.register(
            username=body.username,
            email=body.email,
            password=body.password,
            ref=body.ref or "",
            client=call.client,
            user_agent=program(call.user_agent),
            papers=_papers(body.accepted, body.invitation),
            receipt=call.receipt(reply),
        )
        made = reply(registered)
        return self._kept(made, registered[0].token) if body.keep else made

    async def login(self, call: Call[LoginRequest, Any]) -> Reply:
        """Log a user in."""
        body = call.body
        _check_keep(call.is_console, body.keep)
        login = await self._accounts.login(
            email=body.email,
            password=body.password,
            client=call.client,
            user_agent=program(call.user_agent),
            papers=_papers(body.accepted),
        )
        user = _login_user(login)
        reopened = login.reopened or UNSET
        if body.keep:
            return self._kept(LoginReply(user=user, reopened=reopened), login.token)
        return LoginReply(token=login.token, user=user, reopened=reopened)

    def _kept(self, reply: Reply, token: str) -> WithCookie:
        return WithCookie(reply=reply, cookie=self._cookies.keep(token))

    async def terms(self, call: Call[Nothing, Any]) -> AccountTermsReply:
        """Return the services for accounts."""
        del call  # the same for everybody
        return AccountTermsReply(has_mail=self._has_mail)

    async def me(self, call: Call[Nothing, Any]) -> ProfileReply:
        """Return the caller's profile."""
        user = call.caller.profile
        return ProfileReply(
            id=user.user_id,
            username=user.username,
            credit_balance=money(user.credit_available),
            usd_balance=money(user.usd_available),
            email_verified=user.email_verified_at is not None,
        )

    async def logout(self, call: Call[Nothing, Any]) -> Reply:
        """End this login session."""
        await self._accounts.logout(call.caller)
        if call.is_console:
            return WithCookie(reply=Reply(), cookie=self._cookies.forget())
        return Reply()

    async def refresh(self, call: Call[Nothing, Any]) -> Reply:
        """Return a new token of this login session, or keep it where the present one is kept."""
        token = await self._accounts.refresh(call.caller)
        return self._kept(TokenReply(), token) if call.is_console else TokenReply(token=token)

    async def logins(self, call: Call[Nothing, Any]) -> LoginsReply:
        """Return the caller's logins."""
        rows = await self._accounts.logins(call.caller)
        return LoginsReply(
            logins=[
                LoginSession(
                    id=row.id,
                    created_at=timestamp(row.created_at),
                    expires_at=timestamp(row.expires_at),
                    network=row.network,
                    user_agent=row.user_agent,
                    is_present=row.id == call.caller.session_id,
                )
                for row in rows
            ]
        )

    async def end_login(self, call: Call[Nothing, Any]) -> Reply:
        """End one login of the caller."""
        await self._accounts.end_login(
            call.caller, in_path(call.path["login_id"], Code.LOGIN_NOT_FOUND)
        )
        return Reply()

    async def end_other_logins(self, call: Call[Nothing, Any]) -> Reply:
        """End every login of the caller but this one."""
        await self._accounts.end_other_logins(call.caller)
        return Reply()

    async def verify(self, call: Call[VerifyRequest, Any]) -> Reply:
        """Confirm an e-mail address."""
        await self._recovery.verify(call.body.token)
        return Reply()

    async def resend(self, call: Call[Nothing, Any]) -> Reply:
        """Send the confirmation again."""
        await self._recovery.resend_verification(call.caller)
        return Reply()

    async def forgot(self, call: Call[ForgotRequest, Any]) -> Reply:
        """Answer the same whether or not the address is known."""
        await self._recovery.forgot(call.body.email)
        return Reply()

    async def reset(self, call: Call[ResetRequest, Any]) -> Reply:
        """Replace a forgotten password."""
        await self._recovery.reset(call.body.token, call.body.password, client=call.client)
        return Reply()

    async def change_password(self, call: Call[ChangePasswordRequest, Any]) -> Reply:
        """Replace the caller's password."""
        body = call.body
        await self._accounts.change_password(
            call.caller, old=body.old_password, new=body.new_password, client=call.client
        )
        return Reply()


def _check_keep(is_console: bool, keep: Keep) -> None:
    """Refuse a cookie to a client that is not a page of this origin.

    Pages of other origins must not log a browser in.

    Raises:
        MarketError: `invalid_field`.
    """
    if keep and not is_console:
        raise MarketError(Code.INVALID_FIELD, NOT_CONSOLE, field="keep")


def _papers(accepted: Accepted | None, invitation: str | None = None) -> Papers:
    """Return the papers that a client shows."""
    versions = {} if accepted is None else structs.asdict(accepted)
    return Papers(invitation or "", versions)


def _login_user(login: Login) -> LoginUser:
    profile = login.profile
    return LoginUser(
        id=profile.user_id,
        username=profile.username,
        email=profile.email,
        credit_balance=money(profile.credit_available),
        usd_balance=money(profile.usd_available),
    )

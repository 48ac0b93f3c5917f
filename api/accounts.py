"""Routes of accounts: register, log in, who am I (specification 4.1 and 4.2)."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api.codec import money
from api.routes import Auth, Call, Nothing, Reply, Route
from market.accounts import Accounts, Login
from market.errors import Code

RequiredText = Annotated[str, Meta(min_length=1, max_length=1024)]


class RegisterRequest(Struct):
    """What opens an account; `ref` is the referral code of whoever sent the caller."""

    username: RequiredText
    email: RequiredText
    password: RequiredText
    ref: str | None = None


class LoginRequest(Struct):
    """What lets somebody in."""

    email: RequiredText
    password: RequiredText


class LoginUser(Struct):
    """A user as login shows them; balances in credits and in USD."""

    id: str
    username: str
    email: str
    credit_balance: float
    usd_balance: float


class LoginReply(Reply, kw_only=True):
    """A session token, and whose it is."""

    token: str
    user: LoginUser


class RegisterReply(LoginReply, kw_only=True):
    """As for a login; `referral_applied` is there when a `ref` was given."""

    referral_applied: bool | UnsetType = UNSET


class ProfileReply(Reply, kw_only=True):
    """A user as they see themselves; balances in credits and in USD."""

    id: str
    username: str
    credit_balance: float
    usd_balance: float
    email_verified: bool


class AccountRoutes:
    """The routes of accounts."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

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
                errors=(Code.EMAIL_TAKEN, Code.USERNAME_TAKEN, Code.TOO_BUSY),
            ),
            Route(
                "POST",
                "/auth/login",
                "Log in",
                self.login,
                LoginReply,
                body=LoginRequest,
                errors=(Code.INVALID_CREDENTIALS, Code.TOO_BUSY),
            ),
            Route("GET", "/auth/me", "Who am I", self.me, ProfileReply, auth=Auth.JWT),
        ]

    async def register(self, call: Call[RegisterRequest, Any]) -> RegisterReply:
        """Open an account and log its owner in."""
        body = call.body
        login = await self._accounts.register(
            username=body.username, email=body.email, password=body.password
        )
        applied = UNSET if body.ref is None else False
        return RegisterReply(token=login.token, user=_login_user(login), referral_applied=applied)

    async def login(self, call: Call[LoginRequest, Any]) -> LoginReply:
        """Let somebody in."""
        login = await self._accounts.login(email=call.body.email, password=call.body.password)
        return LoginReply(token=login.token, user=_login_user(login))

    async def me(self, call: Call[Nothing, Any]) -> ProfileReply:
        """Say whose token this is."""
        user = call.user
        return ProfileReply(
            id=user.user_id,
            username=user.username,
            credit_balance=money(user.credit_available),
            usd_balance=money(user.usd_available),
            email_verified=user.email_verified_at is not None,
        )


def _login_user(login: Login) -> LoginUser:
    profile = login.profile
    return LoginUser(
        id=profile.user_id,
        username=profile.username,
        email=profile.email,
        credit_balance=money(profile.credit_available),
        usd_balance=money(profile.usd_available),
    )

"""Routes of the referral programme (specification 4.15 and 4.16)."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

from msgspec import Meta, Struct

from api.routing.codec import money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.referrals import CODE_CHARACTERS, Applied, Payment, Referrals
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.money.money import MICRO

WELCOME = {
    Payment.NOW: "Welcome: {credits} credits are yours.",
    Payment.ONCE_VERIFIED: (
        "Welcome: {credits} credits are yours as soon as your e-mail address is confirmed."
    ),
    Payment.LATER: (
        "Welcome: {credits} credits are yours; they are paid on one of the next days, because many "
        "were today."
    ),
}


class InfoReply(Reply, kw_only=True):
    """The caller's code, its referrals and earnings; amounts in credits."""

    referral_code: str
    referral_link: str
    total_referrals: int
    total_bonus: float
    reward_per_referral: int
    referred_reward: int


class ReferredUser(Struct):
    """User who registered by the caller's code, without their name.

    `bonus` is the caller's, in credits: paid, pending, or lapsed after thirty days.
    """

    created_at: Timestamp
    state: Literal["paid", "pending", "lapsed"]
    bonus: float


class ReferralsReply(Reply, kw_only=True):
    """Users who registered by the caller's code, newest first; a hundred at most."""

    referrals: list[ReferredUser]


class ApplyRequest(Struct):
    """The referral code of the user who sent the caller."""

    referral_code: Annotated[str, Meta(min_length=CODE_CHARACTERS, max_length=CODE_CHARACTERS)]


class ApplyReply(Reply, kw_only=True):
    """Earnings of the caller, in credits; the message gives the time of a later payment."""

    message: str
    bonus: int


class ReferralRoutes:
    """The routes of the referral programme.

    Args:
        app_url: where the links lead.
    """

    def __init__(self, referrals: Referrals, app_url: str) -> None:
        self._referrals = referrals
        self._app_url = app_url

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/api/referral/info",
                "My referral code and what came of it",
                self.info,
                InfoReply,
                scope=Scope.ACCOUNT_READ,
            ),
            Route(
                "GET",
                "/api/referral/list",
                "Who came by my code, and what that brought me",
                self.referred,
                ReferralsReply,
                scope=Scope.ACCOUNT_READ,
            ),
            Route(
                "POST",
                "/api/referral/apply",
                "Apply the code of the user who sent me",
                self.apply,
                ApplyReply,
                auth=Auth.JWT,
                body=ApplyRequest,
                idempotent=True,
                errors=(
                    Code.REFERRAL_CODE_NOT_FOUND,
                    Code.OWN_REFERRAL_CODE,
                    Code.REFERRAL_ALREADY_APPLIED,
                    Code.REFERRAL_TOO_LATE,
                    Code.REFERRAL_CIRCLE,
                    Code.AMOUNT_TOO_LARGE,
                    Code.TOO_MANY_ATTEMPTS,
                ),
            ),
        ]

    async def info(self, call: Call[Nothing, Any]) -> InfoReply:
        """Return the caller's code, its referrals and earnings."""
        standing = await self._referrals.standing(call.user_id)
        rewards = self._referrals.rewards
        return InfoReply(
            referral_code=standing.code,
            referral_link=f"{self._app_url}/register?ref={quote(standing.code)}",
            total_referrals=standing.totals.referrals,
            total_bonus=money(standing.totals.bonus),
            reward_per_referral=rewards.referrer // MICRO,
            referred_reward=rewards.referred // MICRO,
        )

    async def referred(self, call: Call[Nothing, Any]) -> ReferralsReply:
        """Return who came by the caller's code."""
        rows = await self._referrals.referred(call.user_id)
        return ReferralsReply(
            referrals=[
                ReferredUser(
                    created_at=timestamp(row.created_at),
                    state=row.state.value,
                    bonus=money(row.bonus),
                )
                for row in rows
            ]
        )

    async def apply(self, call: Call[ApplyRequest, Any]) -> ApplyReply:
        """Apply a code."""
        applied = await self._referrals.apply(
            call.user_id, call.body.referral_code, call.receipt(_applied)
        )
        return _applied(applied)


def _applied(applied: Applied) -> ApplyReply:
    credits_ = applied.bonus // MICRO
    return ApplyReply(message=WELCOME[applied.payment].format(credits=credits_), bonus=credits_)

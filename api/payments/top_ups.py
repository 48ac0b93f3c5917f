"""Routes of the automatic top-up: save a card, set the amounts, end it, remove the card."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from api.routing.codec import Money, money
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.payments.top_ups import NewTopUp, TopUps, TopUpView

PATH = "/api/top-up"
TopUpState = Literal["on", "off", "paused", "disabled"]
_STATES: dict[str, TopUpState] = {
    "on": "on",
    "off": "off",
    "paused": "paused",
    "disabled": "disabled",
}


class TopUpReply(Reply, kw_only=True):
    """The automatic top-up of the caller.

    Below `threshold_usd`, the card pays `amount_usd`, and at most `month_usd` in a calendar month
    (UTC). `month_spent_usd` was paid so in this month. It is `paused` until its user switches it
    on again, and `disabled` after three refusals. `next_at` is the earliest time of the next
    payment. `month_max_usd` bounds `month_usd`.
    """

    is_offered: bool
    state: TopUpState
    month_max_usd: float
    month_spent_usd: float
    card: str | UnsetType = UNSET
    threshold_usd: float | UnsetType = UNSET
    amount_usd: float | UnsetType = UNSET
    month_usd: float | UnsetType = UNSET
    refusals: int | UnsetType = UNSET
    next_at: Timestamp | UnsetType = UNSET


class TopUpRequest(Struct):
    """The amounts of the automatic top-up: whole cents."""

    threshold_usd: Money
    amount_usd: Money
    month_usd: Money


class CardPageReply(Reply, kw_only=True):
    """The page of the provider where the caller saves a card."""

    url: str


class TopUpRoutes:
    """The routes of the automatic top-up."""

    def __init__(self, top_ups: TopUps) -> None:
        self._top_ups = top_ups

    def table(self) -> list[Route]:
        """Return the declarations."""
        limits = (Code.ACCOUNT_SUSPENDED, Code.ACCOUNT_CLOSED, Code.ACCOUNT_RESTRICTED)
        return [
            Route(
                "GET",
                PATH,
                "Is my wallet topped up automatically",
                self.show,
                TopUpReply,
                scope=Scope.WALLET_READ,
            ),
            Route(
                "PUT",
                PATH,
                "Switch the automatic top-up on, or change its amounts",
                self.switch_on,
                TopUpReply,
                auth=Auth.JWT,
                body=TopUpRequest,
                errors=(
                    Code.TOP_UPS_NOT_OFFERED,
                    Code.CARD_MISSING,
                    Code.FRESH_LOGIN_NEEDED,
                    *limits,
                ),
                example={"threshold_usd": 5, "amount_usd": 20, "month_usd": 100},
            ),
            Route(
                "DELETE",
                PATH,
                "Switch the automatic top-up off",
                self.end,
                TopUpReply,
                auth=Auth.JWT,
            ),
            Route(
                "POST",
                f"{PATH}/card",
                "Save a card on the page of the provider",
                self.save_card,
                CardPageReply,
                auth=Auth.JWT,
                errors=(
                    Code.TOP_UPS_NOT_OFFERED,
                    Code.TOO_MANY_CARD_PAGES,
                    Code.PAYMENT_PROVIDER_AWAY,
                    *limits,
                ),
            ),
            Route(
                "DELETE",
                f"{PATH}/card",
                "Remove my card, and switch the automatic top-up off",
                self.remove_card,
                Reply,
                auth=Auth.JWT,
            ),
        ]

    async def show(self, call: Call[Nothing, Any]) -> TopUpReply:
        """Return the automatic top-up of the caller."""
        return _reply(await self._top_ups.find(call.user_id))

    async def switch_on(self, call: Call[TopUpRequest, Any]) -> TopUpReply:
        """Switch the automatic top-up of the caller on."""
        body = call.body
        new = NewTopUp(body.threshold_usd, body.amount_usd, body.month_usd)
        return _reply(await self._top_ups.set_on(call.user_id, new, call.caller.maker))

    async def end(self, call: Call[Nothing, Any]) -> TopUpReply:
        """Switch the automatic top-up of the caller off."""
        return _reply(await self._top_ups.end(call.user_id))

    async def save_card(self, call: Call[Nothing, Any]) -> CardPageReply:
        """Begin to save a card of the caller."""
        return CardPageReply(url=await self._top_ups.cards.save(call.user_id))

    async def remove_card(self, call: Call[Nothing, Any]) -> Reply:
        """Remove the card of the caller."""
        await self._top_ups.cards.remove(call.user_id)
        return Reply()


def _reply(view: TopUpView) -> TopUpReply:
    reply = TopUpReply(
        is_offered=view.is_offered,
        state="off" if view.row is None else _STATES[view.row.state],
        month_max_usd=money(view.month_most),
        month_spent_usd=money(view.month_spent),
        card=view.card or UNSET,
    )
    if view.row is not None:
        reply.threshold_usd = money(view.row.threshold)
        reply.amount_usd = money(view.row.amount)
        reply.month_usd = money(view.row.month_ceiling)
        reply.refusals = view.row.refusals
        reply.next_at = timestamp(view.row.next_at)
    return reply

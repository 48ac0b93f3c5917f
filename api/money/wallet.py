"""Routes of wallets: balances and transactions."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from api.http.literals import CURRENCIES, TRANSACTION_KINDS, TransactionKind
from api.http.literals import Currency as CurrencyWord
from api.routing.codec import money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.accounts.wallet import Change, Wallet
from market.exits.consents import Exits
from market.jobs.reviews import Reviews
from market.money.money import Currency


class WalletReply(Reply, kw_only=True):
    """Balances of the caller, in credits and in USD, and the sums of each held for open work.

    `credit_in_review` is the part of `credit_held` that the caller's devices have earned and that
    buyers may still dispute. `usd_pending` are the earnings of the caller's exits by sessions that
    have ended. They will be paid out, the oldest part at `usd_payable_at`. `usd_owed` and
    `credit_owed` are debts, if there are any: deposits pay them first, and earnings those for
    earnings.
    """

    credit_balance: float
    usd_balance: float
    credit_held: float
    usd_held: float
    usd_pending: float
    credit_in_review: float
    usd_payable_at: Timestamp | UnsetType = UNSET
    usd_owed: float | UnsetType = UNSET
    credit_owed: float | UnsetType = UNSET


class TransactionItem(Struct):
    """One change of the caller's balance; an `amount` below zero left the wallet.

    A price is held when something is bought (`hold`); the part that was not used comes back
    (`release`). A `reward` is for a photo of a good deed, a `refund` for falsified traffic of an
    exit or bad work of a device. The operator returns a part of a deposit outside of the service
    (`deposit_refund`), or corrects the balance (`correction`). A `debt` pays for a deposit or for
    earnings that were taken back after the money had left.

    `reference` names the cause. `earned` is the part of `amount` that is earned money, which can be
    paid out: all of them add up to the available earnings, and those of the kind `earning` to all
    earnings.
    """

    id: str
    created_at: Timestamp
    kind: TransactionKind
    currency: CurrencyWord
    amount: float
    reference: str
    earned: float


class TransactionsReply(Listed[TransactionItem], kw_only=True):
    """Transactions, newest first; `next_cursor` is there when there are more."""

    items: list[TransactionItem] = field(name="transactions")


class WalletRoutes:
    """The routes of wallets."""

    def __init__(self, wallet: Wallet, exits: Exits, reviews: Reviews) -> None:
        self._wallet = wallet
        self._reviews = reviews
        self._exits = exits

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/api/wallet",
                "What is in my wallet",
                self.balances,
                WalletReply,
                scope=Scope.WALLET_READ,
            ),
            Route(
                "GET",
                "/api/wallet/transactions",
                "List what moved in my wallet",
                self.transactions,
                TransactionsReply,
                scope=Scope.WALLET_READ,
                query=Page,
            ),
        ]

    async def balances(self, call: Call[Nothing, Any]) -> WalletReply:
        """Return the caller's balances, and the held sums."""
        user = call.caller.profile
        payable_at = await self._exits.payable_at(call.user_id)
        owed = await self._wallet.owed(call.user_id)
        return WalletReply(
            credit_balance=money(user.credit_available),
            usd_balance=money(user.usd_available),
            credit_held=money(user.credit_held),
            usd_held=money(user.usd_held),
            usd_pending=money(await self._exits.pending(call.user_id)),
            credit_in_review=money(await self._reviews.earned_in_review(call.user_id)),
            usd_payable_at=UNSET if payable_at is None else timestamp(payable_at),
            usd_owed=money(owed[Currency.USD]) if owed[Currency.USD] else UNSET,
            credit_owed=money(owed[Currency.CREDIT]) if owed[Currency.CREDIT] else UNSET,
        )

    async def transactions(self, call: Call[Nothing, Page]) -> TransactionsReply:
        """List the changes of the caller's wallet."""
        query = call.query
        rows = await self._wallet.page(call.user_id, before=query.before, limit=query.fetch_limit)
        return TransactionsReply.of(query, rows, _item)


def _item(change: Change) -> TransactionItem:
    return TransactionItem(
        id=change.id,
        created_at=timestamp(change.created_at),
        kind=TRANSACTION_KINDS[change.kind],
        currency=CURRENCIES[change.currency],
        amount=money(change.amount),
        reference=change.reference,
        earned=money(change.earned),
    )

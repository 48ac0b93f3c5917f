"""Automatic top-ups: below a threshold, one payment by the saved card of the user.

The transaction that begins a payment counts those of the month and finds an open one, with the
user locked: any number of sweepers begins one payment. The payment then goes the way of all others
(`Payments.fulfil`), and its outcome decides about the next one
(`market/payments/top_up_outcomes.py`).
"""

import logging
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from market.accounts import bounds
from market.accounts.letters import Letters
from market.accounts.makers import require_fresh
from market.accounts.restrictions import require_undisputed
from market.accounts.scopes import Maker
from market.accounts.suspensions import require_may_pay
from market.base.errors import Code, MarketError
from market.base.states import TopUpStatus
from market.base.sweeping import Sweep
from market.events.catalogue import TopUpChanged
from market.events.context import Context
from market.events.recording import record
from market.money import ledger
from market.money.money import Currency, as_decimal
from market.payments import mail, top_up_outcomes
from market.payments.payments import Payments
from market.payments.provider import ProviderError
from market.payments.terms import CENT, DAY_SECONDS
from storage.engines.store import Transaction
from storage.money import ledger as ledger_queries
from storage.payments import cards as card_queries
from storage.payments import top_ups as queries
from storage.payments.top_ups import TopUpRow

PAUSE_SECONDS = 600  # between the begins of two automatic payments of a user
REFUSED_SECONDS = 3_600  # before the next attempt of a user who may not pay now
# Automatic payments of a user in 24 hours, the refused ones included: more would try out cards.
PER_DAY = 10
SWEPT_MAX = 50
# Wallets that one sweep compares with their thresholds: about 20 ms of the database. The next sweep
# goes on behind them.
COMPARED_MAX = 5_000

_logger = logging.getLogger("payments")


class NewTopUp(Struct, frozen=True):
    """The amounts of an automatic top-up, in micro-USD, whole cents."""

    threshold: int
    amount: int
    month_ceiling: int


class TopUpView(Struct, frozen=True):
    """The automatic top-up of a user, in micro-USD.

    `row` is missing before the first one. `card` names the saved card, "" without one.
    `month_spent` was paid automatically in this month, and `month_most` is the largest ceiling.
    """

    is_offered: bool
    row: TopUpRow | None
    card: str
    month_spent: int
    month_most: int


class TopUps:
    """The automatic top-ups of users.

    Args:
        payments: make the payments, and have the saved cards.
        letters: puts e-mails to users into the queue.
        compared_max: the number of wallets that one sweep looks at.
    """

    def __init__(
        self,
        context: Context,
        payments: Payments,
        letters: Letters,
        compared_max: int = COMPARED_MAX,
    ) -> None:
        self.cards = payments.cards
        self._context = context
        self._store = context.store
        self._now = context.now
        self._terms = payments.terms
        self._payments = payments
        self._letters = letters
        self._sweep = Sweep("the automatic top-up of user %s fails", _logger)
        self._compared_max = compared_max
        self._after = ""  # the sweep goes on behind this user

    async def find(self, user_id: str) -> TopUpView:
        """Return the automatic top-up of a user, after a look at the open page of a card."""
        await self.cards.try_look(user_id)
        return await self._store.read(self._view, user_id)

    async def set_on(self, user_id: str, new: NewTopUp, maker: Maker) -> TopUpView:
        """Switch the automatic top-up of a user on, or change its amounts.

        Raises:
            MarketError: `top_ups_not_offered`, `card_missing`, `invalid_field`,
                `fresh_login_needed`, `unauthorized`, `account_suspended`, `account_closed`,
                `account_restricted`.
        """
        if not self.cards.is_offered:
            raise MarketError(Code.TOP_UPS_NOT_OFFERED)
        self._check(new)
        view = await self._store.write(self._set_on, user_id, new, maker)
        self._letters.wake()
        return view

    async def end(self, user_id: str) -> TopUpView:
        """Switch the automatic top-up of a user off; a payment that the card has paid goes on."""
        view = await self._store.write(self._end, user_id)
        self._letters.wake()
        return view

    async def sweep(self) -> int:
        """Top up wallets that are below their thresholds; return the number of payments begun.

        A sweep looks at a page of wallets, and the next sweep at the next page. After a provider
        has not answered, no payment begins until the next sweep.

        Raises:
            UnavailableError: the store did not answer; they wait.
        """
        if not self.cards.is_offered:
            return 0
        begun = 0
        away: set[str] = set()  # providers that did not answer in this sweep

        async def top_up(user_id: str) -> None:
            nonlocal begun
            if away:
                return
            payment_id = await self._store.write(self._begin, user_id)
            if payment_id is None:
                return
            begun += 1
            try:
                await self._payments.fulfil(payment_id, away)
            except ProviderError as error:
                _logger.warning("payment %s: taken later: %s", payment_id, error)

        await self._sweep.run(self._due, top_up, most=SWEPT_MAX, now=self._now())
        return begun

    async def _due(self, limit: int) -> list[str]:
        """Return the users of the next page whose wallets are to be topped up."""
        users, self._after = await self._store.read(self._next_page, self._after, limit)
        return users

    async def _next_page(self, tx: Transaction, after: str, limit: int) -> tuple[list[str], str]:
        """Return the due users of the next page, and its last user; "" after the last page."""
        page = await queries.page(tx, after=after, limit=self._compared_max)
        if page.last is None:
            return [], ""
        found = await queries.due(tx, self._now(), after=after, last=page.last, limit=limit)
        if len(found) == limit:
            return found, found[SWEPT_MAX - 1]  # the sweep acts on these
        return found, page.last if page.top_ups == self._compared_max else ""

    def _check(self, new: NewTopUp) -> None:
        terms = self._terms
        for field, value, least, most in (
            ("threshold_usd", new.threshold, CENT, terms.most),
            ("amount_usd", new.amount, terms.least, terms.most),
            ("month_usd", new.month_ceiling, new.amount, terms.top_up_month),
        ):
            if not least <= value <= most or value % CENT:
                raise MarketError(
                    Code.INVALID_FIELD,
                    f"Expected {as_decimal(least)} to {as_decimal(most)} USD in whole cents.",
                    field=field,
                )

    async def _view(self, tx: Transaction, user_id: str) -> TopUpView:
        card = await card_queries.find(tx, user_id)
        month = await queries.automatic(tx, user_id, month_of(self._now()))
        return TopUpView(
            is_offered=self.cards.is_offered,
            row=await queries.find(tx, user_id),
            card="" if card is None or card.card_id is None else card.shown,
            month_spent=month.amount,
            month_most=self._terms.top_up_month,
        )

    async def _set_on(
        self, tx: Transaction, user_id: str, new: NewTopUp, maker: Maker
    ) -> TopUpView:
        await bounds.lock_user(tx, user_id)
        await require_fresh(tx, user_id, self._now(), maker)
        await require_may_pay(tx, user_id)
        await require_undisputed(tx, user_id)
        card = await card_queries.find(tx, user_id)
        if card is None or card.card_id is None:
            raise MarketError(Code.CARD_MISSING)
        before, on, now = await queries.find(tx, user_id), TopUpStatus.ON, self._now()
        if before is not None and before.state != on:
            TopUpStatus(before.state).require_before(on)
        row = TopUpRow(
            user_id,
            on,
            new.threshold,
            new.amount,
            new.month_ceiling,
            0,
            next_at=now,
            changed_at=now,
        )
        await queries.set_on(tx, row)
        await record(tx, self._context, user_id, TopUpChanged("on", "user"))
        text = (
            f"Below {as_decimal(new.threshold)} USD in your wallet, your card {card.shown} pays "
            f"{as_decimal(new.amount)} USD, and at most {as_decimal(new.month_ceiling)} USD in a "
            "month. If this was not you, change your password, and end it here:"
        )
        await self._mail(tx, user_id, "Your automatic top-up is on", text)
        return await self._view(tx, user_id)

    async def _end(self, tx: Transaction, user_id: str) -> TopUpView:
        await bounds.lock_user(tx, user_id)
        row, off = await queries.find(tx, user_id), TopUpStatus.OFF
        if row is not None and row.state != off:
            before = TopUpStatus(row.state)
            before.require_before(off)
            await queries.move(tx, user_id, before=before, after=off, now=self._now())
            await record(tx, self._context, user_id, TopUpChanged("off", "user"))
            text = "Your wallet is not topped up any more. The card stays until you remove it:"
            await self._mail(tx, user_id, "Your automatic top-up is off", text)
        return await self._view(tx, user_id)

    async def _begin(self, tx: Transaction, user_id: str) -> str | None:
        """Begin a payment if one is due now; return it, or None."""
        await bounds.lock_user(tx, user_id)
        row, now = await queries.find(tx, user_id), self._now()
        if row is None or row.state != TopUpStatus.ON or row.next_at > now:
            return None
        account = ledger.available(user_id, Currency.USD)
        if (await ledger_queries.balance(tx, account) or 0) >= row.threshold:
            return None
        card = await card_queries.find(tx, user_id)
        month = await queries.automatic(tx, user_id, month_of(now))
        day = await queries.automatic(tx, user_id, now - DAY_SECONDS)
        if card is None or card.card_id is None or await queries.has_open(tx, user_id):
            await queries.plan(tx, user_id, now + PAUSE_SECONDS)
            return None
        ceiling = min(row.month_ceiling, self._terms.top_up_month)
        if month.amount + row.amount > ceiling:
            await queries.plan(tx, user_id, month_after(now))
            text = (
                f"The automatic payments of this month are {as_decimal(month.amount)} USD. Another "
                f"one of {as_decimal(row.amount)} USD would be above the ceiling of "
                f"{as_decimal(ceiling)} USD, so the next one comes in the next month. "
                "Pay in by hand, or change the ceiling:"
            )
            await self._mail(tx, user_id, "The ceiling of your automatic top-up", text)
            return None
        try:
            if day.payments >= PER_DAY:
                raise MarketError(Code.TOO_MANY_PAYMENTS)
            payment_id = await self._payments.insert_automatic(tx, user_id, row.amount, card)
        except MarketError as error:
            _logger.info("the automatic top-up of user %s waits: %s", user_id, error.code)
            await queries.plan(tx, user_id, now + REFUSED_SECONDS)
            return None
        await queries.plan(tx, user_id, now + PAUSE_SECONDS)
        return payment_id

    async def _mail(self, tx: Transaction, user_id: str, subject: str, text: str) -> None:
        await self._letters.put(
            tx,
            user_id,
            top_up_outcomes.letter_name(user_id),
            lambda to, url: mail.top_up(to, url, subject, text),
        )


def month_of(now: int) -> int:
    """Return the begin of the calendar month of a time, in UTC seconds."""
    moment = datetime.fromtimestamp(now, UTC)
    return int(datetime(moment.year, moment.month, 1, tzinfo=UTC).timestamp())


def month_after(now: int) -> int:
    """Return the begin of the calendar month after a time, in UTC seconds."""
    begin = datetime.fromtimestamp(month_of(now), UTC)
    return month_of(int((begin + timedelta(days=32)).timestamp()))

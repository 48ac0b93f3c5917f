"""Saved cards: a user saves one on the page of the provider, and can have it removed.

A notice of the provider, the user that comes back, and the sweeper all lead to a look at the
provider, and its answer is booked. This service has no number of a card.

An erasure leaves the open page, the card and the customer in a list of things to remove, and the
sweeper has the provider remove them until it has. A card that was saved on the page meanwhile goes
with the customer.
"""

import logging
from collections.abc import Mapping

from market.accounts import bounds
from market.accounts.letters import Letters
from market.accounts.restrictions import require_undisputed
from market.accounts.suspensions import require_may_pay
from market.base.errors import Code, MarketError
from market.base.states import TopUpStatus
from market.base.sweeping import Sweep
from market.events.catalogue import CardRemoved, CardSaved, TopUpChanged
from market.events.context import Context
from market.events.recording import record
from market.payments import mail
from market.payments.provider import (
    NewSetup,
    OpenedSetup,
    Provider,
    ProviderError,
    SeenSetup,
)
from market.payments.terms import DAY_SECONDS, PaymentTerms
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.payments import cards as queries
from storage.payments import top_ups as top_up_queries
from storage.payments.cards import Forgotten, SavedCardRow

LOOK_PAUSE_SECONDS = 2  # between two looks at one payment, or at one page
PAGE_SECONDS = 3_600  # the time in which a user can act on the page of the provider
LOOK_SECONDS = 120  # between two looks of the sweeper at a page
FORGET_SECONDS = 600  # between two attempts to remove a thing at the provider
SETUPS_PER_DAY = 5  # pages of a user: more of them would try out cards
SWEPT_MAX = 50

_logger = logging.getLogger("payments")


class SavedCards:
    """The saved cards of users.

    Args:
        terms: the operator's terms.
        providers: the providers by name. The first one with saved cards keeps them.
        letters: puts e-mails to users into the queue.
        app_url: the beginning of links to the console.
    """

    def __init__(
        self,
        context: Context,
        terms: PaymentTerms,
        providers: Mapping[str, Provider],
        letters: Letters,
        app_url: str,
    ) -> None:
        self._context = context
        self._store = context.store
        self._now = context.now
        self._terms = terms
        self._cards = {
            name: provider.cards
            for name, provider in providers.items()
            if provider.cards is not None
        }
        self._letters = letters
        self._app_url = app_url
        self._looks = Sweep("the page of a card of user %s cannot be looked at", _logger)
        self._removals = Sweep("%s cannot be removed at its provider", _logger)

    @property
    def is_offered(self) -> bool:
        """Whether users may save cards."""
        return bool(self._cards) and self._terms.top_up_month > 0

    async def save(self, user_id: str) -> str:
        """Begin to save a card, and return the page where the user does it.

        While a page is open, this returns the same one.

        Raises:
            MarketError: `top_ups_not_offered`, `too_many_card_pages`, `account_suspended`,
                `account_closed`, `account_restricted`; `payment_provider_away`.
        """
        if not self.is_offered:
            raise MarketError(Code.TOP_UPS_NOT_OFFERED)
        try:
            await self.look(user_id)
            row = await self._store.write(self._begin, user_id)
            if row.setup_ref is not None or row.setup_id is None:
                return row.setup_url
            setup = NewSetup(
                row.setup_id,
                row.customer_id or "",
                f"{self._app_url}/console/wallet",
                self._now() + PAGE_SECONDS,
            )
            opened = await self._cards[row.provider].prepare(setup)
        except ProviderError as error:
            _logger.warning("no page for a card of user %s: %s", user_id, error)
            raise MarketError(Code.PAYMENT_PROVIDER_AWAY, retry_after_seconds=10) from error
        url = await self._store.write(self._set_opened, row, opened)
        if url is None:
            raise MarketError(Code.PAYMENT_PROVIDER_AWAY, retry_after_seconds=1)
        return url

    async def look(self, user_id: str) -> None:
        """Ask the provider about the open page of a user, and book its answer.

        Without effect within two seconds after another look; the sweeper looks then.

        Raises:
            ProviderError: the provider did not answer.
        """
        row = await self._store.write(self._claim, user_id)
        if row is None or row.setup_ref is None:
            return
        cards = self._cards.get(row.provider)
        if cards is None:
            return
        seen = await cards.look(row.setup_ref)
        await self._store.write(self._finish, user_id, row.setup_ref, seen)
        self._letters.wake()

    async def receive(self, provider: str, setup_ref: str) -> None:
        """Look at the page that a notice names; another subject has no effect."""
        user_id = await self._store.read(queries.find_by_setup, provider, setup_ref)
        if user_id is not None:
            await self.try_look(user_id)

    async def try_look(self, user_id: str) -> None:
        """Look at the page of a user; the sweeper repeats a look that has no answer."""
        try:
            await self.look(user_id)
        except ProviderError as error:
            _logger.warning("the page of a card is looked at later: %s", error)

    async def remove(self, user_id: str) -> None:
        """Remove the card of a user, and end their automatic top-up."""
        card_id = await self._store.write(self._remove, user_id)
        self._letters.wake()
        if card_id is not None:
            await self._forget(card_id)

    async def sweep(self) -> int:
        """Look at pages that are due, and remove cards at the provider; return their number.

        Raises:
            UnavailableError: the store did not answer; they wait.
        """
        now = self._now()
        looked = await self._looks.run(
            lambda limit: self._store.read(queries.due, now, limit),
            self.try_look,
            most=SWEPT_MAX,
            now=now,
        )
        removed = await self._removals.run(
            lambda limit: self._store.read(queries.forgotten, now, limit),
            self._forget,
            most=SWEPT_MAX,
            now=now,
        )
        return looked + removed

    async def _begin(self, tx: Transaction, user_id: str) -> SavedCardRow:
        """Begin a page within the limits, or return the open one."""
        await bounds.lock_user(tx, user_id)
        await require_may_pay(tx, user_id)
        await require_undisputed(tx, user_id)
        row, now = await queries.find(tx, user_id), self._now()
        if row is not None and row.setup_ref is not None:
            return row
        is_same_day = row is not None and now - row.setups_since < DAY_SECONDS
        setups = row.setups + 1 if row is not None and is_same_day else 1
        if setups > SETUPS_PER_DAY:
            raise MarketError(Code.TOO_MANY_CARD_PAGES)
        await queries.begin_setup(
            tx,
            user_id,
            next(iter(self._cards)),
            self._context.identifiers.new(),
            setups=setups,
            since=row.setups_since if row is not None and is_same_day else now,
        )
        begun = await queries.find(tx, user_id)
        assert begun is not None  # noqa: S101 - it was just written
        return begun

    async def _set_opened(
        self, tx: Transaction, begun: SavedCardRow, opened: OpenedSetup
    ) -> str | None:
        """Record the provider's answer, and return the page.

        Ends this page and returns None for an erased user, and after another page has begun.
        """
        await bounds.lock_user(tx, begun.user_id)
        await queries.set_setup(
            tx,
            begun.user_id,
            begun.setup_id or "",
            customer_id=opened.customer_id,
            setup_ref=opened.ref,
            url=opened.url,
            next_look_at=self._now() + LOOK_SECONDS,
        )
        row, provider, now = await queries.find(tx, begun.user_id), begun.provider, self._now()
        if row is not None and row.setup_id == begun.setup_id:
            return row.setup_url
        await queries.forget(tx, opened.ref, provider, now, Forgotten.PAGE)
        if row is None:
            await queries.forget(tx, opened.customer_id, provider, now, Forgotten.CUSTOMER)
        return None

    async def _claim(self, tx: Transaction, user_id: str) -> SavedCardRow | None:
        """Claim a look at the page of a user; None without a page, or after another look."""
        now = self._now()
        is_claimed = await queries.claim_look(
            tx, user_id, before=now - LOOK_PAUSE_SECONDS, now=now, next_look_at=now + LOOK_SECONDS
        )
        return await queries.find(tx, user_id) if is_claimed else None

    async def _finish(self, tx: Transaction, user_id: str, setup_ref: str, seen: SeenSetup) -> None:
        """Book the facts about the page of a user, once."""
        await bounds.lock_user(tx, user_id)
        row = await queries.find(tx, user_id)
        if row is None or row.setup_ref != setup_ref or seen.state == "open":
            return
        await queries.end_setup(tx, user_id)
        if seen.state == "over":
            return
        now = self._now()
        is_right = seen.setup_id == row.setup_id and seen.has_mode
        if not is_right or await closures.is_shut(tx, user_id):
            _logger.error("the card of page %s is not saved: page, mode or account", setup_ref)
            await queries.forget(tx, seen.card_id, row.provider, now)
            return
        if row.card_id == seen.card_id:
            return
        if row.card_id is not None:
            await queries.forget(tx, row.card_id, row.provider, now)
        await queries.set_card(
            tx,
            user_id,
            customer_id=seen.customer_id,
            card_id=seen.card_id,
            shown=seen.shown,
            now=now,
        )
        await record(tx, self._context, user_id, CardSaved(seen.shown))
        await self._mail(tx, user_id, "A card was saved", f"The card {seen.shown} was saved.")

    async def _remove(self, tx: Transaction, user_id: str) -> str | None:
        """Take the card of a user away; return it, or None without one."""
        await bounds.lock_user(tx, user_id)
        row, now = await queries.find(tx, user_id), self._now()
        if row is None or row.card_id is None:
            return None
        await queries.forget(tx, row.card_id, row.provider, now)
        await queries.clear_card(tx, user_id)
        await record(tx, self._context, user_id, CardRemoved(row.shown))
        top_up = await top_up_queries.find(tx, user_id)
        if top_up is not None and top_up.state != TopUpStatus.OFF:
            before, off = TopUpStatus(top_up.state), TopUpStatus.OFF
            before.require_before(off)
            await top_up_queries.move(tx, user_id, before=before, after=off, now=now)
            await record(tx, self._context, user_id, TopUpChanged("off", "card_removed"))
        text = f"The card {row.shown} was removed, and no automatic top-up is on."
        await self._mail(tx, user_id, "A card was removed", text)
        return row.card_id

    async def _mail(self, tx: Transaction, user_id: str, subject: str, text: str) -> None:
        await self._letters.put(
            tx,
            user_id,
            f"card:{user_id}",
            lambda to, url: mail.top_up(to, url, subject, f"{text} If this was not you:"),
        )

    async def _forget(self, outside_id: str) -> None:
        """Remove a card, a page or a customer at the provider, or plan the next attempt."""
        row = await self._store.read(queries.find_forgotten, outside_id)
        if row is None:
            return
        try:
            cards = self._cards.get(row.provider)
            if cards is None:
                raise ProviderError(f"provider {row.provider} is not configured")
            if row.kind == Forgotten.PAGE:
                await cards.expire(outside_id)
            elif row.kind == Forgotten.CUSTOMER:
                await cards.forget_customer(outside_id)
            else:
                await cards.forget(outside_id)
        except ProviderError as error:
            _logger.warning("a %s is removed later: %s", row.kind, error)
            await self._store.write(queries.put_off, outside_id, self._now() + FORGET_SECONDS)
            return
        await self._store.write(queries.end_forgetting, outside_id)

"""Payments by providers: begun by a user, credited once, refunded, and looked at until they end.

A provider's notice, the user that comes back from its page, and the sweeper all lead to `fulfil`:
it asks the provider, and books the answer (`market/payments/booking.py`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from market.accounts import bounds
from market.accounts.accounts import deposit_key
from market.accounts.letters import Letters
from market.accounts.restrictions import require_undisputed, require_unrestricted
from market.accounts.suspensions import require_may_pay
from market.base.errors import Code, MarketError
from market.base.ids import parsed
from market.base.states import PaymentStatus, ReturnStatus, TopUpStatus
from market.base.sweeping import Sweep
from market.events.context import Context
from market.events.idempotency import Receipt
from market.money import debts, ledger, lots
from market.money.money import Currency, as_decimal
from market.payments import booking, returning
from market.payments.booking import Booking, reference_of
from market.payments.cards import LOOK_PAUSE_SECONDS, PAGE_SECONDS, SavedCards
from market.payments.exchange import IN_USD, Exchange
from market.payments.provider import (
    Cards,
    HookError,
    NewCharge,
    NewPayment,
    Notice,
    Opened,
    Provider,
    ProviderError,
    Seen,
    SeenReturn,
)
from market.payments.returning import Begun
from market.payments.terms import CENT, DAY_SECONDS, PaymentTerms
from storage.accounts import users
from storage.engines.store import Transaction
from storage.money import ledger as ledger_queries
from storage.money import lots as lot_queries
from storage.payments import cards as card_queries
from storage.payments import credit_notes as note_queries
from storage.payments import payments as queries
from storage.payments import returns as return_queries
from storage.payments import top_ups as top_up_queries
from storage.payments.cards import SavedCardRow
from storage.payments.credit_notes import CreditNoteRow
from storage.payments.payments import PaymentRow, ReceiptRow
from storage.payments.returns import ReturnRow

FIRST_LOOK_SECONDS = 120  # most users have paid or left by then
# A payment without an identifier of the provider is created again until then: later the page would
# be open for less time than providers permit.
CREATE_AGAIN_SECONDS = 1_500
# An automatic payment is requested again until then. Providers keep the keys of repetitions for a
# day.
CHARGE_AGAIN_SECONDS = 20 * 3_600
SEND_SECONDS = 30  # after which the sweeper requests a refund whose request has no answer
PAYMENTS_PER_DAY = 50
SWEPT_MAX = 50

_logger = logging.getLogger("payments")


class PaymentView(Struct, frozen=True):
    """A payment as its user sees it: with its refunds and disputes, and the refundable micro-USD.

    `status` is the state of the payment, or that of its returns: `refunding`, `refunded`,
    `disputed` or `charged_back`.
    """

    row: PaymentRow
    returns: Sequence[ReturnRow] = ()
    refundable: int = 0

    @property
    def id(self) -> str:
        """The identifier of the payment."""
        return self.row.id

    @property
    def refunded(self) -> int:
        """The micro-USD that went back to the payer."""
        return sum(each.amount for each in self.returns if each.status == ReturnStatus.DONE)

    @property
    def status(self) -> str:
        """The state of the payment for its user."""
        states = {(each.kind == returning.DISPUTE, each.status) for each in self.returns}
        words = {
            (True, ReturnStatus.PENDING): "disputed",
            (True, ReturnStatus.DONE): "charged_back",
            (False, ReturnStatus.PENDING): "refunding",
        }
        for state, word in words.items():
            if state in states:
                return word
        return "refunded" if self.refunded == self.row.amount else self.row.status


class Offer(Struct, frozen=True):
    """The payments that a user may make: providers, limits and the debt, in micro-USD.

    `day_left` is the rest of the ceiling of a new account; None without a ceiling.
    """

    providers: Sequence[str]
    least: int
    most: int
    day_left: int | None
    refund_seconds: int
    debt: int
    is_disputed: bool


class ReceiptView(Struct, frozen=True):
    """The receipt of a payment, and the name and address of its user now.

    `notes` are the credit notes of its refunds.
    """

    receipt: ReceiptRow
    payment: PaymentRow
    username: str
    email: str
    notes: Sequence[CreditNoteRow] = ()

    @property
    def tax(self) -> int:
        """The tax in the amount, in micro-USD, rounded to cents."""
        return self.tax_in(self.payment.amount)

    def tax_in(self, amount: int) -> int:
        """Return the tax in a part of the amount, in micro-USD, rounded to cents."""
        rate, cents = self.receipt.tax_basis_points, amount // CENT
        return (2 * cents * rate + 10_000 + rate) // (2 * (10_000 + rate)) * CENT


class PaymentCounts:
    """Numbers since the start, for the metrics.

    Args:
        providers: the names of the providers.
    """

    def __init__(self, providers: Iterable[str]) -> None:
        self.hooks_refused: dict[str, int] = dict.fromkeys(("missing", "old", "signature"), 0)
        self.provider_errors = dict.fromkeys(providers, 0)


class _Claim(Struct, frozen=True):
    """The right to look at a payment now, and the time of the next look that it has planned.

    An automatic payment is not `is_wanted` after its user ended the top-up, changed the card, or
    lost the right to pay, and when it is too old to be requested again.
    """

    row: PaymentRow
    planned: int | None
    is_wanted: bool


class Payments:
    """Payments of users.

    Args:
        terms: the operator's terms.
        providers: the providers by name, the preferred one first; empty where none is configured.
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
        self.terms = terms
        self._context = context
        self._store = context.store
        self._now = context.now
        self._providers = providers
        self.counts = PaymentCounts(providers)
        self._letters = letters
        self._app_url = app_url
        self._booking = Booking(context, terms, letters)
        self._sweep = Sweep("payment %s cannot be looked at", _logger)
        self.cards = SavedCards(context, terms, providers, letters, app_url)

    @property
    def provider_names(self) -> Sequence[str]:
        """The names of the providers, the preferred one first."""
        return tuple(self._providers)

    async def offer(self, user_id: str) -> Offer:
        """Return the payments that a user may make now."""
        return await self._store.read(self._offer, user_id)

    async def create(
        self,
        user_id: str,
        amount: int,
        provider_name: str = "",
        receipt: Receipt[PaymentView] | None = None,
    ) -> PaymentView:
        """Begin a payment, and return it with the page where the user pays.

        Args:
            user_id: the user.
            amount: micro-USD, whole cents.
            provider_name: the provider; "" for the preferred one.
            receipt: stores the reply, for a request that must take effect once. A repetition
                before the reply goes on with the payment that the first request has begun.

        Raises:
            MarketError: `payments_not_offered`, `invalid_field`, `payment_ceiling`,
                `too_many_payments`, `account_suspended`, `account_restricted`;
                `payment_provider_away`, `idempotency_key_reused`.
            Replayed: the request was answered before.
        """
        name = provider_name or next(iter(self._providers), "")
        if not self._providers:
            raise MarketError(Code.PAYMENTS_NOT_OFFERED, "This service takes no payments.")
        if name not in self._providers:
            raise MarketError(Code.PAYMENTS_NOT_OFFERED)
        self._check_amount(amount)
        new = self._row(user_id, name, amount, self._now() + FIRST_LOOK_SECONDS)
        row = await self._begin(new, receipt)
        opened = await self._opened(row)
        return await self._store.write(_set_opened, row.id, opened, receipt)

    async def page(self, user_id: str, *, before: str, limit: int) -> list[PaymentView]:
        """Return a user's payments, the newest first, without their refundable parts."""
        return await self._store.read(_page, user_id, before, limit)

    async def find(self, user_id: str, payment_id: str) -> PaymentView:
        """Return a payment of a user, after a look at the provider if its state may change.

        Raises:
            MarketError: `payment_not_found`.
        """
        view = await self._store.read(self._view, user_id, payment_id)
        is_waiting = any(each.status == ReturnStatus.PENDING for each in view.returns)
        if view.row.status == PaymentStatus.OPEN or is_waiting:
            await self._try(payment_id)
            view = await self._store.read(self._view, user_id, payment_id)
        return view

    async def refund(
        self,
        user_id: str,
        payment_id: str,
        amount: int,
        receipt: Receipt[PaymentView] | None = None,
    ) -> PaymentView:
        """Send unspent money of a payment back to its payer, and return the payment.

        Args:
            user_id: the user.
            payment_id: the payment.
            amount: micro-USD, whole cents.
            receipt: stores the reply, for a request that must take effect once.

        Raises:
            MarketError: `payment_not_found`, `invalid_field`, `payments_not_offered`,
                `payment_not_refundable`, `refund_too_large`, `account_restricted`,
                `account_suspended`.
        """
        if amount <= 0 or amount % CENT:
            raise _amount_error("A refund is a number of whole cents above zero.")
        row, begun = await self._store.write(
            self._begin_refund, user_id, payment_id, amount, receipt
        )
        provider = self._providers.get(row.provider)
        try:
            if row.accepted is not None:
                await self.fulfil(payment_id)  # its look knows the currency of the payment
            elif provider is not None and row.provider_id is not None:
                await self._send(provider, row.provider_id, row.charge_id or "", begun)
        except ProviderError as error:
            self.counts.provider_errors[row.provider] += 1
            _logger.warning("payment %s: refunded later: %s", payment_id, error)
        self._letters.wake()
        return await self._store.read(self._view, user_id, payment_id)

    async def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> Notice:
        """Take a notice of a provider, look at the payment that it names, and return the notice.

        A notice about another subject has no effect here. If the provider does not answer the
        look, the sweeper repeats it.

        Raises:
            MarketError: `payments_not_offered`, `hook_invalid`.
        """
        provider = self._providers.get(name)
        if provider is None:
            raise MarketError(Code.PAYMENTS_NOT_OFFERED)
        try:
            notice = provider.read_hook(headers, body, self._now())
        except HookError as error:
            self.counts.hooks_refused[error.fault] += 1
            _logger.info("notice of %s refused: %s", name, error)
            raise MarketError(Code.HOOK_INVALID) from error
        payment_id = await self._store.write(self._mark, name, notice)
        if payment_id is not None:
            await self._try(payment_id)
        elif notice.provider_id:
            await self.cards.receive(name, notice.provider_id)
        return notice

    async def receipt(self, user_id: str, payment_id: str) -> ReceiptView:
        """Return the receipt of a payment of a user.

        Raises:
            MarketError: `payment_not_found`, also for a payment that has not arrived.
        """
        return await self._store.read(_receipt, user_id, payment_id)

    async def sweep(self) -> int:
        """Look at the payments that are due; return their number.

        Raises:
            UnavailableError: the store did not answer; they wait.
        """
        away: set[str] = set()  # providers that did not answer in this sweep

        async def find(limit: int) -> list[str]:
            return await self._store.read(queries.due, self._now(), limit)

        async def look(payment_id: str) -> None:
            try:
                await self.fulfil(payment_id, away)
            except ProviderError as error:
                _logger.warning("payment %s: looked at later: %s", payment_id, error)

        return await self._sweep.run(find, look, most=SWEPT_MAX, now=self._now())

    async def fulfil(self, payment_id: str, away: set[str] | None = None) -> None:
        """Ask the provider about a payment, and book its answer.

        Without effect within two seconds after another look; the sweeper looks then.

        Args:
            payment_id: the payment.
            away: providers that are not asked; one that does not answer is added.

        Raises:
            ProviderError: the provider did not answer.
        """
        claim = await self._store.write(_claim, payment_id, self._now())
        if claim is None or (away is not None and claim.row.provider in away):
            return
        row = claim.row
        provider = self._providers.get(row.provider)
        if provider is None:
            _logger.warning("payment %s: provider %s is not configured", row.id, row.provider)
            return
        try:
            await self._look(provider, claim)
        except ProviderError as error:
            self.counts.provider_errors[row.provider] += 1
            if away is not None and not (error.is_final or error.is_of_payment):
                away.add(row.provider)
            raise
        self._letters.wake()

    async def _begin(self, new: PaymentRow, receipt: Receipt[PaymentView] | None) -> PaymentRow:
        """Add a payment; return it, or the one that this request began before without a reply."""
        row = await self._store.write(self._insert, new, receipt)
        if row.provider_id is None and self._is_too_old(row):
            # Not in that transaction: payments are locked before users.
            await self._store.write(self._expire, row)
            row = await self._store.write(self._insert, new, receipt)
        return row

    async def _opened(self, row: PaymentRow) -> Opened:
        """Have a provider open a new payment, unless another request or the sweeper has done it.

        Raises:
            MarketError: `payment_provider_away`; `payments_not_offered`, when the operator has
                removed the provider since an earlier request began the payment.
        """
        if row.provider_id is not None:
            return Opened(row.provider_id, row.url)
        provider = self._providers.get(row.provider)
        if provider is None:
            raise MarketError(Code.PAYMENTS_NOT_OFFERED)
        try:
            return await provider.create(self._new(row))
        except ProviderError as error:
            self.counts.provider_errors[row.provider] += 1
            _logger.warning("payment %s: %s did not open it: %s", row.id, row.provider, error)
            if error.is_final:
                await self._store.write(self._expire, row)
            raise MarketError(Code.PAYMENT_PROVIDER_AWAY, retry_after_seconds=10) from error

    def _is_too_old(self, row: PaymentRow) -> bool:
        """Return whether a payment without a page is too old to get one."""
        return self._now() - row.created_at > CREATE_AGAIN_SECONDS

    async def close(self) -> None:
        """Close the connections to the providers."""
        for provider in self._providers.values():
            await provider.close()

    async def _look(self, provider: Provider, claim: _Claim) -> None:
        row, provider_id = claim.row, claim.row.provider_id
        if provider_id is None:
            if self._is_too_old(row) and not row.is_automatic:
                await self._store.write(self._expire, row)
                return
            opened = await self._open(provider, claim)
            if opened is None:
                return
            provider_id = opened.provider_id
            await self._store.write(
                partial(queries.set_opened, provider_id=provider_id, url=opened.url), row.id
            )
        seen = await provider.look(provider_id)
        unknown = await self._store.write(
            partial(booking.book, planned=claim.planned), self._booking, row.id, seen
        )
        if not unknown:
            return
        credited = await self._store.read(queries.find, row.id)
        assert credited is not None  # noqa: S101 - payments are never deleted
        exchange = Exchange.of(credited, seen)
        for each in unknown:
            await self._send(provider, provider_id, seen.charge_id, each, exchange)

    async def _open(self, provider: Provider, claim: _Claim) -> Opened | None:
        """Open a payment again, or take an automatic one from its card; None if it was refused.

        An automatic payment that is not wanted any more is not taken: None, unless an earlier look
        has taken it.
        """
        row, was_tried = claim.row, claim.row.looked_at > 0
        if row.card_id is None:
            return await provider.create(self._new(row))
        title = self._new(row).title
        charge = NewCharge(row.id, row.amount, title, row.customer_id or "", row.card_id)
        try:
            if provider.cards is None:
                raise ProviderError("it has no saved cards", is_final=True)
            if claim.is_wanted:
                return Opened(await provider.cards.charge(charge), "")
        except ProviderError as error:
            if not error.is_final:
                raise
            _logger.warning("payment %s: %s refused it: %s", row.id, row.provider, error)
        # Only the repetition was refused: the first request may have succeeded.
        if was_tried and provider.cards is not None:
            taken = await self._find_charge(provider.cards, charge)
            if taken is not None:
                return Opened(taken, "")
        if not claim.is_wanted:
            await self._store.write(self._expire, row)
            return None
        refused = Seen("failed", row.amount, Currency.USD, row.id, True, failure="refused")
        await self._store.write(
            partial(booking.book, planned=claim.planned), self._booking, row.id, refused
        )
        return None

    async def _find_charge(self, cards: Cards, charge: NewCharge) -> str | None:
        """Return the charge of an earlier request; None if the provider refuses to look for it.

        Raises:
            ProviderError: the provider did not answer.
        """
        try:
            return await cards.find_charge(charge)
        except ProviderError as error:
            if not error.is_final:
                raise
            _logger.warning("payment %s: no look for its charge: %s", charge.id, error)
            return None

    async def _send(
        self,
        provider: Provider,
        provider_id: str,
        charge_id: str,
        row: ReturnRow,
        exchange: Exchange = IN_USD,
    ) -> None:
        """Request a refund from the provider, and book its answer."""
        try:
            amount = exchange.at_provider(row.amount)
            if not amount:
                raise ProviderError("it is less than its currency can return", is_final=True)
            answer: SeenReturn | None = exchange.credited(
                await provider.refund(provider_id, charge_id, amount, row.id), row
            )
        except ProviderError as error:
            if not error.is_final:
                raise
            _logger.error("payment %s: refund %s refused: %s", row.payment_id, row.id, error)
            answer = None
        await self._store.write(booking.book_refund, self._booking, row.payment_id, row.id, answer)

    async def _try(self, payment_id: str) -> None:
        """Look at a payment; the sweeper repeats a look that the provider did not answer."""
        try:
            await self.fulfil(payment_id)
        except ProviderError as error:
            _logger.warning("payment %s: looked at later: %s", payment_id, error)

    def _new(self, row: PaymentRow) -> NewPayment:
        return NewPayment(
            id=row.id,
            amount=row.amount,
            title=row.title or self._title(row.amount),  # a row of before has none
            return_url=f"{self._app_url}/console/wallet/pay/{row.id}",
            expires_at=row.created_at + PAGE_SECONDS,
        )

    def _title(self, amount: int) -> str:
        """Return the name of a payment, as its payer reads it."""
        return f"{self.terms.site_name}: {as_decimal(amount)} USD"

    def _check_amount(self, amount: int) -> None:
        terms = self.terms
        if not terms.least <= amount <= terms.most or amount % CENT:
            raise _amount_error(
                f"A payment has {as_decimal(terms.least)} to {as_decimal(terms.most)} USD in whole "
                "cents."
            )

    async def _insert(
        self, tx: Transaction, row: PaymentRow, receipt: Receipt[PaymentView] | None
    ) -> PaymentRow:
        """Add a payment within the limits of its user, and return it.

        A request that began a payment before, and has no reply yet, adds no other one: the earlier
        payment is returned, unless it ended without a page.
        """
        await bounds.lock_user(tx, row.user_id)
        if receipt is not None:
            earlier = await _begun_by(tx, receipt)
            if earlier is not None:
                return earlier
            await receipt.claim(tx, row.id)
        await self._admit(tx, row)
        return row

    async def insert_automatic(
        self, tx: Transaction, user_id: str, amount: int, card: SavedCardRow
    ) -> str:
        """Add a payment by a saved card within the limits of its user, and return its identifier.

        The caller has locked the user. `fulfil` takes the money; after a crash the sweeper does.

        Raises:
            MarketError: `payment_ceiling`, `too_many_payments`, `account_suspended`,
                `account_closed`, `account_restricted`.
        """
        row = self._row(user_id, card.provider, amount, self._now())
        await self._admit(tx, row._replace(customer_id=card.customer_id, card_id=card.card_id))
        return row.id

    def _row(self, user_id: str, provider: str, amount: int, next_look_at: int) -> PaymentRow:
        """Return a new payment."""
        return PaymentRow(
            id=self._context.identifiers.new(),
            user_id=user_id,
            provider=provider,
            status=PaymentStatus.OPEN,
            amount=amount,
            provider_id=None,
            charge_id=None,
            url="",
            doubt="",
            looked_at=0,
            next_look_at=next_look_at,
            created_at=self._now(),
            closed_at=None,
            deposit_id=None,
            title=self._title(amount),
        )

    async def _admit(self, tx: Transaction, row: PaymentRow) -> None:
        """Add a payment of a locked user, within the limits."""
        await require_may_pay(tx, row.user_id)
        await require_undisputed(tx, row.user_id)
        recent = await queries.recent(tx, row.user_id, row.created_at - DAY_SECONDS)
        if recent.payments >= PAYMENTS_PER_DAY:
            raise MarketError(Code.TOO_MANY_PAYMENTS)
        left = await self._day_left(tx, row.user_id, recent.amount)
        if left is not None and row.amount > left:
            raise MarketError(
                Code.PAYMENT_CEILING,
                f"A new account may pay {as_decimal(self.terms.new_account_day)} USD in a day; "
                f"{as_decimal(left)} USD are left now.",
                field="amount_usd",
            )
        await queries.insert(tx, row)
        await booking.notify(tx, self._context, row)

    async def _day_left(self, tx: Transaction, user_id: str, begun: int) -> int | None:
        """Return the rest of the ceiling of a new account; None for an older account."""
        user = await users.find(tx, user_id)
        assert user is not None  # noqa: S101 - users are never deleted
        terms = self.terms
        is_new = self._now() - user.created_at < terms.new_account_seconds
        if not is_new or not terms.new_account_day:
            return None
        return max(0, terms.new_account_day - begun)

    async def _offer(self, tx: Transaction, user_id: str) -> Offer:
        recent = await queries.recent(tx, user_id, self._now() - DAY_SECONDS)
        return Offer(
            providers=self.provider_names,
            least=self.terms.least,
            most=self.terms.most,
            day_left=await self._day_left(tx, user_id, recent.amount),
            refund_seconds=self.terms.refund_seconds,
            debt=await debts.owed(tx, user_id),
            is_disputed=await return_queries.is_disputed(tx, user_id),
        )

    async def _expire(self, tx: Transaction, row: PaymentRow) -> None:
        """End a payment whose page no user has seen; a second look may come after the first end.

        An automatic payment that was requested is still looked for (`booking.FIND_SECONDS`).
        """
        await queries.lock(tx, row.id)
        current, now = await queries.find(tx, row.id), self._now()
        if current is None or current.provider_id is not None:
            return
        if current.status == PaymentStatus.OPEN:
            await booking.move(tx, self._context, current, PaymentStatus.EXPIRED)
        expired = row._replace(status=PaymentStatus.EXPIRED)
        next_look_at = booking.next_look(expired, (), now) if row.looked_at else None
        await queries.plan(tx, row.id, planned=current.next_look_at, next_look_at=next_look_at)

    async def _mark(self, tx: Transaction, name: str, notice: Notice) -> str | None:
        """Plan a look at the payment of a notice now, and return its identifier; None without one.

        So the sweeper looks, if this process ends before its own look.
        """
        payment_id = None
        if notice.provider_id:
            payment_id = await queries.find_by_provider_id(tx, name, notice.provider_id)
        if payment_id is None and notice.charge_id:
            payment_id = await queries.find_by_charge(tx, name, notice.charge_id)
        if payment_id is None and notice.payment_id and notice.provider_id:
            row = await _named(tx, name, notice.payment_id)
            if row is None:
                return None
            payment_id = row.id
            await queries.set_opened(tx, row.id, provider_id=notice.provider_id, url="")
        if payment_id is not None:
            await queries.hasten(tx, payment_id, self._now())
        return payment_id

    async def _view(self, tx: Transaction, user_id: str, payment_id: str) -> PaymentView:
        row = await _of_user(tx, user_id, payment_id)
        returns = await return_queries.of_payment(tx, payment_id)
        return PaymentView(row, returns, await self._refundable(tx, row, returns))

    async def _refundable(
        self, tx: Transaction, row: PaymentRow, returns: Sequence[ReturnRow]
    ) -> int:
        """Return the micro-USD of a payment that its user can have back now, in whole cents."""
        is_old = self._now() > row.created_at + self.terms.refund_seconds
        is_disputed = any(
            each.kind == returning.DISPUTE and each.status != ReturnStatus.VOID for each in returns
        )
        if row.status != PaymentStatus.PAID or is_old or is_disputed:
            return 0
        account = ledger.available(row.user_id, Currency.USD)
        key = deposit_key(reference_of(row.id), Currency.USD)
        deposit = await lot_queries.find_deposit(tx, key, account)
        assert deposit is not None  # noqa: S101 - a payment is paid by its deposit
        balance = await ledger_queries.balance(tx, account) or 0
        left = await lots.unspent(tx, row.user_id, Currency.USD, deposit, balance)
        return left // CENT * CENT

    async def _begin_refund(
        self,
        tx: Transaction,
        user_id: str,
        payment_id: str,
        amount: int,
        receipt: Receipt[PaymentView] | None,
    ) -> tuple[PaymentRow, ReturnRow]:
        """Hold the money of a refund; the sweeper requests it, if this process ends before."""
        if receipt is not None:
            await receipt.replay(tx, user_id)
        await queries.lock(tx, payment_id)
        row = await _of_user(tx, user_id, payment_id)
        if row.provider not in self._providers:
            raise MarketError(Code.PAYMENTS_NOT_OFFERED)
        await returning.lock(tx, user_id)
        await require_may_pay(tx, user_id)
        await require_unrestricted(tx, user_id)
        returns = await return_queries.of_payment(tx, payment_id)
        left = await self._refundable(tx, row, returns)
        if not left:
            raise MarketError(Code.PAYMENT_NOT_REFUNDABLE, self._why_not(row))
        if amount > left:
            raise MarketError(
                Code.REFUND_TOO_LARGE,
                f"{as_decimal(left)} USD of this payment are unspent; a refund returns no more.",
                field="amount_usd",
            )
        returning.require_room(returns)
        begun = await returning.begin(tx, self._context, row, Begun(returning.REFUND, amount))
        assert begun.held == amount  # noqa: S101 - it is within the unspent part
        await queries.hasten(tx, payment_id, self._now() + SEND_SECONDS)
        if receipt is not None:
            view = PaymentView(row, (*returns, begun), left - amount)
            await receipt.keep(tx, view)
        return row, begun

    def _why_not(self, row: PaymentRow) -> str:
        """Return the reason why nothing of a payment is refundable."""
        if row.status != PaymentStatus.PAID:
            return "The payment has not arrived."
        if self._now() > row.created_at + self.terms.refund_seconds:
            days = self.terms.refund_seconds // DAY_SECONDS
            return f"A payment is refunded within {days} days."
        return "The money of this payment is spent, was returned, or is disputed."


def _amount_error(message: str) -> MarketError:
    return MarketError(Code.INVALID_FIELD, message, field="amount_usd")


async def _begun_by(tx: Transaction, receipt: Receipt[PaymentView]) -> PaymentRow | None:
    """Return the payment that a request began before, if it has a page or may still get one.

    Raises:
        Replayed: the request was answered before.
        MarketError: `idempotency_key_reused`.
    """
    payment_id = await receipt.claimed(tx, receipt.request.user_id)
    row = None if payment_id is None else await queries.find(tx, payment_id)
    if row is None or (row.provider_id is None and row.status != PaymentStatus.OPEN):
        return None
    return row


async def _set_opened(
    tx: Transaction, payment_id: str, opened: Opened, receipt: Receipt[PaymentView] | None
) -> PaymentView:
    """Record the provider's answer to a new payment, unless the sweeper was faster."""
    # Of two requests with one key the second one waits here, and then finds the reply.
    await queries.lock(tx, payment_id)
    await queries.set_opened(tx, payment_id, provider_id=opened.provider_id, url=opened.url)
    row = await queries.find(tx, payment_id)
    assert row is not None  # noqa: S101 - payments are never deleted
    view = PaymentView(row)
    if receipt is not None:
        await receipt.keep(tx, view)
    return view


async def _claim(tx: Transaction, payment_id: str, now: int) -> _Claim | None:
    """Claim a look at a payment; if another one has just begun, plan one after it."""
    row = await queries.find(tx, payment_id)
    if row is None:
        return None
    returns = await return_queries.of_payment(tx, payment_id)
    planned = booking.next_look(row, returns, now)
    if await queries.claim_look(
        tx, payment_id, before=now - LOOK_PAUSE_SECONDS, now=now, next_look_at=planned
    ):
        return _Claim(row, planned, await _is_wanted(tx, row, now))
    await queries.hasten(tx, payment_id, now + LOOK_PAUSE_SECONDS)
    return None


async def _is_wanted(tx: Transaction, row: PaymentRow, now: int) -> bool:
    """Return whether a payment may be taken now; only an automatic one can have changed."""
    if not row.is_automatic or row.provider_id is not None:
        return True
    if row.status != PaymentStatus.OPEN or now - row.created_at > CHARGE_AGAIN_SECONDS:
        return False
    top_up = await top_up_queries.find(tx, row.user_id)
    card = await card_queries.find(tx, row.user_id)
    if top_up is None or top_up.state != TopUpStatus.ON:
        return False
    if card is None or card.card_id != row.card_id:
        return False
    try:
        await require_may_pay(tx, row.user_id)
        await require_undisputed(tx, row.user_id)
    except MarketError:
        return False
    return True


async def _named(tx: Transaction, provider: str, payment_id: str) -> PaymentRow | None:
    """Return a payment that a notice names, if it is one of this provider."""
    try:
        row = await queries.find(tx, parsed(payment_id))
    except ValueError:
        return None
    return row if row is not None and row.provider == provider else None


async def _of_user(tx: Transaction, user_id: str, payment_id: str) -> PaymentRow:
    """Return a payment of a user.

    Raises:
        MarketError: `payment_not_found`.
    """
    row = await queries.find(tx, payment_id)
    if row is None or row.user_id != user_id:
        raise MarketError(Code.PAYMENT_NOT_FOUND)
    return row


async def _page(tx: Transaction, user_id: str, before: str, limit: int) -> list[PaymentView]:
    rows = await queries.page(tx, user_id, before=before, limit=limit)
    returns = await return_queries.of_payments(tx, [row.id for row in rows])
    return [PaymentView(row, returns[row.id]) for row in rows]


async def _receipt(tx: Transaction, user_id: str, payment_id: str) -> ReceiptView:
    row = await _of_user(tx, user_id, payment_id)
    receipt = await queries.find_receipt(tx, payment_id)
    user = await users.find(tx, user_id)
    if receipt is None or user is None:
        raise MarketError(Code.PAYMENT_NOT_FOUND)
    notes = await note_queries.of_payment(tx, payment_id)
    return ReceiptView(receipt, row, user.username, user.email, notes)

"""Payouts as users see them: terms, methods, requests, cancellations."""

import logging

from msgspec import Struct

from market.accounts.letters import Letters
from market.accounts.mail import Message, payout_method_added, payout_method_removed
from market.accounts.makers import require_current, require_fresh
from market.accounts.scopes import LOCAL, Maker
from market.accounts.wallet import Change
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import PayoutStatus
from market.events.catalogue import PayoutMethodAdded, PayoutMethodRemoved, timestamp
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import record
from market.money.money import Currency
from market.payments.provider import ProviderError
from market.payouts import lines, steps
from market.payouts.connect import Connect
from market.payouts.details import Details, checked, mask, opened, seal
from market.payouts.lines import Lines
from market.payouts.rules import Standing, quote, require_all, standing_of
from market.payouts.terms import MethodKind, PayoutTerms
from storage.accounts import users
from storage.engines.store import Transaction
from storage.payouts import batches as batch_queries
from storage.payouts import methods as method_queries
from storage.payouts import payouts as queries
from storage.payouts import sources as source_queries
from storage.payouts.methods import MethodRow
from storage.payouts.payouts import PayoutRow

METHODS_MAX = 5
# Buyers that are looked at before a payout is approved without a person.
SOURCES_MAX = 50
_logger = logging.getLogger("payouts")


class Request(Struct, frozen=True):
    """A request for a payout: at most `amount` micro-units of a wallet, to a method."""

    currency: Currency
    amount: int
    method_id: str


class Connected(Struct, frozen=True):
    """An account at the payment service as a payout method, and the page to fill it in."""

    method: MethodRow
    url: str


class Payouts:
    """Payouts of users.

    Args:
        sealing: protects the details of methods.
        letters: sends e-mails about changed methods.
        terms: the operator's terms.
        connect: the payment service with accounts of users, if there is one.
        return_url: the page that a user comes back to from that service.
    """

    def __init__(
        self,
        context: Context,
        sealing: Sealing,
        letters: Letters,
        terms: PayoutTerms,
        connect: Connect | None = None,
        return_url: str = "",
    ) -> None:
        self.terms = terms
        self.sealing = sealing
        self._context = context
        self._store = context.store
        self._letters = letters
        self._connect = connect
        self._return_url = return_url

    async def standing(self, user_id: str) -> Standing:
        """Return a user's earnings, payout methods, and ticks of the rules."""
        return await self._store.read(standing_of, user_id, self.terms, self._context.now())

    async def request(
        self,
        user_id: str,
        new: Request,
        *,
        maker: Maker = LOCAL,
        receipt: Receipt[PayoutRow] | None = None,
    ) -> PayoutRow:
        """Request a payout, and hold its amount.

        Raises:
            MarketError: `payouts_not_offered`, `payout_too_small`, `payout_too_large`,
                `payout_not_permitted`, `payout_method_not_found`, `unauthorized`,
                `idempotency_key_reused`, `payment_provider_away`.
            Replayed: this was answered before.
        """
        self._require_offered()
        await self._require_ready(user_id, new.method_id)
        price = quote(self.terms, new.currency, new.amount)
        row = steps.drafted(self._context, user_id, new.method_id, price, self.terms)
        now = row.requested_at

        async def unit(tx: Transaction) -> PayoutRow:
            # The accounts come first: a purchase locks them, and then the user by its references.
            await steps.lock_wallet(tx, row)
            is_automatic = row.usd <= self.terms.automatic
            if is_automatic:
                # A bonus that came back by a second account leaves by the hand of a person only.
                credits_ = row.amount if row.currency == Currency.CREDIT else 0
                is_automatic = not await source_queries.may_be_circular(
                    tx, user_id, amount=credits_, limit=SOURCES_MAX
                )
            outcome = row
            if is_automatic:
                outcome = row._replace(state=PayoutStatus.APPROVED, decided_at=now)
            if receipt is not None:
                await receipt.keep(tx, outcome)
            await require_current(tx, user_id, now, maker)
            standing = await standing_of(tx, user_id, self.terms, now)
            await steps.require_earned(tx, row)
            require_all(standing.ticks)
            method = next((row for row in standing.methods if row.id == new.method_id), None)
            if method is None:
                raise MarketError(Code.PAYOUT_METHOD_NOT_FOUND, field="method_id")
            if method.usable_at > now or method.kind not in self.terms.methods:
                message = "This payout method cannot be used now."
                raise MarketError(Code.PAYOUT_NOT_PERMITTED, message, field="method_id")
            is_much = standing.year_usd + price.usd > self.terms.verified_above
            if is_much and not await queries.is_verified(tx, user_id):
                message = "This payout exceeds the yearly amount without a check of the identity."
                raise MarketError(Code.PAYOUT_NOT_PERMITTED, message, field="amount")
            await steps.begin(tx, self._context, row)
            if is_automatic:
                await steps.approve(tx, self._context, row.id)
            return outcome

        return await self._store.write(unit)

    async def cancel(self, user_id: str, payout_id: str) -> PayoutRow:
        """Cancel a user's payout that was not decided; again it changes nothing.

        Raises:
            MarketError: `payout_not_found`, `payout_state`.
        """
        await self.find(user_id, payout_id)
        return await self._store.write(steps.cancel, self._context, payout_id)

    async def find(self, user_id: str, payout_id: str) -> PayoutRow:
        """Return a user's payout.

        Raises:
            MarketError: `payout_not_found`.
        """
        row = await self._store.read(queries.find, payout_id)
        if row is None or row.user_id != user_id:
            raise MarketError(Code.PAYOUT_NOT_FOUND)
        return row

    async def page(self, user_id: str, *, before: str, limit: int) -> list[PayoutRow]:
        """Return a user's payouts, newest first, before an identifier."""
        return await self._store.read(queries.page, user_id, before=before, limit=limit)

    async def lines(self, user_id: str, which: Lines) -> list[Change]:
        """Return lines of a term of a user's earnings, newest first."""
        return await self._store.read(lines.page, user_id, which)

    async def methods(self, user_id: str) -> list[MethodRow]:
        """Return a user's payout methods, oldest first."""
        return await self._store.read(method_queries.of_user, user_id)

    async def add_method(
        self, user_id: str, kind: MethodKind, details: Details, *, maker: Maker = LOCAL
    ) -> MethodRow:
        """Add a payout method; an e-mail reports it, and it can be used after a while.

        Raises:
            MarketError: `payouts_not_offered`, `invalid_field`, `too_many_payout_methods`,
                `fresh_login_needed`, `unauthorized`.
        """
        self._require_offered()
        if kind not in self.terms.methods:
            message = f"This service pays out by: {', '.join(sorted(self.terms.methods))}."
            raise MarketError(Code.INVALID_FIELD, message, field="kind")
        details = checked(kind, details)
        return await self._add(user_id, kind, details, maker)

    async def connect(self, user_id: str, *, maker: Maker = LOCAL) -> Connected:
        """Return the page where a user fills in an account at the payment service.

        The first time it opens the account, and adds it as a payout method. A user has one account
        there; a method that was removed and is added again has the same one.

        Raises:
            MarketError: `payouts_not_offered`, `too_many_payout_methods`, `fresh_login_needed`,
                `unauthorized`, `payment_provider_away`.
        """
        connect = self._required_connect()

        async def check(tx: Transaction) -> MethodRow | None:
            await require_fresh(tx, user_id, self._context.now(), maker)
            return await method_queries.newest(tx, user_id, MethodKind.STRIPE)

        known = await self._store.write(check)
        try:
            if known is None or not known.sealed:
                account_id = await connect.open_account(user_id)
            else:
                account_id = opened(self.sealing, known.sealed).account
            url = await connect.link(account_id, self._return_url)
        except ProviderError as error:
            _logger.warning("an account of user %s: %s", user_id, error)
            raise MarketError(Code.PAYMENT_PROVIDER_AWAY) from error
        if known is None or known.removed_at is not None:
            details = Details(account=account_id)
            known = await self._add(user_id, MethodKind.STRIPE, details, maker)
        return Connected(known, url)

    async def look_at_transfer(self, transfer_id: str) -> None:
        """Look at a transfer that a notice names: one that came back fails its payout.

        Raises:
            MarketError: `payment_provider_away`.
        """
        if self._connect is None:
            return
        try:
            payout_id, progress = await self._connect.payout_of(transfer_id)
        except ProviderError as error:
            if error.is_final:
                return
            raise MarketError(Code.PAYMENT_PROVIDER_AWAY) from error
        if progress.failed is None:
            return
        row = await self._store.read(queries.find, payout_id)
        if row is None or row.batch_id is None:
            return
        batch = await self._store.read(batch_queries.find, row.batch_id)
        if batch is None or batch.outside_id != transfer_id:
            return
        try:
            await self._store.write(steps.fail, self._context, row.id, progress.failed)
        except MarketError as error:
            if error.code is not Code.PAYOUT_STATE:
                raise

    async def _add(
        self, user_id: str, kind: MethodKind, details: Details, maker: Maker
    ) -> MethodRow:
        """Add a payout method with details that were checked."""
        now = self._context.now()
        row = MethodRow(
            id=self._context.identifiers.new(),
            user_id=user_id,
            kind=kind,
            sealed=seal(self.sealing, details),
            shown=mask(kind, details),
            created_at=now,
            usable_at=now + self.terms.method_wait_seconds,
        )

        async def unit(tx: Transaction) -> bool:
            await require_fresh(tx, user_id, self._context.now(), maker)
            if len(await method_queries.of_user(tx, user_id)) >= METHODS_MAX:
                raise MarketError(Code.TOO_MANY_PAYOUT_METHODS)
            await method_queries.insert(tx, row)
            event = PayoutMethodAdded(row.id, kind, row.shown, timestamp(row.usable_at))
            await record(tx, self._context, user_id, event, subject_id=row.id)

            def letter(to: str, app_url: str) -> Message:
                return payout_method_added(to, app_url, row.shown, event.usable_at)

            return await self._letters.put(tx, user_id, f"payout-method:{row.id}", letter)

        if await self._store.write(unit):
            self._letters.wake()
        return row

    async def _require_ready(self, user_id: str, method_id: str) -> None:
        """Check that an account at the payment service can receive payouts, if it is one.

        Raises:
            MarketError: `payout_not_permitted`, `payment_provider_away`.
        """
        row = await self._store.read(method_queries.find, method_id)
        if row is None or row.user_id != user_id or row.kind != MethodKind.STRIPE or row.removed_at:
            return
        account_id = opened(self.sealing, row.sealed).account
        try:
            is_ready = await self._required_connect().is_ready(account_id)
        except ProviderError as error:
            raise MarketError(Code.PAYMENT_PROVIDER_AWAY) from error
        if not is_ready:
            message = "The account at Stripe is not complete. Finish it there first."
            raise MarketError(Code.PAYOUT_NOT_PERMITTED, message, field="method_id")

    async def remove_method(self, user_id: str, method_id: str) -> None:
        """Remove a payout method; an e-mail reports it.

        Raises:
            MarketError: `payout_method_not_found`; `payout_method_in_use`, while an open payout
                goes there.
        """

        async def unit(tx: Transaction) -> bool:
            await users.lock(tx, user_id)  # a request at the same time may use the method
            row = await method_queries.find(tx, method_id)
            if row is None or row.user_id != user_id or row.removed_at is not None:
                raise MarketError(Code.PAYOUT_METHOD_NOT_FOUND)
            now = self._context.now()
            if not await method_queries.remove(tx, method_id, user_id=user_id, now=now):
                raise MarketError(Code.PAYOUT_METHOD_IN_USE)
            event = PayoutMethodRemoved(row.id, row.kind, row.shown)
            await record(tx, self._context, user_id, event, subject_id=row.id)

            def letter(to: str, app_url: str) -> Message:
                return payout_method_removed(to, app_url, row.shown)

            return await self._letters.put(tx, user_id, f"payout-method:{row.id}:end", letter)

        if await self._store.write(unit):
            self._letters.wake()

    async def close(self) -> None:
        """Close the connections to the payment service."""
        if self._connect is not None:
            await self._connect.close()

    def _required_connect(self) -> Connect:
        if self._connect is None or MethodKind.STRIPE not in self.terms.methods:
            raise MarketError(
                Code.PAYOUTS_NOT_OFFERED, "This service pays no earnings out by Stripe."
            )
        return self._connect

    def _require_offered(self) -> None:
        if not self.terms.are_offered:
            raise MarketError(Code.PAYOUTS_NOT_OFFERED)

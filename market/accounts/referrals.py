"""Referrals: a code per user, and a bonus for both when another applies it.

A bonus is money for an account, and accounts are free. So bonuses are bounded per day, for each
referrer and in all; and where e-mails go out, the newcomer must have confirmed their address. A
bonus that is not paid at once is pending, and `pay_due` pays it as soon as it may be.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from enum import Enum, StrEnum, auto

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sweeping import Sweep
from market.base.throttle import Throttle
from market.events.catalogue import ReferralEarned, amount
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import NewEvent, record_all
from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency
from storage.accounts import closures
from storage.accounts import referrals as queries
from storage.accounts.referrals import ReferralRow, TotalsRow
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction

CODE_CHARACTERS = 8
APPLY_SECONDS = 30 * 86_400
# A bonus that cannot be paid within this lapses: the number of waiting bonuses is bounded.
PENDING_SECONDS = 30 * 86_400
REFERRALS_MAX = 100  # that are listed
DAY_SECONDS = 86_400
ATTEMPTS = 5
# A longer circle is not found. A circle needs that number of accounts, and earns no more than a
# chain of them.
CHAIN_MAX = 100
# Each payment is a transaction that every other application waits for.
PAY_MAX_REFERRALS = 20
# More than a person types in a quarter of an hour; each wrong code is looked up under a lock.
FAILURES_MAX = 100
FAILURES_SECONDS = 15 * 60
FAILURES = frozenset(
    {
        Code.REFERRAL_CODE_NOT_FOUND,
        Code.OWN_REFERRAL_CODE,
        Code.REFERRAL_ALREADY_APPLIED,
        Code.REFERRAL_TOO_LATE,
        Code.REFERRAL_CIRCLE,
    }
)

_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"

_logger = logging.getLogger("referrals")


class Rewards(Struct, frozen=True):
    """Bonuses of a referral, in micro-credits: for the owner of the code, and for the newcomer.

    With `needs_verified`, it is paid once the newcomer has confirmed their address. In a UTC day,
    a referrer is paid for `per_referrer_daily` at most, and all together are paid `total_daily`; 0
    for no bound.
    """

    referrer: int
    referred: int
    needs_verified: bool = False
    per_referrer_daily: int = 0
    total_daily: int = 0


class Payment(Enum):
    """Time of a bonus: now, once the address is confirmed, or on a day with room for it."""

    NOW = auto()
    ONCE_VERIFIED = auto()
    LATER = auto()


class Applied(Struct, frozen=True):
    """A code that was applied: the caller's bonus in micro-credits, and when it is paid."""

    bonus: int
    payment: Payment


class Standing(Struct, frozen=True):
    """A user's code and the totals of its referrals."""

    code: str
    totals: TotalsRow


class ReferralState(StrEnum):
    """Whether a bonus is paid, waits until it may be, or has waited too long."""

    PAID = "paid"
    PENDING = "pending"
    LAPSED = "lapsed"


class Referred(Struct, frozen=True):
    """User that registered by a user's code: the time (UTC seconds), and the bonus for it.

    The identity of the newcomer is not shown. `bonus` is in micro-credits, and is paid if the
    state is `PAID`.
    """

    created_at: int
    state: ReferralState
    bonus: int


class Referrals:
    """The referral programme.

    Args:
        chain_max: the longest chain of users that is searched for a circle.
        pay_max: the number of referrals that one transaction pays.
    """

    def __init__(
        self,
        context: Context,
        rewards: Rewards,
        *,
        chain_max: int = CHAIN_MAX,
        pay_max: int = PAY_MAX_REFERRALS,
    ) -> None:
        self.chain_max = chain_max
        self.pay_max = pay_max
        self._context = context
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self.rewards = rewards
        self._failures = Throttle(FAILURES_MAX, FAILURES_SECONDS, context.now)
        self._paying = Sweep("the referral of %s is not paid", _logger)

    async def standing(self, user_id: str) -> Standing:
        """Return a user's code, which the first call makes, and the totals of its referrals."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._store.write(_standing, user_id, _new_code())
            except ConstraintError:
                # Another user has that code.
                continue
        return await self._store.write(_standing, user_id, _new_code())

    async def referred(self, user_id: str) -> list[Referred]:
        """Return the latest hundred users that registered by a user's code, newest first."""
        rows = await self._store.read(queries.of_referrer, user_id, limit=REFERRALS_MAX)
        now = self._now()
        return [Referred(row.created_at, _state(row, now), row.referrer_bonus) for row in rows]

    async def apply(
        self, user_id: str, text: str, receipt: Receipt[Applied] | None = None
    ) -> Applied:
        """Apply another user's code, and return the caller's bonus.

        The time of payment is a forecast: many simultaneous applications can delay the last one.

        Raises:
            MarketError: `invalid_field`, `referral_code_not_found`, `own_referral_code`,
                `referral_already_applied`, `referral_too_late`, `referral_circle`,
                `too_many_attempts`, `idempotency_key_reused`.
            Replayed: this was answered before.
        """
        code, now = parse_code(text), self._now()
        with self._failures.attempt(user_id, FAILURES):
            payment = await self._store.read(_outlook, user_id, code, self.rewards, now)
            applied = Applied(self.rewards.referred, payment)
            application = _Application(user_id, code, applied, self._identifiers.new(), now)
            await self._store.write(
                _apply, self._context, application, self.rewards, receipt, chain_max=self.chain_max
            )
        return applied

    async def pay_due(self) -> int:
        """Pay the pending bonuses that are due. Return the number of referrals.

        One that cannot be paid is logged, and tried again after a while: it delays no other.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now, due, paid = self._now(), dict[str, ReferralRow](), 0

        async def find(limit: int) -> list[str]:
            rows = await self._store.read(_due, self.rewards, now, limit=limit)
            due.update((row.user_id, row) for row in rows)
            return list(due)

        async def pay(user_id: str) -> None:
            nonlocal paid
            new_id = self._identifiers.new()
            paid += await self._store.write(
                _pay_pending, self._context, due[user_id], self.rewards, new_id, now
            )

        await self._paying.run(find, pay, most=self.pay_max, now=now)
        return paid


def _state(row: ReferralRow, now: int) -> ReferralState:
    if row.paid_at is not None:
        return ReferralState.PAID
    is_over = row.created_at < now - PENDING_SECONDS
    return ReferralState.LAPSED if is_over else ReferralState.PENDING


def parse_code(text: str) -> str:
    """Return a code in its one spelling.

    Raises:
        MarketError: `invalid_field`, when it has another length.
    """
    if len(text) != CODE_CHARACTERS:
        message = f"A referral code has {CODE_CHARACTERS} characters."
        raise MarketError(Code.INVALID_FIELD, message, field="referral_code")
    return text.upper()


async def refer(
    tx: Transaction,
    context: Context,
    user_id: str,
    code: str,
    *,
    rewards: Rewards,
    transfer_id: str,
    now: int,
    is_new: bool = False,
    chain_max: int = CHAIN_MAX,
    keep: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Record the referrer of a user, and pay both as soon as that is permitted.

    A new user (`is_new`) has not referred another user yet, so a circle is impossible. `keep`
    stores the reply to a request with a key, after the accounts are locked.

    Raises:
        MarketError: `referral_code_not_found`, `own_referral_code`, `referral_already_applied`,
            `referral_too_late`, `referral_circle`.
    """
    # One at a time: two who apply each other's codes at once must not both succeed.
    await tx.lock("accounts", [ledger.rewards(Currency.CREDIT)])
    referrer = await queries.owner_of(tx, code)
    await _lock_accounts(tx, user_id, referrer or user_id)
    if keep is not None:
        await keep()
    if referrer is None:
        raise MarketError(Code.REFERRAL_CODE_NOT_FOUND, field="referral_code")
    if referrer == user_id:
        raise MarketError(Code.OWN_REFERRAL_CODE, field="referral_code")
    if await queries.referrer_of(tx, user_id) is not None:
        raise MarketError(Code.REFERRAL_ALREADY_APPLIED)
    registered_at = await queries.registered_at(tx, user_id)
    if registered_at is None or now - registered_at > APPLY_SECONDS:
        raise MarketError(Code.REFERRAL_TOO_LATE)
    if not is_new and await queries.is_among(tx, user_id, of=referrer, most=chain_max):
        raise MarketError(Code.REFERRAL_CIRCLE, field="referral_code")
    referral = ReferralRow(user_id, referrer, rewards.referrer, rewards.referred, now, None)
    await queries.insert(tx, referral)
    if await _payment(tx, referral, rewards, now) is Payment.NOW:
        await _pay(tx, context, referral, transfer_id, now)


class _Application(Struct, frozen=True):
    """A code that a user applies, the reply to it, and the transfer that may pay the bonus."""

    user_id: str
    code: str
    applied: Applied
    transfer_id: str
    now: int


async def _apply(
    tx: Transaction,
    context: Context,
    new: _Application,
    rewards: Rewards,
    receipt: Receipt[Applied] | None,
    *,
    chain_max: int,
) -> None:
    async def keep() -> None:
        if receipt is not None:
            await receipt.keep(tx, new.applied)

    await refer(
        tx,
        context,
        new.user_id,
        new.code,
        rewards=rewards,
        transfer_id=new.transfer_id,
        now=new.now,
        chain_max=chain_max,
        keep=keep,
    )


async def _outlook(tx: Transaction, user_id: str, code: str, rewards: Rewards, now: int) -> Payment:
    """Return the time of payment of an application's bonus, if it is not refused."""
    referrer = await queries.owner_of(tx, code) or ""
    referral = ReferralRow(user_id, referrer, rewards.referrer, rewards.referred, now, None)
    return await _payment(tx, referral, rewards, now)


async def _payment(tx: Transaction, referral: ReferralRow, rewards: Rewards, now: int) -> Payment:
    """Return the time at which a referral may be paid, in the present state."""
    if rewards.needs_verified and not await queries.is_verified(tx, referral.user_id):
        return Payment.ONCE_VERIFIED
    today = now - now % DAY_SECONDS
    if rewards.per_referrer_daily:
        paid = await queries.count_paid_since(tx, referral.referrer_id, today)
        if paid >= rewards.per_referrer_daily:
            return Payment.LATER
    bonuses = referral.referrer_bonus + referral.referred_bonus
    return Payment.NOW if await _has_room(tx, rewards, bonuses, today) else Payment.LATER


async def _has_room(tx: Transaction, rewards: Rewards, bonuses: int, today: int) -> bool:
    """Return whether the daily total of all bonuses has room for some more."""
    room = await _room(tx, rewards, today)
    return room is None or bonuses <= room


async def _room(tx: Transaction, rewards: Rewards, today: int) -> int | None:
    """Return the rest of the daily total of all bonuses; None without a bound."""
    if not rewards.total_daily:
        return None
    return max(0, rewards.total_daily - await queries.paid_since(tx, today))


async def _due(tx: Transaction, rewards: Rewards, now: int, *, limit: int) -> list[ReferralRow]:
    today = now - now % DAY_SECONDS
    return await queries.pending(
        tx,
        verified=rewards.needs_verified,
        since=now - PENDING_SECONDS,
        today=today,
        daily=rewards.per_referrer_daily,
        # Of each referral's own bonuses: the operator may have changed the bonuses since.
        room=await _room(tx, rewards, today),
        limit=limit,
    )


async def _pay_pending(
    tx: Transaction,
    context: Context,
    referral: ReferralRow,
    rewards: Rewards,
    transfer_id: str,
    now: int,
) -> bool:
    await tx.lock("accounts", [ledger.rewards(Currency.CREDIT)])
    if await _payment(tx, referral, rewards, now) is not Payment.NOW:
        return False
    await _lock_accounts(tx, referral.referrer_id, referral.user_id)
    return await _pay(tx, context, referral, transfer_id, now)


async def _lock_accounts(tx: Transaction, *users: str) -> None:
    """Lock the accounts of both users, before the rows that refer to them, as in a purchase."""
    await tx.lock("accounts", sorted({ledger.available(each, Currency.CREDIT) for each in users}))


async def _pay(
    tx: Transaction, context: Context, referral: ReferralRow, transfer_id: str, now: int
) -> bool:
    """Pay both users, and none that was erased; False when they were paid.

    The caller has locked the accounts of the rewards and of both users.
    """
    if not await queries.mark_paid(tx, referral.user_id, now):
        return False
    house = ledger.rewards(Currency.CREDIT)
    referrer_bonus = await _bonus(tx, referral.referrer_id, referral.referrer_bonus)
    referred_bonus = await _bonus(tx, referral.user_id, referral.referred_bonus)
    referrer = ledger.available(referral.referrer_id, Currency.CREDIT)
    referred = ledger.available(referral.user_id, Currency.CREDIT)
    movements = (
        Movement(house, referrer, referrer_bonus),
        Movement(house, referred, referred_bonus),
    )
    key = f"referral:{referral.user_id}"
    # The reference does not reveal one of the two to the other.
    reference = str(TransferKind.REFERRAL)
    transfer = Transfer(
        transfer_id, key, TransferKind.REFERRAL, reference, Currency.CREDIT, movements, now
    )
    if not await ledger.post(tx, transfer):
        return False
    referrer_data = ReferralEarned(amount(referrer_bonus), "referrer")
    referred_data = ReferralEarned(amount(referred_bonus), "referred")
    events = [
        NewEvent(user_id, data)
        for user_id, data in (
            (referral.referrer_id, referrer_data),
            (referral.user_id, referred_data),
        )
        if data.amount_credit
    ]
    await record_all(tx, context, events)
    return True


async def _bonus(tx: Transaction, user_id: str, bonus: int) -> int:
    """Return the bonus of a user: nothing for one that was erased."""
    return 0 if await closures.is_erased(tx, user_id) else bonus


async def _standing(tx: Transaction, user_id: str, new_code: str) -> Standing:
    await queries.set_code(tx, user_id, new_code)
    code = await queries.code_of(tx, user_id)
    if code is None:
        raise LookupError(f"the user {user_id} does not exist")
    return Standing(code, await queries.totals(tx, user_id))


def _new_code() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(CODE_CHARACTERS))

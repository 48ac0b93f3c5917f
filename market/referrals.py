"""Referrals: a code per user, and a bonus for both when another applies it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from market import ledger, once
from market.errors import Code, MarketError
from market.ids import Identifiers
from market.ledger import Movement, Transfer, TransferKind
from market.money import Currency
from market.once import Remember, forget
from storage import referrals as queries
from storage.errors import ConstraintError
from storage.referrals import ReferralRow, TotalsRow
from storage.store import Store, Transaction

CODE_CHARACTERS = 8
APPLY_SECONDS = 30 * 86_400
ATTEMPTS = 5
CHAIN_MAX = 10_000

_ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"


@dataclass(frozen=True, slots=True)
class Rewards:
    """What a referral earns, in micro-credits: whoever's code it is, and whoever came by it."""

    referrer: int
    referred: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A user's code and what came of it."""

    code: str
    totals: TotalsRow


class Referrals:
    """The referral programme.

    Args:
        store: where it is kept.
        identifiers: makes identifiers.
        now: the wall clock, in UTC seconds.
        rewards: what a referral earns.
    """

    def __init__(
        self,
        store: Store,
        identifiers: Identifiers,
        now: Callable[[], int],
        rewards: Rewards,
    ) -> None:
        self._store = store
        self._identifiers = identifiers
        self._now = now
        self.rewards = rewards

    async def standing(self, user_id: str) -> Standing:
        """Return a user's code, made when it is first asked for, and what came of it."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._store.write(_standing, user_id, _new_code())
            except ConstraintError:
                # Somebody else has that code.
                continue
        return await self._store.write(_standing, user_id, _new_code())

    async def apply(
        self, user_id: str, text: str, remember: Callable[[int], Remember | None] = forget
    ) -> int:
        """Apply another user's code, and return the caller's bonus in micro-credits.

        Raises:
            MarketError: `invalid_field`, `referral_code_not_found`, `own_referral_code`,
                `referral_already_applied`, `referral_too_late`, `referral_circle`,
                `idempotency_key_reused`.
            Replayed: this was answered before.
        """
        code = parse_code(text)
        await once.write(
            self._store,
            remember(self.rewards.referred),
            refer,
            user_id,
            code,
            rewards=self.rewards,
            transfer_id=self._identifiers.new(),
            now=self._now(),
        )
        return self.rewards.referred


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
    tx: Transaction, user_id: str, code: str, *, rewards: Rewards, transfer_id: str, now: int
) -> None:
    """Note by whose code a user came, and pay both.

    Raises:
        MarketError: `referral_code_not_found`, `own_referral_code`, `referral_already_applied`,
            `referral_too_late`, `referral_circle`.
    """
    # One at a time: two who apply each other's codes at once must not both succeed.
    rewards_account = ledger.rewards(Currency.CREDIT)
    await tx.lock("accounts", [rewards_account])
    referrer = await queries.owner_of(tx, code)
    if referrer is None:
        raise MarketError(Code.REFERRAL_CODE_NOT_FOUND, field="referral_code")
    if referrer == user_id:
        raise MarketError(Code.OWN_REFERRAL_CODE, field="referral_code")
    if await queries.referrer_of(tx, user_id) is not None:
        raise MarketError(Code.REFERRAL_ALREADY_APPLIED)
    registered_at = await queries.registered_at(tx, user_id)
    if registered_at is None or now - registered_at > APPLY_SECONDS:
        raise MarketError(Code.REFERRAL_TOO_LATE)
    if await _is_ancestor(tx, user_id, of=referrer):
        raise MarketError(Code.REFERRAL_CIRCLE, field="referral_code")
    await queries.insert(
        tx, ReferralRow(user_id, referrer, rewards.referrer, rewards.referred, now)
    )
    movements = (
        Movement(rewards_account, ledger.available(referrer, Currency.CREDIT), rewards.referrer),
        Movement(rewards_account, ledger.available(user_id, Currency.CREDIT), rewards.referred),
    )
    key = f"referral:{user_id}"
    # The reference does not tell one of the two who the other is.
    reference = str(TransferKind.REFERRAL)
    await ledger.post(
        tx,
        Transfer(
            transfer_id, key, TransferKind.REFERRAL, reference, Currency.CREDIT, movements, now
        ),
    )


async def _is_ancestor(tx: Transaction, user_id: str, *, of: str) -> bool:
    """Say whether somebody came, over any number of others, by a user's code."""
    current: str | None = of
    for _ in range(CHAIN_MAX):
        current = await queries.referrer_of(tx, current or "")
        if current is None:
            return False
        if current == user_id:
            return True
    return True


async def _standing(tx: Transaction, user_id: str, new_code: str) -> Standing:
    await queries.set_code(tx, user_id, new_code)
    code = await queries.code_of(tx, user_id)
    if code is None:
        raise LookupError(f"the user {user_id} does not exist")
    return Standing(code, await queries.totals(tx, user_id))


def _new_code() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(CODE_CHARACTERS))

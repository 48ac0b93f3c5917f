"""How much one user may have open at once: what is free to ask for must not grow without end."""

from dataclasses import dataclass

from market import ledger
from market.errors import Code, MarketError
from market.money import Currency
from storage.store import Transaction


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one user may have open at once; 0 switches a bound off.

    `sessions` are active ones, `addresses` all that these let in without a password. `jobs` are
    waiting or running, with the replicas of deploys among them; those of a price below
    `free_below`, in micro-credits, are `free_jobs`. `job_bytes` is what jobs take in the database
    that are open, or were put up within a day and paid nobody. `devices` have a token that was not
    revoked.

    What is bounded is counted whenever somebody adds to it, so counting costs no more than the
    bound; what is not bounded is not counted.
    """

    sessions: int = 1_000
    addresses: int = 256
    jobs: int = 1_000
    free_jobs: int = 200
    free_below: int = 10_000
    job_bytes: int = 4_000_000
    devices: int = 1_000


async def lock_user(tx: Transaction, user_id: str) -> None:
    """Let those come one at a time who add to what a user has open.

    The lock is on an account, and not on the user, because whoever holds money locks accounts last.
    """
    await tx.lock("accounts", [ledger.available(user_id, Currency.CREDIT)])


def require(amount: int, most: int, code: Code, *, field: str | None = None) -> None:
    """Check that an amount, with what is being added to it, is within a bound.

    Raises:
        MarketError: the `code` for it; the message says what the bound is.
    """
    if most and amount > most:
        raise MarketError(code, f"{code.meaning} The bound is {most}.", field=field)

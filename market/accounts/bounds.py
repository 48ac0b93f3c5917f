"""Limits on the open objects of one user or device: free objects must not grow without a bound."""

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.idempotency import Outcome, Receipt
from market.money import ledger
from market.money.money import Currency
from storage.accounts import closures
from storage.engines.store import Transaction


class Bounds(Struct, frozen=True):  # as wide as the list of bounds
    """Limits on the open objects of one user or one device; 0 switches a limit off.

    Each addition counts the existing rows, up to the limit.

    Attributes:
        sessions: active sessions.
        addresses: client addresses that these let in without a password.
        jobs: waiting or running jobs, replicas of deploys included.
        free_jobs: open jobs with a price below `free_below`.
        free_below: the price in micro-credits below which a job counts as free.
        job_bytes: bytes of open jobs in the database, and for a day also of ended jobs without a
            payment.
        devices: devices whose token is not revoked.
        device_slots: jobs that one device holds.
        new_device_slots: the same, until the device has completed some jobs.
        new_owner_slots: jobs that all devices of one owner hold, until these have a reputation.
    """

    sessions: int = 1_000
    addresses: int = 256
    jobs: int = 1_000
    free_jobs: int = 200
    free_below: int = 10_000
    job_bytes: int = 4_000_000
    devices: int = 1_000
    device_slots: int = 16
    new_device_slots: int = 4
    new_owner_slots: int = 16


class CurrentBounds:
    """The bounds that hold now: one object for all services, so that one change reaches each."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def __call__(self) -> Bounds:
        """Return them."""
        return self._bounds

    def change(self, bounds: Bounds) -> None:
        """Apply other bounds from now on; open objects stay."""
        self._bounds = bounds


async def lock_user(tx: Transaction, user_id: str) -> None:
    """Serialise the transactions that add open objects to a user.

    The lock is on an account, not on the user. All transactions lock in one order: deploys, jobs,
    reputations, accounts, users. A new row that refers to a user also locks that user, so the
    account comes before the row. A purchase, the closing and the erasure of an account meet there.
    """
    await tx.lock("accounts", [ledger.available(user_id, Currency.CREDIT)])


async def lock_open_user(tx: Transaction, user_id: str) -> None:
    """Lock a user (`lock_user`) to store a text or a file of theirs, unless the account is closed.

    An erasure locks the user as well: it finds the text or the file, or this sees the erasure.

    Raises:
        MarketError: `account_closed`, also after an erasure.
    """
    await lock_user(tx, user_id)
    if await closures.is_shut(tx, user_id):
        raise MarketError(Code.ACCOUNT_CLOSED)


async def lock_and_keep(
    tx: Transaction, user_id: str, receipt: Receipt[Outcome] | None, outcome: Outcome
) -> None:
    """Lock a user (`lock_user`), and then keep the reply to a request with an Idempotency-Key.

    The reply refers to the user, so it comes after the account.

    Raises:
        Replayed, MarketError: as `Receipt.keep`.
    """
    await lock_user(tx, user_id)
    if receipt is not None:
        await receipt.keep(tx, outcome)


def require(amount: int, most: int, code: Code, *, field: str | None = None) -> None:
    """Check that an amount, including the addition, is within a limit.

    Raises:
        MarketError: `code`; the message names the limit.
    """
    if most and amount > most:
        raise MarketError(code, f"{code.meaning} The bound is {most}.", field=field)

"""Attempts to prove a password and a code: recorded, and bounded by account and network.

A code has six digits, and a guesser can have many addresses. So the attempts of an account are also
bounded over all networks. This second bound does not apply to networks where the member has logged
in before. Guesses from other networks lock no member out there.
"""

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.base.acts import permit
from market.staff.base.roles import Action, Author, Via
from storage.engines.store import Transaction
from storage.staff.base import writes
from storage.staff.base.rows import ShownAttemptRow
from storage.staff.members import logins as queries
from storage.staff.members.logins import AttemptRow

WRONG_MAX = 5
WRONG_OF_ACCOUNT_MAX = 20  # over all networks
WINDOW_SECONDS = 15 * 60
KEPT_SECONDS = 90 * 86_400


class Attempt(Struct, frozen=True):
    """An attempt. `account` is the member, or a keyed hash of an address without a member."""

    account: str
    staff_id: str | None
    network: str
    via: Via
    unix_user: str | None = None


async def begin(context: Context, attempt: Attempt, *, most: int | None = WRONG_MAX) -> str:
    """Record an attempt as wrong, and return its identifier.

    It is recorded before the password is compared: of attempts at the same time, no more than
    `most` are compared.

    Args:
        context: gives identifiers and the time.
        attempt: the attempt.
        most: the number of wrong attempts of its account and network within `WINDOW_SECONDS`;
            None for no limit.

    Raises:
        MarketError: `too_many_attempts`; nothing is recorded then.
    """
    return await context.store.write(_begin, context, attempt, most)


async def end(tx: Transaction, context: Context, attempt_id: str) -> None:
    """Record that an attempt was right, in the transaction that uses up its code."""
    await queries.set_right(tx, attempt_id, context.now())


async def listed(
    context: Context, author: Author, *, before: str = "", limit: int
) -> list[ShownAttemptRow]:
    """Return the newest attempts before one.

    Raises:
        MarketError: `not_permitted`.
    """
    return await context.store.read(_listed, author, before, limit)


async def _begin(tx: Transaction, context: Context, attempt: Attempt, most: int | None) -> str:
    now = context.now()
    if most is not None:
        await writes.lock_head(tx)  # attempts of one account take turns, also on several nodes
        await _require_few(tx, attempt.account, attempt.network, now, most)
        if not await queries.has_right(tx, account=attempt.account, network=attempt.network):
            await _require_few(tx, attempt.account, None, now, WRONG_OF_ACCOUNT_MAX)
    row = AttemptRow(
        id=context.identifiers.new(),
        account=attempt.account,
        staff_id=attempt.staff_id,
        network=attempt.network,
        via=attempt.via,
        unix_user=attempt.unix_user,
        created_at=now,
        right_at=None,
    )
    await queries.insert_attempt(tx, row, kept_since=now - KEPT_SECONDS)
    return row.id


async def _require_few(
    tx: Transaction, account: str, network: str | None, now: int, most: int
) -> None:
    wrong, oldest = await queries.count_wrong(
        tx, account=account, network=network, since=now - WINDOW_SECONDS, most=most
    )
    if wrong >= most:
        wait = max(oldest + WINDOW_SECONDS - now, 1)
        message = f"Too many attempts; the next is possible in {wait} s."
        raise MarketError(Code.TOO_MANY_ATTEMPTS, message, retry_after_seconds=wait)


async def _listed(
    tx: Transaction, author: Author, before: str, limit: int
) -> list[ShownAttemptRow]:
    await permit(tx, author, Action.STAFF_ATTEMPTS)
    return await queries.attempts(tx, before=before, limit=limit)

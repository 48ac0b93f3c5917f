"""Closing of accounts by the staff, and the record of their exports."""

import json
from collections.abc import Iterable

from msgspec import structs

from market.accounts.letters import Letters
from market.bandwidth.halts import HaltKind
from market.base.errors import Code, MarketError
from market.erasure.closing import Closed, close_account, require_empty
from market.events.context import Context
from market.money import ledger
from market.money.money import Currency
from market.staff.base import answers, requests
from market.staff.base.acts import USER, Act, Changes, act, permit, reason, require_stranger
from market.staff.base.roles import Action, Author, Member, require
from market.staff.finding.users import find
from market.staff.leaving import waiving
from market.staff.money import second_person
from market.staff.money.approvals import Amount, Limits, Outcome, Posting
from market.staff.stopping import stopping, suspending
from storage.accounts import closures
from storage.accounts import users as user_queries
from storage.accounts.users import UserRow
from storage.engines.store import Transaction
from storage.erasure.open_things import active_sessions

APPROVED = "the closing of the account is approved"


async def end_sessions(
    context: Context, limits: Limits, author: Author, name: str, why: str
) -> str:
    """End all sessions of a user whose money is waived: else their holds keep the account open.

    Return the user's identifier, which closes the account: a second search for an e-mail address
    would be in the log as well.

    Nothing ends if something else keeps the account open, if the closing waits for a second person,
    or if a request that is repeated has closed the account before.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`;
            `account_not_empty`, with all that is open.
        Replayed: as `act`.
    """
    reason(why)
    user = await find(context, author, name)

    async def to_end(tx: Transaction) -> list[str]:
        await permit(tx, author, Action.USER_CLOSE)
        await _require_first(tx, author)
        await require_stranger(tx, author, user.id)
        await require_empty(tx, user.id, context.now())
        new = await waiving.request_of(tx, Action.USER_CLOSE, user.id, waives=True)
        waits = await waiving.exceeds(tx, context, author, new, limits)
        return [] if waits else await active_sessions(tx, user.id)

    await _end(context, author, await context.store.read(to_end), why)
    return user.id


async def end_sessions_of_request(
    context: Context, author: Author, approval_id: str, why: str
) -> None:
    """End the sessions of a user before `author` approves the closing of the account.

    Other requests end none. Nothing ends if the approval would be refused: if something else keeps
    the account open, or if the user has more money than the request names.

    Raises:
        MarketError: as an approval; `account_not_empty`, with all that is open.
        Replayed: as `act`.
    """
    row = await second_person.find(context, approval_id)
    if row.action != Action.USER_CLOSE:
        return

    async def to_end(tx: Transaction) -> list[str]:
        await permit(tx, author, Action.APPROVAL_APPROVE)
        require(author, Action.USER_CLOSE)
        await _require_first(tx, author)
        await require_stranger(tx, author, row.user_id)
        await second_person.require_approvable(tx, context, author, row.id)
        await waiving.require_within(tx, row.user_id, json.loads(row.payload))
        await require_empty(tx, row.user_id, context.now())
        return await active_sessions(tx, row.user_id)

    await _end(context, author, await context.store.read(to_end), why or APPROVED)


async def _require_first(tx: Transaction, author: Author) -> None:
    """Raise the answer to a request that was answered before."""
    if isinstance(author, Member) and author.receipt is not None:
        await answers.replay(tx, author.receipt)


async def _end(context: Context, author: Author, sessions: Iterable[str], why: str) -> None:
    if isinstance(author, Member):  # the answer is that of the closing
        author = structs.replace(author, receipt=None)
    for session_id in sessions:
        try:
            await stopping.begin_end(context, author, session_id, why)
        except MarketError as error:
            if error.code is not Code.SESSION_NOT_FOUND:
                raise
            continue  # it has ended meanwhile
        await stopping.finish_end(context, session_id)


async def close(
    context: Context,
    letters: Letters,
    limits: Limits,
    author: Author,
    name: str,
    *,
    waives: bool,
    why: str,
) -> Closed | Outcome:
    """Close an account, or ask a second person; a login within 14 days opens it again.

    Args:
        context: the store, identifiers and the time.
        letters: e-mails to users.
        limits: the money that one person may give up.
        author: of the act.
        name: of the user.
        waives: whether the user has given up the money that is left.
        why: the reason.

    Returns:
        The closed account, or the request that waits.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`;
            `account_not_empty`, with all that is open; `account_closed`.
    """
    text = reason(why)
    user = await find(context, author, name)

    async def change(tx: Transaction) -> tuple[Closed | Outcome, Changes]:
        await _lock(tx, user.id)
        new = await waiving.request_of(tx, Action.USER_CLOSE, user.id, waives=waives)
        if await waiving.exceeds(tx, context, author, new, limits):
            if await closures.is_shut(tx, user.id):
                raise MarketError(Code.ACCOUNT_CLOSED)
            await require_empty(tx, user.id, context.now())
            return await waiving.ask(tx, context, author, new)
        closed, changes = await _close(tx, context, letters, new)
        return closed, {**changes, **await waiving.record(tx, context, author, new)}

    made = Act(author, Action.USER_CLOSE, USER, user.id, user.id, text)
    closed = await context.store.write(act, context, made, change)
    letters.wake()
    return closed


class Closer:
    """Carries out closings that a second person approves; their sessions have ended before."""

    def __init__(self, letters: Letters) -> None:
        self._letters = letters

    async def post(
        self, tx: Transaction, context: Context, new: Amount, _: Posting
    ) -> tuple[Outcome, Changes]:
        """Close the account of a request.

        Raises:
            MarketError: `account_not_empty`, also for more money than was approved;
                `account_closed`.
        """
        await _lock(tx, new.user_id)
        await waiving.require_within(tx, new.user_id, new.payload)
        _closed, changes = await _close(tx, context, self._letters, new)
        return waiving.done(new), changes


async def _lock(tx: Transaction, user_id: str) -> None:
    accounts = [ledger.available(user_id, currency) for currency in Currency]
    await tx.lock("accounts", sorted(accounts))
    await user_queries.lock(tx, user_id)


async def _close(
    tx: Transaction, context: Context, letters: Letters, new: Amount
) -> tuple[Closed, Changes]:
    """Close the account of a locked user."""
    waives = bool(new.payload["waives"])
    ended = await requests.end_moot(tx, context, new.user_id, requests.BY_CLOSING)
    closed = await close_account(tx, context, letters, new.user_id, waives=waives)
    # Event streams, exits and tunnels of the user end on all nodes.
    await suspending.order(tx, HaltKind.LOOK, new.user_id, None, now=context.now())
    return closed, {"account": ("open", "closed"), "waives": (None, waives), **ended}


async def export(context: Context, author: Author, name: str) -> UserRow:
    """Return the user of an export, which the log records.

    Raises:
        MarketError: `not_permitted`, `user_not_found`, `ambiguous`.
    """
    user = await find(context, author, name)

    async def change(_: Transaction) -> tuple[UserRow, Changes]:
        return user, {}

    made = Act(author, Action.USER_EXPORT, USER, user.id, user.id)
    return await context.store.write(act, context, made, change)

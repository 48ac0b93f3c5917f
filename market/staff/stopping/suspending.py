"""Suspension of users by the staff: parts of an account stop on all nodes, and resume.

A suspension ends nothing. A session keeps its hold and its end, a key its limits, and a device its
consent, so resuming undoes the whole of it. One transaction has the suspended parts, the log, the
event, the letter and the order to the nodes. It locks the user as a purchase does: the second of
the two sees the first.
"""

import logging
import secrets
from collections.abc import Collection
from functools import partial

from msgspec import Struct

from market.accounts.bounds import lock_user
from market.accounts.letters import Letters
from market.accounts.mail import account_resumed, account_suspended
from market.accounts.suspensions import Part
from market.bandwidth import halts
from market.bandwidth.halts import HaltKind
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.base.sweeping import Sweep
from market.events.catalogue import (
    AccountResumed,
    AccountSuspended,
    SessionResumed,
    timestamp,
)
from market.events.context import Context
from market.events.recording import record
from market.staff.base.acts import (
    REASON_MAX_CHARACTERS,
    SALT_BYTES,
    USER,
    Act,
    Changes,
    Text,
    act,
    checked_text,
    reason,
)
from market.staff.base.chain import text_digest
from market.staff.base.roles import Action, Author, Member, Role
from market.staff.finding.users import find
from storage.accounts import suspensions as queries
from storage.accounts.suspensions import SuspendedRow
from storage.engines.store import Transaction
from storage.staff.base import log as log_queries
from storage.staff.stopping import suspending
from storage.staff.stopping.suspending import HaltedRow

SUPPORT_SECONDS = 86_400  # support is alone at night, and such a suspension ends by itself
LONGEST_SECONDS = 10 * 365 * 86_400
DUE_MAX = 100
ALL = frozenset(Part)

_logger = logging.getLogger("suspensions")


class Ordered(Struct, frozen=True):
    """An act that the nodes carry out: its order, and the nodes that acknowledge it."""

    user_id: str
    number: int
    nodes: tuple[str, ...]
    parts: tuple[str, ...] = ()
    ends_at: int | None = None
    session_id: str | None = None


async def suspend(
    context: Context,
    letters: Letters,
    author: Author,
    name: str,
    *,
    parts: Collection[Part],
    ends_at: int | None,
    shown: str,
    why: str,
) -> Ordered:
    """Suspend parts of a user.

    Args:
        context: the open store.
        letters: to the user.
        author: of the act.
        name: of the user.
        parts: at least one.
        ends_at: the time at which they resume by themselves; None for never.
        shown: the reason, for the user.
        why: the reason, for the staff.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    now = context.now()
    text = reason(why)
    shown = checked_text(shown, "shown reason", REASON_MAX_CHARACTERS, field="shown")
    if not parts:
        raise MarketError(Code.INVALID_FIELD, "Name at least one part.", field="parts")
    if ends_at is not None and not now < ends_at <= now + LONGEST_SECONDS:
        raise MarketError(
            Code.INVALID_FIELD, "The end is after now, and within ten years.", field="until"
        )
    user = await find(context, author, name)
    if _is_support(author) and (ends_at is None or ends_at > now + SUPPORT_SECONDS):
        raise MarketError(Code.NOT_PERMITTED, "The role support suspends for at most 24 hours.")
    new = Suspension(
        author, user.id, tuple(part for part in Part if part in parts), ends_at, shown, text
    )
    done = await context.store.write(suspend_in, context, letters, new)
    letters.wake()
    return done


class Suspension(Struct, frozen=True):
    """Parts of a user to suspend; without an `ends_at` they wait for the staff.

    The user reads `shown`, the staff reads `why`.
    """

    author: Author
    user_id: str
    parts: tuple[Part, ...]
    ends_at: int | None
    shown: str
    why: Text


async def suspend_in(
    tx: Transaction, context: Context, letters: Letters, new: Suspension
) -> Ordered:
    """Suspend parts of a user as an act of a transaction; wake the letters after its commit.

    Raises:
        MarketError: `not_permitted`.
    """
    chosen, shown, ends_at, user_id = new.parts, new.shown, new.ends_at, new.user_id

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        now = context.now()
        before = {row.part: row for row in await queries.of_user(tx, user_id)}
        if _is_support(new.author) and any(
            not _is_short(before[each]) for each in chosen if each in before
        ):
            raise MarketError(Code.NOT_PERMITTED, "Another role has suspended this for longer.")
        shown_id, salt = context.identifiers.new(), secrets.token_hex(SALT_BYTES)
        row_number = (await log_queries.head(tx)).number + 1
        await suspending.insert_shown(
            tx, shown_id, user_id, shown, number=row_number, salt=salt, now=now
        )
        await suspending.suspend(tx, user_id, chosen, shown_id=shown_id, now=now, ends_at=ends_at)
        ends = None if ends_at is None else timestamp(ends_at)
        await record(tx, context, user_id, AccountSuspended(list(chosen), shown, ends))
        until = "until further notice" if ends is None else f"until {ends}"
        await letters.put(
            tx,
            user_id,
            f"account suspended:{user_id}",
            partial(account_suspended, parts=", ".join(chosen), reason=shown, until=until),
        )
        kind = HaltKind.HALT if Part.SESSIONS in chosen else HaltKind.LOOK
        ordered = await order(tx, kind, user_id, None, now=now)
        changes: dict[str, tuple[str | int | bool | None, str | int | bool | None]] = {
            part: (_state(before.get(part)), "suspended") for part in chosen
        }
        changes["ends_at"] = (None, ends_at)
        changes["shown"] = (None, text_digest(salt, shown))
        return Ordered(user_id, ordered.number, ordered.nodes, chosen, ends_at), changes

    made = Act(new.author, Action.USER_SUSPEND, USER, user_id, user_id, new.why)
    return await act(tx, context, made, change)


async def resume(
    context: Context,
    letters: Letters,
    author: Author,
    name: str,
    *,
    parts: Collection[Part] = ALL,
    why: str,
) -> Ordered:
    """End the suspension of parts of a user.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`;
            `not_suspended`, if none of the parts is.
    """
    text = reason(why)
    user = await find(context, author, name)

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        rows = [row for row in await queries.of_user(tx, user.id) if row.part in parts]
        if not rows:
            raise MarketError(Code.NOT_SUSPENDED)
        if _is_support(author) and not all(map(_is_short, rows)):
            raise MarketError(Code.NOT_PERMITTED, "Another role has suspended this for longer.")
        ordered = await _resume(tx, context, letters, user.id, [row.part for row in rows])
        return ordered, {row.part: ("suspended", "active") for row in rows}

    new = Act(author, Action.USER_RESUME, USER, user.id, user.id, text)
    done = await context.store.write(act, context, new, change)
    letters.wake()
    return done


async def order(
    tx: Transaction, kind: HaltKind, user_id: str, session_id: str | None, *, now: int
) -> Ordered:
    """Order all nodes to act; the caller has locked the head of the log."""
    number = await suspending.order(tx, kind, user_id, session_id, now=now)
    await halts.call_nodes(tx, number)
    return Ordered(user_id, number, await halts.expected(tx), session_id=session_id)


class Suspensions:
    """Suspensions, and halts of sessions, whose time is over: they end by themselves."""

    def __init__(self, context: Context, letters: Letters) -> None:
        self._context = context
        self._letters = letters
        self._ending = Sweep("the suspension of user %s cannot be ended", _logger)
        self._releasing = Sweep("the halt of session %s cannot be ended", _logger)

    async def end_due(self) -> int:
        """Resume the parts whose time is over, and return the number of users.

        Raises:
            UnavailableError: they are resumed later.
        """
        store, now = self._context.store, self._context.now()

        async def find(most: int) -> list[str]:
            rows = await store.read(suspending.due, now=now, limit=most * len(Part))
            return list(dict.fromkeys(row.user_id for row in rows))

        async def end(user_id: str) -> None:
            await store.write(self._end, user_id, now)

        users = await self._ending.run(find, end, most=DUE_MAX, now=now)
        if users:
            self._letters.wake()
        return users

    async def release_due(self) -> int:
        """Let the sessions go on whose halt is over, and return their number.

        Raises:
            UnavailableError: they go on later.
        """
        store, now = self._context.store, self._context.now()
        rows: dict[str, HaltedRow] = {}

        async def find(most: int) -> list[str]:
            rows.update(
                (row.id, row)
                for row in await store.read(suspending.to_release, now=now, limit=most)
            )
            return list(rows)

        async def release(session_id: str) -> None:
            await store.write(self._release, rows[session_id], now)

        return await self._releasing.run(find, release, most=DUE_MAX, now=now)

    async def _release(self, tx: Transaction, row: HaltedRow, now: int) -> None:
        await suspending.lock_orders(tx)
        if await suspending.release_due(tx, row.id, now=now):
            await resumed(tx, self._context, row)

    async def _end(self, tx: Transaction, user_id: str, now: int) -> None:
        await suspending.lock_orders(tx)
        await lock_user(tx, user_id)
        rows = await queries.of_user(tx, user_id)
        due = [row.part for row in rows if row.ends_at is not None and row.ends_at <= now]
        if due:
            await _resume(tx, self._context, self._letters, user_id, due)


async def _resume(
    tx: Transaction, context: Context, letters: Letters, user_id: str, parts: list[str]
) -> Ordered:
    """Resume parts of a locked user; the caller has locked the head of the log."""
    await suspending.resume(tx, user_id, parts)
    await record(tx, context, user_id, AccountResumed(parts))
    words = partial(account_resumed, parts=", ".join(parts))
    await letters.put(tx, user_id, f"account resumed:{user_id}", words)
    kind = HaltKind.GO if Part.SESSIONS in parts else HaltKind.LOOK
    ordered = await order(tx, kind, user_id, None, now=context.now())
    return Ordered(user_id, ordered.number, ordered.nodes, tuple(parts))


async def resumed(tx: Transaction, context: Context, row: HaltedRow) -> Ordered:
    """Record that a session was released, and order it; the caller has locked the log's head."""
    if row.status == SessionStatus.ACTIVE:
        await record(tx, context, row.user_id, SessionResumed(row.id), subject_id=row.id)
    return await order(tx, HaltKind.GO, row.user_id, row.id, now=context.now())


def _is_support(author: Author) -> bool:
    return isinstance(author, Member) and author.role is Role.SUPPORT


def _is_short(row: SuspendedRow) -> bool:
    """Return whether support could have suspended this part."""
    return row.ends_at is not None and row.ends_at - row.began_at <= SUPPORT_SECONDS


def _state(row: SuspendedRow | None) -> str:
    return "active" if row is None else "suspended"

"""Acts of the staff on one session, key, device or job of any user."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from msgspec import Struct

from market.accounts import keys as key_services
from market.accounts.letters import Letters
from market.accounts.mail import key_revoked
from market.bandwidth.halts import HaltKind
from market.bandwidth.leases import RECALL_SECONDS, RECALL_STEP_SECONDS, Leases
from market.base.bus import DEVICES, notices
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.events.catalogue import SessionHalted
from market.events.context import Context
from market.events.recording import record
from market.exits import canaries, payouts
from market.jobs.outcomes import Outcomes
from market.staff.base.acts import (
    DEVICE,
    JOB,
    KEY,
    SESSION,
    Act,
    Changes,
    act,
    reason,
    require_name,
)
from market.staff.base.roles import Action, Author
from market.staff.stopping.suspending import Ordered, order, resumed
from storage.accounts import keys as key_queries
from storage.accounts import suspensions as suspension_queries
from storage.accounts.keys import KeyRow
from storage.bandwidth import halts as halt_queries
from storage.bandwidth import sessions as session_queries
from storage.bandwidth.sessions import SessionRow
from storage.devices import devices as device_queries
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries
from storage.exits.exits import ConsentRow, ExitRow
from storage.jobs import jobs as job_queries
from storage.staff.finding import search as search_queries
from storage.staff.stopping import suspending
from storage.staff.stopping.suspending import HaltedRow

KEYS_MAX = 20  # that begin in the same way
# The staff's own reason is for the staff.
STAFF_HALT = "The service has halted this session."


class ShownSession(Struct, frozen=True):
    """A session as the staff sees it; `halted_at` is the time of its own halt.

    `is_suspended` is whether all sessions of its user are.
    """

    row: SessionRow
    halted_at: int | None
    is_suspended: bool
    leases: int

    @property
    def state(self) -> Literal["open", "halted", "suspended"] | None:
        """Whether an active session goes on; None for one that is over."""
        if self.row.status != SessionStatus.ACTIVE:
            return None
        if self.is_suspended:
            return "suspended"
        return "open" if self.halted_at is None else "halted"


async def show_session(context: Context, author: Author, session_id: str) -> ShownSession:
    """Return a session; the log records that it was read.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `session_not_found`.
    """
    session = await context.store.read(_session, session_id)

    async def look(tx: Transaction) -> tuple[ShownSession, Changes]:
        row = await _session(tx, session.id)
        shown = ShownSession(
            row,
            await halt_queries.halted_at(tx, row.id),
            await suspension_queries.shown(tx, row.user_id, "sessions") is not None,
            len(await session_queries.open_leases(tx, row.id)),
        )
        return shown, {}

    new = Act(author, Action.SESSION_VIEW, SESSION, session.id, session.user_id)
    return await context.store.write(act, context, new, look)


async def halt_session(context: Context, author: Author, session_id: str, why: str) -> Ordered:
    """Halt a session on all nodes; its hold and its end stay.

    Raises:
        MarketError: `not_permitted`, `invalid_field`; `session_not_found`, also if it is over.
    """
    return await _halt(context, author, session_id, why, Action.SESSION_HALT)


async def let_session_go(context: Context, author: Author, session_id: str, why: str) -> Ordered:
    """Let a halted session go on.

    Raises:
        MarketError: `not_permitted`, `invalid_field`; `session_not_found`, also if it is over;
            `session_not_halted`.
    """
    text, session = reason(why), await context.store.read(_session, session_id)

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        row = await _active(tx, session.id)
        if not await suspending.release(tx, row.id, now=context.now()):
            raise MarketError(Code.SESSION_NOT_HALTED)
        ordered = await resumed(tx, context, HaltedRow(row.id, row.user_id, row.status))
        return ordered, {"halted": (True, False)}

    new = Act(author, Action.SESSION_GO, SESSION, session.id, session.user_id, text)
    return await context.store.write(act, context, new, change)


async def begin_end(context: Context, author: Author, session_id: str, why: str) -> Ordered:
    """Decide to end a session: it is halted, so that all nodes report on it a last time.

    `finish_end` settles it. If that is not reached, the session stays halted, and the act can be
    repeated. Raises as `halt_session`.
    """
    return await _halt(context, author, session_id, why, Action.SESSION_END)


async def finish_end(context: Context, session_id: str) -> bool:
    """Settle a halted session; return False if it was over before.

    The nodes report a last time and release their leases. Later reports are not billed.

    Raises:
        StoreError: perhaps it is settled; a repetition is harmless.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RECALL_SECONDS
    while loop.time() < deadline:
        if not await context.store.read(halt_queries.is_leased, session_id):
            break
        await asyncio.sleep(RECALL_STEP_SECONDS)
    return await Leases(context).settle(session_id, SessionStatus.ENDED, None)


async def revoke_key(
    context: Context, letters: Letters, author: Author, key_id: str, why: str
) -> str:
    """Revoke an API key of any user; return the name that its owner gave it.

    The owner gets an event, and an e-mail without the reason.

    Args:
        context: the open store.
        letters: e-mails to users.
        author: of the act.
        key_id: its identifier, its text, or the first ten characters of its text.
        why: the reason.

    Raises:
        MarketError: `not_permitted`, `invalid_field`; `key_not_found`, also if it has ended;
            `ambiguous`, with the keys that begin in this way.
    """
    require_name(key_id)
    text = reason(why)
    found = await context.store.read(_key, key_id, context.now())
    if found is None:
        raise MarketError(
            Code.KEY_NOT_FOUND,
            "No valid API key has this identifier or text.",
        )

    async def change(tx: Transaction) -> tuple[str, Changes]:
        if not await key_services.end(tx, context, found, context.now()):
            raise MarketError(Code.KEY_NOT_FOUND, "The API key has ended meanwhile.")
        write = partial(key_revoked, name=found.name)
        await letters.put(tx, found.user_id, f"key revoked:{found.id}", write)
        return found.name, {"revoked": (False, True)}

    new = Act(author, Action.KEY_REVOKE, KEY, found.id, found.user_id, text)
    name = await context.store.write(act, context, new, change)
    letters.wake()
    return name


async def bar_device(context: Context, author: Author, device_id: str, why: str) -> Ordered:
    """Bar a device from being an exit; its earnings stay.

    Raises:
        MarketError: `not_permitted`, `invalid_field`; `token_not_found`, if it was never an exit.
    """
    bar = partial(payouts.bar, event=_event(context, device_id, "barred"))
    return await change_exit(
        context, author, Action.DEVICE_BAR, device_id, why, bar, is_barred=True
    )


async def pardon_device(context: Context, author: Author, device_id: str, why: str) -> Ordered:
    """Let a barred device be an exit again; reversed earnings stay reversed.

    Raises:
        MarketError: `not_permitted`, `invalid_field`; `token_not_found`, if it is not barred.
    """
    pardon = partial(canaries.pardon_in, event=_event(context, device_id, "pardoned"))
    return await change_exit(
        context, author, Action.DEVICE_PARDON, device_id, why, pardon, is_barred=False
    )


async def cancel_job(
    context: Context, outcomes: Outcomes, author: Author, job_id: str, why: str
) -> Ordered:
    """Cancel a job of any buyer, as its buyer does; a running one pays for its time so far.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `job_not_found`, `job_over`.
    """
    require_name(job_id)
    text, job_id = reason(why), job_id.lower()
    job = await context.store.read(job_queries.find, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND, "There is no such job.")
    user_id = job.user_id

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        stopped = await outcomes.cancel(tx, user_id, job_id)
        if not stopped:
            raise MarketError(Code.JOB_OVER)
        devices = sorted({each.device_id for each in stopped if each.device_id is not None})
        if devices:
            await tx.notify(*notices(DEVICES, "staff", devices))
        ordered = await order(tx, HaltKind.LOOK, user_id, None, now=context.now())
        return ordered, {"status": (stopped[0].status, "cancelled"), "jobs": (None, len(stopped))}

    new = Act(author, Action.JOB_CANCEL, JOB, job_id, user_id, text)
    return await context.store.write(act, context, new, change)


async def _key(tx: Transaction, name: str, now: int) -> KeyRow | None:
    """Return a valid key by its identifier, its text, or the beginning of its text."""
    if not key_services.is_key(name):
        return await key_queries.find_live(tx, name.lower(), now)
    if len(name) != key_services.SHOWN_CHARACTERS:
        row = await key_queries.find_by_hash(tx, key_services.digest(name))
        return None if row is None else await key_queries.find_live(tx, row.id, now)
    hits = await search_queries.by_key_prefix(tx, name, KEYS_MAX)
    live = [row for hit in hits if (row := await key_queries.find_live(tx, hit.id, now))]
    if len(live) > 1:
        names = ", ".join(row.id for row in live)
        raise MarketError(Code.AMBIGUOUS, f"Several keys begin in this way: {names}.")
    return live[0] if live else None


async def _session(tx: Transaction, session_id: str) -> SessionRow:
    """Return a session by its identifier or the user name of its credentials."""
    require_name(session_id)
    row = await session_queries.find(tx, session_id.lower())
    row = row or await session_queries.find_by_username(tx, session_id)
    if row is None:
        raise MarketError(Code.SESSION_NOT_FOUND, "There is no such session.")
    return row


async def _active(tx: Transaction, session_id: str) -> SessionRow:
    """Lock and return a session that is not over."""
    await session_queries.lock(tx, [session_id])
    row = await _session(tx, session_id)
    if row.status != SessionStatus.ACTIVE:
        raise MarketError(Code.SESSION_NOT_FOUND, f"The session is {row.status}.")
    return row


async def _exit(tx: Transaction, device_id: str) -> ExitRow:
    row = await exit_queries.find(tx, device_id)
    if row is None:
        raise MarketError(Code.TOKEN_NOT_FOUND, "There is no such exit.")
    return row


async def _halt(
    context: Context, author: Author, session_id: str, why: str, action: Action
) -> Ordered:
    text, session = reason(why), await context.store.read(_session, session_id)

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        row = await _active(tx, session.id)
        before = await halt_queries.halted_at(tx, row.id)
        await suspending.set_halted(tx, row.id, before or context.now(), STAFF_HALT)
        if before is None and action is Action.SESSION_HALT:
            event = SessionHalted(row.id, STAFF_HALT, None)
            await record(tx, context, row.user_id, event, subject_id=row.id)
        ordered = await order(tx, HaltKind.HALT, row.user_id, row.id, now=context.now())
        changes: dict[str, tuple[str | int | bool | None, str | int | bool | None]] = {
            "halted": (before is not None, True)
        }
        if action is Action.SESSION_END:
            changes["status"] = (row.status, SessionStatus.ENDED)
        return ordered, changes

    new = Act(author, action, SESSION, session.id, session.user_id, text)
    return await context.store.write(act, context, new, change)


def _event(context: Context, device_id: str, event: str) -> ConsentRow:
    return ConsentRow(context.identifiers.new(), device_id.lower(), event, "", "", context.now())


async def change_exit(
    context: Context,
    author: Author,
    action: Action,
    device_id: str,
    why: str,
    carry_out: Callable[[Transaction], Awaitable[None]],
    *,
    is_barred: bool,
) -> Ordered:
    """Bar an exit or pardon it, and tell the nodes.

    Args:
        context: the store, identifiers and the time.
        author: of the act.
        action: the operation.
        device_id: the exit.
        why: the reason.
        carry_out: makes the change.
        is_barred: whether the exit is barred afterwards.

    Raises:
        MarketError: `not_permitted`, `invalid_field`; `token_not_found`, if it was never an exit.
    """
    require_name(device_id)
    text = reason(why)
    row = await context.store.read(_exit, device_id.lower())

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        await device_queries.lock(tx, row.device_id)
        before = await _exit(tx, row.device_id)
        await carry_out(tx)
        ordered = await order(tx, HaltKind.LOOK, before.user_id, None, now=context.now())
        return ordered, {"barred": (before.barred_at is not None, is_barred)}

    new = Act(author, action, DEVICE, row.device_id, row.user_id, text)
    return await context.store.write(act, context, new, change)

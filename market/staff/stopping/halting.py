"""Halts of a session for a time: by a rule, or by a limit of the service."""

from msgspec import Struct

from market.bandwidth.halts import HaltKind
from market.events.catalogue import SessionHalted, timestamp
from market.events.context import Context
from market.events.recording import record
from market.staff.base.acts import SESSION, Act, Changes, act, reason
from market.staff.base.roles import Action, Rule
from market.staff.stopping.suspending import Ordered, order
from storage.bandwidth import sessions as session_queries
from storage.engines.store import Transaction
from storage.staff.stopping import suspending


class Halt(Struct, frozen=True):
    """A halt of a session; its buyer reads the `reason`. Times are UTC seconds."""

    rule: str
    session_id: str
    user_id: str
    found_at: int
    until: int
    reason: str


class NotHaltedError(Exception):
    """The session is over, halted already, or was released since the finding."""


async def halt_for_a_time(tx: Transaction, context: Context, new: Halt) -> Ordered:
    """Halt a session on all nodes until a time, as an act of a rule in a transaction.

    Raises:
        NotHaltedError: nothing was changed; roll the transaction back.
    """

    async def change(tx: Transaction) -> tuple[Ordered, Changes]:
        now = context.now()
        await session_queries.lock(tx, [new.session_id])
        if not await suspending.halt_until(
            tx,
            new.session_id,
            now=now,
            until=new.until,
            reason=new.reason,
            found_at=new.found_at,
        ):
            raise NotHaltedError
        event = SessionHalted(new.session_id, new.reason, timestamp(new.until))
        await record(tx, context, new.user_id, event, subject_id=new.session_id)
        ordered = await order(tx, HaltKind.HALT, new.user_id, new.session_id, now=now)
        return ordered, {"halted": (False, True), "until": (None, new.until)}

    made = Act(
        Rule(new.rule),
        Action.SESSION_HALT,
        SESSION,
        new.session_id,
        new.user_id,
        reason(new.reason),
    )
    return await act(tx, context, made, change)

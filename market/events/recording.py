"""Recording events: in the transaction of their cause, and published once it is committed.

A unit of work that changes a state records an event for its user. Both are committed or neither
is. The bus notifies readers in this process and in others (`market.base.bus`).
"""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from market.base.bus import EVENTS
from market.events.catalogue import ENCODER, TYPE_OF, EventData
from market.events.context import Context
from storage.engines.store import Transaction
from storage.events import events as queries
from storage.events.events import EventRow
from storage.notify import webhooks


class NewEvent(Struct, frozen=True):
    """Event of a user; `subject_id` is the identifier of its subject."""

    user_id: str
    data: EventData
    subject_id: str | None = None


async def record(
    tx: Transaction,
    context: Context,
    user_id: str,
    data: EventData,
    *,
    subject_id: str | None = None,
) -> EventRow:
    """Record an event in the transaction of its cause, and return it.

    Args:
        tx: the cause's transaction: both are committed or neither is.
        context: the context of the recording service.
        user_id: the user to notify.
        data: the event's fields; their type is in the catalogue.
        subject_id: the identifier of its subject.
    """
    (row,) = await record_all(tx, context, [NewEvent(user_id, data, subject_id)])
    return row


async def record_all(
    tx: Transaction, context: Context, events: Sequence[NewEvent]
) -> list[EventRow]:
    """Record any number of events in one statement; otherwise as `record`."""
    if not events:
        return []
    now = context.now()
    rows = [
        EventRow(
            context.identifiers.new(),
            event.user_id,
            TYPE_OF[type(event.data)],
            event.subject_id,
            encoded(event.data),
            now,
        )
        for event in events
    ]
    await queries.insert(tx, rows)
    await webhooks.schedule(tx, rows, context.identifiers.new)
    tx.after_commit(partial(context.bus.publish, EVENTS, rows))
    return rows


def encoded(data: EventData) -> str:
    """Return an event as JSON."""
    return ENCODER.encode(data).decode()

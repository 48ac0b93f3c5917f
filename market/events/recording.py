"""Recording events: in the transaction of their cause, and told to who reads once it is committed.

A unit of work that changes a state records what it means for a user. Both are committed or neither
is. Readers in this process are told after the commit; other daemons on the database by notices that
carry identifiers, several to one, a moment later (`EventHub.run`). Nothing depends on a notice:
whoever reads also looks by itself from time to time.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from market.base.ids import Identifiers
from market.events.catalogue import ENCODER, TYPE_OF, EventData
from storage.engines.errors import StoreError, level_of
from storage.engines.store import Store, Transaction
from storage.events import events as queries
from storage.events.events import EventRow
from storage.notify import webhooks

# A person does not see it; a NOTIFY holds up every other commit on PostgreSQL, if for a moment.
NOTICE_SECONDS = 0.05
# Texts of a notice have at most 4,000 bytes; each event is two identifiers of 36 and two spaces.
EVENTS_PER_NOTICE = 50
# What is not sent yet. More than that within a moment is a store that does not answer.
UNSENT_MAX = 20_000
# After a failure of the store. The others find by themselves what is lost meanwhile.
FAILED_SECONDS = 1.0
_WORD = "events"

_logger = logging.getLogger("events")


class NewEvent(Struct, frozen=True):
    """What happened to a user: `subject_id` is the thing that it is about."""

    user_id: str
    data: EventData
    subject_id: str | None = None


class Listener(Protocol):
    """Whoever passes events on to readers; none of these may raise, or wait."""

    def recorded(self, rows: Sequence[EventRow]) -> None:
        """Hear of events that this process has committed."""

    def told(self, keys: Sequence[tuple[str, str]]) -> None:
        """Hear of events of other daemons: of which user, and the identifier of each."""

    def may_have_missed(self) -> None:
        """Hear that notices may have been lost."""


class EventHub:
    """Passes on what was recorded, to readers here and to other daemons.

    Args:
        is_shared: whether there are other daemons on the database.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        # Which daemon says it: notices come back to whoever sent them.
        self._origin = secrets.token_hex(8)
        self._listeners: list[Listener] = []
        self._unsent: dict[str, str] = {}  # the user of each event
        self._wake = asyncio.Event()

    def listen(self, listener: Listener) -> None:
        """Have a listener hear everything from now on."""
        self._listeners.append(listener)

    def committed(self, rows: Sequence[EventRow]) -> None:
        """Say that events are in the store."""
        for listener in self._listeners:
            listener.recorded(rows)
        if self.is_shared and len(self._unsent) < UNSENT_MAX:
            self._unsent.update((row.id, row.user_id) for row in rows)
            self._wake.set()

    def hear(self, text: str) -> None:
        """Act on a notice of another daemon; what is not about this is passed over."""
        word, *rest = text.split(" ")
        if word != _WORD or not rest or rest[0] == self._origin:
            return
        keys = list(zip(rest[1::2], rest[2::2], strict=False))
        for listener in self._listeners:
            listener.told(keys)

    def catch_up(self) -> None:
        """Tell the listeners that notices may have been lost."""
        for listener in self._listeners:
            listener.may_have_missed()

    async def run(self, store: Store) -> None:
        """Send what other daemons should hear until cancelled; a failing store loses it."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(NOTICE_SECONDS)
            self._wake.clear()
            unsent, self._unsent = self._unsent, {}
            try:
                await store.write(_notify, list(self._texts(unsent)))
            except StoreError as error:
                level = level_of(error, logging.WARNING)
                _logger.log(level, "other daemons hear of %d events later: %s", len(unsent), error)
                await asyncio.sleep(FAILED_SECONDS)

    def _texts(self, unsent: dict[str, str]) -> Iterator[str]:
        words = [f"{user_id} {event_id}" for event_id, user_id in unsent.items()]
        for start in range(0, len(words), EVENTS_PER_NOTICE):
            yield " ".join((_WORD, self._origin, *words[start : start + EVENTS_PER_NOTICE]))


class Recording(Protocol):
    """What recording needs of a service's context (`market.events.context`)."""

    @property
    def identifiers(self) -> Identifiers:
        """Makes the identifiers of events."""

    @property
    def now(self) -> Callable[[], int]:
        """The wall clock, in whole UTC seconds."""

    @property
    def events(self) -> EventHub:
        """Passes them on."""


async def record(
    tx: Transaction,
    context: Recording,
    user_id: str,
    data: EventData,
    *,
    subject_id: str | None = None,
) -> EventRow:
    """Record an event in the transaction of its cause, and return it.

    Args:
        tx: the cause's transaction: both are committed or neither is.
        context: whoever records.
        user_id: who is told.
        data: what happened; its type is found in the catalogue.
        subject_id: the thing that it is about.
    """
    (row,) = await record_all(tx, context, [NewEvent(user_id, data, subject_id)])
    return row


async def record_all(
    tx: Transaction, context: Recording, events: Sequence[NewEvent]
) -> list[EventRow]:
    """Record events in one statement, however many they are; otherwise as `record`."""
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
    tx.after_commit(partial(context.events.committed, rows))
    return rows


def encoded(data: EventData) -> str:
    """Return an event as JSON."""
    return ENCODER.encode(data).decode()


async def _notify(tx: Transaction, texts: Sequence[str]) -> None:
    await tx.notify(*texts)

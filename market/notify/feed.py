"""Feed of events: readers fetch pages, or follow new events after the missed ones.

A follower receives an event of this process as soon as it is committed. Events of other daemons are
read after their notice, once for all readers here. A slow reader, and a reader that returns,
continue in the store after their last event: memory holds a bounded number of events for each
reader.

Identifiers are made before the commit, so an event may become visible after one with a later
identifier. So a reader that returns receives the events of the half minute before its last event
again. A reader that must not act twice compares identifiers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from enum import Enum
from typing import Literal

from msgspec import Struct

from market.base.bus import EVENTS
from market.base.errors import Code, MarketError
from market.events.context import Context
from market.notify.live_usage import LiveUsage, UsageFrame
from storage.engines.errors import StoreError, level_of
from storage.events import events as queries
from storage.events.events import EventRow

# Of one login: tabs of a browser share one stream, and so do programs with any sense.
STREAMS_PER_LOGIN_MAX = 4
# Longest time from an event's identifier to its commit. Units of work have time limits of seconds.
OVERLAP_SECONDS = 30
RETENTION_SECONDS = 30 * 86_400
# Sessions with a frame that waits for a reader.
QUEUED_MAX_FRAMES = 1_000
# Events that were just sent to a reader, so that a look at the store does not send them again. They
# cover 45 seconds of a user with a hundred events per second.
SENT_MAX_EVENTS = 5_000
# Events of other daemons that one read fetches, and the number that may wait for a read.
FETCH_MAX_EVENTS = 500
UNFETCHED_MAX_EVENTS = 20_000
# Programs beside this service take less from the identifier to the commit.
WATCH_OVERLAP_SECONDS = 5
FAILED_SECONDS = 1.0

_logger = logging.getLogger("events")


class EventFeedTerms(Struct, frozen=True):
    """Limit of simultaneous followers of all logins; may be replaced."""

    streams: int = 500


class FeedPace(Struct, frozen=True):
    """The times and sizes of the feed.

    Attributes:
        heartbeat_seconds: between two signs of life on a stream without events.
        watch_seconds: between two looks for commits of programs beside this service, such as
            `proxyd wallet deposit`.
        streams_per_user: streams that one user may have open.
        page_events: events of one read from the store.
        looked_at_events: events among which one read looks for those of some types.
        queued_events: events that wait for one reader, about a second of a busy buyer. A reader
            with more of them reads the store.
        frames_per_round: frames that all streams of a user together get in a round. Sending one
            takes fifty microseconds: 32 streams with 1,000 sessions that move would take more than
            a second for each round.
        deleted_events: events that one transaction of a sweep deletes.
        deleted_times: transactions of one sweep.
    """

    heartbeat_seconds: float = 15.0
    watch_seconds: float = 1.0
    streams_per_user: int = 32
    page_events: int = 100
    looked_at_events: int = queries.LOOKED_AT_MAX
    queued_events: int = 100
    frames_per_round: int = 1_000
    deleted_events: int = 5_000
    deleted_times: int = 20


USUAL_PACE = FeedPace()


class Bye(Enum):
    """Why a stream ends: the daemon stops."""

    DRAINING = "draining"


class Idle(Struct, frozen=True):
    """Sign of life: nothing has happened for a while.

    `id` is the place to continue from, like an event's, for a reader without an event yet; or "".
    """

    id: str = ""


Item = EventRow | UsageFrame | Idle | Bye


class Wanted(Struct, frozen=True):
    """Subscription of a reader: events of these types, or of all types if empty; and live usage."""

    types: frozenset[str] = frozenset()
    has_usage: bool = True


class _Reader:
    """Follower of a feed, with a bounded queue.

    `behind` is the first event that did not fit; from there on events are read from the store, last
    at `looked_at` (UTC seconds). Once it `has_been_shown` all sessions, it receives only the active
    ones.
    """

    __slots__ = (
        "_frames",
        "_queued_max",
        "_rows",
        "_sent",
        "behind",
        "end",
        "frames_left",
        "has_been_shown",
        "looked_at",
        "must_look",
        "wanted",
        "woken",
    )

    def __init__(self, wanted: Wanted, now: int, queued_max: int) -> None:
        self.wanted = wanted
        self._queued_max = queued_max
        self.looked_at = now
        self.woken = asyncio.Event()
        self.behind: str | None = None
        self.must_look = False
        self.has_been_shown = False
        self.frames_left = 0
        self.end: Bye | None = None
        self._rows: deque[EventRow] = deque()
        self._frames: dict[str, UsageFrame] = {}
        self._sent: dict[str, None] = {}

    def offer(self, row: EventRow) -> None:
        """Queue an event, if it is wanted."""
        if self.wanted.types and row.type not in self.wanted.types:
            return
        if self.behind is None and len(self._rows) >= self._queued_max:
            self.behind = min(each.id for each in self._rows)
            self._rows.clear()
        if self.behind is None:
            self._rows.append(row)
        else:
            self.behind = min(self.behind, row.id)
        self.woken.set()

    def show(self, frame: UsageFrame) -> None:
        """Queue a frame, in the place of an older one of its session."""
        if frame.session_id in self._frames or len(self._frames) < QUEUED_MAX_FRAMES:
            self._frames[frame.session_id] = frame
            self.woken.set()

    def permit(self, frames: int) -> None:
        """Begin a round: `frames` may be taken in it."""
        self.frames_left = frames
        if self._frames:
            self.woken.set()

    def finish(self, why: Bye) -> None:
        """End the stream."""
        self.end = why
        self.woken.set()

    def look(self) -> None:
        """Make the reader read the store, because it may have missed events."""
        self.must_look = True
        self.woken.set()

    def take(self) -> Iterator[EventRow | UsageFrame]:
        """Remove and return the permitted queued items, the events first."""
        while self._rows:
            row = self._rows.popleft()
            if self.is_new(row):
                yield row
        while self._frames and self.frames_left > 0:
            self.frames_left -= 1
            yield self._frames.pop(next(iter(self._frames)))

    def is_new(self, row: EventRow) -> bool:
        """Return whether an event was not sent just now, and record it as sent."""
        if row.id in self._sent:
            return False
        self._sent[row.id] = None
        if len(self._sent) > SENT_MAX_EVENTS:
            del self._sent[next(iter(self._sent))]
        return True


class EventFeed:
    """Events for their users.

    Args:
        terms: the limit of followers; may be replaced.
        pace: times and sizes; may be replaced.
    """

    def __init__(
        self,
        context: Context,
        terms: EventFeedTerms,
        usage: LiveUsage,
        pace: FeedPace = USUAL_PACE,
    ) -> None:
        self.terms = terms
        self.pace = pace
        self._store = context.store
        self._now = context.now
        self._identifiers = context.identifiers
        self._usage = usage
        self._by_user: dict[str, set[_Reader]] = {}
        self._by_login: dict[str, int] = {}
        self._count = 0
        self._has_ended = False
        self._unfetched: dict[str, None] = {}
        self._wake = asyncio.Event()
        context.bus.subscribe(EVENTS, self._recorded, self._noticed)
        context.bus.on_missed(self._look)

    def __len__(self) -> int:
        """Number of followers."""
        return self._count

    # --- pages ---------------------------------------------------------------------------------

    async def page(
        self,
        user_id: str,
        *,
        types: Collection[str] = (),
        after: str = "",
        limit: int,
        order: Literal["newest", "oldest"] = "newest",
    ) -> tuple[list[EventRow], str]:
        """Return a page of a user's events, and the `after` of the next page, or "" after the last.

        One call reads a bounded number of events, so a page with rare types can be short or empty.

        Args:
            user_id: the user.
            types: only these; all of them if it is empty.
            after: the value from the previous page; "" to begin.
            limit: the largest number of events.
            order: the newest first, or the oldest.
        """
        looked_at = self.pace.looked_at_events
        if order == "newest":
            return await self._store.read(
                queries.page_back,
                user_id,
                types=types,
                before=after,
                limit=limit,
                looked_at=looked_at,
            )
        return await self._store.read(
            queries.page_on, user_id, types=types, after=after, limit=limit, looked_at=looked_at
        )

    async def sweep(self) -> int:
        """Delete a bounded number of expired events. Return their number.

        Raises:
            StoreError: they are deleted later.
        """
        before = beginning_of(self._now() - RETENTION_SECONDS)
        deleted = 0
        for _ in range(self.pace.deleted_times):
            most = self.pace.deleted_events
            gone = await self._store.write(queries.delete_before, before, limit=most)
            deleted += gone
            if gone < most:
                break
        return deleted

    # --- streams -------------------------------------------------------------------------------

    async def follow(
        self,
        user_id: str,
        login_id: str,
        wanted: Wanted,
        *,
        since: str | None,
    ) -> AsyncGenerator[Item, None]:
        """Yield the events of a user until the reader leaves or the daemon stops.

        The first item comes immediately, and further ones at least every `heartbeat_seconds`.
        Without missed events the first item has the place to continue from, in case the stream
        breaks before an event. An event that was committed before that item is not new, and no
        later item repeats it.

        Args:
            user_id: the user.
            login_id: the login; its number of open streams is limited.
            wanted: the subscription.
            since: an event; the events after it come first, and some before it. None for new events
                only.

        Raises:
            MarketError: `too_busy`, at the first item, when too many follow.
            StoreError: the database is unavailable, so new events are unknown.
        """
        with self._reading(user_id, login_id, wanted) as reader:
            if since is None:
                await self._note_past(user_id, reader)
            yield Idle(self._identifiers.new() if since is None else "")
            async with aclosing(self._items(user_id, reader, since)) as items:
                async for item in items:
                    yield item

    async def _note_past(self, user_id: str, reader: _Reader) -> None:
        """Count the last events as sent: looks at the store overlap with the time before them."""
        after = beginning_of(reader.looked_at - OVERLAP_SECONDS)
        async for _ in self._missed(user_id, reader, after):
            pass

    async def _items(
        self, user_id: str, reader: _Reader, since: str | None
    ) -> AsyncGenerator[Item, None]:
        """Yield the items of `follow`, for any reader."""
        if since is not None:
            async with aclosing(self._missed(user_id, reader, _overlapping(since))) as rows:
                async for row in rows:
                    yield row
        heartbeat_at = _loop_time() + self.pace.heartbeat_seconds
        while True:
            async with aclosing(self._due(user_id, reader)) as items:
                async for item in items:
                    yield item
            if reader.end is not None:
                yield reader.end
                return
            if _loop_time() >= heartbeat_at:
                yield Idle()
                reader.must_look = True
                heartbeat_at = _loop_time() + self.pace.heartbeat_seconds
                continue
            await _woken(reader.woken, heartbeat_at - _loop_time())

    async def _due(
        self, user_id: str, reader: _Reader
    ) -> AsyncGenerator[EventRow | UsageFrame, None]:
        """Yield the queued items of a reader, and the items that did not fit."""
        reader.woken.clear()
        for item in reader.take():
            yield item
        while reader.behind is not None or reader.must_look:
            start, looks, now = reader.behind, reader.must_look, self._now()
            if looks:
                # From where it looked last: this process may have stood still for a while.
                start = min(beginning_of(reader.looked_at - OVERLAP_SECONDS), start or "g")
            assert start is not None  # noqa: S101 - one of both was there
            reader.behind, reader.must_look = None, False
            async with aclosing(self._missed(user_id, reader, start[:-1])) as rows:
                async for row in rows:
                    yield row
            if looks:
                reader.looked_at = now

    async def _missed(
        self, user_id: str, reader: _Reader, after: str
    ) -> AsyncGenerator[EventRow, None]:
        """Yield the events in the store behind an identifier that were not just sent."""
        types, pace = reader.wanted.types, self.pace
        while True:
            rows, after = await self._store.read(
                queries.page_on,
                user_id,
                types=types,
                after=after,
                limit=pace.page_events,
                looked_at=pace.looked_at_events,
            )
            for row in rows:
                if reader.end is not None:
                    return
                if reader.is_new(row):
                    yield row
            if not after:
                return

    @contextmanager
    def _reading(self, user_id: str, login_id: str, wanted: Wanted) -> Iterator[_Reader]:
        readers = self._by_user.get(user_id, set())
        # As with other slots, a user's streams never outnumber the free ones.
        left = min(self.pace.streams_per_user, self.terms.streams - self._count)
        is_full = len(readers) >= left
        if is_full or self._by_login.get(login_id, 0) >= STREAMS_PER_LOGIN_MAX:
            raise MarketError(Code.TOO_BUSY)
        reader = _Reader(wanted, self._now(), self.pace.queued_events)
        if self._has_ended:
            reader.finish(Bye.DRAINING)
        self._by_user.setdefault(user_id, readers).add(reader)
        self._by_login[login_id] = self._by_login.get(login_id, 0) + 1
        self._count += 1
        try:
            yield reader
        finally:
            self._count -= 1
            self._by_login[login_id] -= 1
            if not self._by_login[login_id]:
                del self._by_login[login_id]
            readers = self._by_user[user_id]
            readers.discard(reader)
            if not readers:
                del self._by_user[user_id]

    def end(self) -> None:
        """End all streams, because the daemon stops; readers come again, to it or to another."""
        self._has_ended = True
        for readers in self._by_user.values():
            for reader in readers:
                reader.finish(Bye.DRAINING)

    async def send_usage(self) -> None:
        """Send changed usage to its watchers; call this once a second.

        Raises:
            StoreError: they receive it later.
        """
        watching: dict[str, list[_Reader]] = {}
        for user_id, readers in self._by_user.items():
            wanting = [reader for reader in readers if reader.wanted.has_usage]
            if wanting:
                watching[user_id] = wanting
        for wanting in watching.values():
            for reader in wanting:
                reader.permit(self.pace.frames_per_round // len(wanting))
        for user_id, frame, is_news in await self._usage.frames(watching):
            for reader in watching[user_id]:
                if is_news or not reader.has_been_shown:
                    reader.show(frame)
        for wanting in watching.values():
            for reader in wanting:
                reader.has_been_shown = True

    # --- publications ---------------------------------------------------------------------------

    def _recorded(self, rows: Sequence[EventRow]) -> None:
        """Offer events to the readers of their users."""
        if not self._by_user:
            return
        for row in rows:
            for reader in self._by_user.get(row.user_id, ()):
                reader.offer(row)

    def _noticed(self, keys: Sequence[str]) -> None:
        """Note the events of other daemons that must be looked up."""
        for key in keys:
            user_id, _, event_id = key.rpartition(":")
            if user_id not in self._by_user:
                continue
            if len(self._unfetched) >= UNFETCHED_MAX_EVENTS:
                self._look()
                return
            self._unfetched[event_id] = None
            self._wake.set()

    def _look(self) -> None:
        """Make all readers read the store."""
        for readers in self._by_user.values():
            for reader in readers:
                reader.look()

    async def run(self) -> None:
        """Look up the events that other daemons have recorded, until cancelled."""
        while True:
            await self._wake.wait()
            event_ids = list(self._unfetched)[:FETCH_MAX_EVENTS]
            for event_id in event_ids:
                del self._unfetched[event_id]
            if not self._unfetched:
                self._wake.clear()
            if not event_ids:
                continue
            try:
                self._recorded(await self._store.read(queries.find, event_ids))
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "events of other daemons are looked up later: %s",
                    error,
                )
                await asyncio.sleep(FAILED_SECONDS)
                self._look()

    async def watch(self) -> None:
        """Look up the events that programs on this machine have recorded, until cancelled.

        They send no notice where the database has none; but the store's version changes, which
        costs nothing to see. A heartbeat finds the events that this misses.
        """
        seen = self._store.version()
        while True:
            await asyncio.sleep(self.pace.watch_seconds)
            version = self._store.version()
            if version is None or version == seen or not self._by_user:
                continue
            seen = version
            after = beginning_of(self._now() - WATCH_OVERLAP_SECONDS)
            try:
                self._recorded(
                    await self._store.read(
                        queries.later_of, self._by_user, after=after, limit=FETCH_MAX_EVENTS
                    )
                )
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING),
                    "events of other programs come with heartbeats: %s",
                    error,
                )


def beginning_of(seconds: int) -> str:
    """Return a text that sorts before all identifiers made since a time, in UTC seconds.

    And after every one that was made before.
    """
    return _prefix(max(seconds, 0) * 1_000)


def _overlapping(event_id: str) -> str:
    """Return the place for a reader to continue: some time before its last event."""
    milliseconds = int(event_id[:8] + event_id[9:13], 16)
    return _prefix(max(milliseconds - OVERLAP_SECONDS * 1_000, 0))


def _prefix(milliseconds: int) -> str:
    """Return the digits that identifiers of a moment begin with (RFC 9562, section 5.7)."""
    digits = f"{milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}-"


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _woken(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, up to a time limit."""
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
    except TimeoutError:
        return

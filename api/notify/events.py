"""Routes of events: my past events in pages, and new events as they happen."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from api.http.identifiers import in_body
from api.routing.listing import Limit, Listing, Timestamp, timestamp
from api.routing.routes import Call, Event, Reply, Route, Streamed
from api.routing.sse import BYE, ByeEvent
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.events.catalogue import CATALOGUE
from market.notify.feed import Bye, EventFeed, Idle, Item, Wanted
from market.notify.live_usage import UsageFrame
from storage.events.events import EventRow

USAGE = "usage"


class EventsQuery(Listing, Struct, kw_only=True):
    """Events to list: of `types`, a list with commas in between, or of all.

    `after` is the `next` of the part before. The newest come first, or the oldest.
    """

    types: str = ""
    after: str = ""
    limit: Limit = 100
    order: Literal["newest", "oldest"] = "newest"


class StreamQuery(Struct):
    """Events to follow: `types`, a list with commas in between, or all.

    Here `usage` is also a type: of sessions that move. `since` is the event that was read last; the
    header Last-Event-ID has the same meaning, and takes precedence.
    """

    types: str = ""
    since: str = ""


class EventItem(Struct):
    """An event: the schema of `data` depends on its type (`webhooks` in this document)."""

    id: str
    type: str
    subject_id: str | None
    data: Raw
    created_at: Timestamp


class EventsReply(Reply, kw_only=True):
    """Events; `next` is there when there are more.

    Of types that are rare a part may have few, or none, and yet a `next`.
    """

    events: list[EventItem]
    next: str | UnsetType = UNSET


class UsageEvent(Struct):
    """The used and the remaining bytes of a session, and the speed of use.

    Once a second for a session that moves, and once more when it stops; more seldom where the
    streams of a user would have more than 1,000 of them in a second. `connections` are those that
    are open; null where other daemons may have some.
    """

    session_id: str
    bytes_used: int
    bytes_left: int
    bytes_per_second: int
    connections: int | None


class EventRoutes:
    """The routes of events."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/api/events",
                "What has happened to me, newest first",
                self.page,
                EventsReply,
                scope=Scope.EVENTS_READ,
                query=EventsQuery,
                while_suspended=True,
            ),
            Route(
                "GET",
                "/api/events/stream",
                "Follow what happens to me, and how fast my sessions are used",
                self.stream,
                Streamed,
                scope=Scope.EVENTS_READ,
                query=StreamQuery,
                errors=(Code.TOO_BUSY,),
                events={
                    **dict.fromkeys(CATALOGUE, EventItem),
                    USAGE: UsageEvent,
                    BYE: ByeEvent,
                },
                ends_with_client=True,
            ),
        ]

    async def page(self, call: Call[Any, EventsQuery]) -> EventsReply:
        """Return a part of the caller's events."""
        query = call.query
        rows, behind = await self._feed.page(
            call.user_id,
            types=_types(query.types, frozenset(CATALOGUE)),
            after=in_body(query.after, "after") if query.after else "",
            limit=query.limit,
            order=query.order,
        )
        return EventsReply(events=[_item(row) for row in rows], next=behind or UNSET)

    async def stream(self, call: Call[Any, StreamQuery]) -> Streamed:
        """Return the events of the caller as they happen."""
        types = _types(call.query.types, frozenset({*CATALOGUE, USAGE}))
        field, since = "Last-Event-ID", call.last_event_id
        if not since:
            field, since = "since", call.query.since
        items = self._feed.follow(
            call.user_id,
            call.caller.session_id,
            _wanted(types),
            since=in_body(since, field) if since else None,
        )
        return Streamed(events=_sent(items))


def _wanted(types: frozenset[str]) -> Wanted:
    """Return the followed types; usage without other types means no event."""
    if not types:
        return Wanted()
    return Wanted(types - {USAGE} or types, has_usage=USAGE in types)


async def _sent(items: AsyncGenerator[Item, None]) -> AsyncGenerator[Event, None]:
    """Yield the events of a reader as events of HTTP."""
    async with aclosing(items):
        async for item in items:
            yield _event(item)


def _event(item: Item) -> Event:
    match item:
        case Idle():
            return Event("", None, item.id)
        case Bye():
            return Event(BYE, ByeEvent("draining"))
        case UsageFrame():
            return Event(USAGE, msgspec.convert(item, UsageEvent, from_attributes=True))
        case _:
            return Event(item.type, _item(item), item.id)


def _item(row: EventRow) -> EventItem:
    data = Raw(row.data.encode())
    return EventItem(row.id, row.type, row.subject_id, data, timestamp(row.created_at))


def _types(text: str, known: frozenset[str]) -> frozenset[str]:
    """Return the types of events in a list with commas.

    Raises:
        MarketError: `invalid_field`, when there is no such type.
    """
    types = frozenset(each.strip() for each in text.split(",") if each.strip())
    unknown = sorted(types - known)
    if unknown:
        message = f"There is no event of the type {unknown[0][:50]}."
        raise MarketError(Code.INVALID_FIELD, message, field="types")
    return types

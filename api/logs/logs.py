"""Routes of logs: devices send them, buyers read and follow them."""

import re
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import ceil
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.http import literals
from api.http.accept import prefers_events
from api.http.identifiers import AttemptNumber, in_path
from api.http.literals import JOB_STATUSES
from api.routing.routes import Auth, Call, Download, Event, Reply, Route, Streamed
from api.routing.sse import BYE, ByeEvent
from api.serving.bodies import RawBody
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.logs.logs import CHUNK_MAX_BYTES, Began, Cut, Idle, Logs, Over, Position, Wrote
from market.logs.logs import Event as LogEvent
from storage.logs.files import Attempt

MILLISECONDS = 1_000
# Of one answer: in base64 it takes a third more, and a network has a few megabytes of answers.
READ_MAX_BYTES = 256 * 1024

Stream = Literal["out", "err"]
Offset = Annotated[int, Meta(ge=0, le=2**53)]

_POSITION = re.compile(r"(\d{1,6})\.(\d{1,16})\.(\d{1,16})", re.ASCII)


class AppendQuery(Struct):
    """Place of the bytes that a device sends: the attempt, the stream, and the offset in it."""

    attempt: AttemptNumber
    offset: Offset
    stream: Stream = "out"


class AppendReply(Reply, kw_only=True):
    """The number of stored bytes of the stream: the next bytes of the device begin there.

    It should wait for `next_after_ms` before. A log that `is_full` takes no more bytes, because
    there is no room for them: the job goes on, and they need not be sent.
    """

    offset: int
    next_after_ms: int
    is_full: bool


class LogQuery(Struct):
    """Part of a log: its attempt (by default the latest) and its stream.

    `offset` and `limit` count bytes, and are for JSON; `encoding` is for events.
    """

    attempt: AttemptNumber | None = None
    stream: Stream = "out"
    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=READ_MAX_BYTES)] = 64 * 1024
    encoding: Literal["text", "base64"] = "text"


class WholeQuery(Struct):
    """Attempt (by default the latest) and stream of a log."""

    attempt: AttemptNumber | None = None
    stream: Stream = "out"


class LogReply(Reply, kw_only=True):
    """Bytes of a log, in base64, from `offset` up to `next_offset`.

    `offset` is later than asked for where the middle of a long log was cut out. There are `size`
    bytes so far, and no more will come when `is_over`.
    """

    attempt: int
    stream: Stream
    offset: int
    next_offset: int
    size: int
    is_over: bool
    data: str


class AttemptEvent(Struct):
    """An attempt has begun: the following events belong to it."""

    attempt: int


class LogEventData(Struct):
    """Bytes of a stream: as text without terminal control sequences, or as bytes in base64."""

    attempt: int
    stream: Stream
    offset: int
    next_offset: int
    text: str | UnsetType = UNSET
    data: str | UnsetType = UNSET


class CutEvent(Struct):
    """Bytes of a stream that are not kept, from `offset` up to `next_offset`."""

    attempt: int
    stream: Stream
    offset: int
    next_offset: int


class EndEvent(Struct):
    """The log has no further bytes; `status` is the job's."""

    attempt: int
    status: literals.JobStatus


class LogRoutes:
    """The routes of logs."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def table(self) -> list[Route]:
        """Return the declarations."""
        errors = (Code.JOB_NOT_FOUND,)
        return [
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/log",
                "Send a part of the log of a job that this device runs",
                self.append,
                AppendReply,
                auth=Auth.WORKER,
                query=AppendQuery,
                raw_max_bytes=CHUNK_MAX_BYTES,
                raw_encodings=("gzip",),
                errors=(*errors, Code.ATTEMPT_NOT_CURRENT, Code.TOO_BUSY),
            ),
            Route(
                "GET",
                "/api/jobs/{job_id}/log",
                "Read the log of one of my jobs, or follow it as events",
                self.read,
                LogReply,
                scope=Scope.JOBS_READ,
                query=LogQuery,
                errors=(*errors, Code.TOO_BUSY),
                events={
                    "attempt": AttemptEvent,
                    "log": LogEventData,
                    "cut": CutEvent,
                    "end": EndEvent,
                    BYE: ByeEvent,
                },
                ends_with_client=True,
            ),
            Route(
                "GET",
                "/api/jobs/{job_id}/log/raw",
                "Download the log of one of my jobs as it was written",
                self.download,
                Reply,
                scope=Scope.JOBS_READ,
                query=WholeQuery,
                errors=(*errors, Code.TOO_BUSY),
                has_file=True,
            ),
        ]

    async def append(self, call: Call[RawBody, AppendQuery]) -> AppendReply:
        """Take a part of a log."""
        query = call.query
        appended = await self._logs.append(
            call.device,
            Attempt(_job_id(call), query.attempt),
            query.stream,
            query.offset,
            call.body.pieces(),
        )
        return AppendReply(
            offset=appended.offset,
            next_after_ms=ceil(appended.wait_seconds * MILLISECONDS),
            is_full=appended.is_full,
        )

    async def read(self, call: Call[Any, LogQuery]) -> LogReply | Streamed:
        """Return a part of a log, or all that comes."""
        query, job_id = call.query, _job_id(call)
        if prefers_events(call.accept):
            position = _position(call.last_event_id) if call.last_event_id else None
            events = self._logs.follow(
                call.user_id, job_id, position=position, number=query.attempt
            )
            return Streamed(events=_sent(events, is_text=query.encoding == "text"))
        part = await self._logs.read(
            call.user_id, job_id, query.attempt, query.stream, query.offset, query.limit
        )
        return LogReply(
            attempt=part.attempt,
            stream=query.stream,
            offset=part.offset,
            next_offset=part.offset + len(part.data),
            size=part.size,
            is_over=part.is_over,
            data=b64encode(part.data).decode(),
        )

    async def download(self, call: Call[Any, WholeQuery]) -> Download:
        """Return a whole log."""
        query, job_id = call.query, _job_id(call)
        number, content = await self._logs.content(
            call.user_id, job_id, query.attempt, query.stream
        )
        name = f"{job_id}-{number}.{query.stream}"
        return Download(name=f"{name}.log", etag=f"{name}-{content.version}", content=content)


async def _sent(
    events: AsyncGenerator[LogEvent, None], *, is_text: bool
) -> AsyncGenerator[Event, None]:
    """Yield the events of a reader as events of HTTP."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Idle):
                yield Event("", None)
                continue
            place = event.position
            yield _event(event, f"{place.attempt}.{place.out}.{place.err}", is_text=is_text)


def _event(event: Began | Wrote | Cut | Over, name: str, *, is_text: bool) -> Event:
    place = event.position
    if isinstance(event, Began):
        return Event("attempt", AttemptEvent(place.attempt), name)
    if isinstance(event, Over):
        return Event("end", EndEvent(place.attempt, JOB_STATUSES[event.status]), name)
    stream: Stream = "out" if event.stream == "out" else "err"
    next_offset = place.at(stream)
    if isinstance(event, Cut):
        return Event("cut", CutEvent(place.attempt, stream, event.offset, next_offset), name)
    written = LogEventData(place.attempt, stream, event.offset, next_offset)
    if is_text:
        written.text = event.text
    else:
        written.data = b64encode(event.data).decode()
    return Event("log", written, name)


def _position(last_event_id: str) -> Position:
    match = _POSITION.fullmatch(last_event_id)
    if match is None:
        message = "The header Last-Event-ID is not the id of an event of a log."
        raise MarketError(Code.INVALID_FIELD, message, field="Last-Event-ID")
    return Position(*map(int, match.groups()))


def _job_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["job_id"], Code.JOB_NOT_FOUND)

"""Logs: the output of attempts while they run, taken by offset, kept for a while, read live.

A device sends bytes with their offset, and every reply has the number of stored bytes. Bytes that
are stored already are skipped, and bytes behind a gap are refused. So a device that always
continues from the reply repairs a lost reply, a lost request, and a killed daemon or a power
failure, without a special case for any of them.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from market.attempts.attempts import require_current
from market.base.bus import ATTEMPTS, GONE, WAITING
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.events.context import Context
from market.logs.disk import LogDisk
from market.logs.pace import Pace
from market.logs.readers import STREAMS, Handed, Reader, Readers
from market.logs.removal import LogKeeper
from market.logs.text import text_of
from storage.blobs.base import BlobError
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow
from storage.logs import logs as queries
from storage.logs.files import Attempt, Extent, LogFiles, Part
from storage.logs.logs import LogRow, StateRow

MIB = 1024 * 1024
CHUNK_MAX_BYTES = MIB  # of one request: bytes lost with a connection are sent again
# Of one write to a file: few turns of a thread, and little memory for each sender.
WRITE_BYTES = 256 * 1024
# How long an attempt that was taken back may still write; and the load of one that writes a lot.
CHECK_SECONDS = 1.0
# Each takes about a kilobyte. One that is dropped is looked up when its device sends again.
OPEN_MAX = 10_000
SENDERS_MAX = 4  # of one stream that wait for each other: an agent has one
# A disk without room may have some later, but not soon.
FULL_SECONDS = 60
# More than any log has: a log without room for more has everything that was ever announced.
FULL = 2**62
CUT_LINE = b"\n[%d bytes of this log are not kept]\n"
READ_BYTES = 64 * 1024  # of one event: a page of text
READ_LEAST_BYTES = 4 * 1024
# A login can end meanwhile; a reader with a valid one connects again and continues.
FOLLOW_SECONDS = 6 * 3_600.0

_logger = logging.getLogger("jobs")


class ReadPace(Struct, frozen=True):
    """The pace of readers of logs that go on.

    Attributes:
        total_bytes: of the events of all readers together, about; for each byte there are four in
            memory, and a client that stands still keeps its event. With more readers the events of
            each are smaller.
        look_seconds: a reader without notices checks whether the attempt is over; and the
            connection has something to carry, long before proxies on the way (60 s is usual) take
            it for dead.
    """

    total_bytes: int = 8 * MIB
    look_seconds: float = 5.0


USUAL_PACE = ReadPace()


class LogTerms(Struct, frozen=True):
    """Limits on the stored bytes of logs, and on their rate.

    Attributes:
        folder: the folder of their files; several daemons on one database share it.
        keep_bytes: bytes that are kept of the beginning, and of the end, of a stream.
        bytes_per_second: the steady rate of an attempt; 0 for no limit.
        keep_seconds: the time that a log is kept once its attempt is over.
        bytes_per_user: the total of a user's logs once their attempts are over; beyond it the
            oldest go first. 0 for no limit.
        reserve_bytes: bytes of the disk that logs leave free.
    """

    folder: Path = Path("var/work/logs")
    keep_bytes: int = 8 * MIB
    bytes_per_second: int = MIB
    keep_seconds: int = 30 * 86_400
    bytes_per_user: int = 1_000_000_000
    reserve_bytes: int = 0


class Appended(Struct, frozen=True):
    """Stored bytes of a stream, the time before its device continues, and whether the log is full.

    A full log stores no more bytes. Its device need not send them.
    """

    offset: int
    wait_seconds: float
    is_full: bool


class Position(Struct, frozen=True):
    """Position of a reader: the attempt, and the offset in each of its streams."""

    attempt: int
    out: int = 0
    err: int = 0

    def at(self, stream: str) -> int:
        """Return the offset in a stream."""
        return self.out if stream == "out" else self.err

    def moved(self, stream: str, offset: int) -> "Position":
        """Return the position further on in a stream."""
        if stream == "out":
            return Position(self.attempt, offset, self.err)
        return Position(self.attempt, self.out, offset)


class Began(Struct, frozen=True):
    """An attempt: the following events are from it."""

    position: Position


class Wrote(Struct, frozen=True):
    """Bytes of a stream at `offset`, also as text; the reader's position is behind them."""

    position: Position
    stream: str
    offset: int
    data: bytes
    text: str


class Cut(Struct, frozen=True):
    """Bytes of a stream that are not kept: from `offset` up to the reader's position."""

    position: Position
    stream: str
    offset: int


class Idle(Struct, frozen=True):
    """No new bytes for a while; the follower of the log can check its connection."""


class Over(Struct, frozen=True):
    """End of a log: no further attempt exists, or none was requested; `status` is the job's."""

    position: Position
    status: str


Event = Began | Wrote | Cut | Idle | Over


class LogPart(Struct, frozen=True):
    """Bytes of a stream of an attempt, of `size` so far; `is_over`: no more bytes follow."""

    attempt: int
    offset: int
    data: bytes
    size: int
    is_over: bool


class Totals(Struct):
    """Totals since the start: stored bytes, and bytes that were refused for lack of room."""

    stored_bytes: int = 0
    refused_bytes: int = 0


class _OpenLog:
    """The log of the current attempt at a job, whose device sends it here."""

    def __init__(self, attempt: Attempt, device_id: str, pace: Pace) -> None:
        self.attempt = attempt
        self.device_id = device_id
        self.pace = pace
        self.checked_at = 0.0
        self.is_full = False
        self.sizes: dict[str, int] = {}
        self._locks = {stream: asyncio.Lock() for stream in STREAMS}
        self._senders = dict.fromkeys(STREAMS, 0)

    @property
    def is_idle(self) -> bool:
        """Whether no request sends."""
        return not any(self._senders.values())

    @asynccontextmanager
    async def sending(self, stream: str) -> AsyncIterator[None]:
        """Admit one sender of a stream at a time to the block.

        Raises:
            MarketError: `too_busy`, when too many wait.
        """
        if self._senders[stream] >= SENDERS_MAX:
            raise MarketError(Code.TOO_BUSY)
        self._senders[stream] += 1
        try:
            async with self._locks[stream]:
                yield
        finally:
            self._senders[stream] -= 1


class Logs:
    """The logs of all attempts.

    Args:
        seconds: a clock that cannot be set, in seconds.
        renewed: called with an attempt (job, number) whose log arrives, which is a sign of life.
        is_shared: whether other daemons work on the same store and the same folder.

    Attributes:
        readers: clients that read live.
        totals: the totals of the bytes taken.
        keeper: removes logs.
    """

    def __init__(
        self,
        context: Context,
        terms: LogTerms,
        seconds: Callable[[], float],
        renewed: Callable[[str, int], None],
        *,
        is_shared: bool = False,
        pace: ReadPace = USUAL_PACE,
    ) -> None:
        self.pace = pace
        self.readers = Readers(context.bus)
        self.totals = Totals()
        self._store = context.store
        self._now = context.now
        self._bytes_per_second = terms.bytes_per_second
        self._seconds = seconds
        self._renewed = renewed
        self._is_shared = is_shared
        files = LogFiles(
            terms.folder,
            keep_bytes=terms.keep_bytes,
            reserve_bytes=terms.reserve_bytes,
            is_shared=is_shared,
        )
        self.disk = LogDisk(files)
        self.keeper = LogKeeper(
            context,
            self.disk,
            keep_seconds=terms.keep_seconds,
            bytes_per_user=terms.bytes_per_user,
        )
        self._open: OrderedDict[str, _OpenLog] = OrderedDict()
        for topic in (ATTEMPTS, WAITING, GONE):  # jobs were given up, claimed, or are over
            context.bus.subscribe(topic, self._changed)
        context.bus.on_missed(self.readers.catch_up)

    # --- devices ----------------------------------------------------------------------------

    async def append(
        self,
        device: DeviceRow,
        attempt: Attempt,
        stream: str,
        offset: int,
        pieces: AsyncIterator[bytes],
    ) -> Appended:
        """Store bytes of a stream from an offset on; bytes before a break are kept.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`, `too_busy`; and the exceptions of
                `pieces`.
        """
        log = await self._current(device, attempt)
        async with log.sending(stream):
            await log.pace.hold()
            size = await self._size(log, stream)
            if offset > size:
                return Appended(size, log.pace.wait_seconds(), log.is_full)
            writer = _Writer(self, log, stream, size)
            try:
                await writer.take(pieces, size - offset)
            finally:
                await writer.close()
            wait_seconds = FULL_SECONDS if log.is_full else log.pace.wait_seconds()
            return Appended(writer.size, wait_seconds, log.is_full)

    async def stored(self, job_id: str, number: int) -> dict[str, int]:
        """Return the stored bytes of each stream of an attempt, synced when this returns.

        A log without room has `FULL` of each.
        """
        attempt, log = Attempt(job_id, number), self._open.get(job_id)
        if log is not None and log.attempt == attempt and log.is_full:
            return dict.fromkeys(STREAMS, FULL)
        try:
            await self.disk.run(LogFiles.sync, attempt)
            return {
                stream: (await self.disk.run(LogFiles.extent, attempt, stream)).size
                for stream in STREAMS
            }
        except OSError as error:
            _logger.error("job %s: its log may be lost: %s", job_id, error)
            return dict.fromkeys(STREAMS, FULL)

    def _changed(self, job_ids: Sequence[str]) -> None:
        """Check jobs again, because an attempt at each may have begun or ended."""
        for job_id in job_ids:
            log = self._open.get(job_id)
            if log is not None:
                log.checked_at = -CHECK_SECONDS
            for reader in self.readers.by_job.get(job_id, ()):
                reader.wake(is_stale=True)

    async def _current(self, device: DeviceRow, attempt: Attempt) -> _OpenLog:
        """Return the log of an attempt, and check now and then that it is the current one."""
        log, now = self._open.get(attempt.job_id), self._seconds()
        is_known = log is not None and (log.attempt, log.device_id) == (attempt, device.id)
        if log is not None and is_known and now - log.checked_at < CHECK_SECONDS:
            return log
        if log is not None and is_known:
            await self._store.read(require_current, device.id, attempt.job_id, attempt.number)
        else:
            is_new = await self._store.write(_begin, device.id, attempt, self._now())
            log = self._opened(device.id, attempt, is_new=is_new)
        self._open.move_to_end(attempt.job_id)
        self._forget_some()
        log.checked_at = now
        self._renewed(attempt.job_id, attempt.number)
        return log

    def begun(self, device_id: str, attempt: Attempt, *, is_new: bool) -> None:
        """Note that `note_begin` was committed for an attempt, so that its writes need no check."""
        log = self._opened(device_id, attempt, is_new=is_new)
        log.checked_at = self._seconds()
        self._open.move_to_end(attempt.job_id)
        self._forget_some()

    def _opened(self, device_id: str, attempt: Attempt, *, is_new: bool) -> _OpenLog:
        """Return the log of an attempt, which another request may have opened before."""
        log = self._open.get(attempt.job_id)
        if log is None or (log.attempt, log.device_id) != (attempt, device_id):
            log = _OpenLog(attempt, device_id, Pace(self._bytes_per_second, self._seconds))
            self._open[attempt.job_id] = log
            if is_new:  # no byte of it was ever written
                log.sizes = dict.fromkeys(STREAMS, 0)
        return log

    def _forget_some(self) -> None:
        over = len(self._open) - OPEN_MAX
        if over > 0:
            idle = (job_id for job_id, log in self._open.items() if log.is_idle)
            for job_id in [job_id for _, job_id in zip(range(over), idle, strict=False)]:
                del self._open[job_id]

    async def _size(self, log: _OpenLog, stream: str) -> int:
        """Return the stored bytes of a stream; another daemon may have stored some of them."""
        size = None if self._is_shared and not log.is_full else log.sizes.get(stream)
        if size is None:
            try:
                size = await self.disk.run(LogFiles.recover, log.attempt, stream)
            except OSError as error:
                self._give_up(log, error)
                size = 0
            log.sizes[stream] = size
        return size

    async def _write(self, log: _OpenLog, stream: str, offset: int, data: bytes) -> None:
        """Write bytes at the end of a stream, or count them where there is no room."""
        if not log.is_full:
            try:
                await self.disk.run(LogFiles.write, log.attempt, stream, offset, data)
            except OSError as error:
                self._give_up(log, error)
        log.sizes[stream] = offset + len(data)
        log.pace.take(len(data))
        if log.is_full:
            self.totals.refused_bytes += len(data)
        else:
            self.totals.stored_bytes += len(data)
            self.readers.hand(stream, Handed(log.attempt, offset, data))
            self.readers.written(log.attempt.job_id, stream)

    def _give_up(self, log: _OpenLog, error: OSError) -> None:
        """Stop storing a log; the job continues without it."""
        log.is_full = True
        _logger.error("job %s: its log is not stored any further: %s", log.attempt.job_id, error)

    # --- readers ----------------------------------------------------------------------------

    async def read(
        self, user_id: str, job_id: str, number: int | None, stream: str, offset: int, limit: int
    ) -> LogPart:
        """Return bytes of a log from an offset on, or from the next kept byte if it was cut.

        Args:
            user_id: the buyer.
            job_id: the job.
            number: the attempt; None for the latest one.
            stream: the stream.
            offset: the first byte.
            limit: the largest number of bytes.

        Raises:
            MarketError: `job_not_found`, or `invalid_field` for an unknown attempt.
        """
        state = await self._state(user_id, job_id)
        number = _attempt_of(state, number)
        part = await self.disk.run(LogFiles.read, Attempt(job_id, number), stream, offset, limit)
        return LogPart(number, part.offset, part.data, part.size, _is_over(state, number))

    async def content(
        self, user_id: str, job_id: str, number: int | None, stream: str
    ) -> tuple[int, "LogContent"]:
        """Return the number of an attempt, and its log so far as a file; raises as `read`."""
        state = await self._state(user_id, job_id)
        attempt = Attempt(job_id, _attempt_of(state, number))
        extent = await self.disk.run(LogFiles.extent, attempt, stream)

        async def read(offset: int, size: int) -> Part:
            return await self.disk.run(LogFiles.read, attempt, stream, offset, size)

        return attempt.number, LogContent(extent, read)

    async def follow(
        self, user_id: str, job_id: str, *, position: Position | None, number: int | None
    ) -> AsyncGenerator[Event, None]:
        """Yield a log from a position on, and new bytes, until the job or the attempt is over.

        Args:
            user_id: the buyer.
            job_id: the job.
            position: the reader's last position; None from the beginning of an attempt.
            number: the only attempt to read; None for the latest and all later ones.

        Raises:
            MarketError: `job_not_found`, `invalid_field`, `too_busy`.
        """
        state = await self._state(user_id, job_id)
        for each in (number, position.attempt if position else None):
            _attempt_of(state, each)
        with self.readers.reading(job_id, user_id) as reader:
            place = position or Position(number or state.attempts)
            yield Began(place) if position is None and place.attempt else Idle()
            until = self._seconds() + FOLLOW_SECONDS
            while not reader.has_ended and self._seconds() < until:
                if reader.is_stale:
                    reader.is_stale = False
                    state = await self._state(user_id, job_id)
                is_over = _is_over(state, place.attempt)
                if is_over:  # another daemon may report the end before the last bytes
                    reader.streams.update(STREAMS)
                unread = self._unread(reader, job_id, place, is_over=is_over)
                async with aclosing(unread) as events:
                    async for event in events:
                        place = event.position
                        yield event
                if is_over and number is None and state.attempts > place.attempt:
                    place = Position(place.attempt + 1)
                    reader.wake(STREAMS)
                    yield Began(place)
                elif is_over and (number is not None or state.status not in _OPEN):
                    yield Over(place, state.status)
                    return
                elif not await reader.wait(self.pace.look_seconds):
                    reader.look()
                    yield Idle()

    async def _unread(
        self, reader: Reader, job_id: str, place: Position, *, is_over: bool
    ) -> AsyncGenerator[Wrote | Cut, None]:
        """Yield the stored bytes that the reader lacks; the streams take turns."""
        attempt = Attempt(job_id, place.attempt)
        streams, reader.streams = reader.streams, set()
        waiting = [stream for stream in STREAMS if place.attempt and stream in streams]
        while waiting:
            stream = waiting.pop(0)
            offset = place.at(stream)
            fair = self.pace.total_bytes // len(self.readers)
            most = min(READ_BYTES, max(READ_LEAST_BYTES, fair))
            handed = reader.handed.pop(stream, None)
            if handed and not is_over and (handed.attempt, handed.offset) == (attempt, offset):
                part = Part(offset, handed.data, offset + len(handed.data))
            else:
                part = await self.disk.run(LogFiles.read, attempt, stream, offset, most)
            if part.data and part.offset > offset:
                place = place.moved(stream, part.offset)
                yield Cut(place, stream, offset)
            end = part.offset + len(part.data)
            is_last = is_over if end >= part.size else len(part.data) < most  # a cut follows
            # Where there is more, an event ends with a line, unless that is longer than an event.
            lines = part.data.rfind(b"\n") + 1 if end < part.size and not is_last else 0
            text, taken = text_of(part.data[: lines or None], is_last=is_last)
            if not taken and lines:
                text, taken = text_of(part.data, is_last=is_last)
            if taken:
                place = place.moved(stream, part.offset + taken)
                yield Wrote(place, stream, part.offset, part.data[:taken], text)
                waiting.append(stream)

    async def _state(self, user_id: str, job_id: str) -> StateRow:
        state = await self._store.read(queries.state, job_id)
        if state is None or state.user_id != user_id:
            raise MarketError(Code.JOB_NOT_FOUND)
        return state

    def close(self) -> None:
        """Finish the writes that are under way, and close."""
        self.readers.end()
        self.disk.close()


class LogContent:
    """Kept bytes of a stream as one file; a line in each gap has the number of missing bytes.

    Args:
        read: returns bytes of the stream by their offset and number.

    Attributes:
        size_bytes: the size of the file.
        version: changes with the content, because the size of a cut log can stay the same.
    """

    def __init__(
        self, extent: Extent, read: Callable[[int, int], Coroutine[Any, Any, Part]]
    ) -> None:
        self._read = read
        self.version = extent.size
        # The position of each part in the file, and the part: bytes of the stream, or a line.
        self._parts: list[tuple[int, tuple[int, int] | bytes]] = []
        self.size_bytes = offset = 0
        for start, end in extent.kept:
            if start > offset:
                self._add(CUT_LINE % (start - offset))
            self._add((start, end))
            offset = end

    async def read(self, offset: int, size: int) -> bytes:
        """Return some bytes of the file; fewer than `size` only at its end.

        Raises:
            BlobError: they were cut out since, or cannot be read.
        """
        pieces = []
        while size and offset < self.size_bytes:
            index = bisect_right(self._parts, offset, key=lambda each: each[0]) - 1
            begin, part = self._parts[index]
            at = offset - begin
            if isinstance(part, bytes):
                piece = part[at : at + size]
            else:
                start, end = part
                piece = await self._bytes(start + at, min(size, end - start - at))
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Do nothing, because no file is open between two reads."""

    def _add(self, part: tuple[int, int] | bytes) -> None:
        self._parts.append((self.size_bytes, part))
        self.size_bytes += len(part) if isinstance(part, bytes) else part[1] - part[0]

    async def _bytes(self, offset: int, size: int) -> bytes:
        try:
            part = await self._read(offset, size)
        except OSError as error:
            raise BlobError(str(error)) from error
        if part.offset != offset or len(part.data) != size:
            raise BlobError("the middle of the log was cut out meanwhile")
        return part.data


class _Writer:
    """Collects the bytes of a stream into larger pieces before it writes them."""

    def __init__(self, logs: Logs, log: _OpenLog, stream: str, size: int) -> None:
        self.size = size
        self._logs = logs
        self._log = log
        self._stream = stream
        self._pieces: list[bytes] = []
        self._waiting = 0

    async def take(self, pieces: AsyncIterator[bytes], skip: int) -> None:
        """Write pieces without their first `skip` bytes, which are stored already."""
        async for piece in pieces:
            new = piece[skip:] if skip else piece
            skip = max(0, skip - len(piece))
            if new:
                self._pieces.append(new)
                self._waiting += len(new)
            if self._waiting >= WRITE_BYTES:
                await self._write()

    async def close(self) -> None:
        """Write the remaining bytes, also those of a chunk that broke off."""
        if self._waiting:
            await self._write()

    async def _write(self) -> None:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._waiting = [], 0
        await self._logs._write(self._log, self._stream, self.size, data)
        self.size += len(data)


_OPEN = (JobStatus.WAITING, JobStatus.RUNNING)


async def note_begin(tx: Transaction, job: JobRow, now: int) -> bool:
    """Note that the log of a job's attempt begins; return False if it had begun before."""
    return await queries.insert(tx, LogRow(job.id, job.attempts, job.user_id), now)


async def _begin(tx: Transaction, device_id: str, attempt: Attempt, now: int) -> bool:
    """Note that the log of an attempt begins, which must be the current attempt."""
    job = await require_current(tx, device_id, attempt.job_id, attempt.number)
    return await note_begin(tx, job, now)


def _attempt_of(state: StateRow, number: int | None) -> int:
    if number is None:
        return state.attempts
    if number > state.attempts:
        message = f"There were {state.attempts} attempts at this job."
        raise MarketError(Code.INVALID_FIELD, message, field="attempt")
    return number


def _is_over(state: StateRow, number: int) -> bool:
    """Return whether no more bytes of an attempt will come."""
    if number == 0:  # there was none yet
        return state.attempts > 0 or state.status not in _OPEN
    return state.status != JobStatus.RUNNING or state.attempts != number

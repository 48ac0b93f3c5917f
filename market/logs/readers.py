"""Readers of a log while it is written: new bytes wake them immediately, on any daemon.

Readers keep their own places and fetch the stored bytes, so even for slow readers no bytes wait in
memory, except for the last small write of a log: a reader that has read all the bytes before it
needs no look at the disk. The bus wakes readers in other daemons on the database; a notice that is
lost delays a reader there by some seconds, after which it checks by itself.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from market.base.bus import LOGS, Bus
from market.base.errors import Code, MarketError
from storage.logs.files import Attempt

STREAMS = ("out", "err")
HANDED_MAX_BYTES = 4 * 1024  # of a write to each stream of a log that is read


class Handed(Struct, frozen=True):
    """The bytes of a write at an offset of a stream."""

    attempt: Attempt
    offset: int
    data: bytes


class Reader:
    """Reader of the log of a job.

    Attributes:
        streams: streams that may have new bytes.
        handed: the last write to each stream, if it was small.
        is_stale: whether the job may have changed: its attempt may be over.
        has_ended: whether the wait is over because the daemon stops.
    """

    def __init__(self) -> None:
        self.streams = set(STREAMS)
        self.handed: dict[str, Handed] = {}
        self.is_stale = True
        self.has_ended = False
        self._woken = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for new bytes; return False when none came in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self, streams: Sequence[str] = (), *, is_stale: bool = False) -> None:
        """Wake the reader to look."""
        self.streams.update(streams)
        self.is_stale = self.is_stale or is_stale
        self._woken.set()

    def look(self) -> None:
        """Note that new bytes may have come."""
        self.streams.update(STREAMS)
        self.is_stale = True


class ReaderBounds(Struct, frozen=True):
    """The number of readers.

    Attributes:
        total: each is a connection of the API, a task and a kilobyte or two.
        per_user: a browser tab is one.
    """

    total: int = 1_000
    per_user: int = 32


USUAL_BOUNDS = ReaderBounds()


class Readers:
    """The readers of logs in this daemon.

    Attributes:
        by_job: the readers of each job's log.
    """

    def __init__(self, bus: Bus, bounds: ReaderBounds = USUAL_BOUNDS) -> None:
        self.bounds = bounds
        self._bus = bus
        self.by_job: dict[str, set[Reader]] = {}
        self._by_user: dict[str, int] = {}
        self._count = 0
        self._has_ended = False
        bus.subscribe(LOGS, self._written)

    def __len__(self) -> int:
        """Number of readers."""
        return self._count

    @contextmanager
    def reading(self, job_id: str, user_id: str) -> Iterator[Reader]:
        """Wake a reader within the block.

        Raises:
            MarketError: `too_busy`, when the user, or all together, read too many.
        """
        bounds, theirs = self.bounds, self._by_user.get(user_id, 0)
        if self._count >= bounds.total or theirs >= bounds.per_user:
            raise MarketError(Code.TOO_BUSY)
        reader = Reader()
        reader.has_ended = self._has_ended
        self.by_job.setdefault(job_id, set()).add(reader)
        self._by_user[user_id] = self._by_user.get(user_id, 0) + 1
        self._count += 1
        try:
            yield reader
        finally:
            self._count -= 1
            self._by_user[user_id] -= 1
            if not self._by_user[user_id]:
                del self._by_user[user_id]
            self.by_job[job_id].discard(reader)
            if not self.by_job[job_id]:
                del self.by_job[job_id]

    def hand(self, stream: str, written: Handed) -> None:
        """Keep a write to a stream for the readers here, if it is small."""
        if len(written.data) <= HANDED_MAX_BYTES:
            for reader in self.by_job.get(written.attempt.job_id, ()):
                reader.handed[stream] = written

    def written(self, job_id: str, stream: str) -> None:
        """Wake the readers of a job's log, here and on other daemons, after a write to a stream."""
        self._bus.publish(LOGS, (f"{job_id}:{stream}",))

    def end(self) -> None:
        """End all readers, because the daemon stops; they come again, to it or to another."""
        self._has_ended = True
        for readers in self.by_job.values():
            for reader in readers:
                reader.has_ended = True
                reader.wake()

    def catch_up(self) -> None:
        """Wake all readers to look, because notices may have been lost."""
        for readers in self.by_job.values():
            for reader in readers:
                reader.wake(STREAMS, is_stale=True)

    def _written(self, keys: Sequence[str]) -> None:
        for key in keys:
            job_id, _, stream = key.rpartition(":")
            for reader in self.by_job.get(job_id, ()):
                reader.wake((stream,))

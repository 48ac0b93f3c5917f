"""Who reads a log while it is written: woken the moment that something comes, here or elsewhere.

Readers keep their own places and fetch what is there: however slow they are, nothing waits for them
in memory. Other daemons on the database hear of a log by notices, many jobs to one; a notice that
is lost costs a reader there some seconds, after which it looks by itself.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from market.base.errors import Code, MarketError
from storage.engines.errors import StoreError, level_of
from storage.engines.store import Store, Transaction

# A person does not see it, and a busy log costs the database twenty small transactions a second.
NOTICE_SECONDS = 0.05
# Texts of a notice have at most 4,000 bytes; an identifier has 36, and a space before it.
IDS_PER_NOTICE = 100
# Not sent yet. More jobs than that within a moment are a store that does not answer.
UNSENT_MAX = 10_000
STREAMS = ("out", "err")
_WORD = "log"

_logger = logging.getLogger("jobs")


class Reader:
    """One who reads the log of a job.

    Attributes:
        streams: those in which something may have come.
        is_stale: whether the job may have changed: its attempt may be over.
        has_ended: whether there is nothing more to wait for, because the daemon stops.
    """

    def __init__(self) -> None:
        self.streams = set(STREAMS)
        self.is_stale = True
        self.has_ended = False
        self._woken = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for something to come; return False when nothing did in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self, streams: Sequence[str] = (), *, is_stale: bool = False) -> None:
        """Have the reader look."""
        self.streams.update(streams)
        self.is_stale = self.is_stale or is_stale
        self._woken.set()

    def look(self) -> None:
        """Note that anything may have come."""
        self.streams.update(STREAMS)
        self.is_stale = True


class ReaderBounds(Struct, frozen=True):
    """The number of readers.

    Attributes:
        total: each is a connection of the API, a task and a kilobyte or two.
        per_user: a browser tab is one.
        failed_seconds: before notices to other daemons are sent again, after the store has failed.
    """

    total: int = 1_000
    per_user: int = 32
    failed_seconds: float = 1.0


USUAL_BOUNDS = ReaderBounds()


class Readers:
    """All who read logs in this daemon.

    Args:
        store: the database, through which other daemons hear of what comes here.
        is_shared: whether there may be others.
        bounds: their number.
    """

    def __init__(
        self, store: Store, *, is_shared: bool, bounds: ReaderBounds = USUAL_BOUNDS
    ) -> None:
        self.bounds = bounds
        self._store = store
        self._is_shared = is_shared
        self._origin = secrets.token_hex(8)
        self._by_job: dict[str, set[Reader]] = {}
        self._by_user: dict[str, int] = {}
        self._count = 0
        self._has_ended = False
        self._unsent: dict[str, None] = {}
        self._send = asyncio.Event()

    def __len__(self) -> int:
        """How many there are."""
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
        self._by_job.setdefault(job_id, set()).add(reader)
        self._by_user[user_id] = self._by_user.get(user_id, 0) + 1
        self._count += 1
        try:
            yield reader
        finally:
            self._count -= 1
            self._by_user[user_id] -= 1
            if not self._by_user[user_id]:
                del self._by_user[user_id]
            self._by_job[job_id].discard(reader)
            if not self._by_job[job_id]:
                del self._by_job[job_id]

    def written(self, job_id: str, stream: str) -> None:
        """Wake who reads a job's log, here and elsewhere: something came in a stream."""
        self._wake(job_id, (stream,))
        self._tell(job_id)

    def changed(self, job_id: str) -> None:
        """Wake who reads a job's log, here and elsewhere: an attempt has begun or is over."""
        self.changed_here(job_id)
        self._tell(job_id)

    def changed_here(self, job_id: str) -> None:
        """Do the same where other daemons hear of it in another way."""
        self._wake(job_id, is_stale=True)

    def end(self) -> None:
        """Let all of them end: the daemon stops, and they come again, to it or to another."""
        self._has_ended = True
        for readers in self._by_job.values():
            for reader in readers:
                reader.has_ended = True
                reader.wake()

    def hear(self, text: str) -> None:
        """Act on a notice of another daemon; what is not about this is passed over."""
        word, *rest = text.split(" ")
        if word != _WORD or not rest or rest[0] == self._origin:
            return
        for job_id in rest[1:]:
            self._wake(job_id, STREAMS, is_stale=True)

    def catch_up(self) -> None:
        """Have everybody look: notices may have been lost."""
        for job_id in tuple(self._by_job):
            self._wake(job_id, STREAMS, is_stale=True)

    async def run(self) -> None:
        """Tell other daemons what has come here, until cancelled; a failing store loses it."""
        while True:
            await self._send.wait()
            await asyncio.sleep(NOTICE_SECONDS)
            self._send.clear()
            unsent, self._unsent = list(self._unsent), {}
            try:
                await self._store.write(_notify, self._origin, unsent)
            except StoreError as error:
                _logger.log(
                    level_of(error, logging.WARNING), "other daemons hear of logs later: %s", error
                )
                await asyncio.sleep(self.bounds.failed_seconds)

    def _wake(self, job_id: str, streams: Sequence[str] = (), *, is_stale: bool = False) -> None:
        for reader in self._by_job.get(job_id, ()):
            reader.wake(streams, is_stale=is_stale)

    def _tell(self, job_id: str) -> None:
        if self._is_shared and len(self._unsent) < UNSENT_MAX:
            self._unsent[job_id] = None
            self._send.set()


async def _notify(tx: Transaction, origin: str, job_ids: Sequence[str]) -> None:
    await tx.notify(
        *(
            " ".join((_WORD, origin, *job_ids[start : start + IDS_PER_NOTICE]))
            for start in range(0, len(job_ids), IDS_PER_NOTICE)
        )
    )

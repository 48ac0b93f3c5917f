"""A process's presence among others on one SQLite database: a row, a pipe, and a lock file.

The row is renewed like that of a node on PostgreSQL, so a process that hangs is declared dead after
the timeout. A process that has ended is detected without delay, because its pipe has no reader
(`NodeFolder`). The sweepers' lock is free when its process ends; from one that hangs it is taken
away.

The process with the API takes the lock of the sweeper. While the lock is free, the other processes
reap the dead ones.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from storage.engines.errors import UnavailableError
from storage.engines.node_folder import NodeFolder, Presence
from storage.engines.store import Store, Transaction

# As for a server: an answer that takes longer leaves time to try anew.
ANSWERS_PER_TIMEOUT = 3
# Some seven hundred notices. The loop serves others before it reads on.
READ_BYTES = 64 * 1024

# All processes are on one machine, so its clock is the one of the database.
_NOW = "CAST(strftime('%s', 'now') AS INTEGER)"
_REGISTER = f"INSERT INTO nodes (id, started_at, seen_at) VALUES (:id, {_NOW}, {_NOW})"
_RENEW = f"UPDATE nodes SET seen_at = {_NOW}, renewals = renewals + 1 WHERE id = :id"

_logger = logging.getLogger("node")


class SqliteLink:
    """A `Link` to the other processes on an SQLite database.

    Args:
        timeout_seconds: how long the holder of the sweepers' lock may be silent before it loses it.
    """

    def __init__(self, store: Store, folder: NodeFolder, timeout_seconds: float) -> None:
        self._store = store
        self._folder = folder
        self._timeout = timeout_seconds
        self._on_notice: Callable[[str], None] = _nobody
        self._on_lost: Callable[[], None] = _nobody
        self._node_id: str | None = None
        self._pipe: int | None = None
        self._unread = b""
        self._presence = Presence(frozenset(), frozenset())
        self._sweeper = _SweeperLock(folder, timeout_seconds)

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """See `Link.connect`. The pipe stays open: to the others one that is closed is a death."""
        self._on_notice, self._on_lost = on_notice, on_lost
        async with self._answering():
            self._folder.make()
            self._presence = self._folder.look()
            if self._pipe is None and self._node_id is not None:
                self._listen(self._node_id, self._folder.open_pipe(self._node_id))

    async def register(self, node_id: str) -> None:
        """See `Link.register`. A process that sees the row finds the pipe."""
        async with self._answering():
            pipe = self._folder.open_pipe(node_id)
            try:
                await self._store.write(_run, _REGISTER, node_id)
            except BaseException:
                os.close(pipe)  # and is left to be found: the row may be there all the same
                raise
            self._forget_pipe()
            self._listen(node_id, pipe)

    async def renew(self, node_id: str) -> bool:
        """See `Link.renew`. Notices that may have been missed count as a lost connection."""
        if self._pipe is None or not self._folder.is_pipe_of(node_id, self._pipe):
            self._forget_pipe()
            raise UnavailableError(f"the pipe of this node was removed from {self._folder.path}")
        async with self._answering():
            is_alive = bool(await self._store.write(_run, _RENEW, node_id))
        self._look_for_ends()
        self._look_for_missed()
        return is_alive

    async def exited(self, node_ids: Collection[str]) -> list[str]:
        """See `Link.exited`. Pipes of nodes that the database does not have are removed."""
        ended = self._folder.look().ended
        for node_id in ended.difference(node_ids):
            self._folder.remove_pipe(node_id)
        return [node_id for node_id in node_ids if node_id in ended]

    async def end_hanging(self) -> int:
        """See `Link.end_hanging`: the one writer runs units, and no process can stop it."""
        return 0

    async def try_to_sweep(self) -> bool:
        """See `Link.try_to_sweep`."""
        async with self._answering():
            return self._sweeper.take()

    async def is_unswept(self) -> bool:
        """See `Link.is_unswept`."""
        async with self._answering():
            return self._sweeper.is_free()

    async def close(self) -> None:
        """See `Link.close`."""
        self._sweeper.close()
        self._forget_pipe()
        self._node_id = None

    def _listen(self, node_id: str, pipe: int) -> None:
        self._node_id, self._pipe, self._unread = node_id, pipe, b""
        asyncio.get_running_loop().add_reader(pipe, self._read)

    def _forget_pipe(self) -> None:
        """Close the pipe and remove it; the node keeps its name."""
        pipe, self._pipe = self._pipe, None
        if pipe is None or self._node_id is None:
            return
        asyncio.get_running_loop().remove_reader(pipe)
        if self._folder.is_pipe_of(self._node_id, pipe):
            self._folder.remove_pipe(self._node_id)
        os.close(pipe)

    def _read(self) -> None:
        """Hand on the notices that have arrived; the loop calls again while there are more."""
        assert self._pipe is not None  # noqa: S101 - it is watched for as long as it is open
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line:
                self._on_notice(line.decode())
        self._look_for_missed()

    def _look_for_ends(self) -> None:
        """Act as if notices were missed when a node has ended: perhaps it had not sent its last."""
        before, self._presence = self._presence, self._folder.look()
        if before.living - self._presence.living or self._presence.ended - before.ended:
            self._on_lost()

    def _look_for_missed(self) -> None:
        if self._node_id is not None and self._folder.take_missed(self._node_id):
            _logger.warning("notices were missed: this node reads the changes from the database")
            self._on_lost()

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Turn a refusal of the file system, and a late answer, into a lost connection."""
        try:
            async with asyncio.timeout(self._timeout / ANSWERS_PER_TIMEOUT):
                yield
        except (OSError, TimeoutError) as error:
            raise UnavailableError(str(error) or type(error).__name__) from error


class _SweeperLock:
    """The lock of the process that sweeps: flock(2) on a file, whose time of change it renews.

    A process that hangs keeps its locks. So a process that sees the file unchanged for the timeout
    removes it, and the next process that looks locks a new one. Should two do that at once, one of
    them finds at its next look that the file it has locked is not there any more. Two may sweep
    until then, which is harmless: every sweep decides in transactions.

    Args:
        timeout_seconds: how long it may stay unchanged.
    """

    def __init__(self, folder: NodeFolder, timeout_seconds: float) -> None:
        self._folder = folder
        self._timeout = timeout_seconds
        self._descriptor: int | None = None
        # Inode and time of change of another holder's file, and since when they are unchanged
        # (monotonic).
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0

    def take(self) -> bool:
        """Return whether this process has the lock, which it takes if it is free.

        Raises:
            OSError: the file cannot be used.
        """
        if self._descriptor is None:
            self._descriptor = self._open()
        if self._descriptor is not None and not self._is_in_place(self._descriptor):
            self.close()
        if self._descriptor is None:
            return False
        os.utime(self._descriptor)
        return True

    def is_free(self) -> bool:
        """Return whether the lock is free.

        A process that tries to take it meanwhile tries again later.

        Raises:
            OSError: the file cannot be used.
        """
        assert self._descriptor is None  # noqa: S101 - who has taken it knows that it is not free
        descriptor = self._open()
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def close(self) -> None:
        """Free the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int | None:
        """Return the file's descriptor if it could be locked."""
        descriptor = self._folder.open_lock(self._folder.sweeper.name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._watch_holder(os.fstat(descriptor))
        except OSError:
            os.close(descriptor)
            raise
        else:
            return descriptor
        os.close(descriptor)
        return None

    def _watch_holder(self, status: os.stat_result) -> None:
        """Remove the file of a holder that is silent for too long."""
        seen, now = (status.st_ino, status.st_mtime_ns), time.monotonic()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        elif now - self._seen_at >= self._timeout:
            _logger.warning("the node that sweeps is silent; another one takes over")
            self._folder.sweeper.unlink(missing_ok=True)

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._folder.sweeper.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False


async def _run(tx: Transaction, sql: str, node_id: str) -> int:
    return await tx.run(sql, id=node_id)


def _nobody(*_: object) -> None:
    """Ignore the call: there is no listener yet."""

"""A gate before SQLite's write lock, at which the writers of several processes take turns.

SQLite has whoever finds the database locked sleep, up to a tenth of a second, and look again.
Beside a process that writes all the time such a writer waits for seconds. So writers line up at two
locks of their own: whoever has `next` waits for `turn`, and lets go of `next` when it has that. A
process that has just written cannot be quicker than the one that waits, because `next` is not free.
The locks are flock(2)'s: those of a process that dies are free.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from storage.node_folder import NodeFolder, wait_for_lock

# Shorter than a durable commit on most disks, so that turns follow closely; and the
# looks cost next to nothing: two thousand a second take half a hundredth of a core.
STEP_SECONDS = 0.0005


class WriteGate:
    """See above. It is entered by one thread.

    Args:
        folder: where the locks are.
        timeout_seconds: how long to wait before a write fails.
    """

    def __init__(self, folder: NodeFolder, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._next = folder.open_lock("next")
        try:
            self._turn = folder.open_lock("turn")
        except OSError:
            os.close(self._next)
            raise

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Wait for this process's turn, and have it until the end of the block.

        Raises:
            UnavailableError: another process does not end its turn.
        """
        self._wait(self._next)
        try:
            self._wait(self._turn)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the locks, once nobody enters any more."""
        os.close(self._next)
        os.close(self._turn)

    def _wait(self, lock: int) -> None:
        wait_for_lock(lock, seconds=self._timeout, step_seconds=STEP_SECONDS)

"""The claim on an SQLite database: an exclusive lock on a file beside it, held while it is served.

The kernel frees the lock when its last descriptor is closed, however the processes end that had it.
So a process that only starts others takes the claim once and has them inherit the descriptor: the
claim lasts as long as any of them lives.
"""

import fcntl
import os
from pathlib import Path

from storage.engines.errors import AlreadyClaimedError, CannotOpenError
from storage.engines.place import SQLITE


def take_claim(url: str) -> int | None:
    """Become the one service on the database of a URL, before it is opened.

    Returns:
        A descriptor that processes inherit which are forked from this one; the claim is given up
        when all of them have closed it. None on PostgreSQL, which serves any number of daemons.

    Raises:
        AlreadyClaimedError: another service has claimed it.
        CannotOpenError: the claim cannot be recorded.
    """
    if not url.startswith(SQLITE):
        return None
    path = Path(url.removeprefix(SQLITE))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotOpenError(f"{path.parent}: {error.strerror or error}") from error
    return lock_beside(path)


def lock_beside(path: Path) -> int:
    """Lock the file beside a database; return its descriptor, whose closing frees the lock.

    Raises:
        AlreadyClaimedError: another process has locked it.
        CannotOpenError: the file cannot be opened.
    """
    lock_path = f"{path}.lock"
    try:
        descriptor = os.open(lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotOpenError(f"{lock_path}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyClaimedError(f"{path}: another proxyd serves from this database") from None
    return descriptor


def is_claimed(url: str) -> bool:
    """Return whether a service runs on the SQLite database of a URL; False on PostgreSQL."""
    if not url.startswith(SQLITE):
        return False
    try:
        descriptor = os.open(f"{url.removeprefix(SQLITE)}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

"""Files beside the database of a demonstration that runs: its token and its examples.

Only the user of the daemon can read them. The file of the examples is locked while the
demonstration runs, in whichever process: the kernel frees the lock when the last process has ended,
so a file that a killed daemon left behind is not mistaken for a demonstration.
"""

import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Self

from config.settings import Settings, StorageSettings
from proxyd.ops.base.errors import CannotServeError
from storage.engines.place import is_sqlite

TOKEN_SUFFIX = "-demo.token"  # noqa: S105 - the end of a file's name
EXAMPLES_SUFFIX = "-demo.txt"
# Starts a second demonstration beside one with the usual values.
SECOND = (
    "PROXYD_STORAGE__URL=sqlite:///var/second.db PROXYD_API__PORT=8090 PROXYD_PROXY__PORT=1180 "
    "make run"
)
_TOKEN_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
LOCK_ATTEMPTS = 5
LOCK_AGAIN_SECONDS = 0.05


class DemoFilesError(CannotServeError):
    """No demonstration runs, or its files cannot be written; the message says which."""


def database_file(settings: Settings) -> Path:
    """Return the file of the SQLite database; the default one where PostgreSQL is the database."""
    url = settings.storage.url
    return Path((url if is_sqlite(url) else StorageSettings().url).removeprefix("sqlite:///"))


def beside(settings: Settings, suffix: str) -> Path:
    """Return the file of a demonstration whose name ends with a suffix."""
    database = database_file(settings)
    return database.with_name(database.stem + suffix)


class DemoFiles:
    """The two files, from the start of a demonstration to its end.

    Args:
        settings: name the database that the files lie beside.
        examples: descriptor of the file of the examples, which is locked.
    """

    def __init__(self, settings: Settings, examples: int) -> None:
        self._settings = settings
        self._examples = examples

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Make and lock the file of the examples, which stays empty until `write`.

        Raises:
            DemoFilesError: the file cannot be written, or another demonstration holds it.
        """
        path = beside(settings, EXAMPLES_SUFFIX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DemoFilesError(f"{path.parent}: {error.strerror or error}") from error
        for _ in range(LOCK_ATTEMPTS):
            descriptor = _opened(path, os.O_CREAT | os.O_RDWR)
            if _is_locked(descriptor) and os.fstat(descriptor).st_nlink == 1:
                os.fchmod(descriptor, 0o600)
                os.ftruncate(descriptor, 0)
                return cls(settings, descriptor)
            # A reader holds the lock for an instant, or an ending demonstration removed the file.
            os.close(descriptor)
            time.sleep(LOCK_AGAIN_SECONDS)
        usual = settings.storage.url == StorageSettings().url
        example = f": {SECOND}" if usual else ""
        raise DemoFilesError(
            f"{path}: another demonstration runs in this folder; stop it, or give this one a "
            f"database and ports of its own{example}"
        )

    @property
    def token_path(self) -> Path:
        """The file of the token."""
        return beside(self._settings, TOKEN_SUFFIX).absolute()

    def write(self, token: str, examples: str) -> None:
        """Write both files; the examples last, because their reader needs the token."""
        path = self.token_path
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, _TOKEN_FLAGS, 0o600), "w", encoding="ascii") as file:
            file.write(token + "\n")
        os.ftruncate(self._examples, 0)
        os.lseek(self._examples, 0, os.SEEK_SET)  # an earlier process has moved it, if it died here
        with os.fdopen(os.dup(self._examples), "w", encoding="utf-8") as file:
            file.write(examples)

    def close(self) -> None:
        """Remove both files, and free the lock."""
        self.token_path.unlink(missing_ok=True)
        beside(self._settings, EXAMPLES_SUFFIX).unlink(missing_ok=True)
        os.close(self._examples)


def examples(settings: Settings) -> str:
    """Return the examples of the demonstration that runs beside these settings' database.

    Raises:
        DemoFilesError: none runs, it is still starting, or its file cannot be read.
    """
    path = beside(settings, EXAMPLES_SUFFIX)
    try:
        descriptor = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        raise _none(f"there is no file {path}") from None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        if _is_locked(descriptor, fcntl.LOCK_SH):
            raise _none(f"{path} is not in use")
        text = file.read()
    if not text:
        raise DemoFilesError("the demonstration is still starting; repeat the command in a moment")
    return text


def _none(place: str) -> DemoFilesError:
    return DemoFilesError(
        f"no demonstration runs here ({place}); start one with `make run`, and repeat this command "
        "in the same folder, with the same PROXYD_STORAGE__URL if you have set one"
    )


def _opened(path: Path, flags: int) -> int:
    """Open a file that only this user can have made: others may write to the folder.

    Raises:
        FileNotFoundError: the file does not exist.
        DemoFilesError: the file cannot be opened, or another user could change it.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DemoFilesError(f"{path}: {error.strerror or error}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        os.close(descriptor)
        raise DemoFilesError(f"{path}: not a file of this user alone; remove it")
    return descriptor


def _is_locked(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file. Return False if another process holds a lock that excludes this one."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

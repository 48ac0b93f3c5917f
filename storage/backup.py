"""A copy of a live SQLite database: whole, consistent, readable by its owner alone."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from storage.errors import CannotOpenError, StoreError

PAGES_PER_STEP = 4096
PAUSE_SECONDS = 0.0


class BackupError(StoreError):
    """There is no backup; the message says why, for the operator."""


def back_up(url: str, target: Path) -> int:
    """Copy the database of a URL into a file that is not there yet; return its size in bytes.

    The daemon may go on meanwhile: the copy is as of one moment. The file appears when it is whole.

    Raises:
        BackupError: the database is none of SQLite's, or the file is there or cannot be written.
        CannotOpenError: the database cannot be read.
    """
    if not url.startswith("sqlite:///"):
        raise BackupError("a PostgreSQL database is backed up by pg_dump --format=custom")
    source = Path(url.removeprefix("sqlite:///"))
    if not source.is_file():
        raise CannotOpenError(f"{source}: there is no database")
    if target.exists():
        raise BackupError(f"{target}: is there already; name another file")
    try:
        return _copy(source, target)
    except sqlite3.Error as error:
        raise BackupError(f"{source}: {error}") from error
    except FileExistsError:
        raise BackupError(f"{target}: is there already; name another file") from None
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}") from error


def _copy(source: Path, target: Path) -> int:
    """Copy beside the target, and give it its name last."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    partial = Path(name)
    try:
        with (
            closing(sqlite3.connect(f"file:{source.resolve()}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(partial)) as copy,
        ):
            # One snapshot for all steps: else each write between two of them begins the copy anew.
            live.execute("BEGIN")
            live.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            live.backup(copy, pages=PAGES_PER_STEP, sleep=PAUSE_SECONDS)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
        os.fsync(descriptor)
        os.link(partial, target)
        _sync_folder(target.parent)
        return target.stat().st_size
    finally:
        os.close(descriptor)
        partial.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A copy of a live SQLite database: whole, consistent, readable only by its owner."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from storage.engines.durable import sync_folder
from storage.engines.errors import CannotOpenError, StoreError

# 16 MiB at SQLite's page size of 4 KiB: so few steps that their own cost does not show.
PAGES_PER_STEP = 4096
# `backup` sleeps after a step that found the database locked. No pause: the daemon's log grows for
# as long as the copy's snapshot lasts, so the copy should be over soon.
PAUSE_SECONDS = 0.0
# Of a disk, as extended codes of SQLite.
_WRITE_ERRORS = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
)


class BackupError(StoreError):
    """A backup was not made; the message has the reason for the operator."""


def back_up(url: str, target: Path) -> int:
    """Copy the database of a URL into a new file; return the file's size in bytes.

    The daemon may write meanwhile: the copy is of one moment. The file appears once it is complete.

    Raises:
        BackupError: it is not an SQLite database, or the file exists or cannot be written.
        CannotOpenError: the database cannot be read.
    """
    if not url.startswith("sqlite:///"):
        raise BackupError("a PostgreSQL database is backed up by pg_dump --format=custom")
    source = Path(url.removeprefix("sqlite:///"))
    if not source.is_file():
        raise CannotOpenError(f"{source}: there is no database")
    if target.exists():
        raise BackupError(f"{target}: file exists; choose another name")
    try:
        return _copy(source, target)
    except sqlite3.Error as error:
        raise BackupError(f"{target if is_of_writing(error) else source}: {error}") from error
    except FileExistsError:
        raise BackupError(f"{target}: file exists; choose another name") from None
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}") from error


def is_of_writing(error: sqlite3.Error) -> bool:
    """Return whether a copy failed at its target, as on a full disk: the source is only read."""
    return getattr(error, "sqlite_errorcode", None) in _WRITE_ERRORS


def _copy(source: Path, target: Path) -> int:
    """Copy into a hidden file in the target's folder, then link it to the target's name.

    A link fails where a rename would overwrite.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    partial = Path(name)
    try:
        with (
            closing(sqlite3.connect(f"file:{source.resolve()}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(partial)) as copy,
        ):
            # One snapshot for all steps: else a write between two of them restarts the copy.
            live.execute("BEGIN")
            live.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            live.backup(copy, pages=PAGES_PER_STEP, sleep=PAUSE_SECONDS)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
        os.fsync(descriptor)
        os.link(partial, target)
        sync_folder(target.parent)
        return target.stat().st_size
    finally:
        os.close(descriptor)
        partial.unlink()
        Path(f"{partial}-journal").unlink(missing_ok=True)  # SQLite leaves it on a full disk

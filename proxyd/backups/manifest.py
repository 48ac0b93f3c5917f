"""MANIFEST, the list of the files of a backup: its first line is the hash of the rest, in JSON."""

import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from proxyd.backups.files import is_safe, opened_beneath
from storage.backups.errors import BackupError

NAME = "MANIFEST"
FORMAT = 1
# A million files of jobs take a hundred and fifty megabytes.
MAX_BYTES = 512 * 1024 * 1024
_HASH_DIGITS = 64
_LATEST = 253_402_300_799  # the last second of the year 9999, which a date can show


class Entry(Struct, frozen=True):
    """File of a backup: its path in the folder, its size, and its hash in hexadecimal."""

    path: str
    size: int
    sha256: str


class DumpedTable(Struct, frozen=True):
    """Table of a PostgreSQL database: its name, columns, and the file of its rows."""

    name: str
    columns: tuple[str, ...]
    path: str


class Manifest(Struct, frozen=True):
    """Content of a backup.

    `copied_at` is the moment of the database's snapshot, in UTC seconds. `database` is the path of
    the copy of an SQLite database, "" with PostgreSQL, which has `tables`.
    """

    format: int
    program: str
    schema: int
    engine: Literal["sqlite", "postgresql"]
    copied_at: int
    files: tuple[Entry, ...]
    database: str = ""
    tables: tuple[DumpedTable, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(entry.size for entry in self.files)

    def entry(self, path: str) -> Entry:
        """Return the entry of a file.

        Raises:
            BackupError: the manifest has no such file.
        """
        for each in self.files:
            if each.path == path:
                return each
        raise BackupError(f"{NAME} has no file {path}")


def encoded(manifest: Manifest) -> bytes:
    """Return the content of the file."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    return f"{hashlib.sha256(body).hexdigest()}\n".encode() + body


def read(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        BackupError: the folder is no backup, the manifest was changed or cut off, another version
            made it, or it names a file outside the folder.
    """
    if not folder.is_dir():
        raise BackupError(f"{folder}: there is no such folder")
    if not os.path.lexists(folder / NAME):
        raise BackupError(f"{folder}: it has no {NAME}, so it is no backup")
    with opened_beneath(folder, NAME) as file:
        text = file.read(MAX_BYTES + 1)
    first, _, body = text.partition(b"\n")
    if len(text) > MAX_BYTES or hashlib.sha256(body).hexdigest().encode() != first:
        raise BackupError(f"{folder}: {NAME} was changed or cut off: its hash differs")
    try:
        form = msgspec.json.decode(body, type=_Form)
        if form.format != FORMAT:
            raise BackupError(
                f"{folder}: the backup has format {form.format}, this program reads {FORMAT}; "
                f"proxyd {form.program!a} made it"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{folder}: {NAME} cannot be read: {error}") from error
    _check(folder, manifest)
    return manifest


class _Form(Struct, frozen=True):
    """The fields that every format has."""

    format: int
    program: str


def _check(folder: Path, manifest: Manifest) -> None:
    if not (manifest.program.isprintable() and 0 <= manifest.copied_at <= _LATEST):
        raise BackupError(f"{folder}: {NAME} has a wrong program or time")
    seen: set[str] = set()
    for entry in manifest.files:
        if not is_safe(entry.path) or entry.path in seen or entry.path == NAME:
            raise BackupError(f"{folder}: {NAME} names a file that no backup has: {entry.path!a}")
        if entry.size < 0 or len(entry.sha256) != _HASH_DIGITS:
            raise BackupError(f"{folder}: {NAME} has a wrong size or hash of {entry.path}")
        seen.add(entry.path)

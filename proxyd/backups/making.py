"""Makes a backup: the database first, then the files that it refers to, and MANIFEST last."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from config.settings import Settings
from config.writing import as_toml
from proxyd import __version__
from proxyd.backups import contents, files, folder, manifest
from proxyd.backups.manifest import DumpedTable, Entry, Manifest
from proxyd.loop import clock
from storage.backups import sqlite_rows
from storage.backups.errors import BackupError
from storage.engines.place import is_sqlite

# Left free beside the backup, for the logs and the database of the machine.
RESERVE_BYTES = 16 * 1024 * 1024


class Made(NamedTuple):
    """A backup that is complete: its folder, its content, and the names of removed older ones."""

    path: Path
    manifest: Manifest
    removed: list[str]


async def back_up_all(
    settings: Settings, config: Path | None, target: Path, *, keep: int | None = None
) -> Made:
    """Make a backup of everything in a new folder within `target`, while the daemon may run.

    Args:
        settings: the settings of the daemon.
        config: their file; None without one.
        target: the folder of backups, made if it is missing.
        keep: the number of backups to keep, with the new one; None for all.

    Raises:
        BackupError: it was not made, and earlier ones are unchanged.
        CannotOpenError: the database cannot be read.
    """
    now = clock.seconds()
    path = target / folder.name_of(now)
    with _reporting(target), folder.claimed(target):
        if path.exists():
            raise BackupError(f"{path}: this backup exists; wait for a second")
        partial = path.with_name(f"{path.name}{folder.PARTIAL}")
        partial.mkdir(mode=0o700)
        try:
            made = await _write(settings, config, partial, now)
            folder.complete(partial, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        removed = [] if keep is None else folder.remove_old(target, keep, path.name)
    return Made(path, made, removed)


@contextmanager
def _reporting(target: Path) -> Iterator[None]:
    """Turn a failure of the disk into one line for the operator.

    Raises:
        BackupError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise BackupError(f"{error.filename or target}: {error.strerror or error}") from error


async def _write(settings: Settings, config: Path | None, partial: Path, now: int) -> Manifest:
    """Write everything into a folder; return the manifest."""
    if is_sqlite(settings.storage.url):
        made = _copy_sqlite(settings, partial, now)
    else:
        made = await _dump_postgres(settings, partial, now)
    entries = list(made.files)
    parts = contents.state_parts(settings)
    entries.extend(_copy(part.source, partial, part.path) for part in parts)
    entries.append(_put(partial, contents.EFFECTIVE, [as_toml(settings).encode()]))
    if config is not None:
        entries.append(_copy(config, partial, contents.ORIGINAL))
    for part in contents.work_parts(settings):
        try:
            entries.append(_copy(part.source, partial, part.path))
        except FileNotFoundError:
            continue  # its time was over, and the daemon has deleted it meanwhile
    complete = replace(made, files=tuple(entries))
    _put(partial, manifest.NAME, [manifest.encoded(complete)])
    return complete


def _copy_sqlite(settings: Settings, partial: Path, now: int) -> Manifest:
    """Copy an SQLite database; return a manifest of it."""
    source = contents.database_file(settings)
    schema = sqlite_rows.version(source)
    beside = [Path(f"{source}{suffix}") for suffix in ("", "-wal")]
    _require_room(settings, partial, sum(each.stat().st_size for each in beside if each.exists()))
    path = f"{contents.DATABASE}/{source.name}"
    (partial / contents.DATABASE).mkdir(mode=0o700)
    sqlite_rows.copy(source, partial / path)
    size, sha256 = files.hashed(partial / path)
    entry = Entry(path, size, sha256)
    return Manifest(manifest.FORMAT, __version__, schema, "sqlite", now, (entry,), path)


async def _dump_postgres(settings: Settings, partial: Path, now: int) -> Manifest:
    """Copy the rows of a PostgreSQL database out; return a manifest of them."""
    from storage.backups import postgres_rows  # noqa: PLC0415 - a driver that SQLite does not need

    entries, dumped = [], []
    url = settings.storage.direct_url or settings.storage.url
    async with postgres_rows.connected(url) as connection, postgres_rows.snapshot(connection):
        schema = await postgres_rows.version(connection)
        _require_room(settings, partial, await postgres_rows.size(connection))
        for table in await postgres_rows.tables(connection):
            path = f"{contents.DATABASE}/{table.name}.copy"
            with files.new_file(partial / path) as file:

                async def sink(data: bytes, file: files.HashedFile = file) -> None:
                    file.write(data)

                await postgres_rows.copy_out(connection, table, sink)
                entries.append(Entry(path, file.size, file.finish()))
            dumped.append(DumpedTable(table.name, tuple(table.columns), path))
    return Manifest(
        manifest.FORMAT,
        __version__,
        schema,
        "postgresql",
        now,
        tuple(entries),
        tables=tuple(dumped),
    )


def _require_room(settings: Settings, partial: Path, database_bytes: int) -> None:
    """Raise if the disk has too little room for a backup.

    Raises:
        BackupError: it has too little.
    """
    needed = database_bytes + RESERVE_BYTES
    for part in (*contents.state_parts(settings), *contents.work_parts(settings)):
        try:
            needed += part.source.stat().st_size
        except FileNotFoundError:
            continue  # deleted meanwhile; one that must be there is missed when it is copied
    free = files.free_bytes(partial)
    if free < needed:
        raise BackupError(
            f"{partial.parent}: the backup needs up to {needed} bytes, {free} are free"
        )


def _copy(source: Path, partial: Path, path: str) -> Entry:
    """Copy a file as long as it is now; a log that grows meanwhile does not delay the end."""
    with source.open("rb") as file:
        left = source.stat().st_size
        return _put(partial, path, _first(files.chunks(file), left))


def _first(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes."""
    left = size
    for data in chunks:
        yield data[:left]
        left -= len(data[:left])
        if not left:
            return


def _put(partial: Path, path: str, chunks: Iterable[bytes]) -> Entry:
    """Write a new file of a backup; return its entry."""
    with files.new_file(partial / path) as file:
        for data in chunks:
            file.write(data)
        return Entry(path, file.size, file.finish())

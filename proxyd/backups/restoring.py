"""Restores a backup into new places. Then the service is held until the operator confirms it.

Nothing that exists is changed: the folder must be new or empty, and so must a PostgreSQL database.
Each file is hashed while it is copied. All of it gets its name at the end.
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from config.load import SettingsError, load
from config.settings import Settings
from config.writing import as_toml
from market.bandwidth.leases import Leases
from market.base.ids import Identifiers
from market.erasure.erasing import erase_again
from market.money.audit import Report
from market.staff.audit import audit_all
from proxyd.backups import contents, files, folder, manifest
from proxyd.backups.manifest import DumpedTable, Entry, Manifest
from proxyd.loop import clock
from proxyd.ops.base import signing_key
from proxyd.ops.base.books import AUDIT_STATEMENT_SECONDS, context_of, opened
from proxyd.ops.erasure.erasures import FILE_NAME, ErasureLog, Line
from storage.backups import restorations
from storage.backups.errors import BackupError
from storage.backups.restorations import OpenRow
from storage.engines import migrate
from storage.engines.open import open_store
from storage.engines.place import SQLITE, is_postgres
from storage.engines.store import Store
from storage.erasure.erasing import touched

# The end of a name that no other program uses: the folder of a killed restoration is removed.
PARTIAL = ".proxyd-restore"


class Restored(NamedTuple):
    """A restored service: its settings, the closed leases, its open work, and the audit.

    `erased` users were erased again.
    """

    settings: Path
    leases: int
    work: OpenRow
    report: Report
    erased: int


async def restore(
    backup: Path, target: Path, database: str, erased: Path | None = None
) -> tuple[Manifest, Restored]:
    """Restore a backup into a new folder, and hold the service.

    Args:
        backup: the folder of the backup.
        target: the new folder, absent or empty.
        database: the URL of an empty PostgreSQL database, for a backup of one; else "".
        erased: the newest record of erasures; None if only that of the backup is known.

    Raises:
        BackupError: nothing was restored.
        CannotOpenError: the database cannot be opened.
    """
    target = _named(target)
    _refuse_swapped(backup, target)
    read = manifest.read(backup)
    _refuse_newer(backup, read)
    _refuse_wrong_engine(backup, read, database)
    try:
        with _partial(target, read.size) as partial:
            _copy_files(backup, read, partial)
            settings = _settings(backup, read, partial)
            if database:
                await _load(backup, read, database)
            record = _record_of_erasures(partial, database, erased)
            url = database or _sqlite_url(partial, read)
            restored = await _open(url, partial, read, record)
            _write_settings(settings, partial, target, database or _sqlite_url(target, read))
            folder.complete(partial, target)
    except OSError as error:
        raise BackupError(f"{error.filename or target}: {error.strerror or error}") from error
    return read, restored._replace(settings=target / contents.RESTORED_SETTINGS)


def _refuse_swapped(backup: Path, target: Path) -> None:
    """Refuse the two folders in the wrong order.

    Raises:
        BackupError: only the new folder is a backup.
    """
    if (target / manifest.NAME).exists() and not (backup / manifest.NAME).exists():
        raise BackupError(f"{target} is the backup, and comes first: proxyd restore BACKUP DIR")


def _named(target: Path) -> Path:
    """Return the same path with a name at its end, also for `.` and `..`."""
    return Path(os.path.abspath(target))  # noqa: PTH100 - a link stays a link, to be refused


def _sqlite_url(place: Path, read: Manifest) -> str:
    """Return the URL of the restored SQLite database in a folder."""
    return f"{SQLITE}{place.resolve() / Path(read.database).name}"


def _write_settings(settings: Settings, partial: Path, target: Path, url: str) -> None:
    """Write the settings of the restored service, as it will be in `target`."""
    has_key = (partial / signing_key.FILE_NAME).exists()
    text = as_toml(contents.moved(settings, target.resolve(), url, has_key=has_key))
    with files.new_file(partial / contents.RESTORED_SETTINGS) as file:
        file.write(text.encode())
        file.finish()


async def confirm(settings: Settings) -> int:
    """Confirm the restorations of a database. Return their number."""
    async with opened(settings) as store:
        return await store.write(restorations.confirm, clock.seconds())


def _refuse_newer(backup: Path, read: Manifest) -> None:
    newest = migrate.migrations("sqlite")[-1].version
    if read.schema > newest:
        raise BackupError(
            f"{backup}: the backup has schema version {read.schema}, this program knows only "
            f"{newest}; use proxyd {read.program}, which made it, or a newer one"
        )


def _refuse_wrong_engine(backup: Path, read: Manifest, database: str) -> None:
    if read.engine == "postgresql" and not is_postgres(database):
        raise BackupError(
            f"{backup}: a backup of PostgreSQL needs an empty database: --database postgresql://…"
        )
    if read.engine == "sqlite" and database:
        raise BackupError(
            f"{backup}: a backup of SQLite is restored without --database; then move it with "
            "proxyd storage move"
        )


@contextmanager
def _partial(target: Path, size: int) -> Iterator[Path]:
    """Yield a new folder beside the target, which is removed at the end of the block.

    Raises:
        BackupError: the target exists, another program restores into it, or the disk is full.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BackupError(f"{target}: not a folder")
    if target.exists() and any(target.iterdir()):
        raise BackupError(f"{target}: the folder is not empty; name a new one")
    if target.is_mount():  # no rename replaces it
        raise BackupError(f"{target}: a file system is mounted there; name a new folder in it")
    if not target.parent.is_dir():
        raise BackupError(f"{target.parent}: there is no such folder")
    free = files.free_bytes(target.parent)
    if free < size:
        raise BackupError(f"{target.parent}: the backup has {size} bytes, {free} are free")
    partial = target.with_name(f".{target.name}{PARTIAL}")
    with folder.locked(target.parent, f"{target}: another program restores beside it"):
        if partial.is_dir():  # of a program that was killed
            shutil.rmtree(partial)
        partial.mkdir(mode=0o700)
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _copy_files(backup: Path, read: Manifest, partial: Path) -> None:
    """Copy every file but the rows of PostgreSQL and the settings."""
    elsewhere = {contents.EFFECTIVE, *(table.path for table in read.tables)}
    for entry in read.files:
        if entry.path in elsewhere:
            continue
        path = contents.restored_path(entry.path, read.database)
        if path is None:
            raise BackupError(
                f"{backup}: {manifest.NAME} names a file that no backup has: {entry.path!a}"
            )
        with files.new_file(partial / path) as file:
            for data in _verified(backup, entry):
                file.write(data)
            file.finish()
    if read.engine == "sqlite":
        read.entry(read.database)


def _verified(backup: Path, entry: Entry) -> Iterator[bytes]:
    """Yield the content of a file of a backup; fail at its end if it was changed.

    Raises:
        BackupError: it was changed, cut off, or is a link.
    """
    digest = files.Digest()
    with files.opened_beneath(backup, entry.path) as file:
        for data in files.chunks(file):
            digest.add(data)
            if digest.size > entry.size:
                break
            yield data
    if (digest.size, digest.hexdigest()) != (entry.size, entry.sha256):
        words = "its size differs" if digest.size != entry.size else "its hash differs"
        raise BackupError(
            f"{backup}: {entry.path}: {words} from {manifest.NAME}: the backup is damaged"
        )


def _settings(backup: Path, read: Manifest, partial: Path) -> Settings:
    """Return the settings of the backup.

    Raises:
        BackupError: this program does not understand them.
    """
    path = partial / contents.RESTORED_SETTINGS
    with files.new_file(path) as file:
        for data in _verified(backup, read.entry(contents.EFFECTIVE)):
            file.write(data)
        file.finish()
    try:
        return load(path, {})
    except SettingsError as error:
        raise BackupError(f"{backup}: the settings cannot be used: {error.problems[0]}") from error
    finally:
        path.unlink()


async def _load(backup: Path, read: Manifest, url: str) -> None:
    """Fill an empty PostgreSQL database, and hold it, in one transaction."""
    from storage.backups import postgres_rows  # noqa: PLC0415 - a driver that SQLite does not need

    async with postgres_rows.connected(url) as connection:
        async with connection.transaction():
            async with postgres_rows.filling(connection, read.schema) as made:
                by_name = {table.name: table for table in made}
                # In the order of the references of the schema; a table of another program has no
                # place in it.
                dumped = {table.name: table for table in read.tables}
                for name, table in by_name.items():
                    if name not in dumped:
                        raise BackupError(f"{backup}: {manifest.NAME} has no table {name}")
                    _require_columns(backup, dumped[name], set(table.columns))
                for name, table in by_name.items():
                    columns = {each: table.columns[each] for each in dumped[name].columns}
                    chunks = _chunks(backup, read.entry(dumped[name].path))
                    await postgres_rows.copy_in(connection, table._replace(columns=columns), chunks)
            await postgres_rows.hold(connection, *_restoration(read))
        await postgres_rows.analyze(connection)


def _require_columns(backup: Path, dumped: DumpedTable, columns: set[str]) -> None:
    if not columns.issuperset(dumped.columns):
        raise BackupError(f"{backup}: {dumped.name}: the table has columns of no release")


async def _chunks(backup: Path, entry: Entry) -> AsyncIterator[bytes]:
    for data in _verified(backup, entry):
        yield data


def _restoration(read: Manifest) -> tuple[str, int, int]:
    """Return the values of a new row of `restorations`."""
    return Identifiers(clock.milliseconds).new(), read.copied_at, clock.seconds()


def _record_of_erasures(partial: Path, database: str, newest: Path | None) -> ErasureLog:
    """Return the record of erasures in the folder, with the lines of a newer one.

    Raises:
        BackupError: the newer one cannot be read.
    """
    folder_of_it = partial / contents.WORK if database else partial
    log = ErasureLog(folder_of_it / FILE_NAME)
    if newest is None:
        return log
    if not newest.is_file():
        raise BackupError(f"{newest}: there is no record of erasures")
    known, _ = log.read()
    more = {user: at for user, at in ErasureLog(newest).read()[0].items() if user not in known}
    if more:
        files.make_folder(folder_of_it)
        log.add(Line(user=user, at=at) for user, at in more.items())
    return log


async def _erase_again(store: Store, log: ErasureLog) -> int:
    """Erase the users of a record in a restored database. Return their number."""
    erased, context = 0, context_of(store)
    for user_id in log.read()[0]:
        erased += await store.write(erase_again, context, user_id)
    if erased and not await store.scrub(touched()):
        raise BackupError("the restored database is in use")
    return erased


async def _open(url: str, partial: Path, read: Manifest, log: ErasureLog) -> Restored:
    """Bring the schema up to date, hold the service, close all leases, and run the audit.

    Users who were erased after the backup are erased again.
    """
    store = await open_store(
        url, pool_size=1, create=False, statement_seconds=AUDIT_STATEMENT_SECONDS
    )
    try:
        if read.engine == "sqlite":
            name, copied_at, now = _restoration(read)
            await store.write(restorations.add, name, copied_at=copied_at, now=now)
        leases = await Leases(context_of(store)).recover()
        erased = await _erase_again(store, log)
        work = await store.read(restorations.open_work)
        report = await audit_all(store)
    finally:
        await store.close()
    return Restored(partial, leases, work, report, erased)

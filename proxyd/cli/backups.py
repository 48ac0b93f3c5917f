"""Commands that make and restore backups, and move the database; their reports for the operator."""

from collections.abc import Mapping
from pathlib import Path

from config.secrets import resolved
from config.settings import Settings
from market.staff.audit import audit_all
from market.staff.site.alerts import BACKUP
from proxyd.backups import contents, making, restoring
from proxyd.backups.making import Made
from proxyd.cli.bookkeeping import noted, report_in_words
from proxyd.cli.output import moment
from proxyd.loop import clock
from proxyd.ops.base import signing_key
from proxyd.ops.base.books import AUDIT_STATEMENT_SECONDS, opened
from proxyd.wiring import slices
from storage.backups.errors import BackupError
from storage.engines.claim import take_claim
from storage.engines.errors import AlreadyClaimedError, StoreError
from storage.engines.open import open_store
from storage.engines.place import is_postgres, is_sqlite, place
from storage.engines.store import Store
from storage.site.alerts import note_backup


async def back_up_all(
    settings: Settings, config: Path | None, folder: Path, keep: int | None
) -> str:
    """Make a backup of everything, and return a report.

    Raises:
        StoreError: none was made.
    """
    made = await making.back_up_all(settings, config, folder, keep=keep)
    read = made.manifest
    lines = [
        (
            f"{made.path}: {len(read.files)} files, {read.size} bytes, a backup of "
            f"{place(settings.storage.url)} with schema version {read.schema}"
        )
    ]
    if slices.bucket(settings) is not None:
        lines.append("the files of jobs are in the S3 store, and not in this backup")
    lines += [f"removed {name}" for name in made.removed]
    async with opened(settings) as store:
        note = await _noted(store, made)
    return "\n".join(lines) + note


async def _noted(store: Store, made: Made) -> str:
    """Record a backup for the alerts, and for an earlier program that needs it.

    Return a line if it cannot be recorded.
    """
    folder, version = made.path.absolute(), made.manifest.schema
    removed = [str(folder.with_name(name)) for name in made.removed]
    try:
        await store.write(note_backup, version, str(folder), clock.seconds(), removed)
    except StoreError as error:
        return f"\nthis backup is not recorded: {error}"
    return await noted(store, BACKUP, has_passed=True)


async def restore(
    backup: Path,
    folder: Path,
    database: str | None,
    environment: Mapping[str, str],
    erasures: Path | None = None,
) -> tuple[bool, str]:
    """Restore a backup. Return whether the ledger agrees, and a report.

    Raises:
        StoreError: nothing was restored.
    """
    url = "" if database is None else _postgres_url("--database", database, environment)
    read, restored = await restoring.restore(backup, folder, url, erasures)
    copied = moment(read.copied_at)
    work, config = restored.work, restored.settings
    lines = [
        f"restored {folder} from the backup of {copied}, which proxyd {read.program} made",
        (
            f"lost: every deposit, purchase, job and account after {copied}; "
            "bytes used after it are not billed"
        ),
        f"open then: {work.sessions} sessions, {work.jobs} jobs; {restored.leases} leases closed",
        f"{work.emails} e-mails and {work.deliveries} webhooks wait, and may have been sent before",
        _erased_in_words(restored.erased, erasures),
        report_in_words(restored.report),
        (
            "held: a daemon on it sends no e-mail and no webhook, pays nothing and sweeps nothing, "
            f"until: proxyd restore --confirm --config {config}"
        ),
    ]
    return restored.report.passed, "\n".join(lines)


def _erased_in_words(erased: int, erasures: Path | None) -> str:
    """Return the line about accounts that were erased again."""
    line = f"accounts erased again: {erased}"
    if erasures is None:
        return (
            f"{line}, by the record in the backup; erasures after the backup are missing: "
            "restore again with --erasures and the newest erasures.log"
        )
    return f"{line}, by the record {erasures}"


async def confirm(settings: Settings) -> str:
    """End the hold of a restored database, and return a report.

    Raises:
        StoreError: the database cannot be used.
    """
    confirmed = await restoring.confirm(settings)
    where = place(settings.storage.url)
    if not confirmed:
        return f"{where}: nothing is held"
    return f"{where}: confirmed; restart the daemon, if it runs"


async def move(settings: Settings, to: str, environment: Mapping[str, str]) -> tuple[bool, str]:
    """Move an SQLite database to PostgreSQL. Return whether the ledger agrees, and a report.

    Raises:
        StoreError: nothing was moved.
    """
    from storage.backups.move import move as move_rows  # noqa: PLC0415 - imports a driver

    if not is_sqlite(settings.storage.url):
        raise BackupError(f"{place(settings.storage.url)}: only an SQLite database can be moved")
    url = _postgres_url("--to", to, environment)
    source = contents.database_file(settings)
    if not source.is_file():
        raise BackupError(f"{source}: there is no database")
    try:
        claim = take_claim(settings.storage.url)  # kept until this process ends
    except AlreadyClaimedError:
        raise BackupError(f"{source}: the daemon runs; stop it first") from None
    assert claim is not None  # noqa: S101 - only PostgreSQL has none
    moved = await move_rows(source, url)
    store = await open_store(url, pool_size=1, statement_seconds=AUDIT_STATEMENT_SECONDS)
    try:
        report = await audit_all(store)
    finally:
        await store.close()
    lines = [f"{each.table}: {each.rows} rows, sha256 {each.sha256}" for each in moved if each.rows]
    lines += [
        report_in_words(report),
        f"moved {sum(each.rows for each in moved)} rows; {source} is unchanged. Set these:",
        *_lines_of_settings(settings, to),
    ]
    return report.passed, "\n".join(lines)


def _lines_of_settings(settings: Settings, to: str) -> list[str]:
    """Return the settings to change; with SQLite some files have their places by the database's."""
    url = to if to.startswith("@") else place(to)
    hint = "" if url == to else "  # and the user and password of --to"
    lines = [f'storage.url = "{url}"{hint}']
    if not settings.auth.signing_key and not settings.auth.signing_key_file:
        lines.append(f'auth.signing_key_file = "{signing_key.key_file(settings).resolve()}"')
    if not settings.work.folder:
        lines.append(f'work.folder = "{slices.work_folder(settings).resolve()}"')
    if settings.exits.host and not settings.exits.tls_cert:
        own = contents.own_certificate_file(settings).resolve()
        lines += [f'exits.tls_cert = "{own}"', f'exits.tls_key = "{own}"']
    return lines


def _postgres_url(option: str, value: str, environment: Mapping[str, str]) -> str:
    """Return the URL of an option, or of the file that `@/path` names.

    Raises:
        BackupError: it is not a URL of PostgreSQL, or the file cannot be read.
    """
    try:
        url = str(resolved("storage.url", value, environment))
    except ValueError as error:
        raise BackupError(f"{option}: {error}") from error
    if not is_postgres(url):
        raise BackupError(f"{option}: expected postgresql://USER:PASSWORD@HOST/DATABASE, or @/path")
    return url

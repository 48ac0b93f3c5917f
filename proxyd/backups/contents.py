"""The files of a backup, beside the database: keys, certificates, settings and files of jobs.

A restoration puts all of them into one folder, and `moved` returns the settings for that folder.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from config.settings import Settings
from proxyd.backups.files import is_safe
from proxyd.exits.attached import certificate
from proxyd.ops.access_log import access_place
from proxyd.ops.base import signing_key
from proxyd.ops.erasure import erasures
from proxyd.wiring import slices
from storage.engines.place import SQLITE, is_sqlite

DATABASE, STATE, TLS, WORK, SETTINGS = "database", "state", "tls", "work", "settings"
EFFECTIVE = f"{SETTINGS}/effective.toml"  # with the secrets, and the values of the environment
ORIGINAL = f"{SETTINGS}/original.toml"  # the operator's file, with its comments
RESTORED_SETTINGS = "proxyd.toml"
# Partial files (`incoming`) are sent again by their devices.
_WORK_FOLDERS = ("blobs", "logs")
TLS_SETTINGS = (
    ("api", "tls_cert"),
    ("api", "tls_key"),
    ("apps", "tls_cert"),
    ("apps", "tls_key"),
    ("staff", "tls_cert"),
    ("staff", "tls_key"),
    ("exits", "tls_cert"),
    ("exits", "tls_key"),
    ("exits", "next_tls_cert"),
)
_ACCESS_KEY = f"{STATE}/{access_place.KEY_FILE}"
_ERASURES = f"{STATE}/{erasures.FILE_NAME}"
_STATE_FILES = (signing_key.FILE_NAME, certificate.FILE_NAME)


class Part(NamedTuple):
    """File to copy: where it is, and its path in the backup."""

    source: Path
    path: str


def state_parts(settings: Settings) -> Iterator[Part]:
    """Yield the keys and the certificates that exist, and each certificate of the settings."""
    key = signing_key.key_file(settings)
    if not settings.auth.signing_key and key.exists():
        yield Part(key, f"{STATE}/{signing_key.FILE_NAME}")
    erased = erasures.log_file(settings)
    if erased.exists():
        yield Part(erased, _ERASURES)
    access_key = access_place.access_key_file(settings)
    if access_key.exists():
        yield Part(access_key, _ACCESS_KEY)
    if is_sqlite(settings.storage.url):
        own = own_certificate_file(settings)
        if own.exists():
            yield Part(own, f"{STATE}/{certificate.FILE_NAME}")
    for section, name in TLS_SETTINGS:
        source = getattr(getattr(settings, section), name)
        if source:
            yield Part(Path(source), _tls_path(section, name))


def work_parts(settings: Settings) -> Iterator[Part]:
    """Yield the files of jobs; those in an S3 store are not on this machine."""
    folder = slices.work_folder(settings)
    for name in _WORK_FOLDERS:
        for place, _, files in os.walk(folder / name, onerror=_unless_gone):
            for file in files:
                source = Path(place) / file
                path = f"{WORK}/{source.relative_to(folder)}"
                if is_safe(path) and _is_regular(source):
                    yield Part(source, path)


def _is_regular(path: Path) -> bool:
    """Return whether a path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _unless_gone(error: OSError) -> None:
    """Raise the error of a folder that cannot be listed, unless it is not there."""
    if not isinstance(error, FileNotFoundError):
        raise error


def database_file(settings: Settings) -> Path:
    """Return the file of an SQLite database."""
    return Path(settings.storage.url.removeprefix(SQLITE))


def own_certificate_file(settings: Settings) -> Path:
    """Return the file of the certificate of exits that the daemon makes beside SQLite."""
    return database_file(settings).parent / certificate.FILE_NAME


def restored_path(path: str, database: str) -> str | None:
    """Return the path of a file in the folder of a restoration; None if no backup has such a file.

    Args:
        path: the path in the backup.
        database: the path of the copy of the SQLite database, "" without one.
    """
    first, _, rest = path.partition("/")
    if path == database and first == DATABASE and "/" not in rest:
        return rest
    if path in (_ACCESS_KEY, _ERASURES):  # beside the database, or with the files of jobs
        return rest if database else f"{WORK}/{rest}"
    if first == STATE and rest in _STATE_FILES:
        return rest
    if path in {_tls_path(*each) for each in TLS_SETTINGS}:
        return path
    if first == WORK and rest.partition("/")[0] in _WORK_FOLDERS:
        return path
    return {ORIGINAL: "original.toml"}.get(path)


def moved(settings: Settings, folder: Path, url: str, *, has_key: bool) -> Settings:
    """Return the settings of a restored service, whose files are all in one folder.

    Args:
        settings: the settings of the backup.
        folder: the folder of the restoration.
        url: the restored database.
        has_key: whether the signing key is a file there.
    """
    changed = settings
    for section, name in TLS_SETTINGS:
        if getattr(getattr(settings, section), name):
            path = str(folder / _tls_path(section, name))
            changed = _with(changed, section, **{name: path})
    changed = _with(changed, "storage", url=url, direct_url="", pooler="none")
    changed = _with(changed, "work", folder=str(folder / WORK))
    if has_key:
        key = str(folder / signing_key.FILE_NAME)
        changed = _with(changed, "auth", signing_key_file=key)
    if settings.access_log.folder:
        changed = _with(changed, "access_log", folder=str(folder / access_place.FOLDER))
    return changed


def _with(settings: Settings, section: str, **values: object) -> Settings:
    """Return settings with some values of a section replaced."""
    replaced = structs.replace(getattr(settings, section), **values)
    return structs.replace(settings, **{section: replaced})


def _tls_path(section: str, name: str) -> str:
    return f"{TLS}/{section}.{name}.pem"

"""The places of the access log and of its key, by the settings."""

import os
from pathlib import Path

from config.settings import Settings, StorageSettings
from proxyd.ops.base.signing_key import made_key
from storage.engines.place import SQLITE, is_sqlite

KEY_FILE = "access.key"
FOLDER = "access"


def access_folder(settings: Settings) -> Path | None:
    """Return the folder of the access log; None if connections are not recorded."""
    log = settings.access_log
    is_on = log.enabled == "on" or (log.enabled == "auto" and (log.folder or settings.exits.host))
    if not is_on:
        return None
    return Path(log.folder) if log.folder else state_folder(settings) / FOLDER


def access_key_file(settings: Settings) -> Path:
    """Return the file of the key of the hashes, which is never in the folder of the log."""
    return state_folder(settings) / KEY_FILE


def access_key(settings: Settings) -> bytes:
    """Return the key of the hashes; make it at the first use. Without hashes no key is needed.

    Raises:
        SigningKeyError: the file cannot be read or written, is open to everybody, or is too short.
    """
    if settings.access_log.target != "hash":
        return b""
    return made_key(
        access_key_file(settings),
        "the key of the access log",
        "",
        "which finds no target in the records of before",
    )


def state_folder(settings: Settings) -> Path:
    """Return a folder that the daemon may write to: of the SQLite database, or of jobs' files."""
    url = settings.storage.url
    if is_sqlite(url):
        return Path(url.removeprefix(SQLITE)).parent
    if settings.work.folder:
        return Path(settings.work.folder)
    return Path(StorageSettings().url.removeprefix(SQLITE)).parent / "work"


def hand_over(descriptor: int, owner: os.stat_result) -> None:
    """Give a new file to the owner of its folder, or of the file that it replaces.

    `root` may run a command beside the daemon, whose user has to read the file later. A file of any
    other user stays as it is.

    Raises:
        OSError: the disk fails.
    """
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)

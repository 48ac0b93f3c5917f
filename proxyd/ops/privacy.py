"""Who else on this machine may read a file that is meant for its owner alone."""

import stat
from enum import StrEnum
from pathlib import Path

from storage.place import SQLITE

# SQLite makes them with the mode of the database, and they hold what it will.
BESIDE_DATABASE = ("", "-wal", "-shm")


class Readers(StrEnum):
    """Who may read or change a file beside its owner, in words."""

    NOBODY = "nobody else"
    GROUP = "its group"
    EVERYBODY = "every user of this machine"


def readers(path: Path) -> Readers:
    """Return who may read or change a file, if the folders above let them come that far.

    Whoever may enter a folder by its group or as anybody is taken to be of the file's group: which
    users are in which groups is not looked up.

    Raises:
        OSError: the file is not there, or cannot be looked at.
    """
    mode = path.stat().st_mode
    folders = [folder.stat().st_mode for folder in path.resolve().parents]
    anybody, group = stat.S_IROTH | stat.S_IWOTH, stat.S_IRGRP | stat.S_IWGRP
    if mode & anybody and all(folder & stat.S_IXOTH for folder in folders):
        return Readers.EVERYBODY
    if mode & (anybody | group) and all(
        folder & (stat.S_IXGRP | stat.S_IXOTH) for folder in folders
    ):
        return Readers.GROUP
    return Readers.NOBODY


def warnings(database_url: str, key_file: Path | None) -> list[str]:
    """Return a line for each file that others may read, though the daemon works with it.

    Args:
        database_url: a database on a server has its own permissions.
        key_file: the signing key, where it stands in a file.
    """
    files = [] if key_file is None else [("the signing key", key_file)]
    if database_url.startswith(SQLITE):
        name = database_url.removeprefix(SQLITE)
        files += [("the database", Path(f"{name}{suffix}")) for suffix in BESIDE_DATABASE]
    found = []
    for what, path in files:
        try:
            who = readers(path)
        except OSError:  # not there yet, or told by whoever opens it
            continue
        if who is not Readers.NOBODY:
            found.append(f"{what} {path} may be read or changed by {who}: chmod go-rwx {path}")
    return found

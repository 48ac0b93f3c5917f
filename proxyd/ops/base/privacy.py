"""Checks which other users of this machine may read a private file."""

import stat
from enum import StrEnum
from pathlib import Path

from storage.engines.place import SQLITE

# The database and the files that SQLite makes beside it, with its mode and parts of its content.
BESIDE_DATABASE = ("", "-wal", "-shm")


class Readers(StrEnum):
    """Users beside the owner who may read or change a file; the values are words of a message."""

    NOBODY = "nobody else"
    GROUP = "its group"
    EVERYBODY = "every user of this machine"


def readers(path: Path) -> Readers:
    """Return who may read or change a file, considering the folders above it too.

    The members of groups are not looked up: a folder that its own group or everybody may enter is
    taken to be open to the file's group.

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
    """Return a line for each of the daemon's files that others may read.

    Args:
        database_url: of an SQLite database the files are checked; a server's are not ours.
        key_file: the signing key's file, if it has one.
    """
    files = [] if key_file is None else [("the signing key", key_file)]
    if database_url.startswith(SQLITE):
        name = database_url.removeprefix(SQLITE)
        files += [("the database", Path(f"{name}{suffix}")) for suffix in BESIDE_DATABASE]
    lines = []
    for what, path in files:
        try:
            who = readers(path)
        except OSError:  # it does not exist yet, or opening it reports the error
            continue
        if who is not Readers.NOBODY:
            lines.append(f"{what} {path} may be read or changed by {who}: chmod go-rwx {path}")
    return lines

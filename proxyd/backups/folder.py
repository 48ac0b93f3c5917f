"""The folder of backups: private, one backup at a time, each complete or absent."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from proxyd.backups import files, manifest
from storage.backups.errors import BackupError
from storage.engines.durable import sync_folder

PARTIAL = ".partial"
_NAME = re.compile(r"\d{8}T\d{6}Z")


def name_of(moment: int) -> str:
    """Return the name of a backup that begins at a moment, in UTC seconds; names sort by time."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%SZ")


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder if it is missing, and keep other backups out until the end of the block.

    The incomplete backups of killed programs are removed.

    Raises:
        BackupError: others may read the folder, or another backup is being made.
        OSError: it cannot be made.
    """
    if not folder.exists():
        folder.mkdir(mode=0o700)
    if not folder.is_dir():
        raise BackupError(f"{folder}: not a folder")
    if not files.is_private(folder):
        raise BackupError(
            f"{folder}: others may read this folder, and a backup has every secret: "
            f"give it to this user and chmod go-rwx {folder}, or name another one"
        )
    with locked(folder, f"{folder}: another backup is being made"):
        for each in folder.iterdir():
            if each.name.endswith(PARTIAL) and _NAME.fullmatch(each.name.removesuffix(PARTIAL)):
                shutil.rmtree(each)
        yield


@contextmanager
def locked(folder: Path, otherwise: str) -> Iterator[None]:
    """Lock a folder until the end of the block; the kernel unlocks it when this process ends.

    Raises:
        BackupError: another process has locked it; `otherwise` is the message.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(otherwise) from None
        yield
    finally:
        os.close(descriptor)


def complete(partial: Path, target: Path) -> None:
    """Make a folder durable with all that is in it, and give it its name."""
    files.sync_tree(partial)
    partial.rename(target)
    sync_folder(target.parent)


def remove_old(folder: Path, keep: int, made: str) -> list[str]:
    """Remove all but the newest backups of a folder; return the names of the removed ones.

    The backup `made` stays: a clock that was wrong has given later names to earlier ones.
    """
    names = sorted(
        each.name
        for each in folder.iterdir()
        if _NAME.fullmatch(each.name) and (each / manifest.NAME).is_file() and each.name != made
    )
    removed = names[: max(len(names) - keep + 1, 0)]
    for name in removed:
        partial = folder / f"{name}{PARTIAL}"
        (folder / name).rename(partial)  # so that a kill leaves no half of a backup
        shutil.rmtree(partial)
    return removed

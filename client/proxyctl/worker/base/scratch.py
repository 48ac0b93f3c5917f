"""Removes a tree that a job or an archive has left behind.

A job may have made folders a million deep, without rights to open them, and with any names. So a
tree is removed level by level: a folder within a folder is moved up to the top first. Every step
goes by descriptors, because a process of the job that outlives it could put a link in the place of
a folder.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from proxyctl.files import FileError
from proxyctl.worker.base.beneath import Folder, make_accessible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all its content; links are removed and never followed.

    Args:
        path: of the tree; the folder that has it is the program's own.

    Raises:
        FileError: a part cannot be removed, for example because a process adds files meanwhile.
    """
    try:
        if not path.parent.exists():
            return
        with Folder.own(path.parent) as parent:
            status = parent.status(path.name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                with _opened(parent, path.name) as top:
                    _empty(top)
                os.rmdir(path.name, dir_fd=parent.descriptor)
            else:
                parent.remove(path.name)
    except OSError as error:
        raise FileError(f"{error.filename or path} cannot be removed: {error.strerror}") from None


def _empty(top: Folder) -> None:
    """Remove everything in a folder that can be removed.

    Raises:
        OSError: of the first part that cannot be removed; the others are gone.
    """
    problems: list[OSError] = []
    waiting = _remove_files(top, problems)
    count = 0
    while waiting:
        name = waiting.pop()
        with _collected(problems):
            if _remove_empty(top, name):
                continue
            with _opened(top, name) as folder:
                for below in _remove_files(folder, problems):
                    with _collected(problems):
                        if not _remove_empty(folder, below):
                            # A folder that has to change its parent must be writable itself.
                            make_accessible(below, folder.descriptor)
                            moved, count = _free_name(top, count)
                            folder.move(below, top, moved)
                            waiting.append(moved)
            os.rmdir(name, dir_fd=top.descriptor)
    if problems:
        raise problems[0]


def _remove_files(folder: Folder, problems: list[OSError]) -> list[str]:
    """Remove everything in a folder except its folders. Return the names of these."""
    while True:
        folders, removed = [], 0
        for name in folder.names():
            with _collected(problems):
                status = folder.status(name)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    folders.append(name)
                else:
                    folder.remove(name)
                    removed += 1
        # Some file systems pass over names while others of the folder are removed.
        if not removed:
            return folders


@contextmanager
def _collected(problems: list[OSError]) -> Iterator[None]:
    """Note the first error, so that the removal continues with the rest."""
    try:
        yield
    except OSError as error:
        if not problems:  # the others would fill the memory, with a million names
            problems.append(error)


def _remove_empty(parent: Folder, name: str) -> bool:
    """Remove a folder if it is empty, which needs no right to it. Return whether it is gone."""
    try:
        os.rmdir(name, dir_fd=parent.descriptor)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _opened(parent: Folder, name: str) -> Folder:
    make_accessible(name, parent.descriptor)
    return parent.folder((name,))


def _free_name(top: Folder, count: int) -> tuple[str, int]:
    while True:
        count += 1
        if top.status(f".{count}") is None:
            return f".{count}", count

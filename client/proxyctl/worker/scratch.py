"""Removes what a job has left behind, however it did that.

A job may have made folders a million deep, without rights to open them, and with any names. So a
tree is removed level by level: a folder in a folder is moved up to the top first.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from proxyctl.files import FileError

if TYPE_CHECKING:
    from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; links are removed and never followed.

    Nothing may run that could still write there.

    Raises:
        FileError: something cannot be removed.
    """
    try:
        if not _is_folder(os.lstat(path)):
            path.unlink()
            return
        _empty(path)
        path.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"{error.filename or path} cannot be removed: {error.strerror}") from None


def _empty(top: Path) -> None:
    count = 0
    waiting = [str(top)]
    while waiting:
        folder = waiting.pop()
        os.chmod(folder, stat.S_IRWXU)  # noqa: PTH101 - names that are no text stay what they are
        with os.scandir(folder) as entries:
            names = [each.name for each in entries]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - as above
            if not _is_folder(os.lstat(path)):
                os.unlink(path)  # noqa: PTH108 - as above
                continue
            # A folder that has to change its parent must be writable itself.
            os.chmod(path, stat.S_IRWXU)  # noqa: PTH101 - as above
            if folder == str(top):
                waiting.append(path)
                continue
            moved, count = _free_name(top, count)
            os.rename(path, moved)  # noqa: PTH104 - as above
            waiting.append(moved)
        if folder != str(top):
            os.rmdir(folder)  # noqa: PTH106 - as above


def _free_name(top: Path, count: int) -> tuple[str, int]:
    while True:
        count += 1
        path = f"{top}/.{count}"
        with suppress(FileNotFoundError):
            os.lstat(path)
            continue
        return path, count


def _is_folder(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)

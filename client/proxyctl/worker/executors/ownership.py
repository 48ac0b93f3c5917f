"""Whom the folders of a job belong to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from proxyctl.worker.executors.base import TaskError

if TYPE_CHECKING:
    from pathlib import Path


def give_away(folder: Path, uid: int, gid: int) -> None:
    """Give a folder and all that is in it to the job's user; links are not followed.

    Raises:
        TaskError: they cannot be given.
    """
    if not folder.is_dir():
        return
    try:
        os.chown(folder, uid, gid, follow_symlinks=False)
        for _, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
            for each in (*folders, *names):
                os.chown(each, uid, gid, dir_fd=descriptor, follow_symlinks=False)
    except OSError as error:
        raise TaskError("host", f"{folder} cannot be given to the job: {error.strerror}") from None

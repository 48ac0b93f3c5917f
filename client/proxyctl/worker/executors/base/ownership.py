"""The users that jobs run as, and the folders that belong to them."""

from __future__ import annotations

import os
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.executors.base.base import TaskError

if TYPE_CHECKING:
    from pathlib import Path

# The users of jobs that root has started: a range that no system gives to anybody.
FIRST_UID: Final = 1_900_000_000
UIDS: Final = 65_536


def uid_of(attempt_id: str) -> int:
    """Return the user that an attempt's processes are on the device, if root has started them."""
    return FIRST_UID + zlib.crc32(attempt_id.encode()) % UIDS


def give_away(folder: Path, uid: int, gid: int) -> None:
    """Make a user the owner of a folder and of everything in it; links are not followed.

    Args:
        folder: by a path of the program's own; one that does not exist is passed over.
        uid: the user.
        gid: the group.

    Raises:
        TaskError: the kernel refuses it.
    """
    try:
        with Folder.at(folder) as top:
            os.fchown(top.descriptor, uid, gid)
            with closing(top.walk()) as entries:
                for path, parent, _ in entries:
                    os.chown(path[-1], uid, gid, dir_fd=parent.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TaskError("host", f"{folder} cannot be given to the job: {error.strerror}") from None

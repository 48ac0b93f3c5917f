"""Checks a folder that another process has filled, before the agent uses it.

The archive may have taken over the process that unpacked it, by a fault of a decompressor. So the
agent does not rely on the rules of that process, and checks its work.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Final

from proxyctl.words import short_line
from proxyctl.worker.files.archives import (
    DEPTH_MAX,
    MEMBERS_MAX,
    ArchiveError,
    require_name,
    require_size,
    target_inside,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxyctl.worker.base.beneath import Folder

# Rights that files and folders may have: no writing by other users, no change of the user.
_RIGHTS: Final = 0o755
# A folder inherits this bit from a folder of the owner's. It gives a job no right.
_INHERITED: Final = stat.S_ISGID


def inspect(folder: Folder, max_bytes: int, owner: tuple[int, int] | None = None) -> int:
    """Check that everything in a folder is a file, folder or link that an archive may contain.

    Args:
        folder: no process writes to it any more.
        max_bytes: of all files together.
        owner: user and group that become the owner of everything; None for no change.

    Returns:
        The bytes of all files together.

    Raises:
        ArchiveError: something else is there, or too much.
        OSError: the device cannot read the folder.
    """
    # The agent made it only for itself. On a file system without rights all have all of them.
    has_rights = not stat.S_IMODE(os.fstat(folder.descriptor).st_mode) & ~_RIGHTS
    if owner is not None:
        os.fchown(folder.descriptor, *owner)
    size = 0
    with closing(folder.walk()) as entries:
        for count, (path, parent, status) in enumerate(entries, 1):
            if count > MEMBERS_MAX or len(path) > DEPTH_MAX:
                raise ArchiveError("it has too many files, or folders too deep")
            _require_harmless(parent, path, status, has_rights=has_rights)
            if owner is not None:
                os.chown(path[-1], *owner, dir_fd=parent.descriptor, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                size += status.st_size
            require_size(size, max_bytes)
    return size


def _require_harmless(
    parent: Folder, path: Sequence[str], status: os.stat_result, *, has_rights: bool
) -> None:
    """Check one file, folder or link. Its rights count on a file system that has them.

    Raises:
        ArchiveError: it is something else, has a second name or other rights, or leads elsewhere.
    """
    name, mode = "/".join(path), status.st_mode
    require_name(name)  # also its length: the path must be one that can be opened
    rights = stat.S_IMODE(mode)
    if stat.S_ISLNK(mode):
        target_inside(path, os.readlink(path[-1], dir_fd=parent.descriptor), name)
        return
    is_folder = stat.S_ISDIR(mode) and rights & stat.S_IRWXU == stat.S_IRWXU
    is_file = stat.S_ISREG(mode) and status.st_nlink == 1
    if is_folder:
        rights &= ~_INHERITED
    if not (is_folder or is_file) or (has_rights and rights & ~_RIGHTS):
        raise ArchiveError(f"{short_line(name)} has become something that no archive makes")

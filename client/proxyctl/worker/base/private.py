"""Whether other users of the machine could replace files of the agent, or the agent's folder."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import TYPE_CHECKING

from proxyctl.words import OwnerError

if TYPE_CHECKING:
    from pathlib import Path


def require_private(folder: Path) -> None:
    """Check that no other user can write to a folder or its parents.

    Folders with the sticky bit, as /tmp, are an exception: there no user can replace files of other
    users. The folder itself may not exist yet.

    Raises:
        OwnerError: another user can; the message names the folder, and a remedy.
    """
    resolved = folder.resolve()
    for each in (resolved, *resolved.parents):
        try:
            status = each.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OwnerError(f"{each} cannot be looked at: {error.strerror}") from None
        if each == resolved and status.st_uid not in (0, os.geteuid()):
            raise OwnerError(f"{each} belongs to another user of this machine; choose another one")
        who = _others_who_write(status)
        if who and (each == resolved or not status.st_mode & stat.S_ISVTX):
            raise OwnerError(
                f"{each} can be written to by {who}, who could replace the agent's files: "
                f"chmod go-w '{each}', or choose another --folder"
            )


def _others_who_write(status: os.stat_result) -> str:
    """Return, in words, the other users that may write to a folder; empty for none."""
    if status.st_mode & stat.S_IWOTH:
        return "every user of this machine"
    if status.st_mode & stat.S_IWGRP and not _is_of_one(status.st_gid, status.st_uid):
        return "its group"
    return ""


def _is_of_one(group: int, user: int) -> bool:
    """Return whether a group has one member, as the groups that systems make for each user."""
    try:
        members = set(grp.getgrgid(group).gr_mem)
        owner = pwd.getpwuid(user)
    except KeyError:
        return False
    return owner.pw_gid == group and members <= {owner.pw_name}

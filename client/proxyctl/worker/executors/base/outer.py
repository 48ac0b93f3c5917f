"""The namespaces around a job's sandbox: they end it, and bound its use of the kernel.

A job can write to the memory of process 1 of its sandbox, which runs as the same user: so it can
have that process forget the signal at its parent's death. Therefore the sandbox is inside another
namespace of processes, whose process 1 the job does not see: bubblewrap itself. When the supervisor
ends, the kernel ends that process, and with it all that is in the namespace, however deep.

The outer user namespace has limits of its own (man page namespaces, section 7: /proc/sys/user). The
use of the processes within also counts for the owner of the device, who would have nothing left.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

# The part of one job in the kernel's limits for one user. The rest is for the owner's programs.
_SHARE: Final = 8
# Kernel versions differ in the defaults; these are the ones of Linux 2.6 and later.
_INOTIFY: Final = (("max_user_instances", 128), ("max_user_watches", 8_192))
# Descriptors of one process of a job. A process may send descriptors to others until as many as its
# own limit are under way, of all processes of its user: 1,024 is the limit of the owner's
# processes.
_FILES_MAX: Final = 512
# Their limits are of a process; they are compared with sums over all processes of the user.
_COUNTED_PER_USER: Final = (
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_SIGPENDING,
)
# It may change limits of its own user namespace (CAP_SYS_RESOURCE) and map its user into another
# one (CAP_SETFCAP, since Linux 5.12), where it has no right over anything else.
_RIGHTS: Final = ("--cap-add", "CAP_SYS_RESOURCE", "--cap-add", "CAP_SETFCAP")
_SCRIPT: Final = """\
set -e
echo "$1" > /proc/sys/user/max_inotify_instances
echo "$2" > /proc/sys/user/max_inotify_watches
shift 2
exec "$@"
"""


def around(program: str) -> tuple[str, ...]:
    """Return the arguments before the bubblewrap command, so that it runs in the outer namespaces.

    Args:
        program: the path of bubblewrap.
    """
    return (
        *(program, "--unshare-user", "--unshare-pid", "--as-pid-1", "--die-with-parent"),
        *("--uid", "0", "--gid", "0", *_RIGHTS, "--dev-bind", "/", "/", "--proc", "/proc", "--"),
        *("/bin/sh", "-c", _SCRIPT, "sh", *(str(each) for each in _watches())),
    )


def user_limits() -> dict[int, int]:
    """Return limits of a job that is the same user as the owner's programs: value by limit.

    A job of root's agent is a user of its own, and has all that a user has for itself.
    """
    if os.geteuid() == 0:
        return {}
    limits = {resource.RLIMIT_NOFILE: _FILES_MAX}
    for each in _COUNTED_PER_USER:
        soft, _ = resource.getrlimit(each)
        if soft != resource.RLIM_INFINITY:
            limits[each] = soft // _SHARE
    return limits


def _watches() -> list[int]:
    """Return how many watchers of files, and watches, one job may have."""
    shares = []
    for name, usual in _INOTIFY:
        most = usual
        with suppress(OSError, ValueError):
            most = int(Path("/proc/sys/fs/inotify", name).read_text())
        shares.append(max(1, most // _SHARE))
    return shares

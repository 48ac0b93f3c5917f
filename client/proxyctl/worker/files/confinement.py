"""Confines this process to one folder and to few system calls, for the rest of its life.

This is for a process that parses a stranger's bytes. It takes every wall that this system has:

- the folder as the root directory (chroot(2)), by root or in a user namespace of its own;
- Landlock, which needs no privilege (Linux 5.13): no file outside the folder is opened or made;
- a user that owns nothing else, if root starts the process, and no capability in any case;
- a namespace of its own without network, where that is possible;
- a filter that allows the system calls of reading and writing files, and no others;
- limits of memory, processor time and the size of a file.

One of the first two is required, and so is the filter, because Landlock does not judge every call
that changes a file. With Landlock alone the process can still ask which files exist outside. It
must have one thread, and have everything imported.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base.libc import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWUSER,
    LIBC,
    PR_SET_PDEATHSIG,
    checked,
    prctl,
)
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.bwrap import seccomp
from proxyctl.worker.task.processes import give_way

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_SYS_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3: Final = 0x20080522

# Landlock: `linux/landlock.h`. The numbers of its system calls are alike on every architecture.
_SYS_LANDLOCK_CREATE_RULESET: Final = 444
_SYS_LANDLOCK_ADD_RULE: Final = 445
_SYS_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_VERSION: Final = 1  # a flag that asks for the version of the kernel's Landlock
_LANDLOCK_PATH_BENEATH: Final = 1
_LANDLOCK_NET: Final = 0x3  # bind and connect of TCP (version 4)
_LANDLOCK_SCOPED: Final = 0x3  # abstract Unix sockets and signals (version 6)
# Rights to files that each version knows: the number of bits, from the lowest.
_LANDLOCK_FILE_BITS: Final = {1: 13, 2: 14, 3: 15, 4: 15}
_LANDLOCK_FILE_BITS_NEWEST: Final = 16
# In the folder: write, read, list, remove, make folders, files and links, and truncate.
_LANDLOCK_ALLOWED: Final = sum(1 << bit for bit in (1, 2, 3, 5, 7, 8, 12, 14))

# All that Python needs to read an archive and to write files. Other calls could change files
# outside by a path (chmod, truncate, xattr), because Landlock does not judge them; processes of the
# same user (prlimit, priorities, signals); or a wall (prctl).
_CALLS: Final = (
    *("read", "readv", "pread64", "write", "writev", "lseek", "close", "dup"),
    *("mkdirat", "unlink", "unlinkat", "symlink", "symlinkat"),
    *("fstat", "stat", "lstat", "newfstatat", "statx", "getdents64"),
    *("mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "membarrier"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall"),
    *("clock_gettime", "clock_getres", "gettimeofday", "time", "getrandom", "sysinfo"),
    *("futex", "sched_yield", "getpid", "gettid", "getuid", "geteuid", "getgid", "getegid"),
    *("exit", "exit_group"),
)
_TCGETS: Final = 0x5401  # isatty(3), for each file that Python opens
_FIOCLEX: Final = 0x5451  # close on exec, as Python sets it
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL = 0, 1, 2, 3
_F_DUPFD_CLOEXEC: Final = 1030
_ALLOWED: Final = seccomp.AllowList(
    names=_CALLS,
    by_value=(
        ("ioctl", 1, (_TCGETS, _FIOCLEX)),
        # Not F_SETOWN and F_SETSIG, which send signals.
        ("fcntl", 1, (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC)),
    ),
    # O_ACCMODE: neither reading nor writing. Landlock asks no right for it, and with O_TRUNC the
    # file is truncated all the same.
    unless_bits=(("open", 1, os.O_ACCMODE), ("openat", 2, os.O_ACCMODE)),
    unknown=("openat2",),  # its flags lie where no filter can look
)

# Python with the modules of archives has 60 MB, an .xz file 128 MB, the list of a .zip file 32 MB
# and 150 MB of Python's objects.
MEMORY_BYTES: Final = 512 << 20
_FILES: Final = 64
_OOM_SCORE: Final = 1000  # the kernel ends this process before anything of the owner's
_NICE: Final = 10
_LAST_SECONDS: Final = 5  # between the signal at the end of its processor time and SIGKILL


class ConfinementError(Exception):
    """This system has no wall that is enough; the message names the missing parts."""


@dataclass(frozen=True)
class Walls:
    """The walls around this process.

    Attributes:
        root: the folder is its root directory.
        landlock: the version of Landlock that holds it; 0 for none.
        network: it has a network of its own, without a way out.
        user: the user that it is.
    """

    root: bool
    landlock: int
    network: bool
    user: int


@dataclass(frozen=True)
class Bounds:
    """Limits of the process.

    Attributes:
        file_bytes: of one file that it writes.
        cpu_seconds: of processor time.
    """

    file_bytes: int
    cpu_seconds: int


def confine(folder: int, parent: int, bounds: Bounds, user: int | None) -> Walls:
    """Confine this process to a folder.

    Args:
        folder: descriptor of the folder.
        parent: the process that this one must not outlive.
        bounds: of its use.
        user: that it becomes, with the group of that number, if root has started it.

    Raises:
        ConfinementError: a required wall cannot be built.
        OSError: the kernel refuses a step that every process may take.
    """
    give_way(_OOM_SCORE, _NICE)
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_NOFILE", _FILES)
    _limit("RLIMIT_AS", MEMORY_BYTES)
    _limit("RLIMIT_FSIZE", bounds.file_bytes)
    _limit("RLIMIT_CPU", bounds.cpu_seconds, _LAST_SECONDS)
    machine = _architecture()
    ruleset, version = _landlock_rules(folder)
    os.fchdir(folder)
    has_network = _leave_network()
    has_root = False
    with suppress(PermissionError):
        os.chroot(".")
        has_root = True
    if not has_root and ruleset is None:
        raise ConfinementError("this device has neither Landlock nor user namespaces")
    _become(machine, user)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_DUMPABLE, 0)
    if ruleset is not None:
        checked(LIBC.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0))
        os.close(ruleset)
    # After the change of user, which would take it back.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ConfinementError("the agent has ended")
    os.umask(0)  # files get their rights when they are created
    _filter(seccomp.program_of(_ALLOWED, machine))
    return Walls(has_root, version, not has_network, os.geteuid())


def _limit(name: str, most: int, more: int = 0) -> None:
    """Set a soft limit, and a hard one that is higher by `more`; never above the limits so far."""
    number = getattr(resource, name)
    hard = resource.getrlimit(number)[1]
    highest = most + more if hard == resource.RLIM_INFINITY else min(most + more, hard)
    resource.setrlimit(number, (min(most, highest), highest))


def _architecture() -> str:
    try:
        return seccomp.architecture()
    except TaskError as error:
        raise ConfinementError(error.message) from None


def _leave_network() -> bool:
    """Move into new namespaces. Return whether the process still has the network of the device.

    An ordinary user needs a user namespace for that, which some systems refuse, in whole or in
    part. The process keeps its user number there.
    """
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET | CLONE_NEWIPC
    if user == 0:
        return bool(LIBC.unshare(flags))
    if LIBC.unshare(CLONE_NEWUSER | flags) != 0:
        return True
    maps: Mapping[str, str] = {
        "setgroups": "deny",
        "uid_map": f"{user} {user} 1",
        "gid_map": f"{group} {group} 1",
    }
    for name, text in maps.items():
        with suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - /proc
            file.write(text)
    return False


def _become(machine: str, user: int | None) -> None:
    """Become another user if need be, and drop all capabilities."""
    if user is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    checked(LIBC.syscall(_SYS_CAPSET[machine], header, bytes(24)))


def _landlock_rules(folder: int) -> tuple[int | None, int]:
    """Return a set of rules that allows the folder alone, and the version; None without Landlock.

    Raises:
        OSError: Landlock exists and does not take the rules.
    """
    version = _landlock_version()
    if version <= 0:
        return None, 0
    bits = _LANDLOCK_FILE_BITS.get(version, _LANDLOCK_FILE_BITS_NEWEST)
    handled = (1 << bits) - 1
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", _LANDLOCK_NET)
    if version >= 6:
        attributes += struct.pack("=Q", _LANDLOCK_SCOPED)
    ruleset = checked(
        LIBC.syscall(_SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    )
    rule = struct.pack("=Qi", _LANDLOCK_ALLOWED & handled, folder)
    checked(LIBC.syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0))
    return ruleset, version


def _landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 or less without it."""
    return int(
        LIBC.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    )


class _Program(ctypes.Structure):
    """`struct sock_fprog` of seccomp(2)."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _filter(code: bytes) -> None:
    instruction_bytes = 8
    program = _Program(len(code) // instruction_bytes, code)
    checked(LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))

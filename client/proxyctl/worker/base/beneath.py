"""Folders by descriptor: a name below one never leads outside it.

Strangers choose names (archives, outputs) and make links (jobs, archives). A path that looks
harmless may pass through such a link, and the kernel follows it. So the agent resolves every such
name from the descriptor of a folder of its own, follows no link on the way, and creates, renames
and removes by the descriptor of the parent folder.

`openat2` (Linux 5.6) resolves a whole path in one call. Older kernels, and sandboxes that refuse
it, get the same result one component at a time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base.libc import LIBC

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH
_CREATE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_MODE: Final = 0o755

_SYS_OPENAT2: Final = 437  # on every architecture that has it
# RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS and RESOLVE_BENEATH of openat2(2).
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
# Kernels before 5.6, sandboxes that refuse the call, and a rename elsewhere during the call.
_NO_OPENAT2: Final = frozenset((errno.ENOSYS, errno.EPERM, errno.EAGAIN, errno.EINVAL, errno.EINTR))


class Folder:
    """A folder, held by a descriptor. Every path is given as its components below the folder.

    All methods raise `OSError`: with `errno.ELOOP` if a component is a link, with `errno.EXDEV` if
    one is on another file system, and otherwise as the system call does.

    Args:
        descriptor: of the folder; the object closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def at(cls, path: str | Path) -> Folder:
        """Open a folder by its path, which must be the program's own.

        Only the last component may not be a link.
        """
        return cls(os.open(path, FOLDER_FLAGS))

    @classmethod
    def own(cls, path: str | Path) -> Folder:
        """Open a folder of the program's own, also by a link to the folder."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Folder:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def open(self, parts: Sequence[str], flags: int) -> int:
        """Open something that exists; return its descriptor.

        Args:
            parts: components of the path; at least one.
            flags: of open(2), without O_CREAT.
        """
        if not parts or not all(map(_is_normal, parts)):
            raise OSError(errno.EINVAL, "a path that is not normal", "/".join(parts))
        flags |= os.O_CLOEXEC
        descriptor = -1
        with suppress(NotADirectoryError):  # by a link, or by a file: one step after the other says
            descriptor = _openat2("/".join(parts), flags, self.descriptor)
        return _step_by_step(parts, flags, self.descriptor) if descriptor < 0 else descriptor

    def folder(self, parts: Sequence[str] = ()) -> Folder:
        """Open a folder below this one; without components, this one again."""
        if not parts:
            return Folder(os.dup(self.descriptor))
        return Folder(self.open(parts, FOLDER_FLAGS))

    def make_folders(self, parts: Sequence[str]) -> tuple[Folder, int]:
        """Make the folders of a path that are missing.

        Returns:
            The last folder, and the number of folders made.
        """
        with suppress(FileNotFoundError):
            return self.folder(parts), 0
        folder, count = self.folder(), 0
        try:
            for part in parts:
                with suppress(FileExistsError):
                    os.mkdir(part, _FOLDER_MODE, dir_fd=folder.descriptor)
                    count += 1
                following = folder.folder((part,))
                folder.close()
                folder = following
        except BaseException:
            folder.close()
            raise
        return folder, count

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create a file in this folder; return a descriptor for reading and writing.

        Raises:
            FileExistsError: the name is taken, be it by a link.
        """
        return os.open(name, _CREATE_FLAGS, mode, dir_fd=self.descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a name in this folder (a link's own status); None for nothing."""
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def walk(self) -> Generator[tuple[tuple[str, ...], Folder, os.stat_result], None, None]:
        """Yield everything below this folder: its path, its parent and its status.

        A folder is opened after it was yielded, and no two of them at the same time, so no depth is
        too much. Close the generator, which has the parent open.
        """
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            parts = waiting.pop()
            with self.folder(parts) as parent:
                for name in parent.names():
                    status = parent.status(name)
                    if status is not None:
                        yield (*parts, name), parent, status
                        if stat.S_ISDIR(status.st_mode):
                            waiting.append((*parts, name))

    def names(self) -> Generator[str, None, None]:
        """Yield the names in this folder one by one, because a folder may have millions."""
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                yield entry.name

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link in this folder."""
        os.symlink(target, name, dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a link in this folder; a name that is missing is harmless."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def move(self, name: str, to: Folder, new_name: str) -> None:
        """Move an entry of this folder into another folder; a link is moved as a link."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def move_below(self, name: str, to: Folder, parts: Sequence[str]) -> None:
        """Move something in this folder to a path below another one; make missing folders."""
        parent, _ = to.make_folders(parts[:-1])
        with parent:
            self.move(name, parent, parts[-1])


def make_accessible(name: str, parent: int | None) -> None:
    """Restore the owner's rights to a folder, which a job may have removed.

    By a descriptor, because a job may put a link in the place of the folder at any time.

    Args:
        name: of the folder.
        parent: descriptor of the folder that has it; None if `name` is a path of the program's own.

    Raises:
        OSError: it is no folder, or belongs to another user.
    """
    handle = os.open(name, _HANDLE_FLAGS, dir_fd=parent)
    try:
        # fchmod(2) refuses a descriptor of O_PATH; /proc leads to the same folder.
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # noqa: PTH101 - a descriptor
    finally:
        os.close(handle)


def _is_normal(part: str) -> bool:
    return part not in ("", ".", "..") and "/" not in part and "\0" not in part


def _step_by_step(parts: Sequence[str], flags: int, root: int) -> int:
    """Open a path one component after the other, each in the folder before it."""
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            following = _open_one(part, FOLDER_FLAGS, folder)
            os.close(folder)
            folder = following
        return _open_one(parts[-1], flags | os.O_NOFOLLOW, folder)
    finally:
        os.close(folder)


def _open_one(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except NotADirectoryError:
        # O_DIRECTORY with O_NOFOLLOW gives this error for a link, and for a file.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


class _OpenHow(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def _openat2(path: str, flags: int, root: int) -> int:
    """Open a path beneath a folder by one call of the kernel; return -1 without `openat2`."""
    how = _OpenHow(flags, 0, _RESOLVE)
    descriptor = LIBC.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(root),
        os.fsencode(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor >= 0:
        return int(descriptor)
    number = ctypes.get_errno()
    if number in _NO_OPENAT2:
        return -1
    raise OSError(number, os.strerror(number), path)

"""Collects the outputs of a job. Its folder is hostile: the job made every name and file there.

Nothing outside of the folder is ever opened: each name is opened in the folder before it, and no
link is followed. Nothing that could wait is opened: only regular files. The buyer gets words about
every file that is not taken.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from proxyctl.protocol.jobspec import LEFT_OUT, SpecError, check_file_name, check_path
from proxyctl.words import short_line
from proxyctl.worker.base.beneath import FOLDER_FLAGS, Folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from proxyctl.protocol.jobspec import Output

# The most names of one job that are looked at. A folder of more names is better packed into one
# file by the job.
NAMES_MAX: Final = 10_000
DEPTH_MAX: Final = 64
# Of a report, as much as the marketplace takes; `left-out.txt` has more.
SUMMARY_MAX_FILES: Final = 1_000_000
SUMMARY_MAX_BYTES: Final = 1 << 60
SUMMARY_REASONS: Final = 10
SUMMARY_CHARACTERS: Final = 300
LEFT_OUT_MAX: Final = 200  # these get a sentence each; of the rest only the number is reported

_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: Final = (
    (stat.S_ISLNK, "it is a link"),
    (stat.S_ISFIFO, "it is a named pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


class NotTakenError(Exception):
    """A file is not taken; the message says why, as the end of a sentence that begins with it."""


@dataclass(frozen=True)
class Leaving:
    """A file that is taken.

    Attributes:
        name: its path in the folder of the job.
        size_bytes: how large it was when it was found.
        identity: device, number, and time of its last change, which together recognise it.
    """

    name: str
    size_bytes: int
    identity: tuple[int, int, int]


@dataclass
class Collection:
    """The files of a job: the files that are taken, and sentences about the others.

    Attributes:
        is_complete: whether everything was looked at. Otherwise there may be more files.
    """

    files: list[Leaving] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    more_left_out: int = 0
    files_left_out: int = 0
    bytes_left_out: int = 0
    is_complete: bool = True

    def leave_out_file(self, name: str, reason: str, size_bytes: int) -> None:
        """Note that a file is not taken."""
        self.count_left_out(1, size_bytes)
        self.leave_out(name, reason)

    def count_left_out(self, files: int, size_bytes: int) -> None:
        """Count files that are not taken."""
        self.files_left_out += files
        self.bytes_left_out += size_bytes

    def leave_out(self, name: str, reason: str) -> None:
        """Note why something is not taken, or is not there."""
        if len(self.left_out) < LEFT_OUT_MAX:
            self.left_out.append(f"{short_line(name)}: {reason}")
        else:
            self.more_left_out += 1

    def sentences(self) -> list[str]:
        """Return the files that are not taken, one line for each, with the reason.

        Beyond `LEFT_OUT_MAX` lines, one last line has the number of the other files.
        """
        if not self.more_left_out:
            return self.left_out
        return [*self.left_out, f"and {self.more_left_out} more"]

    def summary(self) -> dict[str, Any] | None:
        """Return the part of a report about files that are not taken; None where all are."""
        if not self.left_out:
            return None
        return {
            "files": min(self.files_left_out, SUMMARY_MAX_FILES),
            "bytes": min(self.bytes_left_out, SUMMARY_MAX_BYTES),
            "reasons": [each[:SUMMARY_CHARACTERS] for each in self.left_out[:SUMMARY_REASONS]],
        }


class JobFolder:
    """A folder in which a job could create, change and delete everything.

    Args:
        path: of the folder, which is this program's own.
    """

    def __init__(self, path: Path) -> None:
        self._root = Folder.at(path)
        self._device = os.fstat(self._root.descriptor).st_dev

    def close(self) -> None:
        """Close the descriptor of the folder."""
        self._root.close()

    def open_folder(self, parts: Sequence[str]) -> int:
        """Return a descriptor of a folder below; raises as `open_file`."""
        return self._open(parts, FOLDER_FLAGS) if parts else os.dup(self._root.descriptor)

    def open_file(self, leaving: Leaving | str) -> int:
        """Return a descriptor of a regular file; it must still be the one that was found.

        Raises:
            NotTakenError: it is not, or cannot be opened.
        """
        name = leaving if isinstance(leaving, str) else leaving.name
        descriptor = self._open(name.split("/"), _FILE)
        try:
            status = os.fstat(descriptor)
            require_plain(status, self._device)
            if isinstance(leaving, Leaving) and _leaving(name, status) != leaving:
                raise NotTakenError("it changed while it was read")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def collect(self, outputs: Sequence[Output], names_max: int = NAMES_MAX) -> Collection:
        """Find the outputs that a job has left; no act of the job raises an error.

        Args:
            outputs: that it has declared.
            names_max: how many names are looked at.
        """
        collection = Collection()
        budget = _Names(names_max)
        taken: dict[str, Leaving] = {}
        for output in outputs:
            before = len(collection.left_out) + collection.more_left_out
            size, found = 0, []
            for name, status in self._matching(output.path, budget, collection):
                try:
                    require_plain(status, self._device)
                    require_name(name)
                except NotTakenError as error:
                    collection.leave_out_file(name, str(error), _size_of(status))
                    continue
                size += status.st_size
                found.append(_leaving(name, status))
            if size > output.max_bytes:
                reason = f"it has {size} bytes, more than its {output.max_bytes}: nothing is kept"
                collection.count_left_out(len(found), size)
                collection.leave_out(output.name, reason)
                continue
            if not found and before == len(collection.left_out) + collection.more_left_out:
                collection.leave_out(output.name, f"nothing in the folder is {output.path}")
            taken.update((each.name, each) for each in found)
        if budget.is_spent:
            collection.is_complete = False
            collection.leave_out("*", f"only the first {names_max} names were looked at")
        collection.files = [taken[name] for name in sorted(taken)]
        return collection

    def _matching(
        self, pattern: str, budget: _Names, collection: Collection
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files that a pattern matches, and all files below matching folders."""
        wanted = pattern.split("/")
        start = list(_plain_parts(wanted))
        if len(start) < len(wanted):
            yield from self._below(start, wanted, budget, collection)
            return
        try:
            status = self._status(start)
        except NotTakenError:
            return
        if stat.S_ISDIR(status.st_mode):
            yield from self._below(start, wanted, budget, collection)
        else:
            yield pattern, status

    def _below(
        self,
        start: Sequence[str],
        wanted: Sequence[str],
        budget: _Names,
        collection: Collection,
    ) -> Iterator[tuple[str, os.stat_result]]:
        pending = [start]
        while pending:
            folder = pending.pop()
            try:
                names = self._names(folder, budget)
            except NotTakenError as error:
                if folder != start:
                    collection.leave_out("/".join(folder), str(error))
                continue
            for name, status in names:
                parts = [*folder, name]
                if not stat.S_ISDIR(status.st_mode):
                    if matches(parts, wanted):
                        yield "/".join(parts), status
                elif len(parts) > DEPTH_MAX:
                    reason = f"folders in it are more than {DEPTH_MAX} deep"
                    collection.leave_out("/".join(parts), reason)
                elif any(_reach(parts, wanted)):
                    pending.append(parts)

    def _status(self, parts: Sequence[str]) -> os.stat_result:
        """Return the status of a name, without following a link."""
        descriptor = self.open_folder(parts[:-1])
        try:
            return os.stat(parts[-1], dir_fd=descriptor, follow_symlinks=False)
        except OSError as error:
            raise NotTakenError(_reason(error)) from error
        finally:
            os.close(descriptor)

    def _names(self, folder: Sequence[str], budget: _Names) -> list[tuple[str, os.stat_result]]:
        """Return the names in a folder, sorted, with their states, within the budget."""
        descriptor = self.open_folder(folder)
        found = []
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if not budget.take():
                        break
                    with suppress(FileNotFoundError):
                        status = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=False)
                        found.append((entry.name, status))
        except OSError as error:
            raise NotTakenError(_reason(error)) from error
        finally:
            os.close(descriptor)
        return sorted(found, key=lambda each: each[0])

    def _open(self, parts: Sequence[str], flags: int) -> int:
        try:
            return self._root.open(parts, flags)
        except OSError as error:
            raise NotTakenError(_reason(error)) from error


@dataclass
class _Names:
    """The number of names that may still be looked at."""

    left: int
    is_spent: bool = False

    def take(self) -> bool:
        """Take one, if one is left."""
        if self.left <= 0:
            self.is_spent = True
            return False
        self.left -= 1
        return True


def require_plain(status: os.stat_result, device: int) -> None:
    """Require that a file is regular and belongs only to the job's folder.

    Raises:
        NotTakenError: it is not.
    """
    for is_kind, reason in _KINDS:
        if is_kind(status.st_mode):
            raise NotTakenError(reason)
    if not stat.S_ISREG(status.st_mode):
        raise NotTakenError("it is no file")
    if status.st_dev != device:
        raise NotTakenError("it is on another file system")
    if status.st_nlink > 1:
        # Its other name may be outside of the folder, in a place of the owner.
        raise NotTakenError("it has a second name, a hard link")


def require_name(name: str) -> None:
    """Check that a file can have this name elsewhere.

    Raises:
        NotTakenError: it cannot.
    """
    try:
        check_path("name", name)
    except (SpecError, UnicodeError):
        raise NotTakenError("its name is not one that every system could take") from None


def require_output_name(name: str) -> None:
    """Check that usual systems accept the name of an output, and that the agent does not use it.

    Raises:
        NotTakenError: it cannot be taken.
    """
    if name == LEFT_OUT:
        raise NotTakenError("the device itself writes a file of this name")
    try:
        check_file_name("name", name)
    except SpecError:
        raise NotTakenError("its name is not one that every system could take") from None


def _size_of(status: os.stat_result) -> int:
    """Return the size of a regular file; 0 of all else."""
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a pattern matches a path or a folder above it.

    `**` is any number of folders, and `*`, `?` and `[…]` are as in a shell.
    """
    return any(_reach(parts, pattern)[len(pattern) :])


def _reach(parts: Sequence[str], pattern: Sequence[str]) -> list[bool]:
    """Return which beginnings of a pattern a path matches; once it matches all, so do longer paths.

    One step for each pair of parts: no pattern makes this slow.
    """
    reach = _skipping([True] + [False] * len(pattern), pattern)
    for part in parts:
        following = [False] * len(reach)
        following[-1] = reach[-1]
        for at, wanted in enumerate(pattern):
            if reach[at] and wanted == "**":
                following[at] = True
                following[at + 1] |= at + 1 == len(pattern)
            elif reach[at] and fnmatchcase(part, wanted):
                following[at + 1] = True
        reach = _skipping(following, pattern)
    return reach


def _skipping(reach: list[bool], pattern: Sequence[str]) -> list[bool]:
    """Skip each `**`, which may match no folder; a last `**` must match something."""
    for at, wanted in enumerate(pattern[:-1]):
        if reach[at] and wanted == "**":
            reach[at + 1] = True
    return reach


def _plain_parts(pattern: Sequence[str]) -> Iterator[str]:
    """Yield the parts that a pattern begins with, as long as they stand for themselves."""
    for part in pattern:
        if any(each in part for each in "*?["):
            return
        yield part


def _leaving(name: str, status: os.stat_result) -> Leaving:
    return Leaving(name, status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns))


def _reason(error: OSError) -> str:
    if error.errno == errno.EINVAL:
        return "its name is not normal"
    if error.errno == errno.ELOOP:
        return "it is behind a link"
    if error.errno == errno.EXDEV:
        return "it is on another file system"
    if error.errno == errno.ENOENT:
        return "it is not there any more"
    return f"it cannot be read: {os.strerror(error.errno or errno.EIO).lower()}"

"""Archives of strangers: unpacked into one folder, within bounds.

Theory of operation. An archive is hostile in its bytes, its names, its links and their order.

- Every member is made by the descriptor of its parent folder, which is resolved from the folder of
  the archive without following a link (`beneath.py`). So no name and no order of members reaches
  anything outside.
- Files and folders are made while the archive is read, once and forwards. Hard links become copies
  after that. Symbolic links come last, and no link is made behind another one.
- A symbolic link may go up (`..`) only at the beginning of its target, and not above the folder of
  the archive. Its own parent is a real folder, so the link leads to a place inside, directly or by
  another link under the same rule. This protects programs that follow links later.
- Sizes, members, headers, lists and the memory of decompressors are bounded.

In production this runs in a process of its own that can change nothing else (`unpacker.py`).
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, cast

from proxyctl.protocol.jobspec import SpecError, check_path
from proxyctl.words import short_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proxyctl.worker.base.beneath import Folder

MEMBERS_MAX: Final = 100_000
DEPTH_MAX: Final = 100  # components of a path; a program that walks a tree may do so recursively
# One header of a tar archive, for example of a long name. The library reads it whole, and old
# versions of it take time by the square of its size.
HEADER_MAX_BYTES: Final = 16 << 10
# Entries of global headers (POSIX.1-2001, pax): the library copies them for each member.
GLOBAL_ENTRIES_MAX: Final = 64
COPY_BYTES: Final = 256 << 10
# Memory that an .xz file may ask for; the default of `xz -9` is 65 MB.
XZ_MEMORY_BYTES: Final = 128 << 20
# The list at the end of a .zip file, which the library reads whole: 100,000 names of 200 bytes.
ZIP_LIST_MAX_BYTES: Final = 32 << 20
_ZIP_ENTRY: Final = b"PK\x01\x02"
_ZIP_ENTRY_BYTES: Final = 46  # of an entry of the list, without its name and other fields
# Of the target of a link. Linux would take 4,096, but every path in the archive is shorter.
TARGET_MAX_BYTES: Final = 1_024
TARGET_PART_MAX_BYTES: Final = 255
_ZIP_END: Final = b"PK\x05\x06"
_ZIP64_END: Final = b"PK\x06\x06"
_ZIP64_END_BYTES: Final = 56
_IN_ZIP64: Final = 0xFFFFFFFF  # the size of the list stands in the other record
_ZIP_TAIL_BYTES: Final = 22 + 20 + 56 + 65_535  # the ends of both kinds, and a comment
_MAGIC: Final = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"), (b"PK", "zip"))
_SOURCE_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors of the device. Every other error has its cause in the archive, because a stranger could
# otherwise make one and have the device blamed for it.
_DEVICE_ERRORS: Final = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM, errno.EINTR),
        *(errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ENODEV, errno.ENXIO),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EUCLEAN),
    )
)
_OF_NAMES: Final = frozenset(
    (
        *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        *(errno.ELOOP, errno.EILSEQ, errno.EINVAL, errno.ENOTEMPTY),
    )
)


# Errors of Python that bytes of a stranger can cause: by numbers, names, depths and sizes. Others
# are mistakes of this program.
OF_THE_BYTES: Final = (ArithmeticError, LookupError, MemoryError, RecursionError, ValueError)


class ArchiveError(Exception):
    """An archive is not unpacked; the message says why."""


@dataclass(frozen=True)
class UnpackOptions:
    """Bounds and rights for the content of an archive.

    Attributes:
        max_bytes: of all files together.
        writable: whether the owner of the files may change them.
        within: the path of the only file or folder that is accepted; "" for every path.
        links: whether links are accepted; else an archive that has one is refused.
        members_max: files, links, and folders, also those that only a path names.
    """

    max_bytes: int
    writable: bool = False
    within: str = ""
    links: bool = True
    members_max: int = MEMBERS_MAX


class Unpacking:
    """The unpacking of one archive.

    Attributes:
        size_bytes: of all files so far.
    """

    def __init__(self, folder: Folder, options: UnpackOptions) -> None:
        self.options = options
        self.size_bytes = 0
        self._folder = folder
        self._members = 0
        self._copies: list[tuple[str, str]] = []
        self._links: list[tuple[str, str]] = []

    def add_folder(self, name: str) -> None:
        """Make a folder."""
        parts = self._parts(name)
        if parts:
            self._make_folder(parts).close()

    def add_file(self, name: str, source: IO[bytes], *, is_executable: bool) -> None:
        """Write a file; it replaces an earlier file of that name."""
        parts = self._parts(name)
        if not parts:
            raise ArchiveError("it has a file without a name")
        with self._make_folder(parts[:-1]) as parent:
            descriptor = self._create(parent, parts[-1], name, self._mode(is_executable))
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while data := source.read(COPY_BYTES):
                self.count(len(data))
                _write_all(file, data)

    def add_copy(self, name: str, source: str) -> None:
        """Note a hard link; it becomes a copy of the file `source` at the end."""
        self._require_links(name)
        self._copies.append(("/".join(self._parts(name)), "/".join(_parts(source))))

    def add_link(self, name: str, target: str) -> None:
        """Note a symbolic link; it is made at the end.

        Raises:
            ArchiveError: the target may be outside the folder of the archive.
        """
        self._require_links(name)
        parts = self._parts(name)
        self._links.append(("/".join(parts), target_inside(parts, target, name)))

    def count(self, size: int) -> None:
        """Count bytes of files.

        Raises:
            ArchiveError: the files have more bytes than accepted.
        """
        self.size_bytes += size
        require_size(self.size_bytes, self.options.max_bytes)

    def finish(self) -> None:
        """Make the copies and links."""
        for name, source in self._copies:
            self._copy(name, source)
        for name, target in self._links:
            *folders, last = name.split("/")
            try:
                parent = self._make_folder(folders)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise ArchiveError(f"{short_line(name)} is behind a link") from None
                raise
            with parent:
                self._make_way(parent, last, name, "link")
                parent.link(last, target)

    def _copy(self, name: str, source: str) -> None:
        problem = f"{short_line(name)} is a link to a file that does not exist"
        if not name or not source:
            raise ArchiveError(problem)
        try:
            descriptor = self._folder.open(source.split("/"), _SOURCE_FLAGS)
        except OSError as error:
            if error.errno in _DEVICE_ERRORS:
                raise
            raise ArchiveError(problem) from None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ArchiveError(problem)
            *folders, last = name.split("/")
            with self._make_folder(folders) as parent:
                if parent.status(last) is not None:
                    raise ArchiveError(f"{short_line(name)} is a link and something else")
                self.count(status.st_size)
                mode = self._mode(bool(status.st_mode & 0o100))
                with os.fdopen(parent.create(last, mode), "wb", buffering=0) as copy:
                    while data := file.read(COPY_BYTES):
                        _write_all(copy, data)

    def _parts(self, name: str) -> list[str]:
        """Return the path of a member, empty for the folder of the archive; count the member.

        Raises:
            ArchiveError: it leads elsewhere, or the archive has too many members.
        """
        self._count_members(1)
        parts = _parts(name)
        within, plain = self.options.within, "/".join(parts)
        if plain and within and plain != within and not plain.startswith(f"{within}/"):
            raise ArchiveError(f"{short_line(name)} is not where it should be")
        return parts

    def _count_members(self, number: int) -> None:
        self._members += number
        if self._members > self.options.members_max:
            raise ArchiveError(f"it has more than {self.options.members_max} files")

    def _make_folder(self, parts: Sequence[str]) -> Folder:
        """Return a folder, made if need be. Folders count as members."""
        folder, count = self._folder.make_folders(parts)
        try:
            self._count_members(count)
        except BaseException:
            folder.close()
            raise
        return folder

    def _create(self, parent: Folder, last: str, name: str, mode: int) -> int:
        """Create a file in the place of an earlier one. Return its descriptor."""
        try:
            return parent.create(last, mode)
        except FileExistsError:
            self._make_way(parent, last, name, "file")
            return parent.create(last, mode)

    def _make_way(self, parent: Folder, last: str, name: str, kind: str) -> None:
        """Remove an earlier file or link of the same name."""
        status = parent.status(last)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise ArchiveError(f"{short_line(name)} is a {kind} and a folder")
        parent.remove(last)

    def _require_links(self, name: str) -> None:
        if not self.options.links:
            raise ArchiveError(f"{short_line(name)} is a link, and links are not accepted here")

    def _mode(self, is_executable: bool) -> int:
        mode = 0o644 if self.options.writable else 0o444
        return mode | 0o111 if is_executable else mode


def unpack(file: IO[bytes], folder: Folder, options: UnpackOptions) -> int:
    """Unpack a .tar (also .gz, .bz2, .xz) or a .zip file.

    Args:
        file: the archive, at its start; it can be read at any place.
        folder: receives the content; empty, and closed to other users.
        options: bounds and rights.

    Returns:
        The bytes of all files together.

    Raises:
        ArchiveError: it is no archive, is broken, or has a member that is not accepted.
        OSError: this device cannot store the files.
    """
    unpacking = Unpacking(folder, options)
    magic = file.read(8)
    kind = next((kind for start, kind in _MAGIC if magic.startswith(start)), "tar")
    file.seek(0)
    try:
        if kind == "zip":
            _unpack_zip(file, unpacking)
        else:
            _unpack_tar(_unpacked(file, kind), unpacking)
        unpacking.finish()
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError) as error:
        raise ArchiveError(f"it is no archive, or a broken one: {error}") from None
    except (ValueError, RuntimeError, NotImplementedError, struct.error) as error:
        raise ArchiveError(f"it is broken: {error}") from None
    except (ArithmeticError, LookupError, MemoryError) as error:
        raise ArchiveError(f"it is broken: {type(error).__name__}") from None
    except OSError as error:
        if error.errno is None:  # an error of a decompressor
            raise ArchiveError(f"it is broken: {error}") from None
        if error.errno in _DEVICE_ERRORS:
            raise
        problem = "it has a name that cannot be" if error.errno in _OF_NAMES else "it is refused"
        raise ArchiveError(f"{problem}: {error.strerror}") from None
    return unpacking.size_bytes


def _unpack_tar(source: IO[bytes], unpacking: Unpacking) -> None:
    reader = _Forwards(source, unpacking)
    with tarfile.open(fileobj=reader, mode="r:", errorlevel=2) as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            if len(tar.pax_headers) > GLOBAL_ENTRIES_MAX:
                raise ArchiveError("it has too many global headers")
            require_size(member.size, unpacking.options.max_bytes)
            if member.isdir():
                unpacking.add_folder(member.name)
            elif member.isreg() and not member.issparse():
                content = tar.extractfile(member)
                assert content is not None  # noqa: S101 - it is a regular file
                with reader.content():
                    is_executable = bool(member.mode & 0o100)
                    unpacking.add_file(member.name, content, is_executable=is_executable)
            elif member.islnk():
                unpacking.add_copy(member.name, member.linkname)
            elif member.issym():
                unpacking.add_link(member.name, member.linkname)
            else:
                raise ArchiveError(f"{short_line(member.name)} is neither a file nor a folder")


def _unpack_zip(file: IO[bytes], unpacking: Unpacking) -> None:
    _require_short_list(file, unpacking.options.members_max)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if member.is_dir():
                unpacking.add_folder(member.filename)
                continue
            if member.flag_bits & 0x1:
                raise ArchiveError("it needs a password")
            require_size(member.file_size, unpacking.options.max_bytes)
            if stat.S_ISLNK(mode):
                with archive.open(member) as content:  # the list may give a smaller size
                    target = content.read(TARGET_MAX_BYTES + 1)
                unpacking.add_link(member.filename, target.decode("utf-8", "replace"))
                continue
            with archive.open(member) as content:
                unpacking.add_file(member.filename, content, is_executable=bool(mode & 0o100))


def require_size(size: int, max_bytes: int) -> None:
    """Check the bytes of files against a bound.

    Raises:
        ArchiveError: the files have more.
    """
    if size > max_bytes:
        raise ArchiveError(f"its files have more than {max_bytes} bytes")


def require_name(name: str) -> None:
    """Check that every system accepts a path, its length included.

    Raises:
        ArchiveError: it cannot.
    """
    try:
        check_path("name", name)
    except (SpecError, UnicodeError):
        raise ArchiveError(f"{short_line(name)} is not a name for every system") from None


def _require_short_list(file: IO[bytes], members_max: int) -> None:
    """Check that the list at the end of a .zip file fits into memory.

    Raises:
        ArchiveError: the list is too long, or missing.
    """
    end = file.seek(0, io.SEEK_END)
    file.seek(max(end - _ZIP_TAIL_BYTES, 0))
    tail = file.read()
    file.seek(0)
    at, at64 = tail.rfind(_ZIP_END), tail.rfind(_ZIP64_END)  # the library prefers the second one
    if at < 0 or len(tail) - at < 22:
        raise ArchiveError("it is no archive, or a broken one: it has no end")
    size = struct.unpack_from("<L", tail, at + 12)[0]
    if at64 >= 0 and len(tail) - at64 >= _ZIP64_END_BYTES:
        size = max(size if size != _IN_ZIP64 else 0, struct.unpack_from("<Q", tail, at64 + 40)[0])
    elif size == _IN_ZIP64:
        raise ArchiveError("it is no archive, or a broken one: it has no list")
    entries = _entries_at(file, end, size) if size <= ZIP_LIST_MAX_BYTES else members_max + 1
    file.seek(0)
    if entries > members_max:
        raise ArchiveError(f"it has more than {members_max} files")


def _entries_at(file: IO[bytes], end: int, size: int) -> int:
    """Return the number of entries in the list of a .zip file, or a higher number.

    The list ends at the first byte of its end record, and the library ignores the start that the
    record names. So this counts the signatures of entries in all bytes of a possible list.

    Args:
        file: the archive.
        end: of the file, in bytes.
        size: of the list, in bytes.
    """
    file.seek(max(end - size - _ZIP_TAIL_BYTES, 0))
    return min(file.read().count(_ZIP_ENTRY), size // _ZIP_ENTRY_BYTES)


def _unpacked(file: IO[bytes], kind: str) -> IO[bytes]:
    if kind == "gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if kind == "bz2":
        return bz2.BZ2File(file)
    if kind == "xz":
        return io.BufferedReader(_Xz(file), COPY_BYTES)
    return file


class _Xz(io.RawIOBase):
    """An .xz file of one or several streams that may not ask for more memory than is fair."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rest = b""  # the beginning of the next stream
        self._xz = self._decompressor()

    @staticmethod
    def _decompressor() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = b""
        while not data:
            if self._xz.eof and not self._begin_stream():
                break
            more = b""
            if self._xz.needs_input:
                more, self._rest = self._rest or self._file.read(COPY_BYTES), b""
                if not more:
                    raise EOFError("it ends too early")
            data = self._xz.decompress(more, len(view))
        view[: len(data)] = data
        return len(data)

    def _begin_stream(self) -> bool:
        """Continue with the stream behind the ended one. Return whether there is one.

        Zeros may stand between streams (The .xz File Format, section 2.2).
        """
        rest = self._xz.unused_data.lstrip(b"\0")
        while not rest:
            data = self._file.read(COPY_BYTES)
            if not data:
                return False
            rest = data.lstrip(b"\0")
        self._xz, self._rest = self._decompressor(), rest
        return True


class _Forwards(io.RawIOBase):
    """A stream that is read once, and in pieces that fit into memory."""

    def __init__(self, source: IO[bytes], unpacking: Unpacking) -> None:
        self._source = source
        self._at = 0
        # Headers and padding are bounded by the number of members, long names by their own limit.
        headers = unpacking.options.members_max * 4 * tarfile.BLOCKSIZE + HEADER_MAX_BYTES
        self._most = unpacking.options.max_bytes + headers
        self._read_max_bytes = HEADER_MAX_BYTES

    @contextmanager
    def content(self) -> Iterator[None]:
        """Allow longer reads, of the content of a file."""
        self._read_max_bytes = COPY_BYTES
        try:
            yield
        finally:
            self._read_max_bytes = HEADER_MAX_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset < self._at:
            raise ValueError("it cannot be read forwards")
        while self._at < offset:
            if not self.read(min(offset - self._at, HEADER_MAX_BYTES)):
                raise EOFError("it ends too early")
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self._read_max_bytes:
            raise ValueError("a header of it is too large")
        data = self._source.read(size)
        self._at += len(data)
        if self._at > self._most:
            raise ValueError("it is too large")
        return data


def _parts(name: str) -> list[str]:
    """Return the components of a member's path, without those that mean nothing.

    Raises:
        ArchiveError: it leads out of the folder, or cannot be a path.
    """
    if name.startswith("/"):
        raise ArchiveError(f"{short_line(name)} leads out of its folder")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"{short_line(name)} leads out of its folder")
    if len(parts) > DEPTH_MAX:
        raise ArchiveError(f"{short_line(name)} is more than {DEPTH_MAX} folders deep")
    if parts:
        require_name("/".join(parts))
    return parts


def target_inside(parts: Sequence[str], target: str, name: str) -> str:
    """Return the target of a link without components that mean nothing.

    The link leads to a place in the folder of the archive. Going up behind a component would be
    wrong: that component may be a link, and the kernel goes up from the place it leads to.

    Args:
        parts: the path of the link; no folder of it is a link.
        target: of the link.
        name: of the link, for the message.

    Raises:
        ArchiveError: it may lead elsewhere, or cannot be a target.
    """
    steps = [each for each in target.split("/") if each not in ("", ".")]
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    is_inside = up < len(parts) and ".." not in steps[up:]
    is_short = len(target.encode("utf-8", "replace")) <= TARGET_MAX_BYTES and all(
        len(each.encode("utf-8", "replace")) <= TARGET_PART_MAX_BYTES for each in steps
    )
    if not parts or not target or target.startswith("/") or not target.isprintable():
        raise ArchiveError(f"{short_line(name)} is a link out of its folder")
    if not is_inside or not is_short:
        raise ArchiveError(f"{short_line(name)} is a link out of its folder")
    return "/".join(steps) or "."


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]

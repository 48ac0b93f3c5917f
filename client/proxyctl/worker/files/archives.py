"""Archives of strangers: unpacked within bounds, into a folder where nothing can lead out of it.

What comes out is files and folders; links are made last, when nothing is written any more that
could go through them, and only to what is in the same folder. An archive is read once, forwards.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import posixpath
import shutil
import stat
import struct
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, cast

from proxyctl.protocol.jobspec import SpecError, check_path
from proxyctl.worker.files.outputs import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMBERS_MAX: Final = 100_000
# One header of a tar archive; the library reads it whole, however large it says that it is.
HEADER_MAX_BYTES: Final = 1 << 20
COPY_BYTES: Final = 256 << 10
# Memory that an .xz file may ask for; the default of `xz -9` is 65 MB.
XZ_MEMORY_BYTES: Final = 128 << 20
# The list at the end of a .zip file, which the library reads whole: 100,000 names of 200 bytes.
ZIP_LIST_MAX_BYTES: Final = 32 << 20
PATH_BYTES: Final = 4_096  # of what a link says
_ZIP_END: Final = b"PK\x05\x06"
_ZIP64_END: Final = b"PK\x06\x06"
_ZIP_TAIL_BYTES: Final = 22 + 20 + 56 + 65_535  # the ends of both kinds, and a comment
_MAGIC: Final = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"), (b"PK", "zip"))


class ArchiveError(Exception):
    """An archive is not unpacked; the message says why."""


@dataclass
class Unpacking:
    """Where an archive is unpacked, and how much of it.

    Attributes:
        folder: where to.
        max_bytes: of all files together.
        writable: whether the files may be changed by their owner.
        permits: says whether a path in the archive is wanted; else the archive is refused.
        is_stopped: says whether to give up.
    """

    folder: Path
    max_bytes: int
    writable: bool = False
    permits: Callable[[str], bool] = field(default=lambda _: True)
    is_stopped: Callable[[], bool] = field(default=lambda: False)
    size_bytes: int = 0
    members: int = 0
    links: list[tuple[str, str]] = field(default_factory=list)
    copies: list[tuple[str, str]] = field(default_factory=list)

    def path_of(self, name: str) -> Path | None:
        """Return where a member goes, None for the folder itself; count it.

        Raises:
            ArchiveError: it goes nowhere good, or there are too many.
        """
        self.members += 1
        if self.members > MEMBERS_MAX:
            raise ArchiveError(f"it has more than {MEMBERS_MAX} files")
        if self.is_stopped():
            raise ArchiveError("nobody wants it any more")
        plain = _plain(name)
        if not plain:
            return None
        if not self.permits(plain):
            raise ArchiveError(f"{shown(name)} is not where it should be")
        return self.folder / plain

    def add_folder(self, name: str) -> None:
        """Make a folder."""
        path = self.path_of(name)
        if path is not None:
            _make_folder(path)

    def add_file(self, name: str, source: IO[bytes], *, is_executable: bool) -> None:
        """Write a file; one of that name before it is replaced."""
        path = self.path_of(name)
        if path is None:
            raise ArchiveError("it has a file without a name")
        _make_folder(path.parent)
        if path.is_dir():
            raise ArchiveError(f"{shown(name)} is a file and a folder")
        path.unlink(missing_ok=True)
        with path.open("xb") as file:
            while data := source.read(COPY_BYTES):
                self.count(len(data))
                file.write(data)
        self._set_mode(path, is_executable=is_executable)

    def count(self, size: int) -> None:
        """Count bytes of files.

        Raises:
            ArchiveError: they are too many.
        """
        self.size_bytes += size
        if self.size_bytes > self.max_bytes:
            raise ArchiveError(f"its files have more than {self.max_bytes} bytes")
        if self.is_stopped():
            raise ArchiveError("nobody wants it any more")

    def finish(self) -> None:
        """Make what refers to other members."""
        for name, target in self.copies:
            path, source = self.folder / name, self.folder / target
            if not source.is_file() or path.exists():
                raise ArchiveError(f"{shown(name)} is a link to what is not there")
            self.count(source.stat().st_size)
            _make_folder(path.parent)
            shutil.copyfile(source, path)
            self._set_mode(path, is_executable=bool(source.stat().st_mode & 0o100))
        for name, target in self.links:
            path = self.folder / name
            _make_folder(path.parent)
            if path.is_dir():
                raise ArchiveError(f"{shown(name)} is a link and a folder")
            path.unlink(missing_ok=True)
            path.symlink_to(target)

    def _set_mode(self, path: Path, *, is_executable: bool) -> None:
        mode = 0o644 if self.writable else 0o444
        path.chmod(mode | 0o111 if is_executable else mode)


def unpack(archive: Path, unpacking: Unpacking) -> None:
    """Unpack a .tar (also .gz, .bz2, .xz) or a .zip file.

    Raises:
        ArchiveError: it is none, is broken, or has something in it that is not to be unpacked.
        OSError: this device cannot hold it.
    """
    _make_folder(unpacking.folder)
    with archive.open("rb") as file:
        magic = file.read(8)
        kind = next((kind for start, kind in _MAGIC if magic.startswith(start)), "tar")
        file.seek(0)
        try:
            if kind == "zip":
                _unpack_zip(file, unpacking)
            else:
                _unpack_tar(_unpacked(file, kind), unpacking)
        except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError) as error:
            raise ArchiveError(f"it is no archive, or a broken one: {error}") from None
        except (ValueError, RuntimeError, NotImplementedError, struct.error) as error:
            raise ArchiveError(f"it is broken: {error}") from None
        except OSError as error:
            if error.errno is None:  # what the decompressors raise
                raise ArchiveError(f"it is broken: {error}") from None
            if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST):
                raise ArchiveError(f"it has a name that cannot be: {error.strerror}") from None
            raise
    unpacking.finish()


def pack(files: list[tuple[str, int, Callable[[], IO[bytes]]]], archive: Path) -> None:
    """Write a .tar file, without owners and times: of the same files it is always the same.

    Args:
        files: name and size of each, and what opens it.
        archive: where to.

    Raises:
        ArchiveError: a file became shorter meanwhile.
        OSError: this device cannot hold it.
    """
    with (
        archive.open("wb") as target,
        tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, size, opener in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = size, 0o644
            with opener() as source:
                try:
                    tar.addfile(member, source)
                except OSError as error:
                    if error.errno is None:
                        raise ArchiveError(f"{shown(name)} changed while it was read") from None
                    raise


def _unpack_tar(source: IO[bytes], unpacking: Unpacking) -> None:
    reader = _Forwards(source, unpacking)
    with tarfile.open(fileobj=reader, mode="r:", errorlevel=2) as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
            if member.size > unpacking.max_bytes:
                raise ArchiveError(f"its files have more than {unpacking.max_bytes} bytes")
            if member.isdir():
                unpacking.add_folder(member.name)
            elif member.isreg() and not member.issparse():
                content = tar.extractfile(member)
                assert content is not None  # noqa: S101 - it is a regular file
                unpacking.add_file(member.name, content, is_executable=bool(member.mode & 0o100))
            elif member.islnk():
                unpacking.path_of(member.name)
                unpacking.copies.append((_plain(member.name), _plain(member.linkname)))
            elif member.issym():
                unpacking.path_of(member.name)
                unpacking.links.append(_link(member.name, member.linkname))
            else:
                raise ArchiveError(f"{shown(member.name)} is neither a file nor a folder")


def _unpack_zip(file: IO[bytes], unpacking: Unpacking) -> None:
    _require_short_list(file)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if member.is_dir():
                unpacking.add_folder(member.filename)
                continue
            if member.flag_bits & 0x1:
                raise ArchiveError("it needs a password")
            if member.file_size > unpacking.max_bytes:
                raise ArchiveError(f"its files have more than {unpacking.max_bytes} bytes")
            if stat.S_ISLNK(mode):
                target = archive.read(member) if member.file_size < PATH_BYTES else b""
                unpacking.path_of(member.filename)
                unpacking.links.append(_link(member.filename, target.decode("utf-8", "replace")))
                continue
            with archive.open(member) as content:
                unpacking.add_file(member.filename, content, is_executable=bool(mode & 0o100))


def _require_short_list(file: IO[bytes]) -> None:
    """See that the list at the end of a .zip file is one that fits into memory.

    Raises:
        ArchiveError: it is not, or there is none.
    """
    end = file.seek(0, io.SEEK_END)
    file.seek(max(end - _ZIP_TAIL_BYTES, 0))
    tail = file.read()
    file.seek(0)
    at, at64 = tail.rfind(_ZIP_END), tail.rfind(_ZIP64_END)
    if at < 0 or len(tail) - at < 22:
        raise ArchiveError("it is no archive, or a broken one: it has no end")
    size = struct.unpack_from("<L", tail, at + 12)[0]
    if size == 0xFFFFFFFF:
        if at64 < 0 or len(tail) - at64 < 56:
            raise ArchiveError("it is no archive, or a broken one: it has no list")
        size = struct.unpack_from("<Q", tail, at64 + 40)[0]
    if size > ZIP_LIST_MAX_BYTES:
        raise ArchiveError(f"it has more than {MEMBERS_MAX} files")


def _unpacked(file: IO[bytes], kind: str) -> IO[bytes]:
    if kind == "gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if kind == "bz2":
        return bz2.BZ2File(file)
    if kind == "xz":
        return io.BufferedReader(_Xz(file), COPY_BYTES)
    return file


class _Xz(io.RawIOBase):
    """An .xz file that may not ask for more memory than is fair."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = b""
        while not data and not self._xz.eof:
            more = self._file.read(COPY_BYTES) if self._xz.needs_input else b""
            if self._xz.needs_input and not more:
                raise EOFError("it ends too early")
            data = self._xz.decompress(more, len(view))
        view[: len(data)] = data
        return len(data)


class _Forwards(io.RawIOBase):
    """A stream that is read once, and in pieces that fit into memory."""

    def __init__(self, source: IO[bytes], unpacking: Unpacking) -> None:
        self._source = source
        self._at = 0
        # Headers and padding are bounded by the number of members, long names by their own limit.
        self._most = unpacking.max_bytes + MEMBERS_MAX * 4 * tarfile.BLOCKSIZE + HEADER_MAX_BYTES

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
            if not self.read(min(offset - self._at, COPY_BYTES)):
                raise EOFError("it ends too early")
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= HEADER_MAX_BYTES:
            raise ValueError("a header of it is too large")
        data = self._source.read(size)
        self._at += len(data)
        if self._at > self._most:
            raise ValueError("it is too large")
        return data


def _plain(name: str) -> str:
    """Return the path of a member without what means nothing, "" for the folder itself.

    Raises:
        ArchiveError: it leads out of the folder, or cannot be a path.
    """
    if name.startswith("/"):
        raise ArchiveError(f"{shown(name)} leads out of its folder")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"{shown(name)} leads out of its folder")
    plain = "/".join(parts)
    if plain:
        try:
            check_path("name", plain)
        except (SpecError, UnicodeError):
            raise ArchiveError(f"{shown(name)} is not a name for every system") from None
    return plain


def _link(name: str, target: str) -> tuple[str, str]:
    """Return a link that leads to something in the same folder.

    Raises:
        ArchiveError: it leads elsewhere.
    """
    plain = _plain(name)
    end = posixpath.normpath(posixpath.join(posixpath.dirname(plain), target))
    leads_out = target.startswith("/") or end == ".." or end.startswith("../")
    if leads_out or not target or not target.isprintable():
        raise ArchiveError(f"{shown(name)} is a link out of its folder")
    return plain, target


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)

"""Files of a backup: private, durable, hashed while they are copied, and never behind a link."""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from storage.backups.errors import BackupError
from storage.engines.durable import sync_folder

CHUNK_BYTES = 1024 * 1024
_LINKS = frozenset((errno.ELOOP, errno.ENOTDIR))
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Digest:
    """Size and SHA-256 of bytes that pass by."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._hash.update(data)
        self.size += len(data)

    def hexdigest(self) -> str:
        """Return the hash in hexadecimal."""
        return self._hash.hexdigest()


class HashedFile:
    """New file of mode 0600 whose content is hashed while it is written.

    Args:
        path: its path; the folders above are made, with mode 0700.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._digest = Digest()

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return self._digest.size

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)
        self._digest.add(data)

    def finish(self) -> str:
        """Make the file durable, close it, and return its hash in hexadecimal."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close a file that stays incomplete."""
        self._file.close()


def make_folder(folder: Path) -> None:
    """Make a folder and the missing ones above it, each with mode 0700."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700)


@contextmanager
def new_file(path: Path) -> Iterator[HashedFile]:
    """Yield a new file, which is closed at the end of the block in any case."""
    file = HashedFile(path)
    try:
        yield file
    finally:
        file.close()


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a file."""
    while data := file.read(CHUNK_BYTES):
        yield data


def hashed(path: Path) -> tuple[int, str]:
    """Make a file durable; return its size and hash."""
    digest = Digest()
    with path.open("rb") as file:
        for data in chunks(file):
            digest.add(data)
        os.fsync(file.fileno())
    return digest.size, digest.hexdigest()


def is_safe(path: str) -> bool:
    """Return whether a path leads to a place beneath the folder that it starts from."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") and part.isprintable() for part in parts)


@contextmanager
def opened_beneath(folder: Path, path: str) -> Iterator[BinaryIO]:
    """Open a regular file beneath a folder for reading, and follow no link on the way.

    Raises:
        BackupError: it is not there, or it is a link or another kind of file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    *folders, name = PurePosixPath(path).parts
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        for each in (*folders, name):
            kind = 0 if each is name else os.O_DIRECTORY
            inner = os.open(each, flags | kind, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BackupError(f"{path}: not a regular file")
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        reason = "a link, or not a folder" if error.errno in _LINKS else error.strerror
        raise BackupError(f"{folder}: {path}: {reason}") from error
    except BackupError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        yield file


def is_private(path: Path) -> bool:
    """Return whether only this user, or root, may enter or change a folder."""
    found = path.stat()
    return not found.st_mode & _OTHERS and found.st_uid in (0, os.geteuid())


def sync_tree(folder: Path) -> None:
    """Make the names in a folder, and in all folders beneath it, durable."""
    for place, _, _ in os.walk(folder):
        sync_folder(Path(place))


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write to the file system of a folder."""
    return shutil.disk_usage(folder).free

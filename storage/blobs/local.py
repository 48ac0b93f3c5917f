"""Contents as files of this machine.

An upload is received into `incoming/<artifact>`. It is hashed while it arrives; only one that was
interrupted by a restart is read again for its hash. A whole one is made durable, and renamed to its
key. All work with files is done in threads of its own.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from storage.blobs.base import (
    BlobError,
    BusyError,
    Content,
    FullError,
    MismatchError,
    MissingError,
    Part,
    Receiver,
    UnwantedError,
    Upload,
)
from storage.engines.durable import sync_folder

if TYPE_CHECKING:
    from hashlib import _Hash

# One write and one piece of hashing: large enough that a hop to a thread costs little beside it,
# small enough that a thousand slow uploads take no memory to speak of.
WRITE_BYTES = 1024 * 1024
# Hashing takes a core for each; more threads would only make uploads wait for the disk together.
THREADS = 4
# A file of 5 GiB is read again for several seconds: requests that send and fetch do not wait for
# that.
HASHING_THREADS = 2
# Left free for the database, which may be beside the folder and must not be the one that fails.
RESERVE_BYTES = 256 * 1024 * 1024
# Hashes of interrupted uploads that may continue: a kilobyte each.
HASHES_MAX = 1_000
READ_BYTES = 4 * 1024 * 1024  # at once, for the hash of an upload from before a restart
FORGET_MAX = 10_000  # looked at in one go, within a second; the rest the next time
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class LocalBlobs:
    """`Blobs` beneath a folder, made with the first upload and accessible only to this user.

    Args:
        reserve_bytes: how much of its file system is left free.
        is_shared: whether other processes also receive uploads in the folder.
    """

    is_elsewhere = False
    late_seconds = 0

    def __init__(
        self, folder: Path, *, reserve_bytes: int = RESERVE_BYTES, is_shared: bool = False
    ) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._is_shared = is_shared
        self._threads = FileThreads(THREADS)
        self._finishing = FileThreads(HASHING_THREADS)
        # Of uploads that are not whole yet: the number of bytes hashed, and the state of the hash.
        self._hashes: OrderedDict[str, tuple[int, _Hash]] = OrderedDict()

    async def begin(self, upload: Upload) -> str:  # noqa: ARG002 - nothing is to be prepared
        """See `Blobs.begin`."""
        return ""

    def parts(self, upload: Upload) -> list[Part]:
        """See `Blobs.parts`; never called here."""
        raise NotImplementedError(f"{upload.id} is sent to the API itself")

    def address(self, key: str, name: str) -> str:
        """See `Blobs.address`; never called here."""
        raise NotImplementedError(f"{key} ({name}) is fetched from the API itself")

    async def stored(self, upload: Upload) -> int:
        """See `Blobs.stored`."""
        return await self._threads.run(self._stored, upload)

    @asynccontextmanager
    async def receive(self, upload: Upload, offset: int) -> AsyncIterator[Receiver]:
        """See `Blobs.receive`."""
        descriptor = await self._threads.open(self._open_incoming, upload, offset)
        digest = self._hash_at(upload, offset)
        receiver = _FileReceiver(descriptor, offset, digest, self._threads, self._reserve_bytes)
        self._hashes.pop(upload.id, None)
        try:
            try:
                yield receiver
            finally:
                await receiver.flush()
                self._remember(upload, receiver)
        except (FullError, UnwantedError):
            # The bytes received so far may be the ones that the disk lacks for all other users.
            await self._threads.run(_unlink, self._incoming(upload))
            raise
        finally:
            receiver.close()

    async def finish(self, upload: Upload, etags: list[str]) -> bool:  # noqa: ARG002 - has none
        """See `Blobs.finish`."""
        await self._finishing.run(self._finish, upload)
        self._hashes.pop(upload.id, None)
        return True

    async def drop(self, upload: Upload) -> None:
        """See `Blobs.drop`."""
        self._hashes.pop(upload.id, None)
        await self._threads.run(_unlink, self._incoming(upload), self._folder / upload.key)

    async def open(self, key: str) -> Content:
        """See `Blobs.open`."""
        descriptor = await self._threads.open(_open_whole, self._folder / key)
        return FileContent(descriptor, self._threads)

    async def forget(self, seconds: float) -> int:
        """See `Blobs.forget`."""
        return await self._threads.run(self._forget, seconds)

    async def close(self) -> None:
        """See `Blobs.close`."""
        self._threads.close()
        self._finishing.close()

    def _forget(self, seconds: float) -> int:
        folder, removed = self._folder / "incoming", 0
        if not folder.is_dir():
            return 0
        # By the clock of the file system, which has written the times that are compared.
        with tempfile.TemporaryFile(dir=folder) as probe:
            now = os.fstat(probe.fileno()).st_mtime
        with os.scandir(folder) as entries:
            for entry in islice(entries, FORGET_MAX):
                with contextlib.suppress(FileNotFoundError):  # it has just become whole
                    if entry.stat(follow_symlinks=False).st_mtime <= now - seconds:
                        _unlink(Path(entry.path))
                        removed += 1
        return removed

    def _incoming(self, upload: Upload) -> Path:
        return self._folder / "incoming" / upload.id

    def _stored(self, upload: Upload) -> int:
        try:
            return self._incoming(upload).stat().st_size
        except FileNotFoundError:
            whole = self._folder / upload.key
            return upload.size_bytes if whole.exists() else 0

    def _open_incoming(self, upload: Upload, offset: int) -> int:
        path = self._incoming(upload)
        _make_private(path.parent)
        require_room(path.parent, upload.size_bytes - offset + self._reserve_bytes)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(descriptor, path)
            if (self._folder / upload.key).exists():
                path.unlink()
                return self._open_renamed(upload, offset, descriptor)
            if os.fstat(descriptor).st_size < offset:
                raise MismatchError(f"fewer than {offset} bytes are stored")
            os.truncate(descriptor, offset)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open_renamed(self, upload: Upload, offset: int, empty: int) -> int:
        """Return a descriptor of a file that a daemon renamed before it ended: it is complete.

        Raises:
            MismatchError: the sender does not begin behind it.
        """
        if offset != upload.size_bytes:
            raise MismatchError(f"all {upload.size_bytes} bytes are stored")
        descriptor = _open_whole(self._folder / upload.key)
        os.close(empty)
        return descriptor

    def _hash_at(self, upload: Upload, offset: int) -> "_Hash | None":
        """Return the hash of the first `offset` bytes, if it is known."""
        if offset == 0:
            return hashlib.sha256()
        known = self._hashes.get(upload.id)
        return known[1] if known is not None and known[0] == offset else None

    def _remember(self, upload: Upload, receiver: "_FileReceiver") -> None:
        # Another process may write over the bytes before they are taken as whole.
        if receiver.digest is not None and not self._is_shared:
            self._hashes[upload.id] = receiver.offset, receiver.digest
            if len(self._hashes) > HASHES_MAX:
                self._hashes.popitem(last=False)

    def _finish(self, upload: Upload) -> None:
        incoming, whole = self._incoming(upload), self._folder / upload.key
        if whole.exists():  # it was renamed, and then the daemon ended
            return
        try:
            descriptor = os.open(incoming, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise MismatchError(f"0 of {upload.size_bytes} bytes are stored") from None
        try:
            _lock(descriptor, incoming)
            size = os.fstat(descriptor).st_size
            if size != upload.size_bytes:
                raise MismatchError(f"{size} of {upload.size_bytes} bytes are stored")
            # Only the hash known under the lock belongs to these bytes.
            known = self._hash_at(upload, size)
            digest = known.hexdigest() if known is not None else _digest(descriptor)
            if digest != upload.sha256:
                incoming.unlink()
                raise MismatchError(f"the SHA-256 of the received file is {digest}")
            os.fsync(descriptor)
            _make_private(whole.parent)
            incoming.rename(whole)
            sync_folder(whole.parent)
            sync_folder(whole.parent.parent)
        finally:
            os.close(descriptor)


class FileContent:
    """A `Content` in a file, whose open descriptor is closed with this."""

    def __init__(self, descriptor: int, threads: "FileThreads") -> None:
        self._file = _File(descriptor)
        self._threads = threads
        self.size_bytes = os.fstat(descriptor).st_size

    async def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        return await self._file.use(self._threads, os.pread, self._file.descriptor, size, offset)

    def close(self) -> None:
        """See `Content.close`."""
        self._file.close()


class _FileReceiver:
    """A `Receiver`: bytes are written and hashed in a thread while the next ones arrive.

    Never more than two `WRITE_BYTES` are in memory: the arriving bytes and the bytes being written.
    """

    def __init__(
        self,
        descriptor: int,
        offset: int,
        digest: "_Hash | None",
        threads: "FileThreads",
        reserve_bytes: int,
    ) -> None:
        self._file = _File(descriptor)
        self._reserve_bytes = reserve_bytes
        self._threads = threads
        self._written = offset
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self.digest = digest

    @property
    def offset(self) -> int:
        """See `Receiver.offset`."""
        return self._written + self._waiting

    async def write(self, data: bytes) -> None:
        """See `Receiver.write`."""
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting >= WRITE_BYTES:
            await self._begin_write()

    async def flush(self) -> None:
        """Wait until all that was taken is written."""
        if self._pieces:
            await self._begin_write()
        await self._end_write()

    def close(self) -> None:
        """Close the file, once nothing is being written to it."""
        self._file.close()

    async def _begin_write(self) -> None:
        await self._end_write()
        pieces, self._pieces = self._pieces, []
        at, size = self._written, self._waiting
        self._written, self._waiting = at + size, 0
        self._task = asyncio.create_task(self._file.use(self._threads, self._write, pieces, at))

    async def _end_write(self) -> None:
        """Wait for the write that is under way."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            await task
        except BaseException:
            # The number of bytes written is unknown: the file is read again for its hash.
            self.digest, self._pieces, self._waiting = None, [], 0
            raise

    def _write(self, pieces: list[bytes], at: int) -> None:
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # There was room for this whole upload when it began, but not for all simultaneous uploads.
        require_room(self._file.descriptor, len(data) + self._reserve_bytes)
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file.descriptor, view, at)
            view, at = view[count:], at + count
        if self.digest is not None:
            self.digest.update(data)


class _File:
    """An open file that is closed once no thread works with it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._users = 0
        self._is_closed = False

    async def use(
        self,
        threads: "FileThreads",
        function: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Call a function with the descriptor in a thread; the waiting caller may be cancelled."""
        assert not self._is_closed  # noqa: S101 - another file may have its number by now
        future = threads.submit(function, *args, **kwargs)
        self._users += 1
        future.add_done_callback(self._used)
        return await _translated(future)

    def close(self) -> None:
        """Close it now, or when the last thread is done."""
        self._is_closed = True
        self._close_unused()

    def _used(self, _: object) -> None:
        self._users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closed and not self._users and self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


class FileThreads:
    """Threads for calls that may block; the errors of files become `BlobError`s."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, "blobs")

    def submit(
        self,
        function: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> "asyncio.Future[_Result]":
        """Begin to run a function; cancelling the future does not end it."""
        running = self._executor.submit(function, *args, **kwargs)
        return asyncio.wrap_future(running)

    async def run(
        self,
        function: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Run a function."""
        return await _translated(self.submit(function, *args, **kwargs))

    async def open(
        self,
        function: Callable[_Arguments, int],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> int:
        """Run a function that returns a descriptor; if the caller was cancelled, close that."""
        future = self.submit(function, *args, **kwargs)
        try:
            return await _translated(future)
        except asyncio.CancelledError:
            future.add_done_callback(_close_result)
            raise

    def close(self) -> None:
        """Wait for running calls, and drop the calls that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


async def _translated(future: "asyncio.Future[_Result]") -> _Result:
    """Wait for a future; a cancellation leaves it running. Raise errors of files as `BlobError`s.

    Raises:
        BlobError: in the place of an `OSError`, without the path in it.
    """
    try:
        return await asyncio.shield(future)
    except OSError as error:
        raise blob_error(error) from error


def blob_error(error: OSError) -> BlobError:
    """Return the `BlobError` in the place of an error of a file, without the path in it."""
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return FullError(reason) if error.errno in _FULL else BlobError(reason)


def _close_result(future: "asyncio.Future[int]") -> None:
    if not future.cancelled() and future.exception() is None:
        os.close(future.result())


def _lock(descriptor: int, path: Path) -> None:
    """Take an upload for one request; the lock ends with the descriptor.

    Args:
        descriptor: of its file.
        path: where that was opened; it may have been renamed before it was locked.

    Raises:
        BusyError: another request has it, or has just finished or dropped it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError) as error:
        raise BusyError("another request sends it") from error
    if not is_there:
        raise BusyError("another request has finished it")


def require_room(place: Path | int, size_bytes: int) -> None:
    """Check that a file system has room for this number of bytes.

    Raises:
        FullError: it has less.
    """
    room = os.statvfs(place)
    if room.f_bavail * room.f_frsize < size_bytes:
        raise FullError("there is no room for it on the disk")


def _digest(descriptor: int) -> str:
    digest, at = hashlib.sha256(), 0
    while data := os.pread(descriptor, READ_BYTES, at):
        digest.update(data)
        at += len(data)
    return digest.hexdigest()


def _make_private(folder: Path) -> None:
    """Make a folder and its missing parents, accessible only to this user."""
    for each in (*reversed(folder.parents), folder):
        each.mkdir(mode=0o700, exist_ok=True)


def _open_whole(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise MissingError(path.name) from error


def _unlink(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

"""Exports: a ZIP of a user's rows as JSON Lines, of the files of their jobs, and of the logs.

A request permits downloads for seven days. Each download is made anew from the present rows, in a
file without a name, so no export lies on a disk. Secrets and names of the staff are left out
(`storage.erasure.treatment`). Few exports are made at a time. A client that reads slowly takes
none of their slots: its file is closed at a deadline.
"""

import asyncio
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.files.artifacts import Artifacts
from market.logs.disk import LogDisk
from market.logs.readers import STREAMS
from proxyctl.protocol.jobspec import download_name
from storage.accounts import closures
from storage.blobs.base import BlobError, Content
from storage.blobs.local import FileContent, FileThreads, blob_error, require_room
from storage.engines.store import Transaction, Value
from storage.erasure import erasing as queries
from storage.logs.files import Attempt, LogFiles

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

KEPT_SECONDS = 7 * 86_400
PAUSE_SECONDS = 86_400  # between two requests of a user
DOWNLOADS_MAX = 5
AT_ONCE_MAX = 4  # that are made at the same time; a user has one export that is made or read
FILES_MAX = 64  # that are made or read; each takes disk, whose reserve is the other bound
RETRY_SECONDS = 10  # to make a usual export, or to read it
BUSY = "Another download of an export is made or read; repeat this one after it."
READ_SECONDS = 60.0  # to read a small file
READ_BYTES_PER_SECOND = 128 * 1024  # a file has a second more for these bytes of it
READ_THREADS = 2
PAGE_ROWS = 500
ROWS_MAX = 200_000  # of a table
FILES_MAX_BYTES = 1024**3  # of files and logs together
READ_BYTES = 1024 * 1024
NAME_MAX_CHARACTERS = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_README = """This archive has the rows of your account, a file of JSON Lines for each table:
times are UTC seconds, amounts are millionths. `files` has the files of your jobs, `logs` their
output. Hashes of secrets and names of the staff are left out. {left_out}
"""


class Asked(Struct, frozen=True):
    """A permitted export: its identifier, and the end of the permission in UTC seconds."""

    id: str
    expires_at: int


class ExportBounds(Struct, frozen=True):
    """Bounds of one export: rows of a table, bytes of files, and seconds to read a small one."""

    rows: int = ROWS_MAX
    file_bytes: int = FILES_MAX_BYTES
    read_seconds: float = READ_SECONDS


class ExportPlace(Struct, frozen=True):
    """The place of the files without a name, and the bytes of its disk that they leave free.

    Without a folder it is the machine's folder of such files.
    """

    folder: Path | None = None
    reserve_bytes: int = 0


class Exports:
    """Makes exports.

    Args:
        artifacts: the files of jobs.
        disk: the files of logs.
        place: of the files without a name.
    """

    def __init__(
        self,
        context: Context,
        artifacts: Artifacts,
        disk: LogDisk,
        place: ExportPlace | None = None,
        bounds: ExportBounds | None = None,
    ) -> None:
        self._context = context
        self._store = context.store
        self._artifacts = artifacts
        self._disk = disk
        self._place = place or ExportPlace()
        self._bounds = bounds or ExportBounds()
        self._threads = FileThreads(READ_THREADS)
        self._making: set[str] = set()  # users whose export is made
        self._reading: set[str] = set()  # users whose export is read

    async def ask(self, user_id: str) -> Asked:
        """Permit the downloads of an export for seven days; a user asks once a day.

        Raises:
            MarketError: `too_many_attempts`.
        """
        now = self._context.now()
        asked = Asked(self._context.identifiers.new(), now + KEPT_SECONDS)

        async def unit(tx: Transaction) -> None:
            await tx.lock("users", [user_id])
            latest = await closures.latest_export(tx, user_id)
            if latest is not None and latest <= now < latest + PAUSE_SECONDS:
                raise MarketError(
                    Code.TOO_MANY_ATTEMPTS,
                    "An export can be asked for once a day.",
                    retry_after_seconds=latest + PAUSE_SECONDS - now,
                )
            await closures.add_export(tx, asked.id, user_id, now=now, expires_at=asked.expires_at)

        await self._store.write(unit)
        return asked

    async def open(self, user_id: str, export_id: str) -> Content:
        """Make a permitted export, and return it; the caller closes it.

        Its reader has a minute, and a second for each 128 KiB. Then the file is closed.

        Raises:
            MarketError: `export_not_found`, `too_busy`.
            FullError: the disk has no room beside its reserve.
            BlobError: the file cannot be written.
        """

        async def permit() -> None:
            is_permitted = await self._store.write(
                closures.use_export,
                export_id,
                user_id,
                now=self._context.now(),
                most=DOWNLOADS_MAX,
            )
            if not is_permitted:
                raise MarketError(Code.EXPORT_NOT_FOUND, field="export_id")

        return await self.open_after(permit, user_id)

    async def open_after(self, permit: Callable[[], Awaitable[object]], user_id: str) -> Content:
        """Make an export once `permit` has returned, and return it as `open` does.

        `permit` refuses the export by an exception. It is not called while the export is busy.

        Raises:
            MarketError: `too_busy`.
            FullError, BlobError: as `open`.
        """
        held = self._making | self._reading
        if len(self._making) >= AT_ONCE_MAX or len(held) >= FILES_MAX or user_id in held:
            raise MarketError(Code.TOO_BUSY, BUSY, retry_after_seconds=RETRY_SECONDS)
        self._making.add(user_id)
        try:
            await permit()
            return await self._made(user_id)
        except OSError as error:
            raise blob_error(error) from error
        finally:
            self._making.discard(user_id)

    async def _made(self, user_id: str) -> Content:
        with await asyncio.to_thread(_nameless, self._place) as file:
            await self.write(user_id, file)
            content = FileContent(os.dup(file.fileno()), self._threads)
        self._reading.add(user_id)
        seconds = self._bounds.read_seconds + content.size_bytes / READ_BYTES_PER_SECOND
        return _HeldContent(content, seconds, partial(self._reading.discard, user_id))

    async def write(self, user_id: str, file: IO[bytes]) -> None:
        """Write the export of a user to a file.

        Raises:
            StoreError: the database did not answer.
            OSError: the disk is full, or fails.
        """
        archive = _Archive(file, self._context.now())
        try:
            for table in queries.exported_tables():
                await self._write_table(archive, table, user_id)
            left_out = await self._write_files(archive, user_id, self._bounds.file_bytes)
            words = f"Left out, because too large or elsewhere: {left_out} files."
            text = _README.format(left_out=words if left_out else "")
            await archive.put("README.txt", [text.encode()])
            await archive.close()
        finally:
            archive.abandon()

    async def _write_table(self, archive: "_Archive", table: str, user_id: str) -> None:
        after: Sequence[Value] = ()
        written = 0
        with archive.member(f"tables/{table}.jsonl") as member:
            while written < self._bounds.rows:
                limit = min(PAGE_ROWS, self._bounds.rows - written)
                rows, after = await self._store.read(
                    queries.exported, table, user_id, after=after, limit=limit
                )
                lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
                await asyncio.to_thread(member.write, lines.encode(errors="replace"))
                written += len(rows)
                if len(rows) < limit:
                    return

    async def _write_files(self, archive: "_Archive", user_id: str, left: int) -> int:
        """Write the files and logs of a user. Return the number of files that are left out."""
        left_out = 0
        before = ""
        while page := await self._artifacts.page_of_user(user_id, before=before, limit=PAGE_ROWS):
            for row in page:
                before = row.id
                if row.content_id is None:
                    continue
                try:
                    content = None if row.size_bytes > left else await self._artifacts.open(row)
                except (MarketError, BlobError):
                    content = None
                if content is None or isinstance(content, str):
                    left_out += 1
                    continue
                left -= row.size_bytes
                try:
                    await archive.copy(f"files/{row.id}/{safe_name(row.name)}", content)
                finally:
                    content.close()
        return left_out + await self._write_logs(archive, user_id, left)

    async def _write_logs(self, archive: "_Archive", user_id: str, left: int) -> int:
        after: Sequence[Value] = ()
        left_out = 0
        while True:
            rows, after = await self._store.read(
                queries.exported, "job_logs", user_id, after=after, limit=PAGE_ROWS
            )
            for row in rows:
                attempt = Attempt(str(row["job_id"]), int(row["attempt"] or 0))
                for stream in STREAMS:
                    name = f"logs/{attempt.job_id}/{attempt.number}.{stream}"
                    taken = await self._write_log(archive, name, attempt, stream, left)
                    left_out += taken is None
                    left -= taken or 0
            if len(rows) < PAGE_ROWS:
                return left_out

    async def _write_log(
        self, archive: "_Archive", name: str, attempt: Attempt, stream: str, left: int
    ) -> int | None:
        """Write the log of one stream. Return its bytes; None if it is left out."""
        try:
            extent = await self._disk.run(LogFiles.extent, attempt, stream)
            if extent.size > left:
                return None
            if not extent.kept:
                return 0
            offset = 0
            with archive.member(name) as member:
                while offset < extent.size:
                    part = await self._disk.run(LogFiles.read, attempt, stream, offset, READ_BYTES)
                    if not part.data:
                        break
                    await asyncio.to_thread(member.write, part.data)
                    offset = part.offset + len(part.data)
        except OSError:  # the sweep removes it meanwhile
            return None
        return extent.size


def safe_name(name: str) -> str:
    """Return a name that any program can unpack: a file without folders, of plain characters."""
    plain = _UNSAFE.sub("_", download_name(name)).strip("._")
    return plain[-NAME_MAX_CHARACTERS:] or "file"


def _nameless(place: ExportPlace) -> "_SparingFile":
    if place.folder is not None:
        place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=place.folder) as file:
        return _SparingFile(os.dup(file.fileno()), place.reserve_bytes)


class _SparingFile(io.FileIO):
    """An open file that leaves a reserve of the disk free."""

    def __init__(self, descriptor: int, reserve_bytes: int) -> None:
        self._lock = Lock()
        super().__init__(descriptor, "r+b")
        self._reserve_bytes = reserve_bytes

    def write(self, data: "ReadableBuffer") -> int:
        """Write all bytes.

        Raises:
            FullError: the disk has no room beside its reserve.
        """
        rest = memoryview(data).cast("B")
        size_bytes = len(rest)
        with self._lock:
            require_room(self.fileno(), size_bytes + self._reserve_bytes)
            while rest:
                rest = rest[super().write(rest) :]
        return size_bytes

    def close(self) -> None:
        """Close the file after the write of a thread: its number is free from then on."""
        with self._lock:
            super().close()


class _Archive:
    """A ZIP that is written in threads, one member at a time."""

    def __init__(self, file: IO[bytes], now: int) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=True)
        moment = datetime.fromtimestamp(now, UTC)
        self._time = (
            max(moment.year, 1980),
            moment.month,
            moment.day,
            moment.hour,
            moment.minute,
            moment.second,
        )

    def member(self, name: str) -> IO[bytes]:
        """Begin a member, which ends when it is closed."""
        info = zipfile.ZipInfo(name, self._time)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        return self._zip.open(info, "w", force_zip64=True)

    async def put(self, name: str, pieces: Sequence[bytes]) -> None:
        """Write a whole member."""
        with self.member(name) as member:
            for piece in pieces:
                await asyncio.to_thread(member.write, piece)

    async def copy(self, name: str, content: Content) -> None:
        """Write a content as a member; one whose bytes are lost ends early."""
        offset = 0
        with self.member(name) as member:
            while offset < content.size_bytes:
                data = await content.read(offset, READ_BYTES)
                if not data:
                    return
                await asyncio.to_thread(member.write, data)
                offset += len(data)

    async def close(self) -> None:
        """Write the end of the archive."""
        await asyncio.to_thread(self._zip.close)

    def abandon(self) -> None:
        """Write nothing more, also if the archive has no end."""
        self._zip.fp = None


class _HeldContent:
    """A `Content` in a file without a name, which is gone once it is closed or its time is over."""

    def __init__(self, content: FileContent, seconds: float, on_close: Callable[[], None]) -> None:
        self._content = content
        self._on_close = on_close
        self._is_closed = False
        self.size_bytes = content.size_bytes
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    async def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        if self._is_closed:
            raise BlobError("the time to read the export is over")
        return await self._content.read(offset, size)

    def close(self) -> None:
        """See `Content.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._timer.cancel()
        self._content.close()
        self._on_close()

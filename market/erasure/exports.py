"""Exports: a ZIP of a user's rows as JSON Lines, of the files of their jobs, and of the logs.

A request permits downloads for seven days. Each download is made anew from the present rows, in a
file without a name, so no export lies on a disk. Secrets and names of the staff are left out
(`storage.erasure.treatment`).
"""

import asyncio
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.files.artifacts import Artifacts
from market.logs.disk import LogDisk
from market.logs.readers import STREAMS
from proxyctl.protocol.jobspec import download_name
from storage.accounts import closures
from storage.blobs.base import BlobError, Content
from storage.engines.store import Transaction, Value
from storage.erasure import erasing as queries
from storage.logs.files import Attempt, LogFiles

KEPT_SECONDS = 7 * 86_400
PAUSE_SECONDS = 86_400  # between two requests of a user
DOWNLOADS_MAX = 5
AT_ONCE_MAX = 4  # each takes disk until it was sent, and a user has one
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
    """Bounds of one export: rows of a table, and bytes of files."""

    rows: int = ROWS_MAX
    file_bytes: int = FILES_MAX_BYTES


class Exports:
    """Makes exports.

    Args:
        artifacts: the files of jobs.
        disk: the files of logs.
        folder: where the files without a name are; "" for the machine's folder of such files.
    """

    def __init__(
        self,
        context: Context,
        artifacts: Artifacts,
        disk: LogDisk,
        folder: Path | None = None,
        bounds: ExportBounds | None = None,
    ) -> None:
        self._context = context
        self._store = context.store
        self._artifacts = artifacts
        self._disk = disk
        self._folder = folder
        self._bounds = bounds or ExportBounds()
        self._open: set[str] = set()  # users whose export is made or sent

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

        Raises:
            MarketError: `export_not_found`, `too_busy`.
        """
        if len(self._open) >= AT_ONCE_MAX or user_id in self._open:
            raise MarketError(Code.TOO_BUSY)
        self._open.add(user_id)
        try:
            return await self._made(user_id, export_id)
        except BaseException:
            self._open.discard(user_id)
            raise

    async def _made(self, user_id: str, export_id: str) -> Content:
        is_permitted = await self._store.write(
            closures.use_export,
            export_id,
            user_id,
            now=self._context.now(),
            most=DOWNLOADS_MAX,
        )
        if not is_permitted:
            raise MarketError(Code.EXPORT_NOT_FOUND, field="export_id")
        file = await asyncio.to_thread(_nameless, self._folder)
        try:
            await self.write(user_id, file)
        except BaseException:
            file.close()
            raise
        return _FileContent(file, partial(self._open.discard, user_id))

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


def _nameless(folder: Path | None) -> IO[bytes]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return tempfile.TemporaryFile(dir=folder)


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


class _FileContent:
    """A `Content` in a file without a name, which is gone once it is closed."""

    def __init__(self, file: IO[bytes], on_close: Callable[[], None]) -> None:
        self._file = file
        self._on_close = on_close
        self.size_bytes = file.seek(0, os.SEEK_END)

    async def read(self, offset: int, size: int) -> bytes:
        """See `Content.read`."""
        return await asyncio.to_thread(os.pread, self._file.fileno(), size, offset)

    def close(self) -> None:
        """See `Content.close`."""
        self._file.close()
        self._on_close()

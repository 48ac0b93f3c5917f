"""The record of erasures beside the database, and the files of each machine.

A backup cannot be edited. So the identifiers of erased users are also in `erasures.log`, outside
the database: a restoration of an older backup erases them again. Each machine with a daemon has
such a file. The line about a user is written once the database was scrubbed; a line `access`
follows once the networks of their clients are blank in the access log of this machine.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from config.settings import Settings
from proxyd.ops.access_log import access_place
from proxyd.ops.erasure.access_blanking import blank
from storage.accounts import closures
from storage.accounts.closures import ErasedRow
from storage.engines.durable import sync_folder
from storage.engines.store import Store
from storage.erasure import erasing
from storage.erasure.open_things import sessions

LOOK_SECONDS: Final = 30.0
FILE_NAME: Final = "erasures.log"
# Clocks of machines differ, and a commit may become visible a little after its time.
OVERLAP_SECONDS: Final = 86_400
# The last records of a session are in the file of an hour that is compressed by then.
ACCESS_AFTER_SECONDS: Final = 2 * 3_600

_logger = logging.getLogger("erasure")


class Line(Struct, omit_defaults=True):
    """A line: an erased user and the time, or a user whose access records are blank."""

    user: str = ""
    at: int = 0
    access: str = ""


_decode: Final = msgspec.json.Decoder(Line).decode
_encode: Final = msgspec.json.Encoder().encode


class ErasureLog:
    """The file `erasures.log`; lines are appended durably.

    Args:
        path: where it is; it is made with its first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[dict[str, int], set[str]]:
        """Return the times of erasures by user, and the users whose access records are blank.

        A line that a crash has cut off is left out.

        Raises:
            OSError: it cannot be read.
        """
        erased: dict[str, int] = {}
        blanked: set[str] = set()
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return erased, blanked
        for part in text.split(b"\n"):
            try:
                line = _decode(part)
            except msgspec.MsgspecError:
                continue
            if line.user:
                erased[line.user] = line.at
            if line.access:
                blanked.add(line.access)
        return erased, blanked

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines, and make them durable.

        Raises:
            OSError: the disk is full, or fails.
        """
        flags = os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            # A line that a crash has cut off ends before the next one.
            begin = b"" if _ends_whole(self.path) else b"\n"
            file.write(begin + b"".join(_encode(line) + b"\n" for line in lines))
            file.flush()
            access_place.hand_over(file.fileno(), self.path.parent.stat())
            os.fsync(file.fileno())
        sync_folder(self.path.parent)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def log_file(settings: Settings) -> Path:
    """Return the place of the file: beside the SQLite database, or with the files of jobs."""
    return access_place.state_folder(settings) / FILE_NAME


class Erasures:
    """Finishes erasures on this machine, and records them.

    Args:
        store: the database.
        path: the file of the record.
        access: the folder of the access log; None if it has no clients.
    """

    def __init__(self, store: Store, path: Path, access: Path | None) -> None:
        self._store = store
        self._log = ErasureLog(path)
        self._access = access
        self._since = 0

    async def look(self, now: int) -> int:
        """Scrub the database after new erasures, record them, and blank access records.

        Returns:
            The number of new erasures.

        Raises:
            StoreError, OSError: they are finished later.
        """
        rows = await self._store.read(closures.erased, since=self._since)
        if not rows:
            return 0
        erased, blanked = await asyncio.to_thread(self._log.read)
        new = [row for row in rows if row.user_id not in erased]
        if new:
            if not await self._store.scrub(erasing.touched()):
                return 0  # others read the database; the next look repeats it
            lines = [Line(user=row.user_id, at=row.erased_at) for row in new]
            await asyncio.to_thread(self._log.add, lines)
            _logger.info("accounts erased and recorded: %d", len(new))
        waiting = await self._blank(rows, blanked, now)
        if not waiting:
            self._since = max(row.erased_at for row in rows) - OVERLAP_SECONDS
        return len(new)

    async def _blank(self, rows: list[ErasedRow], blanked: set[str], now: int) -> bool:
        """Blank the clients of erased users. Return whether some of them are not due yet."""
        if self._access is None:
            return False
        waiting = [row for row in rows if row.user_id not in blanked]
        for row in waiting:
            until = row.erased_at + ACCESS_AFTER_SECONDS
            if now < until:
                continue
            of_user = await self._store.read(sessions, row.user_id)
            await asyncio.to_thread(blank, self._access, frozenset(of_user), until)
            await asyncio.to_thread(self._log.add, [Line(access=row.user_id)])
        return any(now < row.erased_at + ACCESS_AFTER_SECONDS for row in waiting)


def of_settings(settings: Settings, store: Store) -> Erasures:
    """Return the erasures of a machine by its settings."""
    has_clients = settings.access_log.client != "none"
    folder = access_place.access_folder(settings) if has_clients else None
    return Erasures(store, log_file(settings), folder)

"""The files of the access log: one for each hour (UTC), compressed once the hour is over.

Several processes append to the same file: one write consists of whole lines, and is appended to
those of the others (O_APPEND, open(2)). A full disk takes a part only: the half line that is left
is ended before the next one, which stays whole.
"""

import fcntl
import gzip
import logging
import os
import shutil
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from proxyd.ops.access_log.access_lines import ENDED_LINE

PREFIX: Final = "access-"
PLAIN, PACKED, PARTIAL = ".jsonl", ".jsonl.gz", ".partial"
_DAY_CHARACTERS: Final = len("2026-01-31")
HOUR_SECONDS: Final = 3600
HOURS_OF_DAY: Final = 24
# A process writes the last lines of an hour this long after it at the latest, or makes a new file.
PACK_AFTER_SECONDS: Final = 600
COPIED_BYTES: Final = 1024 * 1024
IDLE_PRIORITY: Final = 19  # compression never takes the processor from connections

_FLAGS: Final = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
_logger = logging.getLogger("access")


class HourFile(NamedTuple):
    """File of one hour, or of one day as earlier versions wrote it."""

    path: Path
    began: int
    seconds: int

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed."""
        return self.path.name.endswith(PACKED)


class HourFiles:
    """The files, and the lines that wait for the one that is open.

    Args:
        keep_days: files of days before are deleted.

    Attributes:
        written: the number of ended connections in the lines that were written.
        dropped: the number of lines that no file took.
    """

    def __init__(self, folder: Path, keep_days: int) -> None:
        self._folder = folder
        self._keep_days = keep_days
        self._descriptor: int | None = None
        self._path = folder
        self._may_end_in_half_a_line = False
        self._lines: list[bytes] = []
        self.hour: int | None = None
        self.written = 0
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """The number of lines that wait."""
        return len(self._lines)

    def add(self, line: bytes) -> None:
        """Keep a line for the next write; drop it while no file is open."""
        if self._descriptor is None:
            self.dropped += 1
        else:
            self._lines.append(line)

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        with suppress(OSError):  # a disk that is full says so again
            self.flush()
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def open(self, hour: int) -> None:
        """Begin the file of an hour (its number since 1970), and delete files that are too old.

        Raises:
            OSError: the file cannot be opened; lines are dropped until it can.
        """
        if self._descriptor is not None:
            try:
                self.flush()
            finally:
                descriptor, self._descriptor, self.hour = self._descriptor, None, None
                os.close(descriptor)
        self._path = self._folder / name_of(hour)
        self._descriptor = os.open(self._path, _FLAGS, 0o600)
        self.hour = hour
        # An earlier process may have left one.
        self._may_end_in_half_a_line = os.fstat(self._descriptor).st_size > 0
        self.delete_old(hour)

    def delete_old(self, hour: int) -> None:
        """Delete the files that are too old in an hour; one that cannot be deleted is logged."""
        files = list(files_of(self._folder))
        ends = {(each.began + each.seconds) // HOUR_SECONDS - 1 for each in files}
        trusted = _trusted(hour, ends)
        if trusted != hour:
            words = "access log: no file of the last %d hours: files are deleted a day later"
            _logger.warning(words, hour - trusted)
        today = datetime.fromtimestamp(trusted * HOUR_SECONDS, UTC).date()
        oldest = (today - timedelta(days=self._keep_days)).isoformat()
        partial = self._folder.glob(f"{PREFIX}*{PACKED}{PARTIAL}")  # of a killed process, say
        for path in [*(each.path for each in files), *partial]:
            if path.name[len(PREFIX) :][:_DAY_CHARACTERS] < oldest:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:  # the records of this hour do not depend on it
                    _logger.error("access log: %s stays: %s", path.name, error.strerror)
                    return

    def flush(self) -> None:
        """Write the lines that wait; if that fails they are dropped.

        Raises:
            OSError: why it failed.
        """
        lines, self._lines = self._lines, []
        if self._descriptor is None or not lines:
            return
        try:
            self._follow()
        except OSError:
            self.dropped += len(lines)
            raise
        end = b"\n" if self._may_end_in_half_a_line and self._ends_in_half_a_line() else b""
        text, taken = end + b"".join(lines), 0
        try:
            while taken < len(text):  # a full disk takes a part
                taken += os.write(self._descriptor, text[taken:])
        finally:
            whole = text.count(b"\n", len(end), max(taken, len(end)))
            self.written += sum(each.startswith(ENDED_LINE) for each in lines[:whole])
            self.dropped += len(lines) - whole
            self._may_end_in_half_a_line = taken < len(text)

    def _follow(self) -> None:
        """Open the file of the hour again if it was compressed: this process stood still."""
        assert self._descriptor is not None  # noqa: S101 - lines wait for an open file only
        if os.fstat(self._descriptor).st_nlink == 0:
            again = os.open(self._path, _FLAGS, 0o600)
            os.close(self._descriptor)
            self._descriptor = again

    def _ends_in_half_a_line(self) -> bool:
        """Return whether the file ends in half a line of this process or another one."""
        with self._path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"


def _trusted(hour: int, hours: Collection[int]) -> int:
    """Return the hour for the age of files: the present one, unless it is in doubt.

    After a gap of more than a day the clock may have jumped forward. Then a day of records behind
    the gap confirms it, and until then the last hour before the gap counts.

    Args:
        hour: the present hour.
        hours: the hours with files.
    """
    begin = hour
    for each in sorted((each for each in hours if each < hour), reverse=True):
        if begin - each > HOURS_OF_DAY:
            return each if hour - begin < HOURS_OF_DAY else hour
        begin = each
    return hour


class Packer:
    """Compresses the files of hours that are over, in a thread of the lowest priority.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether files are compressed now."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, now: int) -> None:
        """Begin to compress the files of closed hours, unless the thread still runs."""
        if not self.is_busy:
            thread = threading.Thread(
                target=self._run, args=(now,), name="access log packer", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # no thread is left; the next hour tries again
                _logger.error("access log: closed hours are not compressed: %s", error)
            else:
                self._thread = thread

    def _run(self, now: int) -> None:
        with suppress(OSError):  # it only costs more of the processor
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), IDLE_PRIORITY)
        try:
            pack(self._folder, now)
        except OSError as error:
            _logger.error("access log: closed hours are not compressed: %s", error.strerror)


def pack(folder: Path, now: int) -> None:
    """Compress the files of hours that are over since `PACK_AFTER_SECONDS`.

    A compressed file appears complete, before the plain one goes: after a crash between the two
    steps both have the same lines, and readers count each connection once. One thread of all
    processes does this at a time: the second of two would take a compressed file for a deleted one.

    Raises:
        OSError: the disk is full, or fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for each in list(files_of(folder)):
            if not each.is_packed and each.began + each.seconds + PACK_AFTER_SECONDS <= now:
                with suppress(FileNotFoundError):  # deleted meanwhile, because it was too old
                    _pack(each.path)
    finally:
        os.close(descriptor)


def _pack(path: Path) -> None:
    packed = path.with_name(path.name + PACKED.removeprefix(PLAIN))
    partial = packed.with_name(packed.name + PARTIAL)
    with path.open("rb") as plain, _new(partial) as file:
        with suppress(FileNotFoundError), packed.open("rb") as before:
            shutil.copyfileobj(before, file, COPIED_BYTES)
        with gzip.GzipFile("", "wb", 6, file) as compressed:  # a member of its own
            shutil.copyfileobj(plain, compressed, COPIED_BYTES)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(packed)
    try:
        path.unlink()
    except FileNotFoundError:
        packed.unlink()  # as the plain file was
        raise


def _new(path: Path) -> BinaryIO:
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def files_of(folder: Path) -> Iterator[HourFile]:
    """Yield the files of a folder; other files there are not ours."""
    for path in folder.iterdir():
        found = _parsed(path)
        if found is not None:
            yield found


def name_of(hour: int) -> str:
    """Return the name of the file of an hour."""
    return f"{PREFIX}{datetime.fromtimestamp(hour * HOUR_SECONDS, UTC):%Y-%m-%dT%H}{PLAIN}"


def _parsed(path: Path) -> HourFile | None:
    name = path.name
    ending = PACKED if name.endswith(PACKED) else PLAIN
    if not (name.startswith(PREFIX) and name.endswith(ending)):
        return None
    text = name[len(PREFIX) : -len(ending)]
    try:
        if len(text) == _DAY_CHARACTERS:
            began, seconds = datetime.combine(date.fromisoformat(text), datetime.min.time()), 24
        else:
            began, seconds = datetime.strptime(text, "%Y-%m-%dT%H"), 1  # noqa: DTZ007 - set below
    except ValueError:
        return None
    return HourFile(path, int(began.replace(tzinfo=UTC).timestamp()), seconds * HOUR_SECONDS)

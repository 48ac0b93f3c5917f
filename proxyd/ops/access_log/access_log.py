"""Records of proxied connections, as lines in files of an hour each.

A separate thread writes. Records that a slow disk cannot keep up with are dropped and counted; no
connection waits for them. The thread gathers the records of a tenth of a second, so a record costs
the event loop one call.

The thread knows which connections are open: the file of each hour begins with a line for each of
them, so that one file has all connections of its hour. A connection that ends soon has one line.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from proxyd.access import AccessQueue, Hour
from proxyd.access_records import Access, Reached, Sent
from proxyd.ops.access_log.abuse_watch import AbuseWatch, Thresholds
from proxyd.ops.access_log.access_files import HOUR_SECONDS, HourFiles, Packer
from proxyd.ops.access_log.access_lines import BEGAN, STILL, Client, Lines, Target, TargetHash
from proxyd.ops.base.errors import CannotServeError

WAITING_MAX: Final = 20_000  # a second or more of a busy proxy, ten megabytes of memory
STOP_SECONDS: Final = 10.0  # a hanging disk delays the end of the daemon by at most this time
IDLE_SECONDS: Final = 600.0
GATHERED_SECONDS: Final = 0.1
BEGAN_SECONDS: Final = 1  # a connection that ends sooner has one line
BURST_MAX_LINES: Final = 256  # 64 KiB of text: a larger write would save few system calls

_logger = logging.getLogger("access")


class CannotRecordError(CannotServeError):
    """Records cannot be written; the message has the reason, for the operator."""


class AccessLog:
    """Writes records until `close`.

    Args:
        folder: where the files are; created if it does not exist.
        target: how a record names the host and the address: as they are, by a hash that takes the
            key to compute, or not at all.
        client: how it names the client: by its address, by its network (the first 24 bits of an
            IPv4 address, 48 of an IPv6 address), or not at all.
        keep_days: files older than that are deleted.
        key: the key of the hashes.
        now: the wall clock, in UTC seconds.
        watch: counts the dials of each session, if rules are on.
        process: the number of this process in the records, if there are several; None where there
            is one. The first one also compresses the files of earlier hours.
        waiting_max: the most records that wait for the disk.
        idle_seconds: the longest time between two looks at the clock, which can be corrected.

    Attributes:
        hour: the hour whose file is written.
        put: queues a record for the thread; see `AccessQueue.put`.

    Raises:
        CannotRecordError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: Target,
        client: Client,
        keep_days: int,
        key: bytes,
        now: Callable[[], int],
        watch: AbuseWatch | None = None,
        process: int | None = None,
        waiting_max: int = WAITING_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._now = now
        self.hour = Hour()
        self._watch = watch
        self._idle_seconds = idle_seconds
        self._wake = threading.Event()
        self._queue = AccessQueue(waiting_max, now, self._wake.set)
        self.put = self._queue.put
        self._stop = threading.Event()
        self._writer = _Writer(
            Lines(target, client, TargetHash(key), process),
            HourFiles(folder, keep_days),
            None if process else Packer(folder),
            watch,
            self.hour,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._writer.begin(now())
        except OSError as error:
            raise CannotRecordError(f"the access log in {folder}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    @property
    def written(self) -> int:
        """The number of ended connections that were recorded."""
        return self._writer.files.written

    @property
    def dropped(self) -> int:
        """The number of lines that were dropped."""
        return self._queue.dropped + self._writer.files.dropped

    def change_thresholds(self, thresholds: Thresholds) -> None:
        """Apply other figures of the rules from now on."""
        if self._watch is not None:
            self._watch.change(thresholds)

    def close(self) -> None:
        """Write the queued records, for a bounded time, and close the file; idempotent."""
        self._stop.set()
        self._wake.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            _logger.error("access log: last records not written within %.0f s", STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._pause())
            self._stop.wait(GATHERED_SECONDS)
            self._wake.clear()
            self._take_all()
        self._take_all()
        self._writer.files.close()

    def _pause(self) -> float:
        """Return the longest time until something is to be done without a record."""
        if self._writer.has_unwritten:
            return BEGAN_SECONDS
        return min(self._idle_seconds, HOUR_SECONDS - self._now() % HOUR_SECONDS)

    def _take_all(self) -> None:
        """Write a line for each record that waits, and for each open connection that needs one."""
        waiting, writer = self._queue.waiting, self._writer
        while waiting:
            writer.take(*waiting.popleft())
        now = self._now()
        begun_until = now if self._stop.is_set() else now - BEGAN_SECONDS
        writer.finish(now, begun_until, self._queue.dropped)


class _Writer:
    """The thread's side: the open connections, and the lines of each record.

    Attributes:
        files: the files of the hours.
    """

    def __init__(
        self,
        lines: Lines,
        files: HourFiles,
        packer: Packer | None,
        watch: AbuseWatch | None,
        hour: Hour,
    ) -> None:
        self._lines = lines
        self._hour = hour
        self.files = files
        self._packer = packer
        self._watch = watch
        # The open connections, each with the time of its beginning. A connection of the last
        # two seconds has no line yet.
        self._open: dict[int, tuple[int, Reached]] = {}
        self._unwritten: deque[int] = deque()
        self._errors: list[OSError] = []  # of the last pass
        self._failing = False
        self._overflowed = 0  # records that found the queue full, as of the last pass
        self._told_lost = 0

    @property
    def has_unwritten(self) -> bool:
        """Whether an open connection has no line yet."""
        return bool(self._unwritten)

    def begin(self, now: int) -> None:
        """Open the file of this hour.

        Raises:
            OSError: the folder cannot be used.
        """
        self._turn(now)
        self.files.flush()

    def take(self, moment: int, record: Access | Reached | Sent) -> None:
        """Write the line of a record, or keep a connection that has begun."""
        files = self.files
        if moment // HOUR_SECONDS != files.hour:
            self._open_file_of(moment)
        if isinstance(record, Reached):
            self._open[record.connection] = (moment, record)
            self._unwritten.append(record.connection)
            if self._watch is not None:
                self._watch.reached(moment, record)
        elif isinstance(record, Sent):
            line = self._lines.sent(moment, record)
            if line is not None:
                files.add(line)
        else:
            found = self._open.pop(record.connection, None)
            if self._watch is not None and found is None:
                self._watch.failed(moment, record)
            files.add(self._lines.ended(moment, record, None if found is None else found[1]))
        if files.waiting >= BURST_MAX_LINES:
            self._flush()

    def finish(self, now: int, begun_until: int, overflowed: int) -> None:
        """Write the lines of open connections and of losses, and log an outage once.

        Args:
            now: the time, in UTC seconds.
            begun_until: connections that began later have no line yet.
            overflowed: the number of records so far that found the queue full.
        """
        self._open_file_of(now)
        self._write_begun(begun_until)
        if self._overflowed != overflowed:
            self._overflowed = overflowed
            self._forget(now)
        has_lines = self.files.waiting > 0
        self._flush()
        if has_lines and not self._errors:
            self._write_lost(now)
        if self._errors and not self._failing:  # one line for each outage
            _logger.error("access log: records dropped: %s", self._errors[0].strerror)
        self._failing = bool(self._errors)
        self._errors = []

    @property
    def _lost(self) -> int:
        return self._overflowed + self.files.dropped

    def _flush(self) -> None:
        try:
            self.files.flush()
        except OSError as error:
            self._errors.append(error)

    def _open_file_of(self, moment: int) -> None:
        """Begin the file of an hour, if another one is open, or none could be opened."""
        if moment // HOUR_SECONDS != self.files.hour:
            try:
                self._turn(moment)
            except OSError as error:
                self._errors.append(error)

    def _turn(self, moment: int) -> None:
        """Begin the file of another hour, with a line for each open connection."""
        self._write_begun(moment)
        files, lines = self.files, self._lines
        files.open(moment // HOUR_SECONDS)
        self._hour.number = moment // HOUR_SECONDS
        files.add(lines.hour(moment, len(self._open), self._lost))
        for began, record in self._open.values():
            files.add(lines.reached(STILL, moment, began, record))
            if files.waiting >= BURST_MAX_LINES:
                files.flush()
        if self._packer is not None:
            self._packer.start(moment)

    def _write_begun(self, until: int) -> None:
        """Write a line for each connection that has begun until a time, and is open."""
        while self._unwritten:
            found = self._open.get(self._unwritten[0])
            if found is not None:
                began, record = found
                if began > until:
                    return
                self.files.add(self._lines.reached(BEGAN, began, began, record))
            self._unwritten.popleft()

    def _write_lost(self, now: int) -> None:
        lost = self._lost - self._told_lost
        if lost:
            self.files.add(self._lines.lost(now, lost))
            self._flush()
            self._told_lost += lost

    def _forget(self, now: int) -> None:
        """Forget the open connections: the ends of some of them are among the lost records."""
        self._write_begun(now)
        self._open.clear()
        self._unwritten.clear()

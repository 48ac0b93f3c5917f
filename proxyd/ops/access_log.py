"""A record of each proxied connection, one JSON object a line, one file a day.

A separate thread writes. Records that a slow disk cannot keep up with are dropped and counted; no
connection waits for them. Several processes write to the same files: one write consists of whole
lines, and is appended to those of the others (O_APPEND, open(2)). A full disk takes a part only:
the half line that is left is ended before the next one, which stays whole.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b, sha256
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal

from proxyd.access import Access
from proxyd.ops.errors import CannotServeError

WAITING_MAX = 10_000  # a second or more of a busy proxy, a few megabytes of memory
STOP_SECONDS = 5.0  # a hanging disk delays the end of the daemon by at most twice this time
IDLE_SECONDS = 600.0
TARGET_HASH_BYTES = 16  # two hosts never share a hash by chance
NETWORK_BITS = {4: 24, 6: 48}  # 256 addresses of IPv4; the usual prefix of one IPv6 site
BURST_MAX_RECORDS = 256  # 64 KiB of text: a larger write would save few system calls
NAME = "access-{day}.jsonl"

_logger = logging.getLogger("access")


class CannotRecordError(CannotServeError):
    """Records cannot be written; the message has the reason, for the operator."""


class _Format:
    """Turns records into lines.

    Args:
        target: the form of the host in a record: see `AccessLog`.
        client: the form of the client's address.
        key: the key of the hashes.
        process: the number of this process among several; None where there is one.
    """

    def __init__(
        self,
        target: Literal["host", "hash", "none"],
        client: Literal["full", "network", "none"],
        key: bytes,
        process: int | None,
    ) -> None:
        self._target = target
        self._client = client
        self._key = sha256(b"access log\0" + key).digest()
        self._process = process

    def line(self, when: datetime, access: Access) -> bytes:
        """Return the line of a record that was put at a time."""
        return json.dumps(self._fields(when, access)).encode() + b"\n"

    def _fields(self, when: datetime, access: Access) -> dict[str, str | int | float]:
        fields: dict[str, str | int | float] = {
            "time": _timestamp(when),
            "started": _timestamp(when - timedelta(seconds=round(access.seconds))),
        }
        if self._process is not None:
            fields["process"] = self._process
        fields["connection"] = access.connection
        fields["session"] = access.session_id
        if self._client == "full":
            fields["client"] = access.client
        elif self._client == "network":
            fields["client"] = network_of(access.client)
        if self._target == "host":
            fields["host"] = access.host
        elif self._target == "hash":
            hashed = blake2b(
                access.host.lower().encode(), key=self._key, digest_size=TARGET_HASH_BYTES
            )
            fields["host_hash"] = hashed.hexdigest()
        if access.exit:
            # Not left out like clients' addresses: the record must clear an owner of a device of
            # the acts of a buyer from the owner's address.
            fields["exit"], fields["exit_address"] = access.exit, access.exit_address
        return fields | {
            "port": access.port,
            "bytes_up": access.bytes_up,
            "bytes_down": access.bytes_down,
            "seconds": round(access.seconds, 3),
            "reason": access.reason,
        }


class _DayFiles:
    """The files, one for each day, and the lines that wait for the one that is open.

    Args:
        keep_days: files older than that are deleted.

    Attributes:
        written: the number of records that were written.
        dropped: the number of records that no file took.
    """

    def __init__(self, folder: Path, keep_days: int) -> None:
        self._folder = folder
        self._keep_days = keep_days
        self._descriptor: int | None = None
        self._day: date | None = None
        self._may_end_in_half_a_line = False
        self._lines: list[bytes] = []
        self.written = 0
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """The number of lines that wait."""
        return len(self._lines)

    def add(self, day: date, line: bytes) -> None:
        """Keep a line until the file of its day, which is opened for it, is ready.

        Raises:
            OSError: the file cannot be opened; the line is dropped.
        """
        if self._descriptor is None or day != self._day:
            try:
                self.open(day)
            except OSError:
                self.dropped += 1
                raise
        self._lines.append(line)

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        with suppress(OSError):  # a disk that is full says so again
            self.flush()
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)

    def open(self, day: date) -> None:
        """Begin the file of a day, and delete files that are too old."""
        if self._descriptor is not None:
            try:
                self.flush()
            finally:
                descriptor, self._descriptor, self._day = self._descriptor, None, None
                os.close(descriptor)
        path = self._folder / NAME.format(day=day)
        self._descriptor = os.open(
            path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600
        )
        self._day = day
        self._may_end_in_half_a_line = (
            os.fstat(self._descriptor).st_size > 0
        )  # an earlier process's
        self.delete_old(day)

    def delete_old(self, day: date) -> None:
        """Delete the files that are too old on a day."""
        oldest = NAME.format(day=day - timedelta(days=self._keep_days))
        for old in self._folder.glob(NAME.format(day="????-??-??")):
            if old.name < oldest:
                old.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write the lines that wait; if that fails they are dropped.

        Raises:
            OSError: why it failed.
        """
        lines, self._lines = self._lines, []
        if self._descriptor is None or not lines:
            return
        end = b"\n" if self._may_end_in_half_a_line and self._ends_in_half_a_line() else b""
        text, taken = end + b"".join(lines), 0
        try:
            while taken < len(text):  # a full disk takes a part
                taken += os.write(self._descriptor, text[taken:])
        finally:
            whole = text.count(b"\n", len(end), max(taken, len(end)))
            self.written += whole
            self.dropped += len(lines) - whole
            self._may_end_in_half_a_line = taken < len(text)

    def _ends_in_half_a_line(self) -> bool:
        """Return whether the file of the day ends in half a line of this process or another one."""
        with (self._folder / NAME.format(day=self._day)).open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"


class AccessLog:
    """Writes records until `close`.

    Args:
        folder: where the files are; created if it does not exist.
        target: how a record names the host: as it is, by a hash that takes the key to compute, or
            not at all.
        client: how it names the client: by its address, by its network (the first 24 bits of an
            IPv4 address, 48 of an IPv6 address), or not at all.
        keep_days: files older than that are deleted.
        key: the key of the hashes.
        now: the wall clock, in UTC seconds.
        process: the number of this process in the records, if there are several; None where there
            is one.
        waiting_max: the most records that wait for the disk.
        idle_seconds: the time between two searches for old files while no records come.

    Raises:
        CannotRecordError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: Literal["host", "hash", "none"],
        client: Literal["full", "network", "none"],
        keep_days: int,
        key: bytes,
        now: Callable[[], int],
        process: int | None = None,
        waiting_max: int = WAITING_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._format = _Format(target, client, key, process)
        self._files = _DayFiles(folder, keep_days)
        self._now = now
        self._waiting: queue.Queue[tuple[int, Access] | None] = queue.Queue(waiting_max)
        self._idle_seconds = idle_seconds
        self._failing = False
        self._overflowed = 0  # records that found the queue full
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._files.open(datetime.fromtimestamp(now(), UTC).date())
        except OSError as error:
            raise CannotRecordError(f"the access log in {folder}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)
        self._thread.start()

    @property
    def written(self) -> int:
        """The number of records that were written."""
        return self._files.written

    @property
    def dropped(self) -> int:
        """The number of records that were dropped."""
        return self._overflowed + self._files.dropped

    def put(self, access: Access) -> None:
        """Queue a record for the thread, or drop it when too many wait."""
        try:
            self._waiting.put_nowait((self._now(), access))
        except queue.Full:
            self._overflowed += 1

    def close(self) -> None:
        """Write the queued records, for a bounded time, and close the file; idempotent."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_SECONDS)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            _logger.error("access log: last records not written within %.0f s", STOP_SECONDS)

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            try:
                self._write(*entry)
            except OSError as error:
                if not self._failing:  # one line for each outage, not for each record
                    _logger.error("access log: records dropped: %s", error.strerror)
                self._failing = True
            else:
                self._failing = False
        self._files.close()

    def _next(self) -> tuple[int, Access] | None:
        """Wait for a record, or None for the end; meanwhile delete old files from time to time."""
        while True:
            try:
                return self._waiting.get(timeout=self._idle_seconds)
            except queue.Empty:
                with suppress(OSError):  # the next record meets the same error, and logs it
                    self._files.delete_old(datetime.fromtimestamp(self._now(), UTC).date())

    def _write(self, moment: int, access: Access) -> None:
        when = datetime.fromtimestamp(moment, UTC)
        self._files.add(when.date(), self._format.line(when, access))
        # One system call for a burst of records.
        if self._waiting.empty() or self._files.waiting >= BURST_MAX_RECORDS:
            self._files.flush()


def network_of(address: str) -> str:
    """Return the network that stands for an address in records, so that they name no person."""
    bits = NETWORK_BITS[ip_address(address).version]
    return str(ip_network(f"{address.partition('%')[0]}/{bits}", strict=False))


def _timestamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")

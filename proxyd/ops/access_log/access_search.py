"""The search of the access log for the connections through an exit at a time.

Only the files of the asked hours are read: each has all connections that were open in its hour. A
file is mapped, or unpacked in blocks, and only lines with one of the wanted texts are decoded.
"""

import errno
import gzip
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from proxyd.access import UNKNOWN_EXIT
from proxyd.ops.access_log.access_files import HOUR_SECONDS, HourFile, files_of
from proxyd.ops.access_log.access_lines import (
    ENDED,
    HOUR,
    LOST,
    SENT,
    TargetHash,
    is_address,
    mapped,
    timestamp,
)

BLOCK_BYTES: Final = 4 * 1024 * 1024
FOUND_MAX: Final = 10_000
SENT_MAX: Final = 100_000  # destinations of datagrams, of all connections
LATE_SECONDS: Final = 60
# After the end of an hour its file may be the only one yet: the thread gathers lines for a second.
TURN_SECONDS: Final = 5
_HEADS: Final = (f'"event":"{HOUR}"'.encode(), f'"event":"{LOST}"'.encode())
_UNKNOWN: Final = f'"{UNKNOWN_EXIT}"'.encode()
# Endings of dials that never reached a target.
_NEVER_DIALLED: Final = frozenset(
    (
        "wrong",
        "over",
        "too_many_connections",
        "limited",
        "unavailable",
        "parameters",
        "violation",
        "not_allowed",
        "command_not_supported",
        "no_exit",
        "exit_lost",
    )
)


class Line(Struct, omit_defaults=True):  # as wide as a record
    """A line of the access log."""

    event: str = ENDED
    time: str = ""
    run: str = ""
    process: int = 0
    connection: int = 0
    session: str = ""
    started: str = ""
    host: str = ""
    host_hash: str = ""
    port: int = 0
    protocol: str = ""
    addresses: tuple[str, ...] = ()
    address_hashes: tuple[str, ...] = ()
    source_port: int = 0
    exit: str = ""
    exit_address: str = ""
    seen_address: str = ""
    tried: tuple[tuple[str, str], ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    reason: str = ""
    name: bool = False
    lost: int = 0
    lines: int = 0
    destinations: int = 0
    others: int = 0


_Key = tuple[str, int, int]  # the run and number of a process, and the number of a connection
_decode: Final = msgspec.json.Decoder(Line).decode


class Carried(Struct, frozen=True):
    """A connection in the records: its last line, and its time.

    `sent` are the destinations of its datagrams in the asked hours; with `is_whole` there are no
    others, as with each TCP connection.
    """

    line: Line
    started: int
    ended: int | None
    sent: tuple[Line, ...] = ()
    is_whole: bool = True


class Searched(Struct, frozen=True):
    """The result of a search.

    `elsewhere` is the number of connections that went to another destination. `missing` are the
    asked hours (numbers since 1970) without records. `lost` is the number of lines that were lost
    in these hours, or before by the processes that were running then.
    """

    carried: list[Carried]
    elsewhere: int
    missing: list[int]
    lost: int
    has_more: bool


class Wanted(Struct, frozen=True):
    """The connections to search for.

    `address` is that of the exit, as the records write it; `first` and `last` are the bounds of the
    time, UTC seconds. `with_direct`: also connections from this machine itself. `host` is the
    destination, "" for any; `hashed` computes its hash. `devices` were seen at the address: their
    connections count too, unless the record shows another address of the same family.
    """

    address: str
    first: int
    last: int
    with_direct: bool
    host: str
    hashed: TargetHash
    devices: frozenset[str] = frozenset()


def search(folder: Path, wanted: Wanted) -> Searched:
    """Return the connections through exits at an address within a time.

    Raises:
        OSError: a file cannot be read.
    """
    gathered = _Gathered(wanted)
    for file in sorted(_files(folder, wanted), key=lambda each: each.began):
        for line in _lines(file, _needles(wanted)):
            gathered.add(line)
    return gathered.result()


class _Gathered:
    """The lines that a search has read so far."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._first, self._last = timestamp(wanted.first), timestamp(wanted.last)
        # The thread that turns the hour may be late, and a destination is recorded after that.
        self._last_sent = timestamp(wanted.last + LATE_SECONDS)
        self._newest: dict[_Key, Line] = {}
        self._sent: dict[_Key, list[Line]] = {}
        self._sent_lines = 0
        self._heads: list[Line] = []
        self._elsewhere = set[_Key]()
        self._lost = 0
        self._has_more = False

    def add(self, line: Line) -> None:
        """Take a line, in the order of the files."""
        if line.event == HOUR:
            self._heads.append(line)
            self._lost = max(self._lost, line.lost)
        elif line.event == LOST:
            self._lost += line.lines
        elif not _is_through(line, self._wanted):
            return
        elif line.event == SENT:
            self._add_sent(line)
        elif line.started <= self._last:
            self._add_connection(line)

    def result(self) -> Searched:
        """Return the result of all lines."""
        wanted = self._wanted
        carried = [self._carried(key, line) for key, line in self._newest.items()]
        found = []
        for each in carried:
            if each.ended is not None and each.ended < wanted.first:
                continue
            if self._went_elsewhere(each):
                self._elsewhere.add(_key(each.line))
            else:
                found.append(each)
        hours = {moment(each.time) // HOUR_SECONDS for each in self._heads}
        missing = [each for each in _hours(wanted) if each not in hours]
        return Searched(found, len(self._elsewhere), missing, self._lost, self._has_more)

    def _add_sent(self, line: Line) -> None:
        if line.time > self._last_sent:
            return
        if self._sent_lines >= SENT_MAX:
            self._has_more = True
            return
        self._sent_lines += 1
        self._sent.setdefault(_key(line), []).append(line)

    def _add_connection(self, line: Line) -> None:
        key, wanted = _key(line), self._wanted
        if line.event == ENDED and line.time < self._first:
            self._newest.pop(key, None)
        elif wanted.host and compared(line, wanted.host, wanted.hashed) is False:
            self._elsewhere.add(key)
        elif len(self._newest) >= FOUND_MAX and key not in self._newest:
            self._has_more = True
        elif self._newest.get(key, line).event != ENDED or line.event == ENDED:
            self._newest[key] = line

    def _carried(self, key: _Key, line: Line) -> Carried:
        carried = _carried(line, self._heads)
        if line.protocol != "udp":
            return carried
        lines = self._sent.get(key, [])
        is_whole = bool(line.destinations) and not (
            self._lost or self._has_more or any(each.others for each in lines)
        )
        sent = tuple(each for each in lines if not each.others)
        return replace(carried, sent=sent, is_whole=is_whole)

    def _went_elsewhere(self, carried: Carried) -> bool:
        """Return whether datagrams went only to destinations that are not the wanted one."""
        host, hashed = self._wanted.host, self._wanted.hashed
        return (
            bool(host)
            and carried.line.protocol == "udp"
            and carried.is_whole
            and all(compared(each, host, hashed) is False for each in carried.sent)
        )


def compared(line: Line, host: str, hashed: TargetHash) -> bool | None:
    """Return whether a connection went to a host; None if the record does not show it."""
    if not (line.host or line.host_hash) or (line.protocol == "udp" and line.event != SENT):
        return None
    wanted = {host.lower(), *mapped(host)}
    if line.host_hash:
        wanted = {hashed.of(each) for each in wanted}
    addresses = line.address_hashes or line.addresses
    if not wanted.isdisjoint((line.host_hash or line.host.lower(), *addresses)):
        return True
    is_name = line.name or bool(line.host and not is_address(line.host))
    if addresses or is_name != is_address(host):
        return False
    return None  # one of the two is a name, and may have the other one's address


def moment(text: str) -> int:
    """Return the seconds of a time in a record."""
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())


def _needles(wanted: Wanted) -> list[bytes]:
    """Return texts: each wanted line has one of them. [] where any line may be wanted."""
    if wanted.with_direct:
        return []
    texts = (wanted.address, *sorted(wanted.devices))
    return [*(f'"{each}"'.encode() for each in texts), _UNKNOWN]


def _is_through(line: Line, wanted: Wanted) -> bool:
    if line.event == ENDED and line.reason in _NEVER_DIALLED and not line.bytes_up:
        return False
    if wanted.address in (line.exit_address, line.seen_address):
        return True
    if line.exit in wanted.devices:
        return _is_other_family(wanted.address, line.exit_address, line.seen_address)
    if line.tried:
        # Another process has dialled: only the destination can show whether this one was it.
        is_unknown = any(device == UNKNOWN_EXIT for device, _ in line.tried)
        return any(
            wanted.address == address
            or (device in wanted.devices and _is_other_family(wanted.address, address))
            for device, address in line.tried
        ) or (
            is_unknown and bool(wanted.host) and compared(line, wanted.host, wanted.hashed) is True
        )
    return wanted.with_direct and not line.exit and bool(line.port or line.protocol)


def _is_other_family(address: str, *shown: str) -> bool:
    """Return whether no shown address is of the family of an address.

    An exit may leave by the other family of addresses than it attaches by.
    """
    return all((":" in each) != (":" in address) for each in shown if each)


def _files(folder: Path, wanted: Wanted) -> Iterator[HourFile]:
    """Yield the files that may have connections of a time."""
    for each in files_of(folder):
        ended = each.began + each.seconds
        if each.began <= wanted.last and ended + TURN_SECONDS > wanted.first:
            yield each


def _hours(wanted: Wanted) -> range:
    return range(wanted.first // HOUR_SECONDS, wanted.last // HOUR_SECONDS + 1)


def _lines(file: HourFile, needles: Sequence[bytes]) -> Iterator[Line]:
    """Yield the lines of a file with one of the texts, and those about hours and losses."""
    for text in _texts(file):
        for each in _with(text, (*_HEADS, *needles)) if needles else _all(text):
            try:
                yield _decode(each)
            except msgspec.MsgspecError:  # half a line that a full disk has left
                continue


def _texts(file: HourFile) -> Iterator[bytes | mmap.mmap]:
    """Yield the content of a file, mapped as a whole, or unpacked in blocks of whole lines.

    Raises:
        OSError: the file cannot be read, or is damaged.
    """
    if not file.is_packed:
        with file.path.open("rb") as plain:
            if os.fstat(plain.fileno()).st_size:
                with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    yield mapped
        return
    with gzip.open(file.path, "rb") as packed:
        rest = b""
        try:
            while block := packed.read(BLOCK_BYTES):
                text, found, rest = (rest + block).rpartition(b"\n")
                if found:
                    yield text
        except (EOFError, zlib.error) as error:
            raise OSError(errno.EIO, f"{file.path.name} is damaged") from error


def _all(text: bytes | mmap.mmap) -> Iterator[bytes]:
    """Return the lines of a text; a mapped file is not copied as a whole."""
    return iter(text.splitlines() if isinstance(text, bytes) else iter(text.readline, b""))


def _with(text: bytes | mmap.mmap, needles: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that have one of the needles."""
    begins = set()
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            begins.add(text.rfind(b"\n", 0, at) + 1)
            end = text.find(b"\n", at)
            at = text.find(needle, end) if end >= 0 else -1
    for begin in sorted(begins):
        end = text.find(b"\n", begin)
        yield text[begin:] if end < 0 else text[begin:end]


def _key(line: Line) -> _Key:
    return line.run, line.process, line.connection


def _carried(line: Line, heads: Sequence[Line]) -> Carried:
    """Return a connection with its time; one of a killed process ends before the next run."""
    started = moment(line.started or line.time)
    if line.event == ENDED:
        return Carried(line, started, moment(line.time))
    later = [
        moment(each.time)
        for each in heads
        if each.process == line.process and each.run != line.run and each.time >= line.time
    ]
    return Carried(line, started, min(later, default=None))

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

from proxyd.access import UNKNOWN_EXIT
from proxyd.ops.access_files import HOUR_SECONDS, HourFile, files_of
from proxyd.ops.access_lines import (
    ENDED,
    HOUR,
    LOST,
    TargetHash,
    is_address,
    mapped,
    timestamp,
)

BLOCK_BYTES: Final = 4 * 1024 * 1024
FOUND_MAX: Final = 10_000
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


_decode: Final = msgspec.json.Decoder(Line).decode


class Carried(Struct, frozen=True):
    """A connection in the records: its last line, and its time."""

    line: Line
    started: int
    ended: int | None


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
    needles = _needles(wanted)
    newest: dict[tuple[str, int, int], Line] = {}
    heads: list[Line] = []
    elsewhere, lost, has_more = set[tuple[str, int, int]](), 0, False
    first, last = timestamp(wanted.first), timestamp(wanted.last)
    for file in sorted(_files(folder, wanted), key=lambda each: each.began):
        for line in _lines(file, needles):
            if line.event == HOUR:
                heads.append(line)
                lost = max(lost, line.lost)
            elif line.event == LOST:
                lost += line.lines
            elif not _is_through(line, wanted) or line.started > last:
                continue
            elif line.event == ENDED and line.time < first:
                newest.pop(_key(line), None)
            elif wanted.host and compared(line, wanted.host, wanted.hashed) is False:
                elsewhere.add(_key(line))
            elif len(newest) >= FOUND_MAX and _key(line) not in newest:
                has_more = True
            elif newest.get(_key(line), line).event != ENDED or line.event == ENDED:
                newest[_key(line)] = line
    carried = [_carried(line, heads) for line in newest.values()]
    hours = {moment(each.time) // HOUR_SECONDS for each in heads}
    return Searched(
        [each for each in carried if each.ended is None or each.ended >= wanted.first],
        len(elsewhere),
        [each for each in _hours(wanted) if each not in hours],
        lost,
        has_more,
    )


def compared(line: Line, host: str, hashed: TargetHash) -> bool | None:
    """Return whether a connection went to a host; None if the record does not show it."""
    if not (line.host or line.host_hash) or line.protocol == "udp":
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
    """Return texts of which each wanted line has one; [] where any line may be wanted."""
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
        # It may have left by the other family of addresses than it attaches by.
        shown = (each for each in (line.exit_address, line.seen_address) if each)
        return all((":" in each) != (":" in wanted.address) for each in shown)
    if line.tried:
        # Another process has dialled: only the destination can show whether this one was it.
        devices = {device for device, _ in line.tried}
        return wanted.address in {address for _, address in line.tried} or (
            UNKNOWN_EXIT in devices
            and bool(wanted.host)
            and compared(line, wanted.host, wanted.hashed) is True
        )
    return wanted.with_direct and not line.exit and bool(line.port or line.protocol)


def _files(folder: Path, wanted: Wanted) -> Iterator[HourFile]:
    for each in files_of(folder):
        if each.began <= wanted.last and each.began + each.seconds > wanted.first:
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


def _key(line: Line) -> tuple[str, int, int]:
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

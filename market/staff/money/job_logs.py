"""The log of an attempt for the staff: its last lines, or the lines around each hit of a search."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.logs import readers
from market.logs.text import text_of
from storage.jobs.jobs import JobRow
from storage.logs.files import Attempt, LogFiles

READ_BYTES = 1024 * 1024
READ_MAX_BYTES = 64 * READ_BYTES
LINES_MAX = 50
AROUND_LINES = 2
LINE_MAX_CHARACTERS = 500
# The names of the streams for the staff, with those of the files.
STREAMS = dict(zip(("stdout", "stderr"), readers.STREAMS, strict=True))


class LogLine(Struct, frozen=True):
    """A line of a log with its number, from 1; `is_hit`: it has the searched text."""

    number: int
    is_hit: bool
    text: str


def attempt_of(job: JobRow, number: int | None) -> int:
    """Return the number of an attempt at a job, by default of the newest; 0 if there was none.

    Raises:
        MarketError: `attempt_not_found`.
    """
    if number is None:
        return job.attempts
    if number > job.attempts:
        message = f"This job has no attempt {number}: its attempts are {job.attempts}."
        raise MarketError(Code.ATTEMPT_NOT_FOUND, message)
    return number


def shown(
    folder: Path, keep_bytes: int, attempt: Attempt, stream: str, search: str
) -> list[LogLine]:
    """Return lines of a stream with their numbers, at most `LINES_MAX`.

    Args:
        folder: the folder of all logs.
        keep_bytes: the kept bytes at either end of a stream, by the settings.
        attempt: the attempt.
        stream: "stdout" or "stderr".
        search: a text that lines must have, in any case; "" for the last lines.
    """
    lines = list(_lines(LogFiles(folder, keep_bytes=keep_bytes), attempt, STREAMS[stream]))
    if not search:
        first = max(0, len(lines) - LINES_MAX)
        return [_row(at, lines[at], is_hit=False) for at in range(first, len(lines))]
    wanted = search.casefold()
    hits = [at for at, line in enumerate(lines) if wanted in line.casefold()]
    around: dict[int, bool] = {}
    for hit in hits:
        for at in range(max(0, hit - AROUND_LINES), min(len(lines), hit + AROUND_LINES + 1)):
            around[at] = around.get(at, False) or at == hit
        if len(around) >= LINES_MAX:
            break
    return [_row(at, lines[at], is_hit=around[at]) for at in sorted(around)[:LINES_MAX]]


def _lines(files: LogFiles, attempt: Attempt, stream: str) -> Iterator[str]:
    """Yield the kept lines of a stream; a part that was cut out is a line that says so."""
    offset, read, rest = 0, 0, b""
    while read < READ_MAX_BYTES:
        part = files.read(attempt, stream, offset, READ_BYTES)
        if not part.data:
            break
        if part.offset > offset:
            rest += f"\n[{part.offset - offset} bytes were cut out]\n".encode()
        *whole, rest = (rest + part.data).split(b"\n")
        yield from (_text(line) for line in whole)
        offset = part.offset + len(part.data)
        read += len(part.data)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return text_of(line, is_last=True)[0].rstrip("\r")


def _row(at: int, line: str, *, is_hit: bool) -> LogLine:
    return LogLine(at + 1, is_hit, line[:LINE_MAX_CHARACTERS])

"""Blanks the clients of sessions in the access log, after the erasure of their user.

Only compressed files change: no process appends to them. A file is replaced as a whole, so a crash
leaves the old file or the new one.
"""

import gzip
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from proxyd.ops.access_log.access_files import PACKED, PARTIAL, PLAIN, HourFile, files_of
from proxyd.ops.access_log.access_place import hand_over

_CLIENT: Final = b'"client":'
_logger = logging.getLogger("erasure")


def blank(folder: Path, sessions: frozenset[str], until: int) -> int:
    """Blank the clients of sessions in the files of hours that were over at a time.

    Args:
        folder: the folder of the access log.
        sessions: the identifiers of the sessions.
        until: UTC seconds.

    A damaged file stays as it is, with a line in the log.

    Returns:
        The number of changed files.

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    if not sessions or not folder.is_dir():
        return 0
    needles = tuple(f'"session":"{each}"'.encode() for each in sorted(sessions))
    changed = 0
    for each in list(files_of(folder)):
        if each.is_packed and each.began + each.seconds <= until:
            try:
                changed += _blank(each, needles)
            except FileNotFoundError:  # deleted meanwhile, because it was too old
                continue
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                _logger.error(
                    "access log: %s is damaged, and keeps its clients: %s", each.path.name, error
                )
    return changed


def _blank(file: HourFile, needles: tuple[bytes, ...]) -> bool:
    path = file.path
    before = path.stat()
    with gzip.open(path, "rb") as lines:
        if not any(_is_about(line, needles) for line in lines):
            return False
    partial = path.with_name(f"{path.name}.blank{PARTIAL}")
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
    with os.fdopen(os.open(partial, flags, 0o600), "wb") as target:
        with gzip.GzipFile("", "wb", 6, target) as compressed:
            for line in _blanked(path, needles):
                compressed.write(line)
        target.flush()
        hand_over(target.fileno(), before)
        os.fsync(target.fileno())
    plain = path.with_name(path.name.removesuffix(PACKED) + PLAIN)
    now = path.stat()
    if plain.exists() or (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
        partial.unlink()
        raise OSError(f"{path.name}: changed meanwhile")  # the next look repeats it
    partial.rename(path)
    return True


def _blanked(path: Path, needles: tuple[bytes, ...]) -> Iterator[bytes]:
    with gzip.open(path, "rb") as lines:
        for line in lines:
            yield _without_client(line) if _is_about(line, needles) else line


def _is_about(line: bytes, needles: tuple[bytes, ...]) -> bool:
    return _CLIENT in line and any(needle in line for needle in needles)


def _without_client(line: bytes) -> bytes:
    try:
        fields = msgspec.json.decode(line)
    except msgspec.MsgspecError:  # half a line, which a full disk has left
        return b"\n"
    fields.pop("client", None)
    return msgspec.json.encode(fields) + b"\n"

"""What phones append to a JPEG: previews and gain maps, a short video, Samsung's own trailer.

Why it is here: a file with an archive or a program behind its picture must be refused, and many
phones append something to each photo. None of it is used, and none is passed on. Only the outermost
structure is read, to tell it from a file of another kind.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

PIECES_MAX = 8
BOXES_MAX = 64
BLOCKS_MAX = 64
NAME_MAX_BYTES = 64
ARCHIVE_END_MAX_BYTES = 65_557

# ISO/IEC 14496-12, table 1: what stands at the top of a video.
_BOXES = frozenset(
    (
        *(b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"uuid", b"meta"),
        *(b"moof", b"mfra", b"sidx", b"styp", b"pdin", b"mpvd", b"sefd"),
    )
)
_MOVIES = frozenset((b"moov", b"moof"))
# The end of a ZIP archive's directory, with its numbers of disks (APPNOTE.TXT, section 4.3.16).
_ARCHIVE_END = b"PK\5\6\0\0\0\0"
_PADDING = re.compile(rb"\0*")


def is_harmless(data: bytes, end: int, picture: Callable[[int], int | None]) -> bool:
    """Say whether all that follows a picture is padding, or something that phones append.

    Args:
        data: the file.
        end: where the picture ends.
        picture: returns where a further picture ends that begins at an offset, None for none.
    """
    # Archives are read from their end, whatever they are wrapped in.
    if data.find(_ARCHIVE_END, max(end, len(data) - ARCHIVE_END_MAX_BYTES)) >= 0:
        return False
    for _ in range(PIECES_MAX):
        padding = _PADDING.match(data, end)
        at = padding.end() if padding is not None else end
        if at == len(data):
            return True
        after = picture(at) or _end_of_video(data, end, at) or _end_of_samsung(data, end)
        if after is None:
            return False
        end = after
    return False


def _end_of_video(data: bytes, end: int, at: int) -> int | None:
    """Return where a video ends (motion photos; ISO/IEC 14496-12, section 4.2), None for none.

    Args:
        data: the file.
        end: where what stands before it ends.
        at: where the first byte behind that is that is not zero; a box begins with some.
    """
    at = data.find(b"ftyp", at, at + 8) - 4
    if at < end:
        return None
    kinds: set[bytes] = set()
    for _ in range(BOXES_MAX):
        size, kind = int.from_bytes(data[at : at + 4]), data[at + 4 : at + 8]
        if kind not in _BOXES:
            break
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16])
        if size < 8 or at + size > len(data):
            return None
        kinds.add(kind)
        at += size
    return at if kinds & _MOVIES else None


class _Entry(NamedTuple):
    """Where a block of Samsung's trailer stands in the file, and what kind it is of."""

    start: int
    end: int
    kind: bytes


def _end_of_samsung(data: bytes, at: int) -> int | None:
    """Return where Samsung's trailer ends, which begins behind an offset; None for none.

    It is blocks, each with two zeros, a kind and a name before its content, then a directory that
    says how far before itself each stands, then the directory's length and SEFT.
    """
    footer = len(data) - 8
    directory = footer - int.from_bytes(data[footer : footer + 4], "little")
    if data[footer + 4 :] != b"SEFT" or not at < directory < footer:
        return None
    count = int.from_bytes(data[directory + 8 : directory + 12], "little")
    is_directory = data[directory : directory + 4] == b"SEFH" and 0 < count <= BLOCKS_MAX
    if not is_directory or directory + 12 + 12 * count != footer:
        return None
    entries = []
    for number in range(count):
        place = directory + 12 + 12 * number
        start = directory - int.from_bytes(data[place + 4 : place + 8], "little")
        length = int.from_bytes(data[place + 8 : place + 12], "little")
        entries.append(_Entry(start, start + length, data[place : place + 4]))
    for entry in sorted(entries):
        if entry.start < at or entry.end > directory or not _is_block(data, entry):
            return None
        if data[at : entry.start].strip(b"\0"):
            return None
        at = entry.end
    return None if data[at:directory].strip(b"\0") else len(data)


def _is_block(data: bytes, entry: _Entry) -> bool:
    head = data[entry.start : entry.start + 8]
    length = int.from_bytes(head[4:], "little")
    name = data[entry.start + 8 : entry.start + 8 + length]
    return (
        head[:4] == entry.kind
        and head[:2] == b"\0\0"
        and 0 < length <= NAME_MAX_BYTES
        and entry.start + 8 + length <= entry.end
        and name.isascii()
        and name.decode().isprintable()
    )

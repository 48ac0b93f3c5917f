"""The head of JPEG files and the chunks of PNG files, read before anything is decoded.

Reason for this module: a decoder parses all metadata, and has no bound on the number of pieces and
scans. So the segments and chunks that describe a picture are read here, within bounds (ITU-T T.81,
annex B; PNG, section 5). A picture that is too large or cut off is refused by its own code, and the
decoder gets only the pixels. Bytes behind the picture are dropped, because no original is kept.
"""

import re
import struct
import zlib
from typing import Literal

from msgspec import Struct

from market.base.errors import Code, MarketError

JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG\r\n\x1a\n"
PIECES_MAX = 20_000  # segments or chunks; 10 MB in PNG chunks of 8 KiB are some 1,200
SCANS_MAX = 64  # progressive encoders write about ten
METADATA_MAX_BYTES = 1024 * 1024
TEXT_MAX_BYTES = 256 * 1024  # of one text, unpacked
EXIF_START = b"Exif\0\0"
EXIF_ENTRIES_MAX = 200
ORIENTATION = 0x0112

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset(range(0xD0, 0xD8)) | {0x01}
_START, _SCAN = 0xD8, 0xDA
_COMMENT, _APP1, _APP11, _APP14 = 0xFE, 0xE1, 0xEB, 0xEE
_MISPLACED = frozenset((0x00, _START, 0xD9))
# Neither is within a scan, where zero follows 0xFF.
_END_MARKER, _SCAN_MARKER = b"\xff\xd9", b"\xff\xda"
# All but JFIF's and Adobe's, which say how to read the colours.
_DESCRIPTIONS = frozenset(range(_APP1, 0xF0)) - {_APP14} | {_COMMENT}
_TEXT_CHUNKS = frozenset((b"tEXt", b"zTXt", b"iTXt"))
_READ_CHUNKS = _TEXT_CHUNKS | {b"IHDR", b"acTL", b"eXIf", b"caBX"}
_PIXEL_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_FILL = re.compile(rb"\xff+")


class Container(Struct, frozen=True):
    """A picture's file: its format, its size in pixels, and its metadata.

    `pixels` is the file reduced to the parts for decoding, `orientation` the rotation of the
    picture (EXIF's 1 to 8). `metadata` is all descriptions joined, unpacked, within a bound; `keys`
    are the names of a PNG's texts; `has_manifest`: the file has a C2PA manifest.
    """

    format: Literal["JPEG", "PNG"]
    width: int
    height: int
    pixels: bytes
    orientation: int
    metadata: bytes
    keys: frozenset[str]
    has_manifest: bool


def inspect(data: bytes) -> Container:
    """Return the structure of a file.

    Raises:
        MarketError: `photo_not_jpeg_or_png`, `photo_broken`, `photo_truncated`, `photo_animated`,
            `photo_bit_depth`.
    """
    if data.startswith(JPEG_START):
        return _jpeg(data)
    if data.startswith(PNG_START):
        return _png(data)
    raise refused(Code.PHOTO_NOT_JPEG_OR_PNG)


def refused(code: Code, message: str | None = None) -> MarketError:
    """Return the refusal of a photo."""
    return MarketError(code, message, field="file")


class _Jpeg:
    """The head of a JPEG file: its segments as far as the first scan."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sizes: list[tuple[int, int]] = []
        self.pixels: list[bytes] = [data[:2]]
        self.orientation = 1
        self.metadata = bytearray()
        self.manifest = bytearray()

    def walk(self) -> int:
        """Walk the head; return where the first scan begins."""
        data, at = self._data, 2
        for _ in range(PIECES_MAX):
            fill = _FILL.match(data, at)
            start = fill.end() - 1 if fill is not None else at
            if fill is None and at < len(data):
                raise refused(Code.PHOTO_BROKEN)
            if start + 4 > len(data):
                raise refused(Code.PHOTO_TRUNCATED)
            marker = data[start + 1]
            at = start + 2
            if marker in _STANDALONE:
                continue
            length = int.from_bytes(data[at : at + 2])
            if length < 2 or marker in _MISPLACED:
                raise refused(Code.PHOTO_BROKEN)
            at += length
            if at > len(data):
                raise refused(Code.PHOTO_TRUNCATED)
            self._read(marker, data[start + 4 : at])
            if marker not in _DESCRIPTIONS:
                self.pixels.append(data[start:at])
            if marker == _SCAN:
                return at
        raise refused(Code.PHOTO_BROKEN)

    def _read(self, marker: int, payload: bytes) -> None:
        if marker in _FRAMES:
            if len(payload) < 6:
                raise refused(Code.PHOTO_BROKEN)
            depth, height, width = struct.unpack(">BHH", payload[:5])
            if depth != 8:
                raise refused(Code.PHOTO_BIT_DEPTH)
            self.sizes.append((width, height))
        elif marker == _APP11 and payload.startswith(b"JP"):
            self.manifest += _jumbf(payload)
        elif marker in _DESCRIPTIONS:
            if marker == _APP1 and payload.startswith(EXIF_START):
                self.orientation = _orientation(payload.removeprefix(EXIF_START))
            self.metadata += payload[: max(0, METADATA_MAX_BYTES - len(self.metadata))]


def _jpeg(data: bytes) -> Container:
    jpeg = _Jpeg(data)
    scans = jpeg.walk()
    # The decoder's input ends here, so it cannot read uncounted scans.
    end = data.find(_END_MARKER, scans)
    if end < 0:
        raise refused(Code.PHOTO_TRUNCATED)
    # Even a short scan is decoded over the whole picture.
    if not jpeg.sizes or data.count(_SCAN_MARKER, scans, end) >= SCANS_MAX:
        raise refused(Code.PHOTO_BROKEN)
    width, height = max(jpeg.sizes, key=lambda size: size[0] * size[1])
    return _checked(
        Container(
            format="JPEG",
            width=width,
            height=height,
            pixels=b"".join((*jpeg.pixels, data[scans : end + 2])),
            orientation=jpeg.orientation,
            metadata=bytes(jpeg.metadata) + bytes(jpeg.manifest[:METADATA_MAX_BYTES]),
            keys=frozenset(),
            has_manifest=b"c2pa" in jpeg.manifest,
        )
    )


def _jumbf(payload: bytes) -> bytes:
    """Return a segment's share of a box: without its own head, and the box's repeated one."""
    number = int.from_bytes(payload[4:8])
    return payload[8:] if number <= 1 else payload[16:]


class _Png:
    """The chunks of a PNG file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.head = b""
        self.pixels: list[bytes] = []
        self.orientation = 1
        self.metadata = bytearray()
        self.keys: set[str] = set()
        self.has_manifest = False

    def walk(self) -> None:
        """Walk the picture to its end."""
        data, at = self._data, len(PNG_START)
        for _ in range(PIECES_MAX):
            if at + 12 > len(data):
                raise refused(Code.PHOTO_TRUNCATED)
            length = int.from_bytes(data[at : at + 4])
            kind = data[at + 4 : at + 8]
            if not kind.isalpha() or (not self.head and kind != b"IHDR"):
                raise refused(Code.PHOTO_BROKEN)
            if at + 12 + length > len(data):
                raise refused(Code.PHOTO_TRUNCATED)
            if kind in _READ_CHUNKS:
                self._read(kind, data[at + 8 : at + 8 + length])
            if kind in _PIXEL_CHUNKS:
                self.pixels.append(data[at : at + 12 + length])
            at += 12 + length
            if kind == b"IEND":
                return
        raise refused(Code.PHOTO_BROKEN)

    def _read(self, kind: bytes, payload: bytes) -> None:
        if kind == b"IHDR":
            if len(payload) != 13:
                raise refused(Code.PHOTO_BROKEN)
            self.head = payload
            return
        if kind == b"acTL":
            raise refused(Code.PHOTO_ANIMATED)
        if kind == b"caBX":
            self.has_manifest = True
        elif kind == b"eXIf":
            self.orientation = _orientation(payload)
        elif kind in _TEXT_CHUNKS:
            room = METADATA_MAX_BYTES - len(self.metadata)
            key, payload = _text(kind, payload, min(TEXT_MAX_BYTES, room))
            self.keys.add(key)
        self.metadata += payload[: max(0, METADATA_MAX_BYTES - len(self.metadata))]


def _png(data: bytes) -> Container:
    png = _Png(data)
    png.walk()
    width, height, depth = struct.unpack(">IIB", png.head[:9])
    if depth == 16:
        raise refused(Code.PHOTO_BIT_DEPTH)
    return _checked(
        Container(
            format="PNG",
            width=width,
            height=height,
            pixels=b"".join((PNG_START, *png.pixels)),
            orientation=png.orientation,
            metadata=bytes(png.metadata),
            keys=frozenset(png.keys),
            has_manifest=png.has_manifest,
        )
    )


def _orientation(exif: bytes) -> int:
    """Return the orientation in EXIF, or 1 without one (TIFF 6.0)."""
    order: Literal["little", "big"] = "little" if exif.startswith(b"II") else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(exif[at : at + size], order)

    start = number(4, 4)
    for entry in range(min(number(start, 2), EXIF_ENTRIES_MAX)):
        at = start + 2 + entry * 12
        if number(at, 2) == ORIENTATION:
            value = number(at + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1


def _text(kind: bytes, payload: bytes, room: int) -> tuple[str, bytes]:
    """Return the key of a text, in lower case, and at most `room` bytes of it (PNG, 11.3.3)."""
    key, _, rest = payload.partition(b"\0")
    is_packed = kind == b"zTXt"
    if kind == b"iTXt":  # flag and method of compression, language, key in that language
        is_packed = rest[:1] == b"\x01"
        rest = rest[2:].partition(b"\0")[2].partition(b"\0")[2]
    elif is_packed:
        rest = rest[1:]
    if room <= 0:
        return key.decode("latin-1").lower(), b""
    if is_packed:
        try:
            rest = zlib.decompressobj().decompress(rest, room)
        except zlib.error as error:
            raise refused(Code.PHOTO_BROKEN) from error
    return key.decode("latin-1").lower(), rest[:room]


def _checked(container: Container) -> Container:
    if container.width == 0 or container.height == 0:
        raise refused(Code.PHOTO_BROKEN)
    return container

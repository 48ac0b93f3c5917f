"""The structure of JPEG and PNG files, read before anything is decoded.

Why it is here, and not left to the decoder: a decoder stops at the end of the picture and accepts
what follows, and it parses all metadata. Segments and chunks are walked to the very end (ITU-T
T.81, annex B; PNG, section 5), so that a picture that is too large, one that is cut off, and a file
with more behind its picture (`trailers.py`) are each refused by their own code, and the decoder is
handed the pixels alone.
"""

import re
import struct
import zlib
from typing import Literal

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.photos.trailers import is_harmless

JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG\r\n\x1a\n"
PIECES_MAX = 20_000  # segments or chunks; 10 MB in PNG chunks of 8 KiB are some 1,200
SCANS_MAX = 64  # progressive encoders write about ten
SCAN_PIECE_BYTES = 512 * 1024  # searched at once, with the interpreter's lock held
METADATA_MAX_BYTES = 1024 * 1024
TEXT_MAX_BYTES = 256 * 1024  # of one text, unpacked
EXIF_START = b"Exif\0\0"
EXIF_ENTRIES_MAX = 200
ORIENTATION = 0x0112
GAIN_MAPS = b"http://ns.google.com/photos/1.0/container/"

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset(range(0xD0, 0xD8)) | {0x01}
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_COMMENT, _APP1, _APP2, _APP11, _APP14 = 0xFE, 0xE1, 0xE2, 0xEB, 0xEE
# All but JFIF's and Adobe's, which say how to read the colours.
_DESCRIPTIONS = frozenset(range(_APP1, 0xF0)) - {_APP14} | {_COMMENT}
_TEXT_CHUNKS = frozenset((b"tEXt", b"zTXt", b"iTXt"))
_READ_CHUNKS = _TEXT_CHUNKS | {b"IHDR", b"acTL", b"eXIf", b"caBX"}
_PIXEL_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_FILL = re.compile(rb"\xff+")
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


class Container(Struct, frozen=True):
    """A picture's file: its format, its size in pixels, and its metadata.

    `pixels` is the file reduced to what decoding needs, `orientation` how the picture is to be
    turned (EXIF's 1 to 8). `metadata` is all descriptions joined, unpacked, within a bound; `keys`
    are the names of a PNG's texts; `has_manifest` says that there is a C2PA manifest.
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
            `photo_bit_depth`, `photo_trailing_data`.
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
    """The segments of a JPEG file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sizes: list[tuple[int, int]] = []
        self.pixels: list[bytes] = []
        self.orientation = 1
        self.metadata = bytearray()
        self.manifest = bytearray()
        self.has_further_pictures = False
        self.scans = 0

    def walk(self, at: int) -> int:
        """Walk one picture that starts at an offset; return where it ends."""
        data = self._data
        at += 2
        for _ in range(PIECES_MAX):
            fill = _FILL.match(data, at)
            if fill is not None:
                at = fill.end() - 1
            if at + 2 > len(data):
                raise refused(Code.PHOTO_TRUNCATED)
            if fill is None:
                raise refused(Code.PHOTO_BROKEN)
            marker = data[at + 1]
            at += 2
            if marker == _END:
                return at
            if marker in _STANDALONE:
                continue
            start, at = at - 2, self._segment(marker, at)
            if marker not in _DESCRIPTIONS:
                self.pixels.append(data[start:at])
        raise refused(Code.PHOTO_BROKEN)

    def _segment(self, marker: int, at: int) -> int:
        data = self._data
        if at + 2 > len(data):
            raise refused(Code.PHOTO_TRUNCATED)
        length = int.from_bytes(data[at : at + 2])
        if length < 2 or marker in (0x00, _START):
            raise refused(Code.PHOTO_BROKEN)
        end = at + length
        if end > len(data):
            raise refused(Code.PHOTO_TRUNCATED)
        self._read(marker, data[at + 2 : end])
        if marker != _SCAN:
            return end
        self.scans += 1
        if self.scans > SCANS_MAX:  # each is decoded over the whole picture, however short it is
            raise refused(Code.PHOTO_BROKEN)
        return _end_of_scan(data, end)

    def _read(self, marker: int, payload: bytes) -> None:
        if marker in _FRAMES:
            if len(payload) < 6:
                raise refused(Code.PHOTO_BROKEN)
            depth, height, width = struct.unpack(">BHH", payload[:5])
            if depth != 8:
                raise refused(Code.PHOTO_BIT_DEPTH)
            self.sizes.append((width, height))
        elif marker == _APP2 and payload.startswith(b"MPF\0"):
            self.has_further_pictures = True
        elif marker == _APP11 and payload.startswith(b"JP"):
            self.manifest += _jumbf(payload)
        elif marker in _DESCRIPTIONS:
            if marker == _APP1 and payload.startswith(EXIF_START):
                self.orientation = _orientation(payload.removeprefix(EXIF_START))
            self.metadata += payload[: max(0, METADATA_MAX_BYTES - len(self.metadata))]


def _end_of_scan(data: bytes, at: int) -> int:
    """Return where the next marker is; searched in pieces, so that other threads run in between."""
    while at < len(data):
        marker = _AFTER_SCAN.search(data, at, at + SCAN_PIECE_BYTES + 1)
        if marker is not None:
            return marker.start()
        at += SCAN_PIECE_BYTES
    raise refused(Code.PHOTO_TRUNCATED)


def _jpeg(data: bytes) -> Container:
    jpeg = _Jpeg(data)
    end = jpeg.walk(0)
    if not jpeg.sizes:
        raise refused(Code.PHOTO_BROKEN)
    announces = jpeg.has_further_pictures or GAIN_MAPS in jpeg.metadata
    if not is_harmless(data, end, lambda at: _further_picture(data, at) if announces else None):
        raise refused(Code.PHOTO_TRAILING_DATA)
    width, height = max(jpeg.sizes, key=lambda size: size[0] * size[1])
    return _checked(
        Container(
            format="JPEG",
            width=width,
            height=height,
            pixels=b"".join((data[:2], *jpeg.pixels, data[end - 2 : end])),
            orientation=jpeg.orientation,
            metadata=bytes(jpeg.metadata) + bytes(jpeg.manifest[:METADATA_MAX_BYTES]),
            keys=frozenset(),
            has_manifest=b"c2pa" in jpeg.manifest,
        )
    )


def _further_picture(data: bytes, at: int) -> int | None:
    """Return the end of a further JPEG that begins here, None for none.

    Cameras append a preview or a gain map, and announce it in the first picture (CIPA DC-007, and
    the Container of Ultra HDR).
    """
    if not data.startswith(JPEG_START, at):
        return None
    try:
        return _Jpeg(data).walk(at)
    except MarketError:
        return None


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

    def walk(self) -> int:
        """Walk the picture; return where it ends."""
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
                return at
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
    end = png.walk()
    if data[end:].strip(b"\0"):
        raise refused(Code.PHOTO_TRAILING_DATA)
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
    """Return the orientation in EXIF, 1 where there is none (TIFF 6.0)."""
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

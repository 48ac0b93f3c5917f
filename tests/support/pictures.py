"""Pictures that look like photos to a hash, and files that are no good, all from seeds."""

import io
import struct
import zlib
from random import Random

from PIL import Image, ImageDraw, ImageFilter

_OCTAVES = 7
_FADING = 0.6


def natural(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Return a picture with a photo's spectrum: noise of every size, the largest strongest, and
    some shapes in front."""
    random = Random(seed)
    grey = _noise(random, size)
    colours = Image.merge("RGB", [_noise(random, size) for _ in range(3)])
    picture = Image.blend(Image.merge("RGB", [grey] * 3), colours, 0.35)
    draw = ImageDraw.Draw(picture)
    for _ in range(random.randrange(3, 9)):
        x, y = random.randrange(size[0]), random.randrange(size[1])
        width, height = (random.randrange(size[0] // 24, size[0] // 6) for _ in range(2))
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        colour = tuple(random.randrange(256) for _ in range(3))
        shape((x - width, y - height, x + width, y + height), fill=colour)
    return picture.filter(ImageFilter.GaussianBlur(0.7))


def _noise(random: Random, size: tuple[int, int]) -> Image.Image:
    summed, weight, total = None, 1.0, 0.0
    for octave in range(1, _OCTAVES + 1):
        width = 2**octave + 1
        height = max(2, 2**octave * size[1] // size[0]) + 1
        grain = Image.frombytes("L", (width, height), random.randbytes(width * height))
        layer = grain.resize(size, Image.Resampling.BICUBIC)
        total += weight
        summed = layer if summed is None else Image.blend(summed, layer, weight / total)
        weight *= _FADING
    assert summed is not None
    return summed


def jpeg(picture: Image.Image, quality: int = 85, **options: object) -> bytes:
    """Return a picture as a JPEG file."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def png(picture: Image.Image, **options: object) -> bytes:
    """Return a picture as a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def cropped(picture: Image.Image, left: float, top: float, right: float, bottom: float):
    """Return a picture without a share of it on each side."""
    width, height = picture.size
    return picture.crop(
        (int(width * left), int(height * top), int(width * (1 - right)), int(height * (1 - bottom)))
    )


def chunk(kind: bytes, payload: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    checksum = zlib.crc32(kind + payload)
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", checksum)


def with_chunk(file: bytes, kind: bytes, payload: bytes) -> bytes:
    """Return a PNG file with a chunk behind its head."""
    at = 8 + 25
    return file[:at] + chunk(kind, payload) + file[at:]


def with_segment(file: bytes, marker: int, payload: bytes) -> bytes:
    """Return a JPEG file with a segment behind its start."""
    return file[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + file[2:]


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """Return a small PNG file of a huge picture."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def animated() -> bytes:
    """Return an animated PNG."""
    return png(natural(1, (64, 64)), save_all=True, append_images=[natural(2, (64, 64))])


def deep() -> bytes:
    """Return a PNG with 16 bits a channel."""
    return png(Image.new("I;16", (64, 64), 40_000))

"""Pictures that look like photos to a hash, and files that are no good, all from seeds."""

import io
import struct
import zlib
from random import Random

from PIL import Image, ImageDraw, ImageFilter, ImageOps

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


def scene(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Return a picture that is laid out as photos are: a street, a room, a face, a landscape or a
    meadow, in its own light, with a texture on everything and grain."""
    random = Random(seed)
    width, height = size
    picture = Image.new("RGB", size)
    draw = ImageDraw.Draw(picture)
    paint = random.choice((_landscape, _street, _room, _person, _meadow))
    paint(random, draw, width, height)
    texture = Image.merge("RGB", [_noise(random, size)] * 3)
    picture = Image.blend(picture, texture, random.uniform(0.1, 0.3))
    if paint in (_landscape, _street) and random.random() < 0.25:  # a sky with nothing in it
        white = (255, 255, 255)
        ImageDraw.Draw(picture).rectangle((0, 0, width, height // random.choice((5, 8))), white)
    if random.random() < 0.5:
        light = Image.linear_gradient("L").rotate(random.choice((0, 90, 180, 270))).resize(size)
        shade = Image.new("RGB", size, _colour(random, 0, 60))
        picture.paste(shade, mask=light.point([level * 2 // 5 for level in range(256)]))
    return picture.filter(ImageFilter.GaussianBlur(random.uniform(0.4, 1.0)))


def _colour(random: Random, low: int = 20, high: int = 235) -> tuple[int, int, int]:
    red, green, blue = (random.randrange(low, high) for _ in range(3))
    return red, green, blue


def _ground(random: Random, draw: ImageDraw.ImageDraw, width: int, top: int, bottom: int) -> None:
    """Fill a strip of the picture from one colour to another."""
    above, below = _colour(random), _colour(random)
    for y in range(top, bottom):
        share = (y - top) / max(1, bottom - top)
        red, green, blue = (int(a + (b - a) * share) for a, b in zip(above, below, strict=True))
        draw.line((0, y, width, y), (red, green, blue))


def _landscape(random: Random, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    horizon = int(height * random.uniform(0.3, 0.65))
    _ground(random, draw, width, 0, horizon)
    for _ in range(random.randrange(1, 4)):
        ridge = [(0, height), (0, horizon)]
        ridge += [
            (width * step // 8, horizon - random.randrange(-10, height // 4)) for step in range(9)
        ]
        draw.polygon([*ridge, (width, height)], _colour(random, 40, 170))
    _ground(random, draw, width, horizon + height // 12, height)
    for _ in range(random.randrange(2, 9)):
        x, foot = random.randrange(width), random.randrange(horizon, height)
        tall = random.randrange(height // 12, height // 3)
        draw.rectangle((x - 2, foot - tall, x + 3, foot), _colour(random, 20, 90))
        crown = tall // 2
        draw.ellipse(
            (x - crown, foot - tall - crown, x + crown, foot - tall + crown // 2),
            _colour(random, 20, 150),
        )


def _street(random: Random, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    foot = int(height * random.uniform(0.6, 0.85))
    _ground(random, draw, width, 0, foot)
    x = -random.randrange(width // 6)
    while x < width:
        wide = random.randrange(width // 8, width // 3)
        top = random.randrange(height // 10, foot - height // 6)
        draw.rectangle((x, top, x + wide, foot), _colour(random))
        glass = _colour(random)
        step = random.randrange(12, 26)
        for left in range(x + 5, x + wide - step // 2, step):
            for up in range(top + 6, foot - step, step):
                draw.rectangle((left, up, left + step // 2, up + step * 2 // 3), glass)
        x += wide + random.randrange(8)
    _ground(random, draw, width, foot, height)
    for _ in range(random.randrange(1, 6)):
        _figure(random, draw, random.randrange(width), random.randrange(foot, height), height // 5)


def _room(random: Random, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    edge = int(height * random.uniform(0.4, 0.7))
    _ground(random, draw, width, 0, edge)
    _ground(random, draw, width, edge, height)
    for _ in range(random.randrange(1, 4)):
        x, y = random.randrange(width), random.randrange(edge)
        wide, tall = random.randrange(width // 10, width // 3), random.randrange(20, height // 2)
        draw.rectangle((x, y - tall, x + wide, y), _colour(random), _colour(random), 4)
    for _ in range(random.randrange(3, 10)):
        x, y = random.randrange(width), random.randrange(edge, height)
        side = random.randrange(width // 20, width // 6)
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape((x, y - side, x + side, y + side // 3), _colour(random))


def _person(random: Random, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    _ground(random, draw, width, 0, height)
    for _ in range(12):
        x, y, side = random.randrange(width), random.randrange(height), random.randrange(10, 60)
        draw.ellipse((x - side, y - side, x + side, y + side), _colour(random))
    for _ in range(random.randrange(1, 4)):
        tall = random.randrange(height // 2, height)
        _figure(random, draw, random.randrange(width), height + tall // 4, tall)


def _meadow(random: Random, draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
    _ground(random, draw, width, 0, height)
    for _ in range(random.randrange(30, 120)):
        x, y, side = random.randrange(width), random.randrange(height), random.randrange(2, 22)
        draw.ellipse((x - side, y - side // 2, x + side, y + side // 2), _colour(random))
    for _ in range(random.randrange(1, 4)):
        x, y = random.randrange(width), random.randrange(height // 3, height)
        side, colour = random.randrange(width // 16, width // 5), _colour(random)
        draw.ellipse((x - side, y - side // 2, x + side, y + side // 2), colour)
        draw.ellipse((x + side // 2, y - side, x + side * 3 // 2, y), colour)


def _figure(random: Random, draw: ImageDraw.ImageDraw, x: int, foot: int, tall: int) -> None:
    wide, head = tall // 3, tall // 6
    draw.rectangle((x - wide // 2, foot - tall + head, x + wide // 2, foot), _colour(random))
    draw.ellipse((x - head, foot - tall - head, x + head, foot - tall + head), _colour(random))


def framed(picture: Image.Image, share: float, colour: str | tuple[int, int, int]) -> Image.Image:
    """Return a picture in a frame, as wide as a share of the picture's shorter side."""
    return ImageOps.expand(picture, max(1, int(min(picture.size) * share)), colour)


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


def box(kind: bytes, content: bytes = b"") -> bytes:
    """Return a box of an MP4 file."""
    return struct.pack(">I", 8 + len(content)) + kind + content


def video(content: bytes = b"") -> bytes:
    """Return the outermost structure of an MP4 file."""
    return box(b"ftyp", b"mp42\0\0\0\0isommp42") + box(b"mdat", content) + box(b"moov", bytes(100))

"""Photos: decoded completely, within bounds, in threads of their own so that the loop goes on."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

from msgspec import Struct
from PIL import Image

from market.errors import Code, MarketError
from market.photos.containers import Container, inspect, refused
from market.photos.likeness import Likeness, likeness
from market.photos.origin import is_declared_generated
from market.slots import SlotBounds, Slots

THREADS = 2  # decoding is all processor time, which the proxy needs, too
WAITING_MAX = 32  # with those being decoded: 32 of the largest files are 320 MB
PREVIEW_MAX_SIDE = 1536
PREVIEW_QUALITY = 85

# EXIF 2.32, section 4.6.4, tag 274.
TURN_OF_ORIENTATION = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PhotoLimits(Struct, frozen=True):
    """The largest photo, as a file in bytes and decoded in pixels."""

    max_bytes: int = 10_000_000
    max_pixels: int = 25_000_000


class Photo(Struct, frozen=True):
    """A decoded photo; its size is in pixels.

    `preview` is a JPEG of it without metadata, scaled down if it was large; nothing else of it
    leaves this machine. `file_hash` is the SHA-256 of the file as it was sent.
    """

    format: str
    width: int
    height: int
    is_declared_generated: bool
    preview: bytes
    likeness: Likeness
    file_hash: str


class Photos:
    """Decodes photos, a bounded number at a time.

    Args:
        limits: the largest photo.
    """

    def __init__(self, limits: PhotoLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="photos")
        self._slots = Slots(SlotBounds(total=THREADS, queue=WAITING_MAX, queue_has_running=True))

    async def read(self, data: bytes) -> Photo:
        """Return the photo in a file.

        Raises:
            MarketError: `photo_too_large`, `photo_too_many_pixels`, `photo_not_jpeg_or_png`,
                `photo_truncated`, `photo_broken`, `photo_animated`, `photo_bit_depth`,
                `photo_trailing_data`, `too_busy`.
        """
        if len(data) > self._limits.max_bytes:
            message = (
                f"The photo's file has {len(data):,} bytes; send it smaller, with "
                f"{self._limits.max_bytes:,} at most."
            )
            raise refused(Code.PHOTO_TOO_LARGE, message)
        async with self._slots.slot():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _photo, data, self._limits.max_pixels)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _photo(data: bytes, max_pixels: int) -> Photo:
    container = inspect(data)
    _check_pixels(container.width, container.height, max_pixels)
    picture = _decoded(container, max_pixels)
    preview = BytesIO()
    picture.save(preview, "JPEG", quality=PREVIEW_QUALITY)
    return Photo(
        format=container.format,
        width=container.width,
        height=container.height,
        is_declared_generated=is_declared_generated(container),
        preview=preview.getvalue(),
        likeness=likeness(picture.convert("L")),
        file_hash=hashlib.sha256(data).hexdigest(),
    )


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height > most:
        message = (
            f"The photo has {width * height:,} pixels; send it smaller, with {most:,} at most."
        )
        raise refused(Code.PHOTO_TOO_MANY_PIXELS, message)


def _decoded(container: Container, max_pixels: int) -> Image.Image:
    """Return the picture upright, and on white where it is transparent."""
    try:
        with Image.open(BytesIO(container.pixels), formats=(container.format,)) as opened:
            _check_pixels(opened.width, opened.height, max_pixels)
            opened.draft(None, (PREVIEW_MAX_SIDE, PREVIEW_MAX_SIDE))
            picture = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
            picture.thumbnail((PREVIEW_MAX_SIDE, PREVIEW_MAX_SIDE))
    except (MarketError, MemoryError):
        raise
    except Exception as error:
        # A decoder may raise anything at hostile bytes.
        raise refused(Code.PHOTO_BROKEN) from error
    clean = Image.new("RGB", picture.size, "white")
    clean.paste(picture, mask=picture if picture.mode == "RGBA" else None)
    turn = TURN_OF_ORIENTATION.get(container.orientation)
    return clean if turn is None else clean.transpose(turn)

"""Conversion of a photo's file to its picture and its fingerprint; runs in a thread."""

import hashlib
from io import BytesIO

from PIL import Image

from market.base.errors import Code, MarketError
from market.photos.containers import Container, inspect, refused
from market.photos.origin import is_declared_generated
from market.photos.photo import Photo
from market.photos.prints import likeness

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


def photo(data: bytes, max_pixels: int) -> Photo:
    """Return the photo in a file; raises as `Photos.read`."""
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

"""The logo of the service as a picture in a PDF.

A PNG is drawn on white, and made small. An SVG is left out: the format of these files has no such
picture.
"""

import logging
import zlib
from io import BytesIO
from typing import NamedTuple

from api.site.look import Logo

MOST_PIXELS = (480, 160)  # of the picture: at four for a point, it is sharp on paper

_logger = logging.getLogger("api")


class Picture(NamedTuple):
    """A picture: its sides in pixels, and its RGB values, row by row, compressed by zlib."""

    width: int
    height: int
    pixels: bytes


def picture_of(logo: Logo) -> Picture | None:
    """Return a logo as a picture; None for one that no PDF shows.

    It decodes up to 2,048 by 2,048 pixels, so it runs in a thread.
    """
    if logo.content_type != "image/png":
        return None
    # Here, so that a service without receipts does not wait for the library.
    from PIL import Image  # noqa: PLC0415

    try:
        with Image.open(BytesIO(logo.body), formats=("PNG",)) as opened:
            drawn = opened.convert("RGBA")
    except (OSError, SyntaxError, ValueError) as error:
        _logger.warning("site.logo: receipts are without it, it cannot be decoded: %s", error)
        return None
    drawn.thumbnail(MOST_PIXELS)
    ground = Image.new("RGB", drawn.size, "white")
    ground.paste(drawn, mask=drawn.getchannel("A"))
    return Picture(*ground.size, zlib.compress(ground.tobytes()))

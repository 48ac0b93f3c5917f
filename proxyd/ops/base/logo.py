"""The logo of the service: its file is checked, so that browsers of users can show it safely."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from api.site.look import Logo, Look
from config.settings import Settings
from proxyd.ops.base.errors import CannotServeError

LOGO_MAX_BYTES = 64 * 1024
PNG_MAX_PIXELS = 2_048  # of a side
ELEMENTS_MAX = 2_000
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
SVG_NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
# Elements that draw; none of them runs a script, loads a file or holds other XML.
SVG_ELEMENTS = frozenset(
    (
        *("circle", "clipPath", "defs", "desc", "ellipse", "g", "line", "linearGradient", "mask"),
        *("path", "pattern", "polygon", "polyline", "radialGradient", "rect", "stop", "svg"),
        *("text", "title", "tspan"),
    )
)
_REFERENCE = re.compile(r"url\(\s*['\"]?(?!#)", re.IGNORECASE)


class LogoError(CannotServeError):
    """The file of the logo cannot be used; the message says why."""


def look_of(settings: Settings) -> Look:
    """Return the look of the service.

    Raises:
        LogoError: the logo cannot be used.
    """
    site = settings.site
    logo = read_logo(Path(site.logo)) if site.logo else None
    return Look(site.name, logo, site.colour, site.dark_colour)


def logo_problems(settings: Settings) -> Iterator[str]:
    """Yield a line if the logo cannot be used, as a check of `config.load.load`."""
    if settings.site.logo:
        try:
            read_logo(Path(settings.site.logo))
        except LogoError as error:
            yield str(error)


def read_logo(path: Path) -> Logo:
    """Read a logo.

    Raises:
        LogoError: the file cannot be read, is too large, or is neither a safe SVG nor a PNG.
    """
    try:
        with path.open("rb") as file:
            body = file.read(LOGO_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise LogoError(f"site.logo: {path} cannot be read: {words}") from None
    if len(body) > LOGO_MAX_BYTES:
        raise LogoError(f"site.logo: {path} has more than {LOGO_MAX_BYTES // 1024} KiB")
    is_png = body.startswith(PNG_SIGNATURE)
    try:
        if is_png:
            _check_png(body)
        else:
            _check_svg(body)
    except ValueError as error:
        raise LogoError(f"site.logo: {path} {error}") from None
    return Logo("image/png" if is_png else "image/svg+xml", body)


def _check_png(body: bytes) -> None:
    """Check the chunks of a PNG (ISO/IEC 15948): lengths, checksums, size.

    Raises:
        ValueError: why not.
    """
    at, kinds = len(PNG_SIGNATURE), list[bytes]()
    while at < len(body) and b"IEND" not in kinds:
        length = int.from_bytes(body[at : at + 4])
        kind, data = body[at + 4 : at + 8], body[at + 8 : at + 8 + length]
        check = body[at + 8 + length : at + 12 + length]
        if len(check) != 4 or int.from_bytes(check) != zlib.crc32(kind + data):
            raise ValueError("is a damaged PNG")
        if kind in kinds and kind == b"IHDR":  # a decoder may take the sides of the last one
            raise ValueError("is a PNG with two headers")
        if not kinds:
            sides = (int.from_bytes(data[0:4]), int.from_bytes(data[4:8]))
            if kind != b"IHDR" or not all(1 <= side <= PNG_MAX_PIXELS for side in sides):
                raise ValueError(f"is a PNG with a side that is not 1 to {PNG_MAX_PIXELS} pixels")
        kinds.append(kind)
        at += 12 + length
    if b"IDAT" not in kinds or kinds[-1:] != [b"IEND"] or at != len(body):
        raise ValueError("is a damaged PNG")


def _check_svg(body: bytes) -> None:
    """Check that an SVG only draws: no scripts, no styles, no other files, no entities.

    Raises:
        ValueError: why not.
    """
    # Here, so that a service without a logo does not wait for the parser.
    from xml.parsers import expat  # noqa: PLC0415

    parser = expat.ParserCreate(namespace_separator=" ")
    count = 0

    def refuse(*_: object) -> None:
        raise ValueError("is an SVG with a document type, an entity or a processing instruction")

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        namespace, _, local = name.rpartition(" ")
        if count > ELEMENTS_MAX:
            raise ValueError(f"is an SVG with more than {ELEMENTS_MAX} elements")
        if namespace not in SVG_NAMESPACES or local not in SVG_ELEMENTS:
            raise ValueError(f"is an SVG with the element {local[:40]!r}, which is not permitted")
        if count == 1 and local != "svg":
            raise ValueError("is neither an SVG nor a PNG")
        for attribute, value in attributes.items():
            _check_attribute(attribute.rpartition(" ")[2], value)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ProcessingInstructionHandler = refuse
    parser.StartElementHandler = begin
    try:
        parser.Parse(body, True)
    except expat.ExpatError:
        raise ValueError("is neither an SVG nor a PNG") from None


def _check_attribute(name: str, value: str) -> None:
    has_link = name == "href" and not value.startswith("#")
    has_code = name.lower().startswith("on") or "@import" in value.lower() or "\\" in value
    if has_link or has_code or _REFERENCE.search(value):
        raise ValueError(f"is an SVG with the attribute {name[:40]!r}, which is not permitted")

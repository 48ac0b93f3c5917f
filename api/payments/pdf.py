"""A PDF of one page of text, in the fonts that each reader has, written without a library.

Characters outside of Latin scripts have no sign in these fonts. Their code points are written
instead, such as U+AC00, so no letter is lost (`has_codes`).
"""

from collections.abc import Iterable
from typing import NamedTuple

from api.payments.picture import Picture

PAGE_WIDTH, PAGE_HEIGHT = 595, 842  # A4, in points
MARGIN = 56
LEADING = 1.5  # the height of a line, in sizes of its font
PIXELS_PER_POINT = 4
LINE_MAX_CHARACTERS = 110  # what fits beside the margins in the smallest size


class Line(NamedTuple):
    """A line of text: its size in points, and whether it is bold. An empty one is a gap."""

    text: str
    size: int = 10
    is_bold: bool = False


def page(title: str, lines: Iterable[Line], picture: Picture | None = None) -> bytes:
    """Return a document with one page; lines that do not fit on it are left out.

    Args:
        title: of the document.
        lines: the text.
        picture: stands in the upper right corner.
    """
    content = b"".join((_placed(picture), *_shown(_wrapped(lines))))
    pictures = b"" if picture is None else b" /XObject << /P1 8 0 R >>"
    fonts = b"<< /F1 5 0 R /F2 6 0 R >>"
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /%s /Encoding /WinAnsiEncoding >>"
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Contents 4 0 R"
        b" /Resources << /Font %s%s >> >>" % (PAGE_WIDTH, PAGE_HEIGHT, fonts, pictures),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        font % b"Helvetica",
        font % b"Helvetica-Bold",
        b"<< /Title (%s) >>" % _text(title),
        *([] if picture is None else [_drawn(picture)]),
    )
    document = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(document)
    document += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    document += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    document += b"trailer\n<< /Size %d /Root 1 0 R /Info 7 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        table,
    )
    return bytes(document)


def has_codes(text: str) -> bool:
    """Return whether a text has characters that are written as code points."""
    return _coded(text) != _plain(text)


def _placed(picture: Picture | None) -> bytes:
    """Return the operators that draw a picture in the upper right corner."""
    if picture is None:
        return b""
    width, height = picture.width / PIXELS_PER_POINT, picture.height / PIXELS_PER_POINT
    left, bottom = PAGE_WIDTH - MARGIN - width, PAGE_HEIGHT - MARGIN - height
    return b"q %.2f 0 0 %.2f %.2f %.2f cm /P1 Do Q\n" % (width, height, left, bottom)


def _drawn(picture: Picture) -> bytes:
    """Return the object of a picture."""
    return (
        b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceRGB"
        b" /BitsPerComponent 8 /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream"
        % (picture.width, picture.height, len(picture.pixels), picture.pixels)
    )


def _wrapped(lines: Iterable[Line]) -> Iterable[Line]:
    """Yield the lines in parts that fit beside the margins."""
    for line in lines:
        text = _coded(line.text)
        for at in range(0, max(len(text), 1), LINE_MAX_CHARACTERS):
            yield line._replace(text=text[at : at + LINE_MAX_CHARACTERS])


def _shown(lines: Iterable[Line]) -> Iterable[bytes]:
    """Yield the operators that write the lines, from the top of the page down."""
    height = float(PAGE_HEIGHT - MARGIN)
    for line in lines:
        height -= line.size * LEADING
        if height < MARGIN:
            return
        if line.text:
            yield b"BT /F%d %d Tf %d %.1f Td (%s) Tj ET\n" % (
                2 if line.is_bold else 1,
                line.size,
                MARGIN,
                height,
                _text(line.text),
            )


def _text(text: str) -> bytes:
    """Return a text as a string of the format, in Windows-1252."""
    encoded = _coded(text).encode("cp1252")
    return encoded.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def _plain(text: str) -> str:
    """Return a text without characters that move others."""
    return "".join(each if each.isprintable() else " " for each in text)


def _coded(text: str) -> str:
    """Return a plain text with code points for the characters that the fonts do not have."""
    return "".join(each if _has_sign(each) else f"<U+{ord(each):04X}>" for each in _plain(text))


def _has_sign(character: str) -> bool:
    try:
        character.encode("cp1252")
    except UnicodeEncodeError:
        return False
    return True

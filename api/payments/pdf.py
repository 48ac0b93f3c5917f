"""A PDF of pages of text, in the fonts that each reader has, written without a library.

Characters outside of Latin scripts have no sign in these fonts. Their code points are written
instead, such as U+AC00, so no letter is lost (`has_codes`).
"""

from collections.abc import Iterable, Sequence
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


def document(title: str, lines: Iterable[Line], picture: Picture | None = None) -> bytes:
    """Return a document; lines that do not fit on a page go on to the next one.

    Args:
        title: of the document.
        lines: the text.
        picture: stands in the upper right corner of the first page.
    """
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /%s /Encoding /WinAnsiEncoding >>"
    shared = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        font % b"Helvetica",
        font % b"Helvetica-Bold",
        b"<< /Title (%s) >>" % _text(title),
        *([] if picture is None else [_drawn(picture)]),
    ]
    pictures = b"" if picture is None else b" /XObject << /P1 6 0 R >>"
    first, *others = _pages(_wrapped(lines))
    contents = [_placed(picture) + first, *others]
    numbers = range(len(shared) + 2, len(shared) + 2 + 2 * len(contents), 2)
    pages = []
    for number, content in zip(numbers, contents, strict=True):
        pages += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Contents %d 0 R /Resources"
            b" << /Font << /F1 3 0 R /F2 4 0 R >>%s >> >>"
            % (PAGE_WIDTH, PAGE_HEIGHT, number + 1, pictures),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        ]
    kids = b" ".join(b"%d 0 R" % number for number in numbers)
    tree = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents))
    return _file([shared[0], tree, *shared[1:], *pages])


def _file(objects: Sequence[bytes]) -> bytes:
    """Return the file of objects: the first is the catalogue, and the fifth has the title."""
    written = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(written))
        written += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(written)
    written += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    written += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    written += b"trailer\n<< /Size %d /Root 1 0 R /Info 5 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        table,
    )
    return bytes(written)


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


def _pages(lines: Iterable[Line]) -> list[bytes]:
    """Return the operators that write the lines, from the top of each page down, by the page."""
    pages, height = [bytearray()], float(PAGE_HEIGHT - MARGIN)
    for line in lines:
        height -= line.size * LEADING
        if height < MARGIN:
            pages.append(bytearray())
            height = PAGE_HEIGHT - MARGIN - line.size * LEADING
        if line.text:
            font = 2 if line.is_bold else 1
            where = (font, line.size, MARGIN, height, _text(line.text))
            pages[-1] += b"BT /F%d %d Tf %d %.1f Td (%s) Tj ET\n" % where
    return [bytes(each) for each in pages]


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

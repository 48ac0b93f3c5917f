"""The logo: an SVG that only draws or a whole PNG is served, everything else is refused."""

import io
from pathlib import Path

import pytest
from PIL import Image

from config.settings import Settings, SiteSettings
from proxyd.ops.base.logo import LOGO_MAX_BYTES, LogoError, logo_problems, look_of, read_logo

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
SVG = HEAD + (
    '<defs><linearGradient id="a"><stop offset="0" stop-color="#fff"/></linearGradient></defs>'
    '<path d="M0 0h5" fill="url(#a)"/></svg>'
)


def png(width: int = 8, height: int = 8) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (width, height)).save(made, "PNG")
    return made.getvalue()


def test_a_drawing_and_a_picture_are_read(tmp_path: Path) -> None:
    path = tmp_path / "logo"
    for body, kind in ((SVG.encode(), "image/svg+xml"), (png(), "image/png")):
        path.write_bytes(body)
        logo = read_logo(path)
        assert (logo.content_type, logo.body) == (kind, body)
        settings = Settings(site=SiteSettings(logo=str(path)))
        assert list(logo_problems(settings)) == []
        assert look_of(settings).logo == logo
        assert "sandbox" in logo.page().headers["Content-Security-Policy"]
    assert look_of(Settings()).logo is None


@pytest.mark.parametrize(
    "inner",
    [
        "<script>alert(1)</script>",
        "<style>*{}</style>",
        '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml"/></foreignObject>',
        '<image href="https://example.com/a.png"/>',
        '<use href="#a"/>',
        '<path onload="alert(1)"/>',
        '<path fill="url(https://example.com/a)"/>',
        "<path style=\"fill: URL( 'https://example.com/a')\"/>",
        '<path style="fill: u\\72l(https://example.com/a)"/>',
        '<linearGradient xlink:href="https://example.com/a"/>',
        "<?xml-stylesheet href='https://example.com/a.css'?>",
        '<a href="javascript:alert(1)"/>',
        "<g>" * 2_001 + "</g>" * 2_001,
        "<g>",
    ],
)
def test_a_drawing_that_could_do_more_is_refused(tmp_path: Path, inner: str) -> None:
    path = tmp_path / "logo.svg"
    path.write_text(f"{HEAD}{inner}</svg>")
    with pytest.raises(LogoError, match=r"site\.logo: .* is "):
        read_logo(path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html/>",
        b"\xff\xd8\xff",
        f'<!DOCTYPE svg [<!ENTITY a "b">]>{SVG}'.encode(),
        png()[:-5],
        png() + b"<script>",
        png().replace(b"IDAT", b"IDAX"),
        png(2_049, 1),
        png()[:33] + png(2_049, 1)[8:],  # the second header counts for some decoders
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_other_files_are_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "logo"
    path.write_bytes(body)
    with pytest.raises(LogoError, match=r"site\.logo: "):
        read_logo(path)


def test_a_file_that_is_missing_or_too_large_is_named(tmp_path: Path) -> None:
    path = tmp_path / "logo.svg"
    [problem] = logo_problems(Settings(site=SiteSettings(logo=str(path))))
    assert problem == f"site.logo: {path} cannot be read: No such file or directory"
    path.write_text(SVG + " " * LOGO_MAX_BYTES)
    [problem] = logo_problems(Settings(site=SiteSettings(logo=str(path))))
    assert problem == f"site.logo: {path} has more than 64 KiB"

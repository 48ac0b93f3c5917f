"""Photos are decoded for real, and each way a file can be no good has its own refusal."""

import asyncio
import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageOps
from PIL.PngImagePlugin import PngInfo
from support.base.brief import examples
from support.base.cases import cases
from support.market import pictures
from support.market.pictures import jpeg, natural, png

from market.base.errors import Code, MarketError
from market.photos import containers
from market.photos.decoding import PhotoLimits, Photos
from market.photos.photo import Photo
from market.photos.picture import photo

PICTURE = natural(1)
JPEG, PNG = jpeg(PICTURE), png(PICTURE)
ARCHIVE = io.BytesIO()
with zipfile.ZipFile(ARCHIVE, "w") as archive:
    archive.writestr("evil.txt", "x" * 1000)


@pytest.fixture
def photos() -> Iterator[Photos]:
    made = Photos(PhotoLimits())
    yield made
    made.close()


def read(data: bytes) -> Photo:
    return photo(data, PhotoLimits().max_pixels)


def refusal(data: bytes) -> Code:
    with pytest.raises(MarketError) as caught:
        read(data)
    assert caught.value.field == "file"
    return caught.value.code


@pytest.mark.parametrize(("data", "kind"), [(JPEG, "JPEG"), (PNG, "PNG")])
async def test_a_photo_is_read(photos: Photos, data: bytes, kind: str) -> None:
    photo = await photos.read(data)
    assert (photo.format, photo.width, photo.height) == (kind, 320, 240)
    assert not photo.is_declared_generated
    shown = Image.open(io.BytesIO(photo.preview))
    assert (shown.format, shown.size) == ("JPEG", (320, 240))


@cases("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
@cases("kind", ["JPEG", "PNG"])
def test_every_kind_of_pixel_is_read(mode: str, kind: str) -> None:
    file = io.BytesIO()
    try:
        PICTURE.convert(mode).save(file, kind)
    except OSError:
        pytest.skip(f"there is no {kind} in {mode}")
    assert Image.open(io.BytesIO(read(file.getvalue()).preview)).mode == "RGB"


def test_progressive_interlaced_and_tiny_ones_are_read() -> None:
    assert read(jpeg(PICTURE, progressive=True, restart_marker_rows=1)).width == 320
    assert read(jpeg(PICTURE, comment=b"\xff\xd9 in a comment")).width == 320
    assert read(png(Image.new("RGB", (1, 1)))).width == 1


def test_a_transparent_part_is_white() -> None:
    shown = Image.open(io.BytesIO(read(png(Image.new("RGBA", (64, 64), (0, 0, 0, 0)))).preview))
    assert shown.getpixel((32, 32)) == (255, 255, 255)


def test_nothing_but_pixels_leaves_the_machine() -> None:
    exif = Image.Exif()
    exif[0x010F] = "Secret Camera"
    exif[0x0112] = 6
    noted = Image.new("RGB", (100, 50), "red")
    data = jpeg(noted, exif=exif, comment=b"Secret comment", icc_profile=b"Secret profile" * 20)
    photo = read(data)
    assert b"Secret" in data
    assert b"Secret" not in photo.preview
    assert b"Exif" not in photo.preview
    assert Image.open(io.BytesIO(photo.preview)).size == (50, 100)


@cases("orientation", range(10))
@cases("write", [jpeg, png])
def test_a_photo_is_shown_the_right_way_up(write: Callable, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = write(PICTURE, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    shown = Image.open(io.BytesIO(read(data).preview))
    difference = ImageChops.difference(upright, shown).convert("L")
    assert sum(difference.tobytes()) / len(difference.tobytes()) < 3


def test_a_large_photo_is_shown_smaller() -> None:
    shown = Image.open(io.BytesIO(read(jpeg(Image.new("RGB", (4000, 1000), "blue"))).preview))
    assert shown.size == (1536, 384)


@cases(
    ("data", "code"),
    [
        (b"", Code.PHOTO_NOT_JPEG_OR_PNG),
        (b"just text", Code.PHOTO_NOT_JPEG_OR_PNG),
        (b"GIF89a" + bytes(100), Code.PHOTO_NOT_JPEG_OR_PNG),
        (ARCHIVE.getvalue(), Code.PHOTO_NOT_JPEG_OR_PNG),
        (b" " + JPEG, Code.PHOTO_NOT_JPEG_OR_PNG),
        (pictures.bomb(), Code.PHOTO_TOO_MANY_PIXELS),
        (JPEG[:-2], Code.PHOTO_TRUNCATED),
        (JPEG[: len(JPEG) // 2], Code.PHOTO_TRUNCATED),
        (JPEG[:3], Code.PHOTO_TRUNCATED),
        (JPEG[:30], Code.PHOTO_TRUNCATED),
        (PNG[:-1], Code.PHOTO_TRUNCATED),
        (PNG[: len(PNG) // 2], Code.PHOTO_TRUNCATED),
        (PNG[:8], Code.PHOTO_TRUNCATED),
        (pictures.animated(), Code.PHOTO_ANIMATED),
        (pictures.deep(), Code.PHOTO_BIT_DEPTH),
        (b"\xff\xd8\xff\xd9" + JPEG[2:], Code.PHOTO_BROKEN),
        (b"\xff\xd8\xff\xe0\x00\x01", Code.PHOTO_BROKEN),
        (b"\xff\xd8\xffx\x00\x02yy", Code.PHOTO_BROKEN),
        (PNG.replace(b"IDAT", b"IDAX", 1), Code.PHOTO_BROKEN),
        (PNG[:8] + PNG[33:], Code.PHOTO_BROKEN),
        (pictures.bomb(0, 7), Code.PHOTO_BROKEN),
        (pictures.with_chunk(PNG, b"zTXt", b"a\0\0not packed"), Code.PHOTO_BROKEN),
        (b"\xff\xd8" + b"\xff\xe0\x00\x02" * 30_000, Code.PHOTO_BROKEN),
    ],
)
def test_each_way_to_be_no_good_has_its_code(data: bytes, code: Code) -> None:
    assert refusal(data) is code


def test_a_jpeg_that_says_it_is_huge_is_refused_before_it_is_decoded() -> None:
    at = JPEG.index(b"\xff\xc0")
    huge = JPEG[: at + 5] + struct.pack(">HH", 60_000, 60_000) + JPEG[at + 9 :]
    assert refusal(huge) is Code.PHOTO_TOO_MANY_PIXELS
    deep = JPEG[: at + 4] + b"\x0c" + JPEG[at + 5 :]
    assert refusal(deep) is Code.PHOTO_BIT_DEPTH


@pytest.mark.parametrize(
    "rest",
    [
        bytes(100),
        b"x",
        JPEG,
        JPEG[:-2],
        b"<html><script>alert(1)</script></html>",
        ARCHIVE.getvalue(),
        pictures.video(b"x" * 5_000),
        b"\xff\xda" * 1_000,
    ],
    ids=[
        "padding",
        "a byte",
        "a preview",
        "half of one",
        "a page",
        "an archive",
        "a video",
        "scans",
    ],
)
@pytest.mark.parametrize("file", [JPEG, PNG], ids=["JPEG", "PNG"])
def test_bytes_behind_a_picture_are_left_behind(file: bytes, rest: bytes) -> None:
    assert read(file + rest).preview == read(file).preview
    assert containers.inspect(file + rest).pixels == containers.inspect(file).pixels


def test_long_runs_take_no_longer_than_they_are_long() -> None:
    for filling in (b"\xff", b"\xff\x00", b"\xff\xd0", b"\x00"):
        run = filling * (5_000_000 // len(filling))
        for data in (JPEG[:-2] + run, JPEG[:20] + run, JPEG[:2] + run):
            assert refusal(data) in {
                *(Code.PHOTO_TRUNCATED, Code.PHOTO_BROKEN, Code.PHOTO_NOT_JPEG_OR_PNG)
            }


async def test_a_file_that_is_too_large_is_not_looked_at() -> None:
    photos = Photos(PhotoLimits(max_bytes=len(JPEG), max_pixels=320 * 240))
    assert (await photos.read(JPEG)).width == 320
    with pytest.raises(MarketError) as caught:
        await photos.read(JPEG + b"\0")
    assert caught.value.code is Code.PHOTO_TOO_LARGE
    with pytest.raises(MarketError) as caught:
        await photos.read(jpeg(natural(1, (321, 240)), quality=5))
    assert caught.value.code is Code.PHOTO_TOO_MANY_PIXELS
    photos.close()


async def test_the_waiting_photos_are_bounded() -> None:
    photos = Photos(PhotoLimits(), waiting_max=3)
    outcomes = await asyncio.gather(*(photos.read(JPEG) for _ in range(8)), return_exceptions=True)
    refused = [outcome.code for outcome in outcomes if isinstance(outcome, MarketError)]
    assert refused == [Code.TOO_BUSY] * 5
    assert (await photos.read(JPEG)).width == 320
    photos.close()


SMALL = (jpeg(natural(1, (40, 30))), png(natural(1, (40, 30))))


def test_scans_without_number_are_refused_before_they_are_decoded() -> None:
    made = io.BytesIO()
    Image.new("L", (64, 64), 7).save(made, "JPEG", progressive=True)
    whole = made.getvalue()
    last = whole.rindex(b"\xff\xda")
    bomb = whole[:last] + whole[last:-2] * 1000 + whole[-2:]
    assert refusal(bomb) is Code.PHOTO_BROKEN
    read(whole)


def test_no_scan_is_decoded_that_was_not_counted() -> None:
    """An end that is not one, in a comment between two scans, hides the rest from the count."""
    made = io.BytesIO()
    Image.new("L", (64, 64), 7).save(made, "JPEG", progressive=True)
    whole = made.getvalue()
    last = whole.rindex(b"\xff\xda")
    comment = b"\xff\xfe\x00\x04\xff\xd9"
    file = whole[:last] + comment + whole[last:-2] * 1000 + whole[-2:]
    assert containers.inspect(file).pixels.endswith(whole[last - 4 : last] + comment)
    assert refusal(file) in {Code.PHOTO_BROKEN, Code.PHOTO_TRUNCATED}


def test_texts_are_unpacked_within_one_budget() -> None:
    texts = PngInfo()
    for number in range(300):
        texts.add_text(f"key{number}", "x" * 60_000, zip=True)
    made = io.BytesIO()
    Image.new("L", (8, 8)).save(made, "PNG", pnginfo=texts)
    found = containers.inspect(made.getvalue())
    assert len(found.metadata) <= containers.METADATA_MAX_BYTES


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    file = bytearray(data.draw(st.sampled_from((*SMALL, b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(file)))
        cut = data.draw(st.integers(0, 20))
        file[at : at + cut] = data.draw(st.binary(max_size=40))
    with suppress(MarketError):
        assert read(bytes(file)).preview

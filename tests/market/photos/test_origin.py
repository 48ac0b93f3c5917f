"""Signs in a file of its making."""

import zlib

from PIL import Image
from support.base.cases import cases
from support.market.pictures import jpeg, natural, png, with_chunk, with_segment

from market.photos.containers import inspect
from market.photos.origin import is_declared_generated

PICTURE = natural(1, (64, 48))
JPEG, PNG = jpeg(PICTURE), png(PICTURE)

XMP = b"http://ns.adobe.com/xap/1.0/\0"
SOURCE = b'<x Iptc4xmpExt:DigitalSourceType="http://cv.iptc.org/newscodes/digitalsourcetype/%s"/>'
GENERATED = SOURCE % b"trainedAlgorithmicMedia"
MANIFEST = b"\0\0\0\x20jumb\0\0\0\x18jumdc2pa\0\x11\0\x10\x80\0\0\xaa\0\x38\x9b\x71"


def declared(data: bytes) -> bool:
    return is_declared_generated(inspect(data))


def exif(**tags: str) -> bytes:
    made = Image.Exif()
    for name, value in tags.items():
        made[{"software": 0x0131, "make": 0x010F, "artist": 0x013B}[name]] = value
    return jpeg(PICTURE, exif=made)


def jumbf(*parts: bytes) -> bytes:
    """Return a JPEG with a box in one segment or several (ISO/IEC 19566-5, annex D)."""
    data = JPEG
    for number, part in reversed(list(enumerate(parts, 1))):
        head = b"JP\0\1" + number.to_bytes(4)
        data = with_segment(data, 0xEB, head + (MANIFEST[:8] if number > 1 else b"") + part)
    return data


@cases(
    "data",
    [
        with_segment(JPEG, 0xE1, XMP + SOURCE % b"trainedAlgorithmicMedia"),
        with_segment(JPEG, 0xE1, XMP + SOURCE % b"compositeWithTrainedAlgorithmicMedia"),
        with_segment(JPEG, 0xE1, XMP + b"<xmp:CreatorTool>Adobe Firefly</xmp:CreatorTool>"),
        with_chunk(PNG, b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + GENERATED),
        jumbf(MANIFEST),
        jumbf(MANIFEST + SOURCE % b"trainedAlgorithmicMedia"),
        jumbf(MANIFEST + b"digitalCapture trainedAlgo", b"rithmicMedia"),
        with_chunk(PNG, b"caBX", MANIFEST),
        with_chunk(PNG, b"tEXt", b"parameters\0a cat, Steps: 20, Sampler: Euler a"),
        with_chunk(PNG, b"tEXt", b"prompt\0{}"),
        with_chunk(PNG, b"tEXt", b"workflow\0{}"),
        with_chunk(PNG, b"zTXt", b"Parameters\0\0" + zlib.compress(b"a cat")),
        with_chunk(PNG, b"iTXt", b"Comment\0\1\0\0\0" + zlib.compress(b"made by Midjourney")),
        with_chunk(PNG, b"iTXt", b"Software\0\1\0ko\0\xec\x95\xb1\0" + zlib.compress(b"ComfyUI")),
        with_chunk(PNG, b"iTXt", b"Software\0\0\0tr\0Yaz\xc4\xb1l\xc4\xb1m\0ComfyUI"),
        with_segment(JPEG, 0xFE, b"UNICODE\0" + "Steps: 9, Sampler: x".encode("utf-16-be")),
        *(exif(software=name) for name in ("Midjourney v7", "Stable Diffusion XL", "ComfyUI")),
        *(exif(software=name) for name in ("DALL-E 3", "OpenAI", "FLUX.1 [dev]")),
        with_segment(JPEG, 0xE1, XMP + "<xmp:CreatorTool>DALL·E 3".encode()),
        png(PICTURE, exif=b"Exif\0\0MM\0*" + b"NovelAI"),
    ],
)  # fmt: skip
def test_a_generated_picture_says_so(data: bytes) -> None:
    assert declared(data)


@cases(
    "data",
    [
        JPEG,
        PNG,
        exif(make="Canon", software="Adobe Photoshop 27.0"),
        exif(artist="Leonardo Imagen Flux"),
        with_segment(JPEG, 0xE1, XMP + SOURCE % b"digitalCapture"),
        jumbf(MANIFEST + SOURCE % b"digitalCapture"),
        jumbf(MANIFEST + SOURCE % b"computationalCapture"),
        jumbf(b"another box"),
        with_chunk(PNG, b"tEXt", b"Comment\0a prompt answer with many parameters"),
    ],
)
def test_a_camera_s_picture_does_not(data: bytes) -> None:
    assert not declared(data)


def test_a_text_begins_behind_its_keyword_in_another_language() -> None:
    for packed in (b"\1", b"\0"):
        text = zlib.compress(b"a cat") if packed == b"\1" else b"a cat"
        for key in (b"Comment", b""):
            data = with_chunk(PNG, b"iTXt", key + b"\0" + packed + b"\0en\0Remark\0" + text)
            assert inspect(data).metadata == b"a cat"


def test_a_text_that_unpacks_to_much_is_read_as_far_as_the_bound() -> None:
    packed = zlib.compress(bytes(100_000_000), 9)
    found = inspect(with_chunk(PNG, b"zTXt", b"Comment\0\0" + packed))
    assert len(found.metadata) <= 256 * 1024


def test_metadata_is_read_as_far_as_the_bound() -> None:
    data = JPEG
    for _ in range(30):
        data = with_segment(data, 0xFE, b"x" * 60_000)
    found = inspect(data)
    assert len(found.metadata) == 1024 * 1024
    assert len(found.pixels) <= len(JPEG)

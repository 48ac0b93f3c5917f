"""The hash holds a photo and its copies together, and different photos apart."""

from functools import cache
from io import BytesIO
from random import Random

import pytest
from PIL import Image
from support.pictures import cropped, jpeg, natural

from market.assistant import photos
from market.assistant.likeness import (
    BANDS,
    BITS,
    PROBED_BITS,
    Likeness,
    Print,
    bands,
    likeness,
)

PHOTOS = 300


@cache
def of(seed: int) -> Likeness:
    return seen(natural(seed))


def seen(picture: Image.Image, quality: int = 85) -> Likeness:
    return photos._photo(jpeg(picture, quality), 25_000_000).likeness


def are_alike(new: Likeness, kept: Likeness) -> bool:
    """Compare as the store does: what a band brings, and then all of it."""
    return any(
        compared.is_like(each)
        for compared in new.compared
        for band, values in enumerate(compared.probes())
        for each in kept.kept
        if bands(each.bits)[band] in values
    )


def test_three_hundred_different_photos_are_told_apart() -> None:
    index: dict[tuple[int, int], list[tuple[int, Print]]] = {}
    for seed in range(PHOTOS):
        for kept in of(seed).kept:
            for place in enumerate(bands(kept.bits)):
                index.setdefault(place, []).append((seed, kept))
    alike = {
        (seed, other)
        for seed in range(PHOTOS)
        for compared in of(seed).compared
        for band, values in enumerate(compared.probes())
        for value in values
        for other, kept in index.get((band, value), ())
        if compared.is_like(kept)
    }
    assert alike == {(seed, seed) for seed in range(PHOTOS)}


def resized(picture: Image.Image, width: float, height: float) -> Image.Image:
    return picture.resize((int(picture.width * width), int(picture.height * height)))


COPIES = {
    "the same": seen,
    "half the size": lambda picture: seen(resized(picture, 0.5, 0.5)),
    "a quarter the size": lambda picture: seen(resized(picture, 0.25, 0.25)),
    "larger": lambda picture: seen(resized(picture, 2, 2)),
    "stretched": lambda picture: seen(resized(picture, 1.3, 0.9)),
    "quality 30": lambda picture: seen(picture, 30),
    "twice compressed": lambda picture: seen(Image.open(BytesIO(jpeg(picture, 50))), 60),
    "mirrored": lambda picture: seen(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "turned": lambda picture: seen(picture.transpose(Image.Transpose.ROTATE_90)),
    "upside down": lambda picture: seen(picture.transpose(Image.Transpose.ROTATE_180)),
    "without a strip": lambda picture: seen(cropped(picture, 0.05, 0, 0, 0)),
    "without its edges": lambda picture: seen(cropped(picture, 0.04, 0.04, 0.04, 0.04)),
    "in greys": lambda picture: seen(picture.convert("L")),
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_is_known(copy: str) -> None:
    missed = [seed for seed in range(40) if not are_alike(COPIES[copy](natural(seed)), of(seed))]
    assert missed == []


def test_any_slight_crop_is_known_resized_and_compressed_too() -> None:
    random = Random(1)
    missed = []
    for seed in range(100):
        picture = cropped(natural(seed), *(random.random() * 0.05 for _ in range(4)))
        if not are_alike(seen(resized(picture, 0.8, 0.8), 70), of(seed)):
            missed.append(seed)
    assert missed == []


def test_the_whole_is_known_when_a_crop_was_rewarded() -> None:
    missed = [
        seed
        for seed in range(40)
        if not are_alike(of(seed), seen(cropped(natural(seed), 0.04, 0.03, 0.04, 0.02)))
    ]
    assert missed == []


def test_pictures_of_nothing_are_all_alike_and_like_no_photo() -> None:
    plain = [seen(Image.new("RGB", (320, 240), colour)) for colour in ("red", "white", "#123456")]
    assert all(are_alike(one, other) for one in plain for other in plain)
    assert not any(are_alike(plain[0], of(seed)) for seed in range(40))


def test_a_print_fits_a_column_and_its_bands_are_all_of_it() -> None:
    for bits, detail in of(1).kept:
        assert 0 <= bits < 2**BITS < 2**63 + 1
        assert 0 <= detail < 2**63
        assert sum(value << 16 * band for band, value in enumerate(bands(bits))) == bits


def test_so_many_values_of_a_band_are_looked_up_and_no_more() -> None:
    for compared in of(1).compared:
        probes = compared.probes()
        assert len(probes) == BANDS
        assert all(len(values) <= 2**PROBED_BITS for values in probes)
        assert all(bands(compared.bits)[band] in values for band, values in enumerate(probes))


def test_the_smallest_pictures_have_a_likeness() -> None:
    assert likeness(Image.new("L", (1, 1))).kept
    assert likeness(Image.new("L", (1, 1000))).compared

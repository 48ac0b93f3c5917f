"""The hash holds a photo and its copies together, and different photos apart.

A sample of the photos here; `make soak` looks at all of them (PROXYD_PHOTOS).
"""

import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from io import BytesIO
from random import Random

import pytest
from PIL import Image, ImageOps
from support.base.brief import brief
from support.base.cases import cases
from support.market.pictures import cropped, framed, jpeg, natural, scene

from market.photos import picture as pictures
from market.photos.likeness import (
    BANDS,
    BITS,
    PROBED_BITS,
    Likeness,
    Print,
    bands,
)
from market.photos.prints import CANVAS, _inside, likeness

PHOTOS = int(os.environ.get("PROXYD_PHOTOS", "48"))
# Number of photos for each kind of copy, and half of it for comparisons in both orders.
COPIED = PHOTOS // 8
BOTH_WAYS = PHOTOS // 16
# Seven crops, and three each of two other views; six in eight positions, and one of each other.
KEPT_MAX, COMPARED_MAX = 13, 64

Make = Callable[[int], Image.Image]


@lru_cache(maxsize=100)  # the photos that most tests begin with; 230 kB each
def photo(seed: int, make: Make = natural) -> Image.Image:
    """Return a picture that several tests look at, and none changes."""
    return make(seed)


@cache
def of(seed: int, make: Make = natural) -> Likeness:
    return seen(make(seed))


def seen(picture: Image.Image, quality: int = 85) -> Likeness:
    return pictures.photo(jpeg(picture, quality), 25_000_000).likeness


def canvas(picture: Image.Image) -> Image.Image:
    return picture.convert("L").resize((CANVAS, CANVAS), Image.Resampling.BOX)


def are_alike(new: Likeness, kept: Likeness) -> bool:
    """Compare as the store does: the candidates of a band first, and then all of it."""
    return any(
        probe.is_like(each)
        for probe in new.probes
        for band, values in enumerate(probe.band_values())
        for each in kept.prints
        if bands(each.bits)[band] in values
    )


def pairs_alike(several: Sequence[Likeness]) -> set[tuple[int, int]]:
    """Compare all pairs as the store does. Return the places of the similar ones."""
    index: dict[tuple[int, int], list[tuple[int, Print]]] = {}
    for place, likeness_of_one in enumerate(several):
        for kept in likeness_of_one.prints:
            for band in enumerate(bands(kept.bits)):
                index.setdefault(band, []).append((place, kept))
    return {
        (place, other)
        for place, likeness_of_one in enumerate(several)
        for probe in likeness_of_one.probes
        for band, values in enumerate(probe.band_values())
        for value in values
        for other, kept in index.get((band, value), ())
        if probe.is_like(kept)
    }


def test_different_photos_are_told_apart() -> None:
    alike = pairs_alike([of(seed) for seed in range(PHOTOS)])
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


@cases("copy", COPIES)
def test_a_copy_is_known(copy: str) -> None:
    missed = [seed for seed in range(COPIED) if not are_alike(COPIES[copy](photo(seed)), of(seed))]
    assert missed == []


def test_any_slight_crop_is_known_resized_and_compressed() -> None:
    random = Random(1)
    missed = []
    for seed in range(COPIED * 5 // 2):
        picture = cropped(photo(seed), *(random.random() * 0.05 for _ in range(4)))
        if not are_alike(seen(resized(picture, 0.8, 0.8), 70), of(seed)):
            missed.append(seed)
    assert missed == []


def test_the_whole_is_known_when_a_crop_was_rewarded() -> None:
    missed = [
        seed
        for seed in range(COPIED)
        if not are_alike(of(seed), seen(cropped(photo(seed), 0.04, 0.03, 0.04, 0.02)))
    ]
    assert missed == []


SIDES = ("left", "top", "right", "bottom")


@pytest.mark.parametrize("make", [natural, scene])
@pytest.mark.parametrize("side", range(4), ids=SIDES)
@pytest.mark.parametrize("share", brief([0.12, 0.06, 0.08, 0.1]))
def test_a_crop_on_one_side_is_known_whichever_came_first(
    make: Make, side: int, share: float
) -> None:
    known = 0
    for seed in range(BOTH_WAYS):
        part = cropped(photo(seed, make), *(share if each == side else 0 for each in range(4)))
        one, other = of(seed, make), seen(resized(part, 0.8, 0.8), 70)
        known += are_alike(other, one) + are_alike(one, other)
    assert known >= 0.925 * 2 * BOTH_WAYS


FRAMES = {
    "white": lambda picture: framed(picture, 0.06, "white"),
    "black": lambda picture: framed(picture, 0.15, "black"),
    "blue": lambda picture: framed(picture, 0.1, "#2a7fd0"),
    "thin": lambda picture: framed(picture, 0.01, "white"),
    "two": lambda picture: framed(framed(picture, 0.02, "black"), 0.08, "white"),
    "above and below": lambda picture: cropped(framed(picture, 0.15, "black"), 0.093, 0, 0.093, 0),
    "below": lambda picture: cropped(framed(picture, 0.2, "white"), 0.126, 0.15, 0.126, 0),
}


@pytest.mark.parametrize("make", [natural, scene])
@pytest.mark.parametrize("frame", brief(FRAMES, 3))
def test_a_frame_of_one_colour_changes_nothing_whichever_came_first(make: Make, frame: str) -> None:
    known = 0
    for seed in range(BOTH_WAYS):
        copy = resized(FRAMES[frame](photo(seed, make)), 0.8, 0.8)
        one, other = of(seed, make), seen(copy, 70)
        known += are_alike(other, one) + are_alike(one, other)
    assert known >= 0.95 * 2 * BOTH_WAYS


@pytest.mark.long
def test_different_photos_in_like_frames_are_told_apart() -> None:
    several = [
        seen(framed(photo(seed, make), 0.2, "white"))
        for make in (natural, scene)
        for seed in range(COPIED)
    ]
    assert pairs_alike(several) == {(place, place) for place in range(len(several))}


def test_a_plain_sky_is_no_frame_to_rely_on() -> None:
    """A copy whose sky is not quite plain any more is known all the same."""
    picture = natural(1)
    picture.paste("white", (0, 0, 320, 60))
    faded = picture.copy()
    faded.paste(natural(2, (320, 60)).convert("L").point(lambda level: 255 - level // 2))
    whole = (0, 0, CANVAS, CANVAS)
    assert _inside(canvas(picture), with_edge=False) != whole
    assert _inside(canvas(faded), with_edge=False) == whole
    assert are_alike(seen(faded), seen(picture))
    assert are_alike(seen(picture), seen(faded))


def test_pictures_of_nothing_are_all_alike_and_like_no_photo() -> None:
    plain = [seen(Image.new("RGB", (320, 240), colour)) for colour in ("red", "white", "#123456")]
    assert all(are_alike(one, other) for one in plain for other in plain)
    assert not any(are_alike(plain[0], of(seed)) for seed in range(COPIED))


def test_a_print_fits_a_column_and_its_bands_are_all_of_it() -> None:
    for bits, detail in of(1).prints:
        assert 0 <= bits < 2**BITS < 2**63 + 1
        assert 0 <= detail < 2**63
        assert sum(value << 16 * band for band, value in enumerate(bands(bits))) == bits


def test_the_looked_up_values_of_a_band_are_bounded() -> None:
    for probe in of(1).probes:
        values_of_bands = probe.band_values()
        assert len(values_of_bands) == BANDS
        assert all(len(values) <= 2**PROBED_BITS for values in values_of_bands)
        assert all(bands(probe.bits)[band] in values for band, values in enumerate(values_of_bands))


def test_the_cost_of_any_photo_is_bounded() -> None:
    plain = Image.new("L", (1000, 1000), 255)
    striped = Image.linear_gradient("L").resize((1000, 1000)).point(lambda level: level // 40 * 40)
    checked = Image.frombytes("L", (2, 2), bytes((0, 255, 255, 0))).resize((1000, 1000))
    for picture in (plain, striped, checked, ImageOps.expand(checked, 300, 255)):
        made = likeness(picture)
        assert len(made.prints) <= KEPT_MAX
        assert len(made.probes) <= COMPARED_MAX


def test_the_look_ups_of_a_print_are_its_compared_values() -> None:
    made = of(1)
    for band, lookups in enumerate(made.lookups()):
        assert {value for each in made.probes for value in each.band_values()[band]} == set(lookups)
        for value, several in lookups.items():
            assert several == [each for each in made.probes if value in each.band_values()[band]]


def test_the_smallest_pictures_have_a_likeness() -> None:
    assert likeness(Image.new("L", (1, 1))).prints
    assert likeness(Image.new("L", (1, 1000))).probes

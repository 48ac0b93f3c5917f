"""Prints and probes of a picture, from its pixels; `market.photos.likeness` defines them.

In a module of its own because Pillow takes a while to import, and most daemons never see a photo.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from PIL import Image

from market.photos.likeness import BITS, Likeness, Print, Probe

SAMPLES = 16
LOW_FREQUENCIES = 10
FREQUENCIES = 14
# Shares of a picture that a crop leaves out: on the left, at the top, on the right, at the bottom.
EVEN_CROPS = tuple((share, share, share, share) for share in (0.0, 0.04, 0.08))
SIDE_CROPS = ((0.09, 0, 0, 0), (0, 0.09, 0, 0), (0, 0, 0.09, 0), (0, 0, 0, 0.09))
PRINT_CROPS = EVEN_CROPS + SIDE_CROPS
PROBE_CROPS = EVEN_CROPS[:2] + SIDE_CROPS
# Each picture is first scaled to a canvas of this side, so that a large photo takes as long as a
# small one.
CANVAS = 256
# A line belongs to a frame when its greys are within FRAME_TOLERANCE, except for FRAME_OUTLIERS in
# 255 pixels (compression noise, a few words). The frame ends at an edge when, EDGE_LINES further
# in, EDGE_OUTLIERS in 255 pixels differ by more than EDGE_CONTRAST.
FRAME_TOLERANCE = 12
FRAME_OUTLIERS = 12
EDGE_CONTRAST = 24
EDGE_LINES = 3
EDGE_OUTLIERS = 102
FRAMES_MAX = 4
PICTURE_MIN = CANVAS // 4
# A coefficient below this is rounding: one grey level over a small part of the picture.
SILENCE = 4.0
WEIGHT_MIN = 0.05
AMBIGUITY = 0.8

_COSINES = [
    [math.cos(math.pi * (2 * x + 1) * u / (2 * SAMPLES)) for x in range(SAMPLES)]
    for u in range(FREQUENCIES)
]
_PLACES = sorted(
    ((u, v) for u, v in product(range(FREQUENCIES), repeat=2) if 0 < u + v <= FREQUENCIES),
    key=lambda place: (sum(place), place),
)
_LOW = [(u, v) for u, v in _PLACES if u + v <= LOW_FREQUENCIES and max(u, v) < LOW_FREQUENCIES]
_DETAIL = [place for place in _PLACES if place not in frozenset(_LOW)]

_Spectrum = Mapping[tuple[int, int], float]
_Crop = tuple[float, float, float, float]
_Box = tuple[int, int, int, int]


def likeness(grey: Image.Image) -> Likeness:
    """Return the fingerprint of a picture in shades of grey."""
    canvas = grey.resize((CANVAS, CANVAS), Image.Resampling.BOX)
    left, top, right, bottom = inside = _inside(canvas, with_edge=True)
    views: dict[_Box, tuple[Sequence[_Crop], Sequence[_Crop]]]
    views = {inside: (PRINT_CROPS, PROBE_CROPS)}
    others = [_inside(canvas, with_edge=False)]
    if (left == 0 or right == CANVAS) and (top == 0 or bottom == CANVAS):
        others.append((0, 0, CANVAS, CANVAS))  # with a whole frame, all framed pictures look alike
    for other in others:
        views.setdefault(other, (EVEN_CROPS, EVEN_CROPS[:1]))
    prints: list[Print] = []
    probes: dict[Print, Probe] = {}
    for box, (print_crops, probe_crops) in views.items():
        picture = canvas.crop(box)
        for crop in print_crops:
            positions = list(_positions(_spectrum(picture, crop)))
            prints.append(_print(positions[0]))
            for spectrum in positions if crop in probe_crops else ():
                probe = _probe(spectrum)
                probes.setdefault(Print(probe.bits, probe.detail), probe)
    return Likeness(tuple(dict.fromkeys(prints)), tuple(probes.values()))


def _probe(spectrum: _Spectrum) -> Probe:
    weights, detail_weights = _weights(spectrum, _LOW), _weights(spectrum, _DETAIL)
    return Probe(*_print(spectrum), weights, detail_weights)


def _inside(canvas: Image.Image, *, with_edge: bool) -> _Box:
    """Return the place of a picture within its frames; each side of a frame has its own colour.

    Args:
        canvas: the picture.
        with_edge: whether a frame must end at an edge, which a plain sky seldom does.
    """
    box = (0, 0, *canvas.size)
    for _ in range(FRAMES_MAX):
        before = box
        for side in range(4):
            box = _without_strip(canvas, box, side, with_edge=with_edge)
        if box == before:
            break
    return box


def _without_strip(canvas: Image.Image, box: _Box, side: int, *, with_edge: bool) -> _Box:
    """Return a box without the strip of one colour on one side; the whole box if little is left.

    Args:
        canvas: the picture.
        box: the part of it that counts.
        side: the place of that side in a box: left, top, right, bottom.
        with_edge: as above.
    """
    part = canvas.crop(box)
    if side % 2 == 0:
        part = part.transpose(Image.Transpose.TRANSPOSE)
    if side >= 2:
        part = part.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    edge = sorted(part.crop((0, 0, part.width, 1)).tobytes())
    colour = edge[len(edge) // 2]
    lines = _outliers(part, colour, FRAME_TOLERANCE)
    wide = next((line for line, share in enumerate(lines) if share > FRAME_OUTLIERS), CANVAS)
    if part.height - wide < PICTURE_MIN:
        return box
    if with_edge and _outliers(part, colour, EDGE_CONTRAST)[wide + EDGE_LINES] < EDGE_OUTLIERS:
        return box
    cut = list(box)
    cut[side] += wide if side < 2 else -wide
    return cut[0], cut[1], cut[2], cut[3]


def _outliers(picture: Image.Image, colour: int, tolerance: int) -> bytes:
    """Return the share, in 255ths, of each line's pixels beyond a tolerance around a grey."""
    differing = picture.point([255 * (abs(each - colour) > tolerance) for each in range(256)])
    return differing.resize((1, picture.height), Image.Resampling.BOX).tobytes()


def _spectrum(picture: Image.Image, crop: _Crop) -> _Spectrum:
    """Return the lowest frequencies of a picture without a share of it on each side."""
    width, height = picture.size
    left, top, right, bottom = crop
    box = (width * left, height * top, width * (1 - right), height * (1 - bottom))
    small = picture.resize((SAMPLES, SAMPLES), Image.Resampling.BICUBIC, box=box).tobytes()
    rows = [small[start : start + SAMPLES] for start in range(0, len(small), SAMPLES)]
    across = [[_dot(row, cosines) for row in rows] for cosines in _COSINES]
    return {(u, v): _dot(across[u], _COSINES[v]) for u, v in _PLACES}


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(map(float.__mul__, map(float, first), second))


def _positions(spectrum: _Spectrum) -> Iterator[_Spectrum]:
    """Yield a picture's spectrum in its canonical position, then in those almost as good.

    Mirroring changes the sign of the odd frequencies of one direction, turning exchanges the two;
    so the position is canonical in which both lowest frequencies are positive, the horizontal one
    the stronger.
    """
    across, down = spectrum[1, 0], spectrum[0, 1]
    loud = sorted(abs(spectrum[place]) for place in _LOW)[BITS * 3 // 4]
    doubt = AMBIGUITY * max(loud, SILENCE)
    gap = AMBIGUITY * max(loud, 0.6 * max(abs(across), abs(down)))
    for turned, mirrored, flipped in product(
        _choices(abs(across) < abs(down), is_doubtful=abs(abs(across) - abs(down)) < gap),
        _choices(across < 0, is_doubtful=abs(across) < doubt),
        _choices(down < 0, is_doubtful=abs(down) < doubt),
    ):
        yield {
            ((v, u) if turned else (u, v)): value
            * (-1 if mirrored and u % 2 else 1)
            * (-1 if flipped and v % 2 else 1)
            for (u, v), value in spectrum.items()
        }


def _choices(likely: bool, *, is_doubtful: bool) -> tuple[bool, ...]:
    return (likely, not likely) if is_doubtful else (likely,)


def _print(spectrum: _Spectrum) -> Print:
    return Print(_signs(spectrum, _LOW), _signs(spectrum, _DETAIL))


def _signs(spectrum: _Spectrum, places: Sequence[tuple[int, int]]) -> int:
    return sum(1 << bit for bit, place in enumerate(places) if spectrum[place] > SILENCE)


def _weights(spectrum: _Spectrum, places: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    strengths = [abs(spectrum[place]) for place in places]
    middle = max(sorted(strengths)[len(strengths) // 2], SILENCE)
    return tuple(min(1.0, max(WEIGHT_MIN, strength / middle)) for strength in strengths)

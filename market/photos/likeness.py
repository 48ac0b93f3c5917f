"""Likeness of photos: a perceptual hash that survives resizing, recompression, crops and frames.

Why it is here: a reward is money, and the cheapest fraud is to send one photo again, resized or
cropped. The usual hashes (average, difference, pHash) change with a crop or a mirror image, and to
search them by distance is something that the store cannot do. This one is made for both.

A print is the signs of the lowest frequencies of a discrete cosine transform, 63 and then 54 of
its detail, after the picture was turned and mirrored into one canonical position. A rewarded photo
is stored as the prints of itself and of some crops; a new one is compared as itself and some crops
(its probes), so that a crop of either is close to one of the other's. A frame of one colour is cut
off first; as a plain sky may look like one side of a frame, the picture is stored and compared both
with and without that part. Frequencies that are weak in the new photo count for little, since
theirs are the signs that change.

To find similar prints among many, the first 63 bits are cut into four bands. Each band is looked up
exactly, and with each of its weakest bits flipped. The rows that match are then compared whole.

A print has 117 bits. Each print of a new photo looks up eight values in each band: its own, and
those with its weakest bits flipped. A look-up reads one row in 65,536 for each value.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from msgspec import Struct

BITS = 63
BAND_BITS = 16
BANDS = 4
PROBED_BITS = 3
# Measured on pictures made from seeds (tests/support/market/pictures.py), noise and scenes: of
# copies that were cropped by up to 5 % on each side or 12 % on one, or framed, then made smaller
# and compressed again, 99 in 100 are within 0.1 and 0.22. Of 32 million pairs of different pictures
# none is.
DISTANCE_MAX = 0.1
DETAIL_DISTANCE_MAX = 0.22
# Copies differed in at most 12 bits; counting bits first is cheap and rules most others out.
DIFFERING_MAX = 20


class Print(NamedTuple):
    """The signs of a picture's lowest frequencies, and of the next."""

    bits: int
    detail: int


class Probe(Struct, frozen=True):
    """A print of a new photo, to be compared with stored ones; each of its bits has a weight."""

    bits: int
    detail: int
    weights: tuple[float, ...]
    detail_weights: tuple[float, ...]

    def is_like(self, stored: Print) -> bool:
        """Return whether a stored print is probably of the same photo."""
        differing = self.bits ^ stored.bits
        return (
            differing.bit_count() <= DIFFERING_MAX
            and _distance(differing, self.weights) <= DISTANCE_MAX
            and _distance(self.detail ^ stored.detail, self.detail_weights) <= DETAIL_DISTANCE_MAX
        )

    def band_values(self) -> tuple[frozenset[int], ...]:
        """Return, for each band, the values of the stored prints that are worth comparing."""
        return tuple(frozenset(self._values(band)) for band in range(BANDS))

    def _values(self, band: int) -> Iterator[int]:
        places = range(band * BAND_BITS, min((band + 1) * BAND_BITS, BITS))
        weak = sorted(places, key=lambda place: self.weights[place])[:PROBED_BITS]
        for flipped in product((False, True), repeat=len(weak)):
            mask = sum(1 << place for place, flip in zip(weak, flipped, strict=True) if flip)
            yield bands(self.bits ^ mask)[band]


class Likeness(Struct, frozen=True):
    """Fingerprint of a photo: `prints` to store, `probes` to compare with stored ones."""

    prints: tuple[Print, ...]
    probes: tuple[Probe, ...]

    def lookups(self) -> tuple[Mapping[int, Sequence[Probe]], ...]:
        """Return, for each band, the values to look up, and the probes to compare the rows with."""
        lookups: tuple[dict[int, list[Probe]], ...] = tuple({} for _ in range(BANDS))
        for probe in self.probes:
            for band, values in enumerate(probe.band_values()):
                for value in values:
                    lookups[band].setdefault(value, []).append(probe)
        return lookups


def bands(bits: int) -> tuple[int, ...]:
    """Cut a print into its bands."""
    mask = (1 << BAND_BITS) - 1
    return tuple(bits >> band * BAND_BITS & mask for band in range(BANDS))


def _distance(differing: int, weights: Sequence[float]) -> float:
    """Return the share of the weights at the bits where two prints differ."""
    weight_there = sum(weight for bit, weight in enumerate(weights) if differing >> bit & 1)
    return weight_there / sum(weights)

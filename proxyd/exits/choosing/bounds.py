"""Bounds of the directory of exits, and the room that a full table makes."""

from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DirectoryBounds:
    """Sizes of the tables and searches of a directory; a label or another row has about 300 bytes.

    Attributes:
        searched_max: 0.1 ms: the longest time that one connection may delay the others. A search
            begins anywhere, so another attempt may find an exit that is rarer than that.
        labels_per_session: the most labels of one session, here and in the store.
        labels_total: the most labels of all sessions.
        labels_per_sweep: labels that one turn of the loop looks at; a millisecond.
        rotating_total: sessions whose last exit is remembered.
        sites_total: pairs of an exit and a site, of one minute.
        grudges_total: pairs of a buyer and an exit that has failed for them.
        suspects_total: sites at which an exit has failed.
        gone_total: exits that are remembered after they have gone.
    """

    searched_max: int = 512
    labels_per_session: int = 4096
    labels_total: int = 131_072
    labels_per_sweep: int = 8192
    rotating_total: int = 65_536
    sites_total: int = 65_536
    grudges_total: int = 65_536
    suspects_total: int = 16_384
    gone_total: int = 16_384


USUAL: Final = DirectoryBounds()


def make_room(rows: dict[Key, Value], most: int) -> None:
    """Drop the oldest quarter of a table that has reached its bound: row by row takes longer."""
    if len(rows) >= most:
        for key in list(islice(rows, max(1, most // 4))):
            del rows[key]

"""Bounds of the looks at exits."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CanaryBounds:
    """How exits are looked at, and for how long each step may take.

    Attributes:
        secure_share: the share of fetches under TLS: few buyers want TLS as far as the exit.
        again_seconds: after a round that proved nothing; doubled each time.
        fetch_seconds: for a page of a few KB, over the slowest line that is worth its name.
        alive_seconds: the time to answer a ping: several round trips.
        twice_seconds: between the two fetches of a page from here: a page with the time in it
            differs.
        write_again_seconds: between two attempts to write a verdict down.
    """

    secure_share: float = 0.25
    again_seconds: float = 60.0
    fetch_seconds: float = 10.0
    alive_seconds: float = 3.0
    twice_seconds: float = 1.0
    write_again_seconds: float = 5.0


USUAL: Final = CanaryBounds()

"""Identifiers: UUIDs of version 7, which sort by when they were made (RFC 9562, section 5.7)."""

import secrets
import uuid
from collections.abc import Callable

_RANDOM_BITS = 62  # rand_b of the format
_COUNTER_BITS = 12  # rand_a


class Identifiers:
    """Makes UUIDs that sort in the order they were made, within one process.

    Args:
        milliseconds: the wall clock, in UTC milliseconds.
    """

    def __init__(self, milliseconds: Callable[[], int]) -> None:
        self._milliseconds = milliseconds
        self._last = 0

    def new(self) -> str:
        """Return a new identifier, lower case.

        The twelve bits after the time count on from a random start, so that identifiers of one
        millisecond, and those made while the clock is set back, still sort (section 6.2, method 1).
        """
        start = self._milliseconds() << _COUNTER_BITS | secrets.randbits(_COUNTER_BITS - 1)
        self._last = max(start, self._last + 1)
        time, counter = divmod(self._last, 1 << _COUNTER_BITS)
        value = time << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | secrets.randbits(_RANDOM_BITS)
        return str(uuid.UUID(int=value))


def parsed(text: str) -> str:
    """Return an identifier in its canonical spelling: lower case, with hyphens.

    Raises:
        ValueError: it is not a UUID.
    """
    value = str(uuid.UUID(text))
    if value != text.lower():
        raise ValueError("expected a UUID")
    return value

"""Identifiers: UUIDs of version 7, which sort by when they were made (RFC 9562, section 5.7)."""

import secrets
import uuid
from collections.abc import Callable
from threading import Lock

_RANDOM_BITS = 62  # rand_b of the format
_COUNTER_BITS = 12  # rand_a
_COUNTER_BYTES, _RANDOM_BYTES = 2, 8  # bytes that hold these bits
# Number of identifiers whose random bytes one system call fetches. During each call the threads of
# the database can run, for longer than the creation of an identifier takes.
_DRAWN = 256


class Identifiers:
    """Generator of UUIDs that sort in the order of their creation, within one process.

    Args:
        milliseconds: the wall clock, in UTC milliseconds.
    """

    def __init__(self, milliseconds: Callable[[], int]) -> None:
        self._milliseconds = milliseconds
        self._last = 0
        self._drawn = b""
        self._used = 0
        self._lock = Lock()

    def new(self) -> str:
        """Return a new identifier, lower case; any thread may ask, as units of work do on SQLite.

        The twelve bits after the time count on from a random start, so that identifiers of one
        millisecond, and those made while the clock is set back, still sort (section 6.2, method 1).
        """
        with self._lock:
            return self._new()

    def _new(self) -> str:
        start = self._milliseconds() << _COUNTER_BITS
        start |= self._bits(_COUNTER_BYTES, _COUNTER_BITS - 1)
        self._last = max(start, self._last + 1)
        time, counter = divmod(self._last, 1 << _COUNTER_BITS)
        value = time << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62
        digits = f"{value | self._bits(_RANDOM_BYTES, _RANDOM_BITS):032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def _bits(self, size: int, bits: int) -> int:
        """Return `bits` random bits, from `size` bytes that are used once."""
        if self._used + size > len(self._drawn):
            self._drawn = secrets.token_bytes(_DRAWN * (_COUNTER_BYTES + _RANDOM_BYTES))
            self._used = 0
        drawn = self._drawn[self._used : self._used + size]
        self._used += size
        return int.from_bytes(drawn) & ((1 << bits) - 1)


def parsed(text: str) -> str:
    """Return an identifier in its canonical spelling: lower case, with hyphens.

    Raises:
        ValueError: it is not a UUID.
    """
    value = str(uuid.UUID(text))
    if value != text.lower():
        raise ValueError("expected a UUID")
    return value

"""A record in memory that several processes share: one writes it, the others read it.

It is written in turns to two halves, each with a number and a checksum. So a reader gets the last
complete record, also while the next one is being written, and after its writer was killed in the
middle of one.
"""

import mmap
import struct
import zlib
from typing import Final

_HEAD: Final = struct.Struct("=QII")  # the number of the record, its size in bytes, its checksum


class TooLargeError(Exception):
    """A record is larger than the memory for it."""


class SharedRecord:
    """A record that processes inherit from the one that makes this; empty until it is written.

    Args:
        most_bytes: its largest size.
    """

    def __init__(self, most_bytes: int) -> None:
        self._half_bytes = _HEAD.size + most_bytes
        self._map = mmap.mmap(-1, 2 * self._half_bytes)  # anonymous, and shared over a fork

    def write(self, record: bytes) -> None:
        """Replace the record; only one process may do so at a time.

        Raises:
            TooLargeError: the old one stays.
        """
        if _HEAD.size + len(record) > self._half_bytes:
            raise TooLargeError(f"{len(record)} bytes")
        number, _ = self._newest()
        number += 1
        start = (number % 2) * self._half_bytes
        body = start + _HEAD.size
        self._map[body : body + len(record)] = record
        _HEAD.pack_into(self._map, start, number, len(record), _checksum(number, record))

    def read(self) -> bytes:
        """Return the record that was written last."""
        return self._newest()[1]

    def _newest(self) -> tuple[int, bytes]:
        return max(self._half(0), self._half(self._half_bytes))

    def _half(self, start: int) -> tuple[int, bytes]:
        """Return the number and the record of one half; 0 and nothing if it is not whole."""
        number, size, checksum = _HEAD.unpack_from(self._map, start)
        body = start + _HEAD.size
        record = self._map[body : body + min(size, self._half_bytes - _HEAD.size)]
        if number == 0 or checksum != _checksum(number, record):
            return 0, b""
        return number, record


def _checksum(number: int, record: bytes) -> int:
    return zlib.crc32(record, number & 0xFFFFFFFF)

"""A hash of the rows of a table that both engines agree on."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec


class RowsDigest:
    """SHA-256 of rows, in the order of their primary key, and their number.

    Each row is encoded as MessagePack, which distinguishes texts, integers, numbers and NULL.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._encode = msgspec.msgpack.Encoder().encode
        self.rows = 0

    def add(self, rows: Sequence[Iterable[Any]]) -> None:
        """Add rows, each with its columns in the order of the table."""
        self._hash.update(b"".join(self._encode(tuple(row)) for row in rows))
        self.rows += len(rows)

    def hexdigest(self) -> str:
        """Return the hash in hexadecimal."""
        return self._hash.hexdigest()

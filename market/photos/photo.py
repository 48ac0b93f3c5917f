"""Decoded photo, with the fields that rewards for good deeds need."""

from msgspec import Struct

from market.photos.likeness import Likeness


class Photo(Struct, frozen=True):
    """A decoded photo; its size is in pixels.

    `preview` is a JPEG of it without metadata, scaled down if it was large; nothing else of it
    leaves this machine. `file_hash` is the SHA-256 of the file as it was sent.
    """

    format: str
    width: int
    height: int
    is_declared_generated: bool
    preview: bytes
    likeness: Likeness
    file_hash: str

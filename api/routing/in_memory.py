"""A small file in memory, which a route answers as a `Download`."""


class InMemory:
    """The content of a file, in the form of `storage.blobs.base.Content`."""

    def __init__(self, document: bytes) -> None:
        self.size_bytes = len(document)
        self._document = document

    async def read(self, offset: int, size: int) -> bytes:
        """Return some bytes."""
        return self._document[offset : offset + size]

    def close(self) -> None:
        """Close nothing."""

"""What keeps the bytes of artifacts, whatever it is: the protocol, and how it can fail.

Each whole content has a key of its own, made of its hash and of the upload that brought it. So
nobody who deletes a content can hit one that was brought again meanwhile.
"""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol


class BlobError(Exception):
    """Bytes could not be kept or read now; another attempt may succeed."""


class FullError(BlobError):
    """There is no room left."""


class BusyError(BlobError):
    """The same upload is being received, or finished, by another request."""


class MismatchError(Exception):
    """What was uploaded is not what was announced; the message says what differs."""


class UnwantedError(Exception):
    """Nobody wants an upload any more; raised where one is received, it deletes what there is."""


class MissingError(Exception):
    """There is no content with this key."""


class Upload(NamedTuple):
    """Bytes that somebody has announced.

    Attributes:
        id: the artifact's.
        sha256: of its content, 64 lower-case hexadecimal digits.
        size_bytes: of its content.
        reference: what a store elsewhere calls the upload, "" where it has no name for it.
    """

    id: str
    sha256: str
    size_bytes: int
    reference: str = ""

    @property
    def key(self) -> str:
        """Where its content will be, beneath the folder or in the bucket."""
        return f"blobs/{self.sha256[:2]}/{self.sha256}.{self.id}"


class Part(NamedTuple):
    """One of the requests that bring an upload to a store elsewhere.

    Attributes:
        url: where to `PUT` it, for a while.
        headers: that the request must have, as they are.
        offset: where in the content it begins.
        size_bytes: how much of it this part is.
    """

    url: str
    headers: dict[str, str]
    offset: int
    size_bytes: int


class Receiver(Protocol):
    """Takes the bytes of one request, in order."""

    @property
    def offset(self) -> int:
        """How many bytes of the upload are there, or on their way to the disk."""

    async def write(self, data: bytes) -> None:
        """Take the next bytes; they must not be more than were announced.

        Raises:
            BlobError: they could not be kept.
        """


class Content(Protocol):
    """A whole content that is open."""

    size_bytes: int

    async def read(self, offset: int, size: int) -> bytes:
        """Return some bytes; fewer than `size` only at the end.

        Raises:
            BlobError: they could not be read.
        """

    def close(self) -> None:
        """Close it."""


class Blobs(Protocol):
    """Keeps contents. What is received is kept also over a restart, so that it can go on."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether clients send to and fetch from another service, by addresses signed for them."""

    @property
    def late_seconds(self) -> int:
        """For how long after an upload was dropped its client may still send it, all the same."""

    async def begin(self, upload: Upload) -> str:
        """Prepare an upload elsewhere, and return its `reference`; "" where nothing is to be done.

        Raises:
            BlobError: the other service did not do it.
        """

    def parts(self, upload: Upload) -> list[Part]:
        """Return the requests that bring an upload elsewhere; only where `is_elsewhere`."""

    async def stored(self, upload: Upload) -> int:
        """Return how many bytes of an upload are there, to go on behind them."""

    def receive(self, upload: Upload, offset: int) -> AbstractAsyncContextManager[Receiver]:
        """Take bytes of an upload within the block; only where not `is_elsewhere`.

        Args:
            upload: which.
            offset: where the bytes begin; what was there behind it is dropped.

        Raises:
            FullError: there is no room for the rest of it.
            BusyError: another request sends it.
            MismatchError: fewer bytes are there than `offset`.
        """

    async def finish(self, upload: Upload, etags: list[str]) -> bool:
        """Check that an upload is whole and what was announced, and keep it durably by its key.

        Doing it again changes nothing. Returns whether its hash was checked: else it is only what
        its sender says, and others who name that hash must not be given this content.

        Args:
            upload: which.
            etags: what a store elsewhere has answered to each part, in their order.

        Raises:
            MismatchError: it is too short, or has another hash; one with another hash is dropped.
            BusyError: another request sends it.
            BlobError: it could not be kept.
        """

    async def drop(self, upload: Upload) -> None:
        """Delete all that there is of an upload."""

    async def delete(self, key: str) -> None:
        """Delete a content; one that is gone already is fine."""

    async def open(self, key: str) -> Content:
        """Open a content; only where not `is_elsewhere`.

        Raises:
            MissingError: there is none.
        """

    def address(self, key: str, name: str) -> str:
        """Return where a content can be fetched for a while; only where `is_elsewhere`.

        Args:
            key: the content's.
            name: the name of the file that a browser is to save.
        """

    async def forget(self, seconds: float) -> int:
        """Remove what was received of uploads that nobody has gone on with for so long.

        It belongs to no artifact any more: a daemon was killed as it deleted that. Returns of how
        many uploads it was; where there are very many, the rest is removed the next time.
        """

    async def close(self) -> None:
        """Give back what it uses; requests must have ended before."""

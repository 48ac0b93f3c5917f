"""Protocol of the stores that keep the bytes of artifacts, and their errors.

Each whole content has a key of its own, made of its hash and of the upload that brought it. So the
deletion of a content cannot hit the same bytes that another upload brought meanwhile.
"""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol


class BlobError(Exception):
    """Bytes could not be kept or read now; another attempt may succeed."""


class FullError(BlobError):
    """No room is left."""


class BusyError(BlobError):
    """The same upload is being received, or finished, by another request."""


class MismatchError(Exception):
    """The uploaded bytes are not the announced ones; the message names the difference."""


class UnwantedError(Exception):
    """The upload is not wanted any more; raised within `receive`, it deletes the received bytes."""


class MissingError(Exception):
    """There is no content with this key."""


class Upload(NamedTuple):
    """Announced bytes of an artifact.

    Attributes:
        id: the artifact's.
        sha256: of its content, 64 lower-case hexadecimal digits.
        size_bytes: of its content.
        reference: the store's own name for the upload, "" if it has none.
    """

    id: str
    sha256: str
    size_bytes: int
    reference: str = ""

    @property
    def key(self) -> str:
        """Path of the content, beneath the folder or in the bucket."""
        return f"blobs/{self.sha256[:2]}/{self.sha256}.{self.id}"

    @classmethod
    def of_key(cls, key: str, size_bytes: int, reference: str) -> "Upload":
        """Return the upload with a `key`."""
        sha256, _, upload_id = key.rpartition("/")[2].partition(".")
        return cls(upload_id, sha256, size_bytes, reference)


class Part(NamedTuple):
    """Request that sends one part of an upload to a remote store.

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
        """The bytes of the upload that are received, or on their way to the disk."""

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
    """Keeps contents. Received bytes also survive a restart, so that an upload can continue."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether clients send to and fetch from another service, by addresses signed for them."""

    @property
    def late_seconds(self) -> int:
        """For how long after an upload was dropped its client may still send it, all the same."""

    async def begin(self, upload: Upload) -> str:
        """Prepare an upload to a remote store, and return its `reference`; "" without preparation.

        Raises:
            BlobError: the other service did not do it.
        """

    def parts(self, upload: Upload) -> list[Part]:
        """Return the requests that bring an upload elsewhere; only where `is_elsewhere`."""

    async def stored(self, upload: Upload) -> int:
        """Return the number of stored bytes of an upload; its sender continues behind them."""

    def receive(self, upload: Upload, offset: int) -> AbstractAsyncContextManager[Receiver]:
        """Take bytes of an upload within the block; only where not `is_elsewhere`.

        Args:
            upload: which.
            offset: where the bytes begin; bytes received before that lie behind it are dropped.

        Raises:
            FullError: there is no room for the rest of it.
            BusyError: another request sends it.
            MismatchError: fewer bytes are there than `offset`.
        """

    async def finish(self, upload: Upload, etags: list[str]) -> bool:
        """Check that an upload is complete and as announced, and keep it durably by its key.

        Doing it again changes nothing. Returns whether its hash was checked: else the hash is only
        the sender's claim, and others who name it must not be given this content.

        Args:
            upload: which.
            etags: the answers of a store elsewhere to the parts, in their order.

        Raises:
            MismatchError: it is too short, or has another hash; one with another hash is dropped.
            BusyError: another request sends it.
            BlobError: it could not be kept.
        """

    async def drop(self, upload: Upload) -> None:
        """Delete everything received of an upload, also its whole content; again is fine.

        Raises:
            BlobError: it could not be deleted.
        """

    async def open(self, key: str) -> Content:
        """Open a content; only where not `is_elsewhere`.

        Raises:
            MissingError: no content has this key.
        """

    def address(self, key: str, name: str) -> str:
        """Return the address where a content can be fetched for a while; only where `is_elsewhere`.

        Args:
            key: the content's.
            name: the name of the file that a browser is to save.
        """

    async def forget(self, seconds: float) -> int:
        """Remove the bytes of uploads that have not continued for this number of seconds.

        They belong to no artifact any more: it was deleted before a daemon, which was killed then,
        began to receive them. Return the number of uploads removed. If there are very many, the
        next call removes the rest.
        """

    async def close(self) -> None:
        """Release the resources of the store; requests must have ended before."""

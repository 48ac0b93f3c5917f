"""Contents as objects in an S3 store: clients send and fetch them there, by signed addresses.

This process requests only the operations that clients cannot do: to begin and complete an upload in
parts, to inspect it, and to delete it.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import escape, unescape
from urllib.parse import quote

import aiohttp
from yarl import URL

from storage.blobs.base import (
    BlobError,
    Content,
    MismatchError,
    Part,
    Receiver,
    Upload,
)
from storage.blobs.s3 import (
    ADDRESS_SECONDS,
    PART_BYTES,
    Signer,
    checksum,
    part_bytes,
    parts_of,
)

CONNECTIONS_MAX = 32
CONNECT_SECONDS = 5.0
# A store joins the parts of 5 GiB within a minute, and answers at the end.
ANSWER_SECONDS = 120.0
ANSWER_MAX_BYTES = 1024 * 1024  # of XML; each answer has a few hundred bytes
# An address that was signed cannot be taken back, and a request may go on for longer than it.
LATE_SECONDS = 2 * ADDRESS_SECONDS
OWN_SECONDS = 300  # how long our own requests may be made, whose clocks may differ

_UPLOAD_ID = re.compile(r"<UploadId>([^<]+)</UploadId>")
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")
# Error code of the store for an upload that was completed, or never begun.
_NO_SUCH_UPLOAD = "NoSuchUpload"
# Error codes about the parts, and not about the store.
_WRONG_PARTS = frozenset(("InvalidPart", "InvalidPartOrder", "EntityTooSmall", "BadDigest"))


class S3Blobs:
    """`Blobs` in a bucket."""

    is_elsewhere = True
    late_seconds = LATE_SECONDS

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._session: aiohttp.ClientSession | None = None

    async def begin(self, upload: Upload) -> str:
        """See `Blobs.begin`: large contents are sent in parts."""
        if upload.size_bytes <= PART_BYTES:
            return ""
        url = self._signer.url("POST", upload.key, query={"uploads": ""}, seconds=OWN_SECONDS)
        async with self._ask("POST", url) as (status, body, _):
            match = _UPLOAD_ID.search(body)
            if status != 200 or match is None:
                raise _failure(status, body)
            return unescape(match[1])

    def parts(self, upload: Upload) -> list[Part]:
        """See `Blobs.parts`."""
        return parts_of(self._signer, upload)

    async def stored(self, upload: Upload) -> int:  # noqa: ARG002 - the store does not say
        """See `Blobs.stored`: an unfinished upload begins anew."""
        return 0

    def receive(self, upload: Upload, offset: int) -> AbstractAsyncContextManager[Receiver]:
        """See `Blobs.receive`; never called here."""
        raise NotImplementedError(f"{upload.id} from {offset} on is sent to the store")

    async def finish(self, upload: Upload, etags: list[str]) -> bool:
        """See `Blobs.finish`."""
        if upload.reference:
            await self._complete(upload, etags)
        headers = {"x-amz-checksum-mode": "ENABLED"}
        url = self._signer.url("HEAD", upload.key, headers=headers, seconds=OWN_SECONDS)
        async with self._ask("HEAD", url, headers=headers) as (status, body, answer):
            if status == 404:
                raise MismatchError(f"0 of {upload.size_bytes} bytes are stored")
            if status != 200:
                raise _failure(status, body)
            size = int(answer.get("Content-Length", "-1"))
            stored = answer.get("x-amz-checksum-sha256", "")
        if size != upload.size_bytes:
            await self._delete(upload.key)
            raise MismatchError(f"{size} of {upload.size_bytes} bytes are stored")
        # The hash of an upload in parts is made of the parts' hashes, and cannot be compared here.
        if upload.reference or not stored:
            return False
        if stored != checksum(upload.sha256):
            await self._delete(upload.key)
            raise MismatchError("another SHA-256 is stored")
        return True

    async def drop(self, upload: Upload) -> None:
        """See `Blobs.drop`."""
        if upload.reference:
            query = {"uploadId": upload.reference}
            url = self._signer.url("DELETE", upload.key, query=query, seconds=OWN_SECONDS)
            async with self._ask("DELETE", url) as (status, body, _):
                if status not in (200, 204, 404):
                    raise _failure(status, body)
        await self._delete(upload.key)

    async def open(self, key: str) -> Content:
        """See `Blobs.open`; never called here."""
        raise NotImplementedError(f"{key} is fetched from the store")

    def address(self, key: str, name: str) -> str:
        """See `Blobs.address`."""
        query = {
            "response-content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "response-content-type": "application/octet-stream",
        }
        return self._signer.url("GET", key, query=query)

    async def forget(self, seconds: float) -> int:  # noqa: ARG002 - receives nothing itself
        """See `Blobs.forget`; the service has a rule of its own for uploads that are not whole."""
        return 0

    async def close(self) -> None:
        """See `Blobs.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _delete(self, key: str) -> None:
        url = self._signer.url("DELETE", key, seconds=OWN_SECONDS)
        async with self._ask("DELETE", url) as (status, body, _):
            if status not in (200, 204, 404):
                raise _failure(status, body)

    async def _complete(self, upload: Upload, etags: list[str]) -> None:
        """Request the store to join the parts; a complete upload stays as it is."""
        count = -(-upload.size_bytes // part_bytes(upload.size_bytes))
        if len(etags) != count:
            raise MismatchError(f"{len(etags)} of {count} tags of parts are given")
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": upload.reference}
        url = self._signer.url("POST", upload.key, query=query, seconds=OWN_SECONDS)
        async with self._ask("POST", url, data=body) as (status, answer, _):
            match = _ERROR_CODE.search(answer)
            code = match[1] if match else ""
            if code in _WRONG_PARTS:
                raise MismatchError(f"the store says of the parts: {code}")
            if (status != 200 or code) and code != _NO_SUCH_UPLOAD:
                raise _failure(status, answer)

    @asynccontextmanager
    async def _ask(
        self,
        method: str,
        url: str,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> AsyncIterator[tuple[int, str, Mapping[str, str]]]:
        """Request something of the store; yield status, body and headers, which any case names.

        Raises:
            BlobError: it did not answer. The message never has a signature in it.
        """
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with self._connected().request(
                method,
                URL(url, encoded=True),  # it is signed as it is spelled
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                skip_auto_headers=("Content-Type",),
            ) as response:
                body = await _whole(response.content)
                status, found = response.status, response.headers
        except TimeoutError as error:
            raise BlobError("the S3 store does not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = f"the S3 store cannot be reached ({type(error).__name__})"
            raise BlobError(message) from error
        yield status, body.decode("utf-8", "replace"), found

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """Return all of an answer, which may come in pieces: an error can be in the last one.

    Raises:
        BlobError: it is too long.
    """
    body = b""
    async for piece in content.iter_any():
        body += piece
        if len(body) > ANSWER_MAX_BYTES:
            raise BlobError("the S3 store answers with more than can be taken")
    return body


def _failure(status: int, body: str) -> BlobError:
    match = _ERROR_CODE.search(body)
    return BlobError(f"the S3 store answers {status} {match[1] if match else ''}".rstrip())

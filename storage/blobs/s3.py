"""Requests to an S3 store, signed by version 4 of its signatures, in the query of their URLs.

Pure: nothing is sent here. Anybody with the URL can make a signed request, for a while, and only as
it was signed: with that method, that key, and those headers. So a client that should send a file
gets a URL that accepts only that number of bytes with that hash.
"""

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from msgspec import Struct

from storage.blobs.base import Part, Upload

# A store takes 5 GiB in one request, but an interrupted request begins anew.
PART_BYTES = 64 * 1024 * 1024
PARTS_MAX = 10_000
# For a part over a slow line (64 MiB at 150 kbit/s), and for a download to begin.
ADDRESS_SECONDS = 3_600
_ALGORITHM = "AWS4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"


class Bucket(Struct, frozen=True):
    """Place of objects, and the keys that sign for them.

    Attributes:
        url: of the store, without a path; the bucket is the first part of each path.
        name: of the bucket.
        region: that the store signs by.
        access_key: names the secret one.
        secret_key: signs.
    """

    url: str
    name: str
    region: str
    access_key: str
    secret_key: str


class Signer:
    """Signs requests for the objects of a bucket.

    Args:
        now: the wall clock, in UTC seconds.
    """

    def __init__(self, bucket: Bucket, now: Callable[[], int]) -> None:
        self._bucket = bucket
        self._now = now

    def url(
        self,
        method: str,
        key: str,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        seconds: int = ADDRESS_SECONDS,
    ) -> str:
        """Return the URL of a request that is valid for a while.

        Args:
            method: of the request.
            key: of the object.
            headers: that it must have, exactly so.
            query: further parameters in the URL.
            seconds: how long it may be made.
        """
        bucket = self._bucket
        when = datetime.fromtimestamp(self._now(), UTC)
        time, day = when.strftime("%Y%m%dT%H%M%SZ"), when.strftime("%Y%m%d")
        scope = f"{day}/{bucket.region}/s3/aws4_request"
        signed = {"host": urlsplit(bucket.url).netloc}
        signed |= {name.lower(): value.strip() for name, value in (headers or {}).items()}
        names = ";".join(sorted(signed))
        parameters = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{bucket.access_key}/{scope}",
            "X-Amz-Date": time,
            "X-Amz-Expires": str(seconds),
            "X-Amz-SignedHeaders": names,
            **(query or {}),
        }
        path = quote(f"/{bucket.name}/{key}", safe="/~")
        pairs = sorted((_quoted(name), _quoted(value)) for name, value in parameters.items())
        encoded = "&".join(f"{name}={value}" for name, value in pairs)
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        request = f"{method}\n{path}\n{encoded}\n{lines}\n{names}\n{_UNSIGNED}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{time}\n{scope}\n{digest}"
        signature = hmac.new(self._key(day), text.encode(), hashlib.sha256).hexdigest()
        return f"{bucket.url.rstrip('/')}{path}?{encoded}&X-Amz-Signature={signature}"

    def _key(self, day: str) -> bytes:
        key = f"AWS4{self._bucket.secret_key}".encode()
        for part in (day, self._bucket.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key


def parts_of(signer: Signer, upload: Upload) -> list[Part]:
    """Return the requests that bring an upload: one, or several if it has a reference."""
    if not upload.reference:
        headers = {
            "Content-Length": str(upload.size_bytes),
            "x-amz-checksum-sha256": checksum(upload.sha256),
        }
        url = signer.url("PUT", upload.key, headers=headers)
        return [Part(url, headers, 0, upload.size_bytes)]
    parts = []
    size = part_bytes(upload.size_bytes)
    for number, offset in enumerate(range(0, upload.size_bytes, size), 1):
        length = min(size, upload.size_bytes - offset)
        headers = {"Content-Length": str(length)}
        query = {"partNumber": str(number), "uploadId": upload.reference}
        url = signer.url("PUT", upload.key, headers=headers, query=query)
        parts.append(Part(url, headers, offset, length))
    return parts


def part_bytes(size_bytes: int) -> int:
    """Return how large the parts of an upload are; all but the last one have that size."""
    return max(PART_BYTES, -(-size_bytes // PARTS_MAX))


def checksum(sha256: str) -> str:
    """Return a hash as the store writes it."""
    return b64encode(bytes.fromhex(sha256)).decode()


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")

"""Requests to an S3 store are signed as the client of its maker signs them."""

import hashlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from support.base.cases import cases

from storage.blobs.base import Upload
from storage.blobs.s3 import PART_BYTES, Bucket, Signer, checksum, part_bytes, parts_of

NOW = 1_795_000_000
MIB = 1024 * 1024
BUCKETS = [
    Bucket("https://s3.example.com", "jobs", "us-east-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG"),
    Bucket("http://127.0.0.1:9000/", "a.b-c", "eu-central-1", "key", "secret+/="),
]


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let botocore sign at the same second."""
    moment = datetime.fromtimestamp(NOW, UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return moment

        @classmethod
        def utcnow(cls) -> datetime:
            return moment.replace(tzinfo=None)

    if hasattr(auth, "get_current_datetime"):
        monkeypatch.setattr(
            auth,
            "get_current_datetime",
            lambda remove_tzinfo=True: moment.replace(tzinfo=None) if remove_tzinfo else moment,
        )
    else:
        monkeypatch.setattr(auth.datetime, "datetime", Clock)


def theirs(
    bucket: Bucket, method: str, key: str, headers: dict[str, str], query: dict[str, str]
) -> str:
    request = AWSRequest(
        method=method,
        url=f"{bucket.url.rstrip('/')}/{bucket.name}/{key}",
        headers=headers,
        params=query,
    )
    credentials = Credentials(bucket.access_key, bucket.secret_key)
    auth.S3SigV4QueryAuth(credentials, "s3", bucket.region, expires=3_600).add_auth(request)
    return str(request.url)


@cases("bucket", BUCKETS)
@cases(
    ("method", "headers", "query"),
    [
        ("GET", {}, {}),
        ("DELETE", {}, {"uploadId": "a/b+c=="}),
        ("POST", {}, {"uploads": ""}),
        ("HEAD", {"x-amz-checksum-mode": "ENABLED"}, {}),
        ("PUT", {"Content-Length": "5", "x-amz-checksum-sha256": checksum("0f" * 32)}, {}),
        ("PUT", {"Content-Length": "5"}, {"partNumber": "2", "uploadId": "x~y z"}),
        (
            "GET",
            {},
            {
                "response-content-disposition": "attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe",
                "response-content-type": "application/octet-stream",
            },
        ),
    ],
)
def test_a_signature_is_theirs(
    bucket: Bucket, method: str, headers: dict[str, str], query: dict[str, str]
) -> None:
    key = "blobs/ab/" + "ab" * 32 + ".018f0000-0000-7000-8000-000000000000"
    signed = Signer(bucket, lambda: NOW).url(method, key, headers=headers, query=query)
    expected = theirs(bucket, method, key, headers, query)
    assert urlsplit(signed)[:3] == urlsplit(expected)[:3]
    ours = parse_qs(urlsplit(signed).query, keep_blank_values=True, strict_parsing=False)
    other = parse_qs(urlsplit(expected).query, keep_blank_values=True)
    assert ours == other
    assert len(ours["X-Amz-Signature"][0]) == 64


def test_an_upload_is_bound_to_its_size_and_its_hash() -> None:
    content = b"content"
    upload = Upload("id", hashlib.sha256(content).hexdigest(), len(content))
    signer = Signer(BUCKETS[0], lambda: NOW)
    (part,) = parts_of(signer, upload)
    assert (part.offset, part.size_bytes) == (0, 7)
    assert part.headers == {
        "Content-Length": "7",
        "x-amz-checksum-sha256": "7XACtDnprIRfIjV9giusFERzD722AW0+yUMil7nsn3M=",
    }
    names = parse_qs(urlsplit(part.url).query)["X-Amz-SignedHeaders"]
    assert names == ["content-length;host;x-amz-checksum-sha256"]


@cases("size", [PART_BYTES + 1, 5 * PART_BYTES, 5 * 1024**3, 1024**4 + 7, 2 * PART_BYTES - 1])
def test_parts_are_the_whole_and_not_too_many(size: int) -> None:
    upload = Upload("id", "0" * 64, size, "reference")
    parts = parts_of(Signer(BUCKETS[0], lambda: NOW), upload)
    assert 1 < len(parts) <= 10_000
    at = 0
    for number, part in enumerate(parts, 1):
        assert part.offset == at
        assert f"partNumber={number}&" in part.url
        assert part.headers == {"Content-Length": str(part.size_bytes)}
        at += part.size_bytes
    assert at == size
    assert {part.size_bytes for part in parts[:-1]} == {part_bytes(size)}

"""Files of jobs in an S3 store: against moto's server where that is installed, and without one.

moto is large, so it is no part of the test extra: `pip install moto flask flask-cors
py-partiql-parser`, anywhere, and name that Python in MOTO_PYTHON.
"""

import asyncio
import hashlib
import io
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.base.cases import cases
from support.base.ports import closed_port, free_port
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Service, running_in
from support.workers.outward import to_nowhere_near

from proxyctl.worker.base.link import Link
from proxyctl.worker.base.record import Lend
from proxyctl.worker.base.states import AttemptState
from proxyctl.worker.executors.base.base import INPUTS, WORK
from proxyctl.worker.files.transfers import FileTransfers
from proxyctl.worker.files.web import Web
from proxyctl.worker.task.journal import Entry
from proxyd.loop import clock
from proxyd.outbound import s3
from proxyd.outbound.s3 import S3Blobs
from storage.blobs import s3 as signing
from storage.blobs.base import BlobError, MismatchError, Upload
from storage.blobs.s3 import Bucket, Signer

PYTHON = os.environ.get("MOTO_PYTHON", sys.executable)
GONE = (403, 404)  # without the right to list a bucket, the answer for a missing key is 403
PART = 5 * 1024 * 1024  # the least that a store takes as a part


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """An S3 store, by its address."""
    probe = subprocess.run([PYTHON, "-c", "import moto.server"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("moto is not installed: see this file")
    port = free_port()
    command = [PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def bucket(store: str) -> Bucket:
    made = Bucket(store, f"b{uuid.uuid4().hex}", "us-east-1", "key", "secret")
    async with aiohttp.ClientSession() as http:

        async def is_made() -> bool:
            try:
                async with http.put(Signer(made, clock.seconds).url("PUT", "")) as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await until(is_made, "the store answers")
    return made


@pytest.fixture
async def blobs(bucket: Bucket) -> AsyncIterator[S3Blobs]:
    made = S3Blobs(Signer(bucket, clock.seconds))
    yield made
    await made.close()


def upload_of(content: bytes) -> Upload:
    return Upload(str(uuid.uuid4()), hashlib.sha256(content).hexdigest(), len(content))


async def send(blobs: S3Blobs, upload: Upload, content: bytes) -> tuple[Upload, list[str]]:
    """Send as a client does; return the upload with its reference, and the tags of parts."""
    upload = upload._replace(reference=await blobs.begin(upload))
    etags = []
    async with aiohttp.ClientSession() as http:
        for part in blobs.parts(upload):
            data = io.BytesIO(content[part.offset : part.offset + part.size_bytes])
            async with http.put(part.url, data=data, headers=part.headers) as response:
                assert response.status == 200, await response.text()
                etags.append(response.headers["ETag"])
    return upload, etags if upload.reference else []


async def fetched(url: str) -> tuple[int, bytes, Any]:
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return response.status, await response.read(), response.headers


async def test_a_file_is_sent_checked_fetched_and_deleted(blobs: S3Blobs) -> None:
    upload, etags = await send(blobs, upload_of(b"content"), b"content")
    assert (upload.reference, etags) == ("", [])
    await blobs.finish(upload, etags)
    status, content, headers = await fetched(blobs.address(upload.key, "größe.bin"))
    assert (status, content) == (200, b"content")
    assert headers["Content-Disposition"] == "attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe.bin"
    await blobs.drop(upload)
    await blobs.drop(upload)
    assert (await fetched(blobs.address(upload.key, "x")))[0] in GONE


async def test_a_large_file_is_sent_in_parts(
    blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (s3, signing):
        monkeypatch.setattr(module, "PART_BYTES", PART)
    content = os.urandom(2 * PART + 100)
    upload, etags = await send(blobs, upload_of(content), content)
    assert upload.reference
    assert len(etags) == 3
    with pytest.raises(MismatchError, match="2 of 3 tags"):
        await blobs.finish(upload, etags[:2])
    with pytest.raises(MismatchError, match="InvalidPart"):
        await blobs.finish(upload, [*etags[:2], '"other"'])
    assert await blobs.finish(upload, etags) is False  # the digest of the whole is unknown
    assert await blobs.finish(upload, etags) is False
    assert (await fetched(blobs.address(upload.key, "x")))[1] == content
    begun, _ = await send(blobs, upload_of(content), content)
    await blobs.drop(begun)
    await blobs.drop(begun)
    assert (await fetched(blobs.address(begun.key, "x")))[0] in GONE


async def test_a_short_or_missing_file_is_no_content(blobs: S3Blobs) -> None:
    upload = upload_of(b"content")
    with pytest.raises(MismatchError, match="0 of 7 bytes"):
        await blobs.finish(upload, [])
    await send(blobs, upload_of(b"content")._replace(id=upload.id), b"content")
    with pytest.raises(MismatchError, match="7 of 8 bytes"):
        await blobs.finish(upload._replace(size_bytes=8), [])
    assert (await fetched(blobs.address(upload.key, "x")))[0] in GONE


async def test_a_store_that_is_away_is_reported_without_the_signature() -> None:
    with closed_port() as port:
        bucket = Bucket(f"http://127.0.0.1:{port}", "jobs", "us-east-1", "key", "secret")
        blobs = S3Blobs(Signer(bucket, clock.seconds))
        with pytest.raises(BlobError, match="cannot be reached") as caught:
            await blobs.drop(upload_of(b"x"))
    assert "Signature" not in str(caught.value)
    await blobs.close()


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[S3Blobs]:
    """A store that answers each request with these bytes, one piece after the other."""

    ended: list[None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)  # so that they are read one by one
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.append(None)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    blobs = S3Blobs(Signer(Bucket(f"http://127.0.0.1:{port}", "b", "r", "k", "s"), clock.seconds))
    async with server:
        yield blobs
        await blobs.close()
        await until(lambda: bool(ended))


@cases("case", [str.lower, str.title, str.upper])
async def test_the_headers_of_a_store_have_any_case(case: Callable[[str], str]) -> None:
    upload = upload_of(b"content")
    names = [case(name) for name in ("content-length", "x-amz-checksum-sha256")]
    values = ["7", signing.checksum(upload.sha256)]
    lines = "".join(f"{name}: {value}\r\n" for name, value in zip(names, values, strict=True))
    async with answering(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode()) as blobs:
        assert await blobs.finish(upload, []) is True


async def test_an_answer_is_read_to_its_end() -> None:
    """A store begins to answer before it has put the parts together, and then says it cannot."""
    upload = upload_of(b"content")._replace(reference="begun")
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    async with answering(head, b" ", b"<Error><Code>InternalError</Code></Error>") as blobs:
        with pytest.raises(BlobError, match="200 InternalError"):
            await blobs.finish(upload, ['"tag"'])
    begun = b"<Result><UploadId>a&amp;b</UploadId></Result>"
    async with answering(head, begun[:20], begun[20:]) as blobs:
        assert await blobs.begin(upload._replace(size_bytes=2**30)) == "a&b"


async def test_an_answer_without_end_is_not_kept_in_memory() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    async with answering(head, bytes(s3.ANSWER_MAX_BYTES + 1)) as blobs:
        with pytest.raises(BlobError, match="more than can be taken"):
            await blobs.drop(upload_of(b"x"))


def settings_of(bucket: Bucket) -> dict[str, str]:
    return {
        "s3_url": bucket.url,
        "s3_bucket": bucket.name,
        "s3_access_key": bucket.access_key,
        "s3_secret_key": bucket.secret_key,
    }


async def test_buyers_and_devices_send_to_the_store_and_fetch_from_it(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (s3, signing):
        monkeypatch.setattr(module, "PART_BYTES", PART)
    async with running_in(tmp_path, work=settings_of(bucket)) as service:
        buyer = await service.person(credit="10")
        body = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
        answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
        job_id = str(answer.body["job_id"])
        token = await worker_token(service, await service.person())
        await service.call("POST", f"/api/jobs/{job_id}/accept", headers={"X-Worker-Token": token})
        folder = tmp_path / "attempt"
        for name in (WORK, INPUTS):
            (folder / name).mkdir(parents=True)
        contents = {"small": b"small", "large": os.urandom(PART + 1), "empty": b""}
        for name, content in contents.items():
            (folder / WORK / name).write_bytes(content)
        link = Link(service.url, token)
        transfers = FileTransfers(link, Web(service.url, token, to_nowhere_near()), Lend())
        payload = {"command": ["true"], "outputs": [{"name": "all", "path": "**"}]}
        work = {"job_id": job_id, "attempt": 1, "payload": payload}
        entry = Entry(work=work, state=AttemptState.UPLOADING, boot="")
        await asyncio.to_thread(transfers.upload, entry, folder, lambda: False)
        await asyncio.to_thread(transfers.upload, entry, folder, lambda: False)
        link.close()
        answer = await service.call("GET", f"/api/jobs/{job_id}/artifacts", token=buyer.token)
        listed = {each["name"]: each["id"] for each in answer.body["artifacts"]}
        assert listed.keys() == contents.keys()
        for name, artifact_id in listed.items():
            assert await _download(service, buyer.token, artifact_id) == contents[name]
        assert not (tmp_path / "work").exists()


async def _download(service: Service, token: str, artifact_id: str) -> bytes:
    """Fetch a file as curl does that follows redirections: the token stays here."""
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{service.url}/api/artifacts/{artifact_id}"
    async with service.http.get(url, headers=headers, allow_redirects=False) as response:
        assert response.status == 302
        where = response.headers["Location"]
        assert (await response.json())["url"] == where
    answer = await service.call("GET", f"/api/artifacts/{artifact_id}/address", token=token)
    assert answer.body["url"].partition("?")[0] == where.partition("?")[0]
    return (await fetched(where))[1]

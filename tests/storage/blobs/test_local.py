"""Contents as files: received, resumed, hashed, kept once, and never half."""

import asyncio
import hashlib
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.base.mounts import fill, small_disk
from support.base.waiting import until

from storage.blobs import local
from storage.blobs.base import (
    BlobError,
    BusyError,
    FullError,
    MismatchError,
    MissingError,
    Receiver,
    Upload,
)
from storage.blobs.local import LocalBlobs

MIB = 1024 * 1024
CONTENT = bytes(range(256)) * 20_000  # 5 MB: several writes


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[LocalBlobs]:
    made = LocalBlobs(tmp_path / "work", reserve_bytes=0)
    yield made
    await made.close()


def upload_of(content: bytes, **changes: object) -> Upload:
    upload = Upload(str(uuid.uuid4()), hashlib.sha256(content).hexdigest(), len(content))
    return upload._replace(**changes)


async def send(blobs: LocalBlobs, upload: Upload, content: bytes, offset: int = 0) -> None:
    async with blobs.receive(upload, offset) as receiver:
        for at in range(0, len(content), 100_000):
            await receiver.write(content[at : at + 100_000])


async def contents(blobs: LocalBlobs, key: str) -> bytes:
    opened = await blobs.open(key)
    try:
        return await opened.read(0, opened.size_bytes)
    finally:
        opened.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_a_sent_file_is_kept_by_its_hash_for_this_user_only(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    upload = upload_of(CONTENT)
    assert await blobs.stored(upload) == 0
    await send(blobs, upload, CONTENT)
    assert await blobs.stored(upload) == len(CONTENT)
    assert files(tmp_path / "work") == {f"incoming/{upload.id}"}
    await blobs.finish(upload, [])
    assert files(tmp_path / "work") == {upload.key}
    assert upload.key.startswith(f"blobs/{upload.sha256[:2]}/{upload.sha256}")
    assert await contents(blobs, upload.key) == CONTENT
    for path in (tmp_path / "work").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    await blobs.finish(upload, [])  # its answer was lost: again changes nothing
    assert await blobs.stored(upload) == len(CONTENT)
    await blobs.drop(upload)
    await blobs.drop(upload)
    with pytest.raises(MissingError):
        await blobs.open(upload.key)


async def test_an_abandoned_upload_is_removed_after_a_while(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    assert await blobs.forget(60) == 0  # there is nothing, not even the folder
    old, new = upload_of(b"old"), upload_of(b"new")
    for upload in (old, new):
        await send(blobs, upload, b"o")
    place = tmp_path / "work" / "incoming"
    os.utime(place / old.id, (1, 1))
    assert await blobs.forget(60) == 1
    assert files(place) == {new.id}


async def test_an_upload_goes_on_where_it_stopped_also_after_a_restart(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    for is_new in (False, True):
        upload = upload_of(CONTENT)
        half = len(CONTENT) // 2 + 7
        await send(blobs, upload, CONTENT[:half])
        then = LocalBlobs(tmp_path / "work", reserve_bytes=0) if is_new else blobs
        assert await then.stored(upload) == half
        await send(then, upload, CONTENT[half:], half)
        await then.finish(upload, [])
        assert await contents(then, upload.key) == CONTENT
        if is_new:
            await then.close()


async def test_only_bytes_after_a_restart_are_hashed_again(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_: int) -> str:
        raise AssertionError

    monkeypatch.setattr(local, "_digest", never)
    upload = upload_of(CONTENT)
    await send(blobs, upload, CONTENT[:MIB])
    await send(blobs, upload, CONTENT[MIB:], MIB)
    await blobs.finish(upload, [])


async def test_bytes_that_are_sent_again_replace_the_earlier_ones(blobs: LocalBlobs) -> None:
    upload = upload_of(CONTENT)
    await send(blobs, upload, b"x" * len(CONTENT))
    await send(blobs, upload, CONTENT)  # from the beginning
    await send(blobs, upload, b"wrong", 100)
    assert await blobs.stored(upload) == 105
    await send(blobs, upload, CONTENT[100:], 100)
    await blobs.finish(upload, [])
    assert await contents(blobs, upload.key) == CONTENT


async def test_files_that_are_hashed_again_hold_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = LocalBlobs(tmp_path, reserve_bytes=0, is_shared=True)
    kept, *others = uploads = [upload_of(bytes([number])) for number in range(9)]
    for number, upload in enumerate(uploads):
        await send(blobs, upload, bytes([number]))
    await blobs.finish(kept, [])
    goes_on, hash_of = threading.Event(), local._digest

    def slow(descriptor: int) -> str:
        assert goes_on.wait(30)
        return hash_of(descriptor)

    monkeypatch.setattr(local, "_digest", slow)
    finishing = [asyncio.create_task(blobs.finish(each, [])) for each in others]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(10):
            assert await contents(blobs, kept.key) == b"\0"
            await send(blobs, upload_of(b"x"), b"x")
    finally:
        goes_on.set()
        await asyncio.gather(*finishing)
    await blobs.close()


async def test_a_gap_is_not_taken(blobs: LocalBlobs) -> None:
    upload = upload_of(CONTENT)
    await send(blobs, upload, CONTENT[:10])
    with pytest.raises(MismatchError, match="fewer than 11 bytes are stored"):
        await send(blobs, upload, CONTENT[11:], 11)
    assert await blobs.stored(upload) == 10


async def test_a_short_or_different_file_is_no_content(blobs: LocalBlobs, tmp_path: Path) -> None:
    upload = upload_of(CONTENT)
    with pytest.raises(MismatchError, match=f"0 of {len(CONTENT)} bytes"):
        await blobs.finish(upload, [])
    await send(blobs, upload, CONTENT[:-1])
    with pytest.raises(MismatchError, match=f"{len(CONTENT) - 1} of {len(CONTENT)} bytes"):
        await blobs.finish(upload, [])
    # The stored bytes stay, so that the upload can continue
    await send(blobs, upload, b"x", len(CONTENT) - 1)
    with pytest.raises(MismatchError, match="SHA-256"):
        await blobs.finish(upload, [])
    assert files(tmp_path / "work") == set()
    assert await blobs.stored(upload) == 0


async def test_two_requests_do_not_send_the_same_upload_at_once(blobs: LocalBlobs) -> None:
    upload = upload_of(CONTENT)
    async with blobs.receive(upload, 0) as receiver:
        await receiver.write(CONTENT)
        with pytest.raises(BusyError):
            await send(blobs, upload, CONTENT)
        with pytest.raises(BusyError):
            await blobs.finish(upload, [])
    await blobs.finish(upload, [])


async def test_bytes_that_another_process_wrote_over_an_upload_are_hashed(tmp_path: Path) -> None:
    """Otherwise a client that knows a hash could replace the content of every artifact with it."""
    ours, theirs = (LocalBlobs(tmp_path, reserve_bytes=0, is_shared=True) for _ in range(2))
    half = len(CONTENT) // 2
    for first, rest in ((CONTENT, b""), (CONTENT[:half], CONTENT[half:])):
        upload = upload_of(CONTENT)
        await send(ours, upload, first)
        await send(theirs, upload, bytes(len(first)))
        if rest:
            await send(ours, upload, rest, half)
        with pytest.raises(MismatchError, match="SHA-256"):
            await ours.finish(upload, [])
    assert files(tmp_path) == set()
    for each in (ours, theirs):
        await each.close()


async def test_a_file_that_was_finished_before_it_was_locked_is_not_written_to(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = upload_of(CONTENT)
    await send(blobs, upload, CONTENT)
    opened, finished = threading.Event(), threading.Event()
    lock = local._lock

    def late(descriptor: int, path: Path) -> None:
        opened.set()
        assert finished.wait(10)
        lock(descriptor, path)

    monkeypatch.setattr(local, "_lock", late)
    sending = asyncio.create_task(send(blobs, upload, b"x"))
    await until(opened.is_set)
    monkeypatch.undo()
    await blobs.finish(upload, [])
    finished.set()
    with pytest.raises(BusyError):
        await sending
    assert await contents(blobs, upload.key) == CONTENT


async def test_bytes_that_are_sent_while_another_request_finishes_them_are_hashed(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = upload_of(CONTENT)
    await send(blobs, upload, CONTENT)
    opened, sent = threading.Event(), threading.Event()
    lock = local._lock

    def late(descriptor: int, path: Path) -> None:
        opened.set()
        assert sent.wait(10)
        lock(descriptor, path)

    monkeypatch.setattr(local, "_lock", late)
    finishing = asyncio.create_task(blobs.finish(upload, []))
    await until(opened.is_set)
    monkeypatch.undo()
    await send(blobs, upload, bytes(len(CONTENT)))
    sent.set()
    with pytest.raises(MismatchError, match="SHA-256"):
        await finishing


async def test_an_upload_that_a_kill_left_renamed_goes_on(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    upload = upload_of(CONTENT)
    await send(blobs, upload, CONTENT)
    await blobs.finish(upload, [])  # no other part has recorded that
    await send(blobs, upload, b"", await blobs.stored(upload))
    with pytest.raises(MismatchError, match=f"all {len(CONTENT)} bytes"):
        await send(blobs, upload, CONTENT)
    await blobs.finish(upload, [])
    assert await contents(blobs, upload.key) == CONTENT
    assert files(tmp_path / "work") == {upload.key}


async def test_bytes_that_arrived_before_a_sender_left_are_there(blobs: LocalBlobs) -> None:
    upload = upload_of(CONTENT)

    async def leave() -> None:
        async with blobs.receive(upload, 0) as receiver:
            await receiver.write(CONTENT[:12_345])
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await leave()
    assert await blobs.stored(upload) == 12_345
    await send(blobs, upload, CONTENT[12_345:], 12_345)
    await blobs.finish(upload, [])


async def test_a_file_that_a_thread_still_writes_is_closed_behind_it(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another file's by then."""
    upload = upload_of(CONTENT)
    await blobs.stored(upload)  # its threads are there
    before = open_files()
    reached, goes_on = threading.Event(), threading.Event()
    write = os.pwrite

    def slow(descriptor: int, data: bytes, at: int) -> int:
        reached.set()
        assert goes_on.wait(10)
        return write(descriptor, data, at)

    async def receive() -> None:
        async with blobs.receive(upload, 0) as receiver:
            await receiver.write(CONTENT)
            await asyncio.Event().wait()

    monkeypatch.setattr(local.os, "pwrite", slow)
    receiving = asyncio.create_task(receive())
    await until(reached.is_set)
    receiving.cancel()
    await asyncio.sleep(0)
    receiving.cancel()  # also in its wait for the thread
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert open_files() > before
    goes_on.set()
    monkeypatch.undo()
    await until(lambda: open_files() == before)
    await send(blobs, upload, CONTENT)
    await blobs.finish(upload, [])


async def test_without_room_nothing_is_taken(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "work", reserve_bytes=2**60)
    with pytest.raises(FullError):
        await send(blobs, upload_of(CONTENT), CONTENT)
    assert files(tmp_path) == set()
    await blobs.close()


async def test_a_disk_that_becomes_full_keeps_nothing_of_the_file_that_filled_it(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", megabytes=16) as disk:
        blobs = LocalBlobs(disk / "work", reserve_bytes=0)
        first = upload_of(b"kept")
        await send(blobs, first, b"kept")
        await blobs.finish(first, [])
        upload = upload_of(CONTENT)

        async def overfill() -> None:
            async with blobs.receive(upload, 0) as receiver:
                await receiver.write(CONTENT[:MIB])
                fill(disk)
                await receiver.write(CONTENT[MIB:])

        with pytest.raises(FullError):
            await overfill()
        assert await blobs.stored(upload) == 0
        with pytest.raises(BlobError):  # the disk is still full of the rest
            await send(blobs, upload, CONTENT)
        assert await contents(blobs, first.key) == b"kept"
        (disk / "filler").unlink()
        await send(blobs, upload, CONTENT)
        await blobs.finish(upload, [])
        assert await contents(blobs, upload.key) == CONTENT
        await blobs.close()


async def test_uploads_that_come_at_once_leave_the_reserve(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=16) as disk:
        reserve = 8 * MIB
        blobs = LocalBlobs(disk / "work", reserve_bytes=reserve)
        first, second = upload_of(CONTENT), upload_of(CONTENT)
        path = disk / "work" / "incoming" / first.id

        async def send_beside(one: Receiver) -> None:
            async with blobs.receive(second, 0) as other:  # there is room for each
                await one.write(CONTENT)
                await until(lambda: path.stat().st_size == len(CONTENT))
                await other.write(CONTENT)

        async with blobs.receive(first, 0) as one:
            with pytest.raises(FullError):
                await send_beside(one)
        room = os.statvfs(disk)
        assert room.f_bavail * room.f_frsize >= reserve
        assert await blobs.stored(second) == 0
        await blobs.finish(first, [])
        await blobs.close()


async def test_dropped_uploads_leave_nothing(blobs: LocalBlobs, tmp_path: Path) -> None:
    begun, whole = upload_of(CONTENT), upload_of(b"whole")
    await send(blobs, begun, CONTENT[:10])
    await send(blobs, whole, b"whole")
    await blobs.finish(whole, [])  # and then the daemon ended, before it was written down
    await blobs.drop(begun)
    await blobs.drop(whole)
    await blobs.drop(whole)
    assert files(tmp_path) == set()


async def test_a_link_in_the_folder_leads_nowhere(blobs: LocalBlobs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    upload = upload_of(b"secret")
    for name in (upload.key, f"incoming/{upload.id}"):
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True)
        path.symlink_to(secret)
    with pytest.raises(BlobError):
        await blobs.open(upload.key)
    with pytest.raises(BlobError):
        await send(blobs, upload, b"x")
    assert secret.read_bytes() == b"secret"


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


async def test_every_file_is_closed(blobs: LocalBlobs) -> None:
    await blobs.stored(upload_of(b""))  # its threads are there
    with no_descriptor_left():
        for content in (b"", b"x", CONTENT):
            upload = upload_of(content)
            await send(blobs, upload, content)
            await blobs.finish(upload, [])
            assert await contents(blobs, upload.key) == content

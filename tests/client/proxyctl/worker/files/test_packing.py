"""An archive that is made while it is read is an ordinary one, wherever the reading begins."""

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from proxyctl.worker.files.archives import ArchiveError
from proxyctl.worker.files.packing import Content, Packed

CONTENTS = {
    "ckpt/a": bytes(range(256)) * 400,
    "ckpt/empty": b"",
    "ckpt/block": b"b" * 512,
    "ckpt/" + "long-" * 60: b"x",
    "ckpt/h\u00e9": b"y" * 513,
}


def packed(contents: dict[str, bytes]) -> Packed:
    return Packed(
        Content(name, len(content), lambda content=content: io.BytesIO(content))
        for name, content in contents.items()
    )


def test_it_is_an_archive_and_always_the_same() -> None:
    with packed(CONTENTS) as first, packed(CONTENTS) as second:
        whole = first.read()
        assert whole == second.read()
        assert len(whole) == first.size_bytes
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        found = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    assert found == CONTENTS


def test_it_is_read_from_anywhere() -> None:
    choose = random.Random(7)
    with packed(CONTENTS) as archive:
        whole = archive.read()
        for _ in range(300):
            offset, size = choose.randrange(len(whole) + 10), choose.randrange(5_000)
            assert archive.seek(offset) == archive.tell() == offset
            assert archive.read(size) == whole[offset : offset + size]
        assert archive.seek(0, os.SEEK_END) == len(whole)
        assert archive.read() == b""


def test_a_file_that_became_shorter_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"short")
    with (
        Packed([Content("a", 10, lambda: path.open("rb"))]) as archive,
        pytest.raises(ArchiveError, match="changed while it was read"),
    ):
        archive.read()


def test_one_file_at_once_is_open(tmp_path: Path) -> None:
    files = []
    for number in range(50):
        path = tmp_path / str(number)
        path.write_bytes(b"x")
        files.append(Content(path.name, 1, lambda path=path: path.open("rb")))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Packed(files) as archive:
        archive.read()
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before

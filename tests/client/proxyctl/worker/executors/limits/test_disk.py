"""proxyctl.worker.executors.limits.disk"""

import os
from pathlib import Path

import pytest

from proxyctl.worker.executors.limits import disk
from proxyctl.worker.executors.limits.disk import DiskWatch


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder that a job writes to."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def look(work: Path, max_bytes: int = 1 << 20) -> str:
    """Look once, whatever is free on this disk."""
    return DiskWatch(work, max_bytes, reserve_bytes=0).look()


def test_bytes_are_those_on_the_disk(work: Path) -> None:
    """A sparse file costs what it takes, and a folder of files their sum."""
    with (work / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (work / "below").mkdir()
    (work / "below" / "file").write_bytes(b"x" * 500_000)
    assert look(work) == ""
    (work / "below" / "more").write_bytes(b"x" * 600_000)
    assert "bytes" in look(work)


def test_links_are_not_followed(work: Path, tmp_path: Path) -> None:
    """Neither a link to a large folder nor one in a circle counts for more than itself."""
    (tmp_path / "large").write_bytes(b"x" * (2 << 20))
    (work / "link").symlink_to(tmp_path / "large")
    (work / "circle").symlink_to(work)
    (work / "away").symlink_to("/")
    os.mkfifo(work / "fifo")
    assert look(work) == ""


def test_what_is_deep_or_many_is_too_much(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders within folders and mere names have bounds, too."""
    monkeypatch.setattr(disk, "DEPTH_MAX", 5)
    monkeypatch.setattr(disk, "ENTRIES_MAX", 50)
    (work / "1/2/3/4").mkdir(parents=True)
    assert look(work) == ""
    (work / "1/2/3/4/5").mkdir()
    assert "deep" in look(work)
    (work / "1/2/3/4/5").rmdir()
    for number in range(50):
        (work / str(number + 10)).touch()
    assert "files and folders" in look(work)


def test_a_disk_that_is_nearly_full_ends_the_job(work: Path) -> None:
    """The machine keeps its reserve."""
    assert "free" in DiskWatch(work, 1 << 20, reserve_bytes=1 << 60).look()


def test_a_folder_that_is_gone_is_no_matter(work: Path) -> None:
    """It was cleaned while it was looked at."""
    work.rmdir()
    assert look(work) == ""


def test_no_descriptor_stays_open(work: Path) -> None:
    """However it ends."""
    (work / "a/b/c").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    look(work)
    look(work, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before

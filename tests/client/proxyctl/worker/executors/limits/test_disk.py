"""proxyctl.worker.executors.limits.disk"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from proxyctl.worker.executors.limits import disk
from proxyctl.worker.executors.limits.disk import USUAL, DiskWatch, SumBounds

UID = 61_001  # an ordinary user without a name


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder that a job writes to."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def look(work: Path, max_bytes: int = 1 << 20, bounds: SumBounds = USUAL) -> str:
    """Look once, without a reserve on this disk."""
    return DiskWatch(work, max_bytes, reserve_bytes=0, bounds=bounds).look()


def test_bytes_are_those_on_the_disk(work: Path) -> None:
    """A sparse file costs what it takes, and a folder of files their sum."""
    with (work / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (work / "below").mkdir()
    (work / "below" / "file").write_bytes(b"x" * 500_000)
    assert look(work) == ""
    (work / "below" / "more").write_bytes(b"x" * 600_000)
    assert "bytes" in look(work)


def test_a_removed_file_counts_until_it_is_closed(work: Path) -> None:
    """Each file once, however many have it open; files elsewhere are not the job's."""
    watch = DiskWatch(work, 1 << 20, reserve_bytes=0, processes=lambda: (os.getpid(), 1 << 30))
    with (work / "file").open("wb", buffering=0) as file:
        file.write(b"x" * 600_000)
        (work / "file").unlink()
        with os.fdopen(os.dup(file.fileno()), "wb"):
            assert watch.look() == ""
        with (work / "more").open("wb", buffering=0) as more:
            (work / "more").unlink()
            more.write(b"x" * 600_000)
            assert "bytes" in watch.look()
        assert watch.look() == ""


def map_file(path: Path, size: int) -> int:
    """Map a new file that is removed and closed at once; return where it is."""
    mmap = ctypes.CDLL(None, use_errno=True).mmap
    mmap.restype, mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
    with path.open("wb+", buffering=0) as file:
        path.unlink()
        file.write(b"x" * size)
        return int(mmap(None, size, 1, 1, file.fileno(), 0))


def test_a_removed_file_counts_while_it_is_mapped(work: Path) -> None:
    """Each file once, however often it is mapped, and open besides."""
    watch = DiskWatch(work, 1 << 20, reserve_bytes=0, processes=lambda: (os.getpid(),))
    places = [map_file(work / "file", 600_000)]
    try:
        assert watch.look() == ""
        places.append(map_file(work / "more", 600_000))
        assert "bytes" in watch.look()
    finally:
        for place in places:
            ctypes.CDLL(None).munmap(ctypes.c_void_p(place), ctypes.c_size_t(600_000))
    assert watch.look() == ""


def test_an_ordinary_user_sees_mapped_files(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the mapping: the file itself is root's to see."""
    monkeypatch.chdir(work.parent)

    def looking() -> str:
        watch = DiskWatch("work", 1 << 20, reserve_bytes=0, processes=lambda: (os.getpid(),))
        map_file(Path("work/file"), 600_000)
        first = watch.look()
        map_file(Path("work/more"), 600_000)
        return f"{first}, {watch.look()}"

    assert as_ordinary_user(work, looking).startswith(", more than the 1048576 bytes")


def test_a_thread_with_a_table_of_files_of_its_own_hides_no_file(work: Path) -> None:
    """`unshare` of its files is a call that jobs have, as is `clone` without them."""
    watch = DiskWatch(work, 1 << 20, reserve_bytes=0, processes=lambda: (os.getpid(),))
    opened, looked = threading.Event(), threading.Event()

    def hide() -> None:
        assert ctypes.CDLL(None, use_errno=True).unshare(0x400) == 0  # CLONE_FILES
        descriptor = os.open(work / "file", os.O_CREAT | os.O_WRONLY)
        (work / "file").unlink()
        os.write(descriptor, bytes(2 << 20))
        opened.set()
        looked.wait()

    thread = threading.Thread(target=hide)
    thread.start()
    assert opened.wait(10)
    try:
        assert "bytes" in watch.look()
    finally:
        looked.set()
        thread.join()


def test_a_folder_that_holds_up_a_look_is_too_much(work: Path) -> None:
    watch = DiskWatch(
        work,
        1 << 20,
        reserve_bytes=0,
        processes=lambda: (os.getpid(),),
        bounds=SumBounds(handles_max=5),
    )
    assert "open files and mappings" in watch.look()


@pytest.mark.parametrize(("back", "is_jobs"), [(300_000, False), (900_000, True)])
def test_space_that_came_back_was_the_jobs(
    work: Path, monkeypatch: pytest.MonkeyPatch, back: int, is_jobs: bool
) -> None:
    """Together with the files in its folder."""
    (work / "file").write_bytes(b"x" * 400_000)
    free = 1_000_000
    monkeypatch.setattr(disk, "free_bytes", lambda _: free)
    watch = DiskWatch(work, 1 << 20, reserve_bytes=free + 1)
    assert "free" in watch.look()
    free += back
    assert watch.judge() == (
        ""
        if not is_jobs
        else f"more than the {1 << 20} bytes that the job may write, {back} of them in files"
        " without a name"
    )


def test_links_are_not_followed(work: Path, tmp_path: Path) -> None:
    """Neither a link to a large folder nor one in a circle counts for more than itself."""
    (tmp_path / "large").write_bytes(b"x" * (2 << 20))
    (work / "link").symlink_to(tmp_path / "large")
    (work / "circle").symlink_to(work)
    (work / "away").symlink_to("/")
    os.mkfifo(work / "fifo")
    assert look(work) == ""


def test_a_deep_or_large_folder_is_too_much(work: Path) -> None:
    """Folders within folders and mere names have bounds."""
    few = SumBounds(depth_max=5, entries_max=50)
    (work / "1/2/3/4").mkdir(parents=True)
    assert look(work, bounds=few) == ""
    (work / "1/2/3/4/5").mkdir()
    assert "deep" in look(work, bounds=few)
    (work / "1/2/3/4/5").rmdir()
    for number in range(50):
        (work / str(number + 10)).touch()
    assert "files and folders" in look(work, bounds=few)


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


def as_ordinary_user(work: Path, looking: Callable[[], str]) -> str:
    """Return what somebody says who may not open what is closed; root may."""
    if os.geteuid() == 0:
        os.chown(work, UID, UID)
        work.parent.chmod(0o755)
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(UID, UID, UID)
                os.setresuid(UID, UID, UID)
            said = looking()
        except BaseException as error:  # noqa: BLE001 - it is told to the test
            said = repr(error)
        os.write(sender, said.encode())
        os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o300, 0o400, 0o600])
@pytest.mark.parametrize("place", ["work", "work/closed"])
def test_a_closed_folder_is_opened(
    work: Path, monkeypatch: pytest.MonkeyPatch, place: str, mode: int
) -> None:
    """A job hides nothing by closing a folder, be it the topmost one, and ends nobody by it."""
    monkeypatch.chdir(work.parent)  # the folders above it are root's alone

    def looking() -> str:
        Path(place, "below").mkdir(parents=True)
        Path(place, "below", "file").write_bytes(b"x" * (2 << 20))
        Path(place).chmod(mode)
        return DiskWatch("work", 1 << 20, reserve_bytes=0).look()

    assert "more than the 1048576 bytes" in as_ordinary_user(work, looking)

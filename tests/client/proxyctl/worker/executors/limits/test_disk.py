"""proxyctl.worker.executors.limits.disk"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxyctl.worker.executors.limits import disk
from proxyctl.worker.executors.limits.disk import USUAL, DiskWatch, Free, SumBounds

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
    """A sparse file counts its blocks on the disk, and a folder the sum of its files."""
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


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (SumBounds(handles_max=2), "open files and mapped ones"),
        (SumBounds(mappings_max=5), "more than 5 mappings"),
    ],
)
def test_a_job_that_holds_up_a_look_has_too_much(work: Path, bounds: SumBounds, words: str) -> None:
    watch = DiskWatch(
        work,
        1 << 20,
        reserve_bytes=0,
        processes=lambda: (os.getpid(),),
        bounds=bounds,
    )
    assert words in watch.look()


def test_threads_with_the_same_descriptors_count_once(work: Path) -> None:
    """A server with a hundred threads and a hundred connections has a hundred descriptors."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    watch = DiskWatch(
        work,
        1 << 20,
        reserve_bytes=0,
        processes=lambda: (os.getpid(),),
        bounds=SumBounds(handles_max=descriptors + 30),
    )
    is_over = threading.Event()
    threads = [threading.Thread(target=is_over.wait) for _ in range(50)]
    for each in threads:
        each.start()
    try:
        assert watch.look() == ""
    finally:
        is_over.set()
        for each in threads:
            each.join()


class Clock:
    """A clock that goes on by itself with each look at it, as in a count that takes long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.step = 0.0
        monkeypatch.setattr(disk, "_STEPS", 1)
        monkeypatch.setattr(disk, "time", SimpleNamespace(monotonic=self.read))

    def read(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def looks(watch: DiskWatch, most: int = 100) -> list[str]:
    """Return the words of looks until one has words, or of `most` of them."""
    said = []
    for _ in range(most):
        said.append(watch.look_on())
        if said[-1]:
            break
    return said


def test_a_long_count_goes_on_piece_by_piece(work: Path, clock: Clock) -> None:
    """Its supervisor has other work between the pieces, and the job hides nothing by them."""
    clock.step = 0.03
    for number in range(40):
        (work / str(number)).write_bytes(bytes(40_000))
    said = looks(DiskWatch(work, 1 << 20, reserve_bytes=0))
    assert len(said) > 5
    assert "more than the 1048576 bytes" in said[-1]


def test_a_file_that_was_written_anew_during_a_long_count_counts_once(
    work: Path, clock: Clock
) -> None:
    """A count in pieces that finds too much is made again, without a pause."""
    clock.step = 0.03
    for number in range(20):
        (work / str(number)).touch()
    first, *_, last = (work / entry.name for entry in os.scandir(work))
    first.write_bytes(bytes(600_000))
    watch = DiskWatch(work, 1 << 20, reserve_bytes=0)
    assert watch.look_on() == ""
    first.write_bytes(b"")
    last.write_bytes(bytes(600_000))
    assert looks(watch) == [""] * 100


def test_a_long_count_delays_no_look_at_the_free_room(
    work: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.step = 0.2
    for number in range(40):
        (work / str(number)).touch()
    free = 1_000_000
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free))
    watch = DiskWatch(work, 1 << 20, reserve_bytes=100_000)
    assert watch.look_on() == ""
    assert watch.pause_seconds == disk.EVERY_SECONDS
    free = 700_000
    assert watch.look_on() == ""
    assert watch.pause_seconds == disk.NEAR_SECONDS
    free = 90_000
    assert "free on the disk" in watch.look_on()
    assert not watch.is_suspect()
    free = 40_000
    assert watch.is_suspect()  # more than half of the reserve is gone, and no count is over


def test_a_second_count_ends_when_the_disk_is_too_full_to_wait(
    work: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.step = 0.06
    for number in range(40):
        (work / str(number)).write_bytes(bytes(40_000))
    free = [1_000_000] * 30 + [40_000] * 100
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free.pop(0)))
    began = clock.now
    assert "free on the disk" in looks(DiskWatch(work, 1 << 20, reserve_bytes=100_000))[-1]
    assert clock.now < began + 5


@pytest.mark.parametrize(("grown", "is_suspect"), [(100_000, False), (400_000, True)])
def test_a_job_is_suspect_if_its_files_took_half_of_the_lost_room(
    work: Path, monkeypatch: pytest.MonkeyPatch, grown: int, is_suspect: bool
) -> None:
    free = 1_000_000
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free))
    watch = DiskWatch(work, 1 << 20, reserve_bytes=500_000)
    (work / "before").write_bytes(bytes(500_000))
    assert watch.look_on() == ""
    (work / "after").write_bytes(bytes(grown))
    free -= 600_000
    assert "free on the disk" in watch.look_on()
    assert watch.is_suspect() == is_suspect


@pytest.mark.parametrize(("back", "is_jobs"), [(300_000, False), (900_000, True)])
def test_space_that_came_back_was_the_jobs(
    work: Path, monkeypatch: pytest.MonkeyPatch, back: int, is_jobs: bool
) -> None:
    """Together with the files in its folder."""
    (work / "file").write_bytes(b"x" * 400_000)
    free = 1_000_000
    monkeypatch.setattr(disk, "free_of", lambda _: Free(free))
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


@pytest.mark.parametrize(
    ("files", "files_max", "is_short"),
    [
        (19_999, 16_000_000, True),
        (20_000, 16_000_000, False),
        (4_999, 100_000, True),
        (5_000, 100_000, False),
        (0, 0, False),  # as btrfs says it, which has no bound
    ],
)
def test_a_disk_keeps_a_reserve_of_files(
    work: Path, monkeypatch: pytest.MonkeyPatch, files: int, files_max: int, is_short: bool
) -> None:
    """Empty files take no bytes, and no program can make a file when a disk has too many."""
    status = SimpleNamespace(
        f_bavail=1 << 30, f_frsize=4096, f_favail=files, f_ffree=files_max, f_files=files_max
    )
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    assert disk.is_short(work) == is_short
    watch = DiskWatch(work, 1 << 20)
    words = f"less than {disk.free_of(work).files_reserve} files and folders are free"
    assert watch.look().startswith(words) == is_short
    assert watch.is_half_gone() == (is_short and files < 2_500)


@pytest.mark.parametrize(("grown", "is_suspect"), [(3, False), (8, True)])
def test_a_job_is_suspect_if_it_made_half_of_the_files(
    work: Path, monkeypatch: pytest.MonkeyPatch, grown: int, is_suspect: bool
) -> None:
    files = 1_005
    monkeypatch.setattr(disk, "free_of", lambda _: Free(1 << 40, files, 20_000))
    watch = DiskWatch(work, 1 << 20)
    assert watch.look_on() == ""
    for number in range(grown):
        (work / str(number)).touch()
    files -= 10
    assert "less than 1000 files and folders" in watch.look_on()
    assert watch.is_suspect() == is_suspect


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
    """Return the result of a call as a user that may not open closed folders, as root may."""
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
    """A job hides no bytes by closing a folder, even the topmost one, and ends no watch by it."""
    monkeypatch.chdir(work.parent)  # only root may open the folders above it

    def looking() -> str:
        Path(place, "below").mkdir(parents=True)
        Path(place, "below", "file").write_bytes(b"x" * (2 << 20))
        Path(place).chmod(mode)
        return DiskWatch("work", 1 << 20, reserve_bytes=0).look()

    assert "more than the 1048576 bytes" in as_ordinary_user(work, looking)

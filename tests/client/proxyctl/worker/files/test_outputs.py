"""What a hostile job leaves behind: nothing outside of its folder is read, and nothing hangs."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyctl.protocol.jobspec import Output
from proxyctl.worker.base import beneath
from proxyctl.worker.files.outputs import (
    NAMES_MAX,
    Collection,
    JobFolder,
    Leaving,
    NotTakenError,
    matches,
)

ALL = Output("all", "**")


@pytest.fixture(params=["openat2", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files are opened by one call, and as systems do that have none."""
    if request.param == "step by step":
        monkeypatch.setattr(beneath, "_openat2", lambda *_: -1)
    return str(request.param)


@pytest.fixture
def work(tmp_path: Path, way: str) -> Path:
    """The folder of a job, beside a secret."""
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def left(folder: Path, *wanted: Output, names_max: int = NAMES_MAX) -> Collection:
    with closing(JobFolder(folder)) as opened:
        return opened.collect(wanted or (ALL,), names_max)


def names(collection: Collection) -> list[str]:
    return [each.name for each in collection.files]


def read(folder: Path, leaving: Leaving | str) -> bytes:
    with closing(JobFolder(folder)) as opened, os.fdopen(opened.open_file(leaving), "rb") as file:
        return file.read()


def make(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**", ["a", "out/b.txt", "out/c.bin", "out/deep/er/d.txt"]),
        ("out/**", ["out/b.txt", "out/c.bin", "out/deep/er/d.txt"]),
        ("out", ["out/b.txt", "out/c.bin", "out/deep/er/d.txt"]),
        ("out/*", ["out/b.txt", "out/c.bin", "out/deep/er/d.txt"]),
        ("out/*.txt", ["out/b.txt"]),
        ("**/*.txt", ["out/b.txt", "out/deep/er/d.txt"]),
        ("out/**/*.txt", ["out/b.txt", "out/deep/er/d.txt"]),
        ("*/deep", ["out/deep/er/d.txt"]),
        ("o?t/[bc].*", ["out/b.txt", "out/c.bin"]),
        ("a", ["a"]),
        ("out/deep/er/d.txt", ["out/deep/er/d.txt"]),
        ("nothing", []),
        ("nothing/**", []),
        ("a/b", []),
    ],
)
def test_a_pattern_finds_the_files_that_a_person_expects(
    work: Path, pattern: str, found: list[str]
) -> None:
    make(work, "a", "out/b.txt", "out/c.bin", "out/deep/er/d.txt")
    collection = left(work, Output("x", pattern))
    assert names(collection) == found
    if not found:
        assert collection.sentences() == [f"x: nothing in the folder is {pattern}"]
    for each in collection.files:
        assert read(work, each) == each.name.encode()


def test_a_file_that_two_outputs_find_is_taken_once(work: Path) -> None:
    make(work, "a", "b")
    assert names(left(work, Output("x", "*"), Output("y", "a"))) == ["a", "b"]


def test_no_link_is_followed(work: Path) -> None:
    make(work, "real")
    (work / "link").symlink_to("../secret")
    (work / "inner").symlink_to("real")
    (work / "folder").symlink_to("..")
    (work / "proc").symlink_to("/proc/self/root/etc")
    (work / "loop").symlink_to("loop")
    collection = left(work)
    assert names(collection) == ["real"]
    assert collection.sentences() == [
        f"{name}: it is a link" for name in ("folder", "inner", "link", "loop", "proc")
    ]
    assert left(work, Output("x", "folder/secret"), Output("y", "folder/**")).files == []
    for name in ("link", "folder/secret", "../secret", "folder/../secret", "/etc/passwd", "a//b"):
        with pytest.raises(NotTakenError):
            read(work, name)


def test_a_file_that_could_block_is_not_opened(work: Path) -> None:
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(work / "sock"))
    expected = ["pipe: it is a named pipe", "sock: it is a socket"]
    if os.geteuid() == 0:
        os.mknod(work / "tty", stat.S_IFCHR | 0o600, os.makedev(5, 0))
        expected.append("tty: it is a device")
    collection = left(work)
    assert (collection.files, collection.sentences()) == ([], expected)
    for name in ("pipe", "sock"):
        with pytest.raises(NotTakenError):
            read(work, name)


def test_a_hard_link_may_be_of_something_outside(work: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "secret", work / "hard")
    assert left(work).sentences() == ["hard: it has a second name, a hard link"]
    with pytest.raises(NotTakenError):
        read(work, "hard")


def test_names_that_hurt_are_left_out_in_one_printable_line(work: Path) -> None:
    hostile = [b"a\nb", b"\x1b[2J", b"\xff\xfe", b"back\\slash", b"\xe2\x80\xae.exe", b"x" * 255]
    for name in hostile:
        (work / os.fsdecode(name)).write_bytes(b"")
    collection = left(work)
    assert names(collection) == ["x" * 255]
    assert len(collection.sentences()) == 5
    for sentence in collection.sentences():
        assert sentence.isprintable()
        assert "every system" in sentence


def test_a_terabyte_of_nothing_is_judged_by_its_size(work: Path) -> None:
    with (work / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    make(work, "small")
    collection = left(work, Output("big", "sparse"), Output("little", "small"))
    assert names(collection) == ["small"]
    assert "more than its 1000000000: nothing is kept" in collection.sentences()[0]
    over = left(work, Output("two", "s*", max_bytes=(1 << 40) + 4))
    assert over.files == []


def test_a_file_that_changes_is_not_the_one_that_was_found(work: Path) -> None:
    make(work, "grows", "replaced", "gone", "linked", "same")
    found = {each.name: each for each in left(work).files}
    with (work / "grows").open("ab") as file:
        file.write(b"more")
    (work / "replaced").unlink()
    make(work, "replaced")
    (work / "gone").unlink()
    (work / "linked").unlink()
    (work / "linked").symlink_to("../secret")
    assert read(work, found["same"]) == b"same"
    for name, why in (
        ("grows", "it changed"),
        ("replaced", "it changed"),
        ("gone", "not there any more"),
        ("linked", "behind a link"),
    ):
        with pytest.raises(NotTakenError, match=why):
            read(work, found[name])


def test_a_folder_that_becomes_a_link_in_between_leads_nowhere(work: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"secret")
    make(work, "folder/file")
    found = left(work).files[0]
    (work / "folder").rename(work / "moved")
    (work / "folder").symlink_to(tmp_path / "outside")
    with pytest.raises(NotTakenError):
        read(work, found)


@pytest.mark.parametrize("seconds", [0.5])
def test_a_job_that_swaps_folders_for_links_meanwhile_gains_nothing(
    work: Path, tmp_path: Path, seconds: float
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"secret")
    make(work, "real/file")
    (work / "real").rename(work / "folder")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                (work / "folder").rename(work / "away")
                (work / "folder").symlink_to(tmp_path / "outside")
                (work / "folder").unlink()
                (work / "away").rename(work / "folder")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        taken = 0
        for _ in range(300):
            for each in left(work).files:
                with contextlib.suppress(NotTakenError):
                    assert read(work, each) == b"real/file"
                    taken += 1
    finally:
        done.set()
        swapping.join()
    assert taken


def test_too_many_names_and_too_deep_folders_end_the_search(work: Path) -> None:
    for number in range(60):
        make(work, f"{number:02}")
    collection = left(work, names_max=50)
    assert len(collection.files) == 50
    assert not collection.is_complete
    assert collection.sentences() == ["*: only the first 50 names were looked at"]
    for path in work.iterdir():
        path.unlink()
    deep = "/".join("d" * 70)
    make(work, f"{deep}/file")
    assert "more than 64 deep" in left(work).sentences()[0]
    assert left(work).is_complete
    assert read(work, f"{deep}/file")


def test_of_thousands_that_are_left_out_some_are_named(work: Path) -> None:
    for number in range(300):
        (work / f"{number:03}").symlink_to("x")
    sentences = left(work).sentences()
    assert len(sentences) == 201
    assert sentences[-1] == "and 100 more"


@pytest.fixture
def unreadable(work: Path) -> Iterator[Path]:
    make(work, "mine", "closed/file", "locked")
    (work / "closed").chmod(0)
    (work / "locked").chmod(0)
    yield work
    (work / "closed").chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_file_is_reported(unreadable: Path) -> None:
    assert "cannot be read" in left(unreadable).sentences()[0]


def test_every_descriptor_is_closed(work: Path) -> None:
    make(work, "a", "b/c")
    (work / "link").symlink_to("a")
    before = len(list(Path("/proc/self/fd").iterdir()))
    left(work)
    for name in ("a", "link", "b", "nothing", "b/c"):
        with contextlib.suppress(NotTakenError):
            read(work, name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


PARTS = st.lists(st.sampled_from(["a", "b", "ab", "*", "**", "?", "[ab]"]), min_size=1, max_size=12)


@given(pattern=PARTS, path=st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=12))
def test_matching_gives_the_result_of_trying_all_ways(pattern: list[str], path: list[str]) -> None:
    assert matches(path, pattern) == _tried(tuple(path), tuple(pattern))


def _tried(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """The same by trying everything."""
    from fnmatch import fnmatchcase  # noqa: PLC0415
    from functools import cache  # noqa: PLC0415

    @cache
    def reach(at: int, wanted: int) -> bool:
        if wanted == len(pattern):
            return True  # what is in a folder that matches does, too
        if pattern[wanted] == "**":
            if wanted + 1 == len(pattern):
                return at < len(path)
            return reach(at, wanted + 1) or (at < len(path) and reach(at + 1, wanted))
        return (
            at < len(path) and fnmatchcase(path[at], pattern[wanted]) and reach(at + 1, wanted + 1)
        )

    return reach(0, 0)

"""Paths below a folder: no component is a link."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxyctl.worker.base import beneath
from proxyctl.worker.base.beneath import Folder, make_accessible


@pytest.fixture(params=["openat2", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "step by step":
        monkeypatch.setattr(beneath, "_openat2", lambda *_: -1)


@pytest.fixture
def top(tmp_path: Path, way: None) -> Iterator[Folder]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"mine")
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "top" / "a" / "b" / "file").write_bytes(b"x")
    (tmp_path / "top" / "file").write_bytes(b"x")
    (tmp_path / "top" / "out").symlink_to("../outside")
    (tmp_path / "top" / "a" / "in").symlink_to("b")
    (tmp_path / "top" / "a" / "to-file").symlink_to("b/file")
    with Folder.at(tmp_path / "top") as folder:
        yield folder


def test_a_path_without_links_is_opened(top: Folder) -> None:
    descriptor = top.open(("a", "b", "file"), os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        assert file.read() == b"x"
    with top.folder(("a", "b")) as folder, folder.folder() as same:
        assert list(folder.names()) == list(same.names()) == ["file"]


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("out/file", errno.ELOOP),
        ("out", errno.ELOOP),
        ("a/in/file", errno.ELOOP),
        ("a/in", errno.ELOOP),
        ("a/to-file", errno.ELOOP),
        ("file/x", errno.ENOTDIR),
        ("missing/x", errno.ENOENT),
        ("../outside/file", errno.EINVAL),
        ("a/./b", errno.EINVAL),
        ("", errno.EINVAL),
        ("a/b/file\0x", errno.EINVAL),
    ],
)
def test_other_paths_are_refused(top: Folder, path: str, number: int) -> None:
    parts = path.split("/")
    with pytest.raises(OSError, match=r".") as caught:
        top.open(parts, os.O_RDONLY | os.O_NOFOLLOW)
    assert caught.value.errno == number
    if number != errno.ENOENT:
        with pytest.raises(OSError, match=r".") as caught:
            top.make_folders(parts)[0].close()
        assert caught.value.errno == number


def test_folders_are_made_once_and_counted(top: Folder) -> None:
    for count in (3, 0):
        folder, made = top.make_folders(("a", "x", "y", "z"))
        folder.close()
        assert made == count


def test_no_file_is_created_through_a_link(top: Folder, tmp_path: Path) -> None:
    (tmp_path / "top" / "dangling").symlink_to("../outside/new")
    for name in ("dangling", "out", "file"):
        with pytest.raises(FileExistsError):
            top.create(name)
    os.close(top.create("new"))
    assert sorted(each.name for each in (tmp_path / "outside").iterdir()) == ["file"]


def test_a_link_is_removed_and_moved_as_a_link(top: Folder, tmp_path: Path) -> None:
    with top.folder(("a",)) as folder:
        top.move("out", folder, "moved")
    assert (tmp_path / "top" / "a" / "moved").is_symlink()
    with top.folder(("a",)) as folder:
        status = folder.status("moved")
        assert status is not None
        assert stat.S_ISLNK(status.st_mode)
        folder.remove("moved")
        folder.remove("moved")
        assert folder.status("moved") is None
    assert (tmp_path / "outside" / "file").read_bytes() == b"mine"


def test_rights_are_given_to_a_folder_and_to_nothing_behind_a_link(
    top: Folder, tmp_path: Path
) -> None:
    (tmp_path / "top" / "closed").mkdir(mode=0)
    make_accessible("closed", top.descriptor)
    assert (tmp_path / "top" / "closed").stat().st_mode & 0o777 == 0o700
    (tmp_path / "outside").chmod(0o500)
    for name in ("out", "file", "missing"):
        with pytest.raises(OSError, match=r"."):
            make_accessible(name, top.descriptor)
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o500


def test_no_program_inherits_a_descriptor(top: Folder) -> None:
    descriptor = top.open(("file",), os.O_RDONLY)
    try:
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_everything_below_is_seen_once_and_no_link_is_entered(top: Folder) -> None:
    with closing(top.walk()) as entries:
        paths = ["/".join(path) for path, _, _ in entries]
    assert sorted(paths) == [
        "a", "a/b", "a/b/file", "a/in", "a/to-file", "file", "out",
    ]  # fmt: skip


def test_every_descriptor_is_closed(top: Folder) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("a/b", "a/in", "out/file", "file/x", "new/folder"):
        for call in (top.folder, top.make_folders):
            try:
                made = call(path.split("/"))
            except OSError:
                continue
            (made if isinstance(made, Folder) else made[0]).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

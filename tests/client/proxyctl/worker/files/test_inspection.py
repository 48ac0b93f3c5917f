"""Only content that an archive can become is accepted of a folder that another process filled."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.base.trees import make_deep

from proxyctl.worker.base.beneath import Folder
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.files import inspection
from proxyctl.worker.files.archives import ArchiveError
from proxyctl.worker.files.inspection import inspect


def inspected(folder: Path, max_bytes: int = 1_000, owner: tuple[int, int] | None = None) -> int:
    with Folder.at(folder) as opened:
        return inspect(opened, max_bytes, owner)


def test_files_folders_and_links_inside_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(bytes(600))
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(400))
    (tmp_path / "a" / "b" / "up").symlink_to("../file")
    (tmp_path / "a").chmod(0o2755)  # as below a folder of the owner's with that bit
    assert inspected(tmp_path) == 1_000
    with pytest.raises(ArchiveError, match="more than 999 bytes"):
        inspected(tmp_path, 999)


def test_everything_gets_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "link").symlink_to("file")
    inspected(tmp_path, owner=(61_234, 61_235))
    for path in (tmp_path, *tmp_path.rglob("*")):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (61_234, 61_235)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _second_name(path: Path) -> None:
    path.touch()
    os.link(path, f"{path}2")


def _file(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.touch()
        path.chmod(mode)

    return make


def _folder(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return make


OTHER_THINGS: dict[str, Callable[[Path], None]] = {
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "a second name": _second_name,
    "setuid": _file(0o4755),
    "setgid": _file(0o2755),
    "sticky": _file(0o1644),
    "for all to write": _file(0o666),
    "a folder with setuid": _folder(0o4755),
    "a sticky folder": _folder(0o1755),
    "a folder for all to write": _folder(0o777),
    "a closed folder": _folder(0o000),
    "a name of more than one line": lambda path: path.with_name("a\nthing").touch(),
    "a link out": lambda path: path.symlink_to("../../etc"),
    "an absolute link": lambda path: path.symlink_to("/etc/passwd"),
    "up behind a name": lambda path: path.symlink_to("a/../../x"),
}


@pytest.mark.parametrize("name", OTHER_THINGS)
def test_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    OTHER_THINGS[name](tmp_path / "x" / "thing")
    with pytest.raises(ArchiveError, match=r"thing2? (has become|is a link out|is not a name)"):
        inspected(tmp_path)


def test_too_many_and_too_deep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "/".join("abcdefghij")).mkdir(parents=True)
    for limit in ("MEMBERS_MAX", "DEPTH_MAX"):
        with monkeypatch.context() as patched:
            patched.setattr(inspection, limit, 9)
            with pytest.raises(ArchiveError, match="too many files, or folders too deep"):
                inspected(tmp_path)
    assert inspected(tmp_path) == 0


def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    make_deep(tmp_path, "a" * 250, 20)
    with pytest.raises(ArchiveError, match="is not a name for every system"):
        inspected(tmp_path)


def test_a_file_system_without_rights_is_no_fault_of_the_archive(tmp_path: Path) -> None:
    """Some show each file as everybody's."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777)
    assert inspected(tmp_path) == 0


def test_a_tree_that_is_deeper_than_any_path_is_refused(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top, "a", 3_000)
    try:
        with pytest.raises(ArchiveError, match="too deep"):
            inspected(top)
    finally:
        remove_tree(top)  # pytest could not

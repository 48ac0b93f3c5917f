import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.base.pythons import CLIENT
from support.base.trees import make_deep

from proxyctl.files import FileError
from proxyctl.worker.base.scratch import remove_tree


def test_a_tree_that_is_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top, "a" * 20, 3_000)
    remove_tree(top)
    assert not top.exists()


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    top = tmp_path / "top"
    (top / "in").mkdir(parents=True)
    (top / "in" / "link").symlink_to(kept)
    (top / "link").symlink_to(kept)
    os.mkfifo(top / "fifo")
    (top / "in" / b"\xff\n".decode("utf-8", "surrogateescape")).write_text("x")
    (top / ".1").mkdir()
    (top / "in" / "deep").mkdir()
    (top / "in" / "deep").chmod(0)
    (top / "in").chmod(0)
    remove_tree(top)
    assert not top.exists()
    assert (kept / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to(kept)
    remove_tree(tmp_path / "link")
    assert kept.exists()
    remove_tree(tmp_path / "link")


def test_the_folder_of_a_tree_may_be_behind_a_link_of_the_owners(tmp_path: Path) -> None:
    (tmp_path / "large-disk" / "tree" / "a").mkdir(parents=True)
    (tmp_path / "attempts").symlink_to("large-disk")
    remove_tree(tmp_path / "attempts" / "tree")
    remove_tree(tmp_path / "missing" / "tree")
    assert list((tmp_path / "large-disk").iterdir()) == []


def test_one_folder_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    """Such as a folder of root's, which an engine has made there."""
    top = tmp_path / "top"
    for name in ("a", "b/deep", "c", "z/deep"):
        (top / name).mkdir(parents=True)
        (top / name / "file").write_text("x")
    kept = top / "b" / "deep"
    with immutable(kept), pytest.raises(FileError, match="cannot be removed"):
        remove_tree(top)
    assert [each.name for each in tmp_path.rglob("*") if not each.is_dir()] == ["file"]
    assert sorted(each.name for each in top.iterdir()) == ["b"]
    remove_tree(top)
    assert not top.exists()


@contextmanager
def immutable(folder: Path) -> Iterator[None]:
    """Make a folder immutable, also for root."""
    done = subprocess.run(["chattr", "+i", str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this file system or user cannot make a folder immutable")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


def test_an_empty_folder_of_another_user_is_removed(public: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (public / "tree" / "work" / "of-root").mkdir(parents=True)
    for each in (public, public / "tree", public / "tree" / "work"):
        os.chown(each, 61_234, 61_234)
    _remove_as(61_234, public / "tree")
    assert list(public.iterdir()) == []


def _remove_as(uid: int, tree: Path) -> None:
    program = (
        "import os, pathlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "from proxyctl.worker.base.scratch import remove_tree\n"
        "os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))\n"
        "remove_tree(pathlib.Path(sys.argv[2]))\n"
    )
    subprocess.run([sys.executable, "-c", program, CLIENT, str(tree), str(uid)], check=True)


def test_a_process_that_swaps_folders_for_links_has_nothing_else_removed(tmp_path: Path) -> None:
    """A job on an unreachable node of a cluster could outlive its end and do that."""
    documents = tmp_path / "documents"
    (documents / "deep").mkdir(parents=True)
    (documents / "deep" / "file").write_text("mine")
    top = tmp_path / "top"
    top.mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in ("a", "b"):
                with suppress(OSError):
                    (top / name / "deep").mkdir(parents=True)
                with suppress(OSError):
                    (top / name).rename(top / f"{name}-aside")
                    (top / name).symlink_to(documents)
                with suppress(OSError):
                    (top / name).unlink()
                    (top / f"{name}-aside").rename(top / name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            with suppress(FileError):
                remove_tree(top)
            top.mkdir(exist_ok=True)
    finally:
        stop.set()
        thread.join()
    assert (documents / "deep" / "file").read_text() == "mine"

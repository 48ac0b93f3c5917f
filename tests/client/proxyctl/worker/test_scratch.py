import os
from pathlib import Path

from proxyctl.worker.scratch import remove_tree


def test_a_tree_that_is_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for _ in range(3_000):
            Path("a" * 20).mkdir()
            os.chdir("a" * 20)
    finally:
        os.fchdir(here)
        os.close(here)
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

"""Notices through named pipes, and signs in the folder of nodes that have ended."""

import os
import resource
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.base.cases import cases

from storage.engines.errors import CannotOpenError
from storage.engines.node_folder import NodeFolder, checked, lock_within

ROOT = Path(__file__).parent.parent.parent.parent
PROGRAM = """
import sys
from pathlib import Path
from storage.engines.node_folder import NodeFolder
NodeFolder(Path(sys.argv[1])).open_pipe(sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


def read_all(pipe: int) -> list[str]:
    """Return the notices that a pipe holds."""
    data = b""
    while select.select([pipe], [], [], 0)[0]:
        data += os.read(pipe, 65_536)
    return [line for line in data.decode().split("\n") if line]


def test_only_its_owner_reads_the_folder(folder: NodeFolder) -> None:
    folder.make()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    os.close(folder.open_pipe("here"))
    assert stat.S_IMODE((folder.path / "here.pipe").stat().st_mode) == 0o600


def test_a_place_for_it_that_is_taken_is_named(tmp_path: Path) -> None:
    (tmp_path / "proxyd.db.nodes").touch()
    with pytest.raises(CannotOpenError, match=r"proxyd\.db\.nodes"):
        NodeFolder(tmp_path / "proxyd.db").make()


def test_a_path_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    folder = NodeFolder(deep / "proxyd.db")
    folder.make()
    pipe = folder.open_pipe("here")
    folder.post(["a notice"])
    assert read_all(pipe) == ["a notice"]
    os.close(pipe)


def test_notices_of_many_writers_at_once_arrive_whole(folder: NodeFolder) -> None:
    pipes = [folder.open_pipe(name) for name in ("one", "two")]
    texts = [[f"{writer}-{number}-" + 150 * "x" for number in range(50)] for writer in range(8)]
    writers = [threading.Thread(target=folder.post, args=(each,)) for each in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for pipe in pipes:
        notices = read_all(pipe)
        assert sorted(notices) == sorted(text for each in texts for text in each)
        for each in texts:
            assert [notice for notice in notices if notice in each] == each
        os.close(pipe)


@cases("text", ["two\nlines", "x" * select.PIPE_BUF])
def test_a_notice_that_might_be_torn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        checked(text)


def test_a_node_that_does_not_read_misses_notices_learns_it_and_holds_up_no_other(
    folder: NodeFolder,
) -> None:
    slow, brisk = folder.open_pipe("slow"), folder.open_pipe("brisk")
    heard = 0
    while not (folder.path / "slow.missed").exists():
        folder.post(["x" * 4_000] * 10)
        heard += len(read_all(brisk))
    folder.post(["last"])
    assert read_all(brisk) == ["last"]
    assert heard % 10 == 0
    assert not folder.take_missed("brisk")
    # Emptied, it is noted still; and once it was taken, the next notices arrive.
    assert len(read_all(slow)) < heard
    assert folder.take_missed("slow")
    assert not folder.take_missed("slow")
    folder.post(["again"])
    assert read_all(slow) == ["again"]
    os.close(slow)
    os.close(brisk)


def test_a_reader_that_empties_its_pipe_before_the_note_is_there_is_woken(
    folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = folder.open_pipe("here")
    note = folder._note_missed

    def empty_first(node_id: str) -> None:
        read_all(pipe)
        note(node_id)

    monkeypatch.setattr(folder, "_note_missed", empty_first)
    while not (folder.path / "here.missed").exists():
        folder.post(["x" * 4_000] * 10)
    assert select.select([pipe], [], [], 0)[0]
    os.close(pipe)


def test_notices_without_descriptors_reach_no_node_and_are_noted(
    folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = folder.open_pipe("here")
    folder.post(["first"])
    assert read_all(pipe) == ["first"]

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("storage.engines.node_folder.os.open", refuse)
        patch.setattr(Path, "iterdir", refuse)
        folder.post(["second"])
    assert read_all(pipe) == []
    assert folder.take_missed("here")
    os.close(pipe)


def test_a_pipe_that_cannot_be_made_leaves_nothing_and_is_made_later(folder: NodeFolder) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))  # as if all were in use
    try:
        with pytest.raises(OSError, match="Too many open files"):
            folder.open_pipe("here")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert list(folder.path.iterdir()) == []
    os.mkfifo(folder.path / ".here")  # as one leaves it that is killed in the middle
    os.close(folder.open_pipe("here"))
    assert [each.name for each in folder.path.iterdir()] == ["here.pipe"]


def test_a_process_that_was_killed_is_seen_at_once_and_one_that_lives_is_not(
    folder: NodeFolder, tmp_path: Path
) -> None:
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "proxyd.db"), name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("living", "killed", "other")
    }
    try:
        for process in processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
        assert folder.look() == ({"living", "killed", "other"}, set())
        for name in ("killed", "other"):
            processes[name].kill()
            processes[name].wait()
        folder.post(["a notice"])  # to no reader
        assert folder.look() == ({"living"}, {"killed", "other"})
        folder.remove_pipe("other")
        assert folder.look() == ({"living"}, {"killed"})
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def test_a_lock_is_waited_for_within_a_limit(folder: NodeFolder) -> None:
    first, second = folder.open_lock("turn"), folder.open_lock("turn")
    assert lock_within(0, first, step_seconds=0.001)
    assert not lock_within(0.01, second, step_seconds=0.001)
    os.close(first)
    assert lock_within(0, second, step_seconds=0.001)
    os.close(second)

"""Writers of several processes take turns."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.base.waiting import until_true

from storage.engines.node_folder import NodeFolder
from storage.engines.write_gate import PATIENCE_SECONDS, WriteGate

ROOT = Path(__file__).parent.parent.parent.parent
PROGRAM = """
import sys
from pathlib import Path
from storage.engines.node_folder import NodeFolder
from storage.engines.write_gate import WriteGate
with WriteGate.of_members(NodeFolder(Path(sys.argv[1]))).entered():
    print("in", flush=True)
    sys.stdin.read()
"""


def is_locked(folder: NodeFolder, name: str) -> bool:
    descriptor = folder.open_lock(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_unit_that_has_just_written_does_not_pass_the_waiting_one(folder: NodeFolder) -> None:
    busy, patient = WriteGate.of_members(folder), WriteGate.of_members(folder)
    order = []

    def write() -> None:
        with patient.entered():
            order.append("patient")

    waiting = threading.Thread(target=write)
    with busy.entered():
        waiting.start()
        until_true(lambda: is_locked(folder, "next"), "it is next")
    with busy.entered():
        order.append("busy")
    waiting.join()
    assert order == ["patient", "busy"]
    busy.close()
    patient.close()


@pytest.mark.parametrize("name", ["next", "turn"])
def test_a_process_that_hangs_is_passed_once_and_waited_for_no_more(
    folder: NodeFolder, name: str
) -> None:
    gates = [WriteGate.of_members(folder), WriteGate.of_members(folder)]
    hanging = folder.open_lock(name)
    fcntl.flock(hanging, fcntl.LOCK_EX)
    for gate in gates:
        gate.patience_seconds = 0.01
        with gate.entered():
            pass
    # They share one gate again, and wait for each other there, not for the hanging unit.
    for gate in gates:
        gate.patience_seconds = 1_000.0
    with gates[0].entered():
        assert is_locked(folder, "turn")
    with gates[1].entered():
        assert is_locked(folder, "turn")
    for gate in gates:
        gate.close()
    os.close(hanging)


def test_a_unit_that_waits_behind_many_takes_none_of_them_for_one_that_hangs(
    folder: NodeFolder, caplog: pytest.LogCaptureFixture
) -> None:
    patient, ahead = WriteGate.of_members(folder), threading.Event()

    def wait() -> None:
        with patient.entered():
            ahead.set()

    # As if others were quicker each time: the lock is never free for the waiting process, and moves
    # on.
    first = folder.open_lock("next")
    fcntl.flock(first, fcntl.LOCK_EX)
    waiting = threading.Thread(target=wait)
    waiting.start()
    deadline = time.monotonic() + 1.5 * PATIENCE_SECONDS
    while time.monotonic() < deadline:
        os.utime(first)
        assert not ahead.wait(0.02)
    os.close(first)
    waiting.join()
    patient.close()
    assert ahead.is_set()
    assert caplog.messages == []


def test_one_that_was_passed_takes_turns_with_the_others_again(folder: NodeFolder) -> None:
    slow, other = WriteGate.of_members(folder), WriteGate.of_members(folder)
    other.patience_seconds = 0.01
    with slow.entered():
        with other.entered():
            pass
        assert not is_locked(folder, "turn")  # it has a file of its own
    with slow.entered():
        assert is_locked(folder, "turn")
    slow.close()
    other.close()


def test_the_gate_stands_while_its_folder_is_missing_and_is_one_again_afterwards(
    folder: NodeFolder,
) -> None:
    gates = [WriteGate.of_members(folder), WriteGate.of_members(folder)]
    shutil.rmtree(folder.path)
    for gate in gates:
        with gate.entered():
            pass
    folder.make()
    for gate in gates:
        with gate.entered():
            assert is_locked(folder, "turn")
    for gate in gates:
        gate.close()


def test_the_turn_of_a_process_that_is_killed_is_over(folder: NodeFolder, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "proxyd.db")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        assert is_locked(folder, "turn")
        process.kill()
        process.wait()
    gate = WriteGate.of_members(folder)
    with gate.entered():
        pass
    gate.close()


def test_a_failed_write_ends_the_turn(folder: NodeFolder) -> None:
    first, second = WriteGate.of_members(folder), WriteGate.of_members(folder)
    with pytest.raises(LookupError):
        with first.entered():
            raise LookupError
    with second.entered():
        pass
    first.close()
    second.close()


def test_a_program_beside_the_processes_takes_turns_and_makes_no_files(
    folder: NodeFolder,
) -> None:
    assert WriteGate.of_a_guest(folder) is None
    assert list(folder.path.iterdir()) == []
    member, guest = WriteGate.of_members(folder), WriteGate.of_a_guest(folder)
    assert guest is not None
    with guest.entered():
        assert is_locked(folder, "turn")
    guest.patience_seconds = 0.01
    kept = (folder.path / "turn").stat().st_ino
    with member.entered(), guest.entered():  # it writes for longer than a guest waits
        assert (folder.path / "turn").stat().st_ino == kept
    member.close()
    guest.close()


def test_a_gate_of_which_half_cannot_be_opened_leaves_nothing_open(folder: NodeFolder) -> None:
    (folder.path / "next").touch()
    (folder.path / "turn").mkdir()
    with pytest.raises(IsADirectoryError):
        WriteGate.of_members(folder)
    assert WriteGate.of_a_guest(folder) is None
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert str(folder.path / "next") not in opened

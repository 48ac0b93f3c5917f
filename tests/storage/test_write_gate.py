"""Writers of several processes take turns."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.waiting import until_true

from storage.errors import UnavailableError
from storage.node_folder import NodeFolder
from storage.write_gate import WriteGate

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import sys
from pathlib import Path
from storage.node_folder import NodeFolder
from storage.write_gate import WriteGate
with WriteGate(NodeFolder(Path(sys.argv[1])), 5.0).entered():
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    made = NodeFolder(tmp_path / "proxyd.db")
    made.make()
    return made


def is_locked(folder: NodeFolder, name: str) -> bool:
    descriptor = folder.open_lock(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_who_has_just_written_does_not_pass_the_one_that_waits(folder: NodeFolder) -> None:
    busy, patient = WriteGate(folder, 5.0), WriteGate(folder, 5.0)
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


def test_a_turn_that_does_not_end_fails_the_others_and_blocks_nobody(folder: NodeFolder) -> None:
    hanging, late = WriteGate(folder, 5.0), WriteGate(folder, 0.01)
    with hanging.entered():
        with pytest.raises(UnavailableError, match="too long"):
            with late.entered():
                raise AssertionError("it was let in")
        assert not is_locked(folder, "next")
    with late.entered():
        pass
    hanging.close()
    late.close()


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
    gate = WriteGate(folder, 0.0)
    with gate.entered():
        pass
    gate.close()


def test_a_failed_write_ends_the_turn(folder: NodeFolder) -> None:
    first, second = WriteGate(folder, 0.0), WriteGate(folder, 0.0)
    with pytest.raises(LookupError):
        with first.entered():
            raise LookupError
    with second.entered():
        pass
    first.close()
    second.close()

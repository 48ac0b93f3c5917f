"""Processes of a sandbox, seen from outside: the first process, and the processes inside.

Whether a process is inside is read from the kernel, by its numbers in the namespaces of processes
that it is in; the words of a job, above all its command line, prove nothing.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.base.signals import send

if TYPE_CHECKING:
    from collections.abc import Iterable

BIRTH_SECONDS: Final = 10.0  # until the sandbox's own process 1 is there, on a busy machine
STEP_SECONDS: Final = 0.01
_DEPTH: Final = 3  # namespaces of processes: the machine's, the one around a sandbox, and its own


def first_process(pid: int) -> int:
    """Return process 1 of the sandbox that a process becomes.

    Args:
        pid: the process that the supervisor has started.

    Raises:
        TaskError: it does not exist; the sandbox could not be made, or the job has ended already.
    """
    deadline = time.monotonic() + BIRTH_SECONDS
    while time.monotonic() < deadline:
        for each in family((pid,)):
            if is_first(Path("/proc", str(each))):
                return each
        if not Path("/proc", str(pid)).exists():
            break
        time.sleep(STEP_SECONDS)
    raise TaskError("host", "the sandbox did not start; what it said is in the job's log")


def ask(pid: int) -> None:
    """Send SIGTERM to all that is inside the sandbox that a process is the outermost one of.

    Sent to that process itself, the sandbox would be gone at once, and with it the time of grace.
    """
    for each in family((pid,)):
        if is_inside(each):
            send(each, signal.SIGTERM, is_inside)


def is_inside(pid: int) -> bool:
    """Return whether a process is inside a sandbox, and not the first one there."""
    return _depth_and_number(Path("/proc", str(pid)))[1] > 1


def is_outside(pid: int) -> bool:
    """Return whether a process is in no namespace but the machine's."""
    return _depth_and_number(Path("/proc", str(pid)))[0] == 1


def is_first(folder: Path) -> bool:
    """Return whether a process, named by its folder in /proc, is process 1 of a sandbox."""
    depth, number = _depth_and_number(folder)
    return depth >= _DEPTH and number == 1


def is_alive(folder: Path) -> bool:
    """Return whether a process, named by its folder in /proc, runs; a zombie does not."""
    with suppress(OSError):
        state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
        return state not in (b"Z", b"X", b"x")
    return False


def user_of(folder: Path) -> int:
    """Return the user of a process, named by its folder in /proc; -1 of one that is gone."""
    with suppress(OSError, ValueError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return -1


def _depth_and_number(folder: Path) -> tuple[int, int]:
    """Return in how many namespaces of ours a process has a number, and the innermost one."""
    with suppress(OSError, ValueError):
        for line in (folder / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                numbers = line.split()[1:]
                return len(numbers), int(numbers[-1]) if len(numbers) > 1 else 0
    return 0, 0


def children(pid: int) -> list[int]:
    """Return the children of a process; none of one that is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():  # each has those that it has started
            with suppress(OSError):
                text = (thread / "children").read_text()
                found += [int(each) for each in text.split()]
    return found


def family(pids: Iterable[int]) -> list[int]:
    """Return processes with all their descendants."""
    waiting, members = list(pids), []
    while waiting:
        pid = waiting.pop()
        members.append(pid)
        waiting += children(pid)
    return members

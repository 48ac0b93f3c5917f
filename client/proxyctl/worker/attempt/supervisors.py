"""The supervisors of attempts, as the agent starts them: one waits in advance.

The next one is started when the agent has nothing urgent to do: an interpreter that starts takes
the processor for as long as a job that is small would have needed.

So a job starts in the time of a fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import proxyctl
from proxyctl import files
from proxyctl.worker.base import names
from proxyctl.worker.task.processes import Identity

# The environment and the packages of the agent's user have no influence on it.
_PROGRAM: Final = """\
import sys
sys.path.insert(0, {root!r})
from proxyctl.worker.attempt.supervisor import main
main()
"""


class Supervisors:
    """Starts supervisors; they outlive the agent, except for the one that waits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._started: dict[Path, subprocess.Popen[bytes]] = {}  # by the folder of the attempt
        self._waiting: subprocess.Popen[bytes] | None = self._start()

    def give(self, folder: Path) -> None:
        """Start the attempt in a folder.

        Raises:
            OSError: no supervisor can be started.
        """
        line = os.fsencode(folder) + b"\n"
        with self._lock:
            supervisor, self._waiting = self._waiting, None
            # None waits if two jobs come in one moment, or if the waiting supervisor was killed.
            if supervisor is None or supervisor.poll() is not None:
                supervisor = self._start()
            self._started[folder] = supervisor
            _tell(supervisor, line)

    def has_ended(self, folder: Path) -> bool:
        """Return whether the supervisor of the attempt in a folder has ended."""
        with self._lock:
            supervisor = self._started.get(folder)
            return supervisor is None or supervisor.poll() is not None

    def replenish(self) -> None:
        """Start another supervisor that waits; if that fails, the next attempt gets the reason."""
        with self._lock, suppress(OSError):
            if self._waiting is None:
                self._waiting = self._start()

    def reap(self) -> int:
        """Collect the supervisors that have ended; return the number of running ones."""
        with self._lock:
            self._started = {
                folder: each for folder, each in self._started.items() if each.poll() is None
            }
            return len(self._started)

    def close(self) -> None:
        """End the waiting supervisor; supervisors with an attempt stay."""
        with self._lock:
            if self._waiting is not None:
                _tell(self._waiting, b"")
                self._waiting.wait()
                self._waiting = None
            for each in self._started.values():
                each.poll()
                each.returncode = each.returncode or 0  # it is no longer ours to wait for
            self._started = {}

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(proxyctl.__file__).parent.parent)
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", "-c", _PROGRAM.format(root=root)],
            stdin=subprocess.PIPE,
            cwd=self._folder,
            env={},
            start_new_session=True,
            bufsize=0,
        )


def is_running(folder: Path) -> bool:
    """Return whether the attempt in a folder runs, in the care of its supervisor.

    Raises:
        FileError: that cannot be read.
    """
    path = folder / names.BEGUN
    # An empty file was left by a supervisor that a loss of power ended.
    begun = None if files.is_empty(path) else files.read(path)
    if not begun or files.read(folder / names.ENDED) is not None:
        return False
    return Identity.of_fields(begun).is_alive()


def _tell(supervisor: subprocess.Popen[bytes], line: bytes) -> None:
    assert supervisor.stdin is not None  # noqa: S101 - it was asked for
    with supervisor.stdin as file:
        if line:
            file.write(line)

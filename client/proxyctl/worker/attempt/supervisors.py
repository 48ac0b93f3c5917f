"""The supervisors of attempts, as the agent starts them: one waits in advance, with a sandbox.

The next one is started when the agent has nothing urgent to do: an interpreter that starts takes
the processor for as long as a job that is small would have needed.

So a job starts in the time of its own program.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import proxyctl
from proxyctl import files
from proxyctl.worker.base import names
from proxyctl.worker.base.scratch import remove_tree
from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.task.processes import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.worker.attempt.ready import Ready
    from proxyctl.worker.executors.base.base import Task

_logger = logging.getLogger("worker")

# A sandbox has files of the machine as they were when it was made, and the next one is better.
_READY_SECONDS: Final = 600.0
_AGAIN_SECONDS: Final = 60.0  # after a sandbox that could not be made, or has ended by itself
# Sandboxes whose rest is not removed. With more of them none waits, and jobs start without one.
_LEFT_MAX: Final = 64
# A failed removal may have waited long for processes that do not end. Many of them in one round
# would keep the agent from its signals for minutes.
_ROUND_SECONDS: Final = 1.0

_Entry = TypeVar("_Entry")

# The environment and the packages of the agent's user have no influence on it.
_PROGRAM: Final = """\
import sys
sys.path.insert(0, {root!r})
from proxyctl.worker.attempt.supervisor import main
main()
"""


class Supervisors:
    """Starts supervisors; they outlive the agent, except for the one that waits.

    Args:
        folder: of the agent.
        make_ready: makes sandboxes that wait; None for none.
        ready_seconds: that a sandbox waits, before another one takes its place.
    """

    def __init__(
        self,
        folder: Path,
        make_ready: Callable[[], Ready] | None = None,
        *,
        ready_seconds: float = _READY_SECONDS,
    ) -> None:
        self._folder = folder
        self._ready_seconds = ready_seconds
        self._make_ready = make_ready
        self._lock = threading.Lock()
        self._started: dict[Path, subprocess.Popen[bytes]] = {}  # by the folder of the attempt
        self._ready: Ready | None = None  # of the supervisor that waits
        self._left: list[Ready] = []  # that no attempt has taken, to be removed
        # Sandboxes whose rest is to be removed, each with the folder of its attempt.
        self._taken: list[tuple[Ready, Path]] = []
        self._make_at = 0.0  # monotonic: not before
        self._retire_at = 0.0
        remove_tree(folder / names.READY)  # an agent before has left it; its sandbox has ended
        self._waiting: subprocess.Popen[bytes] | None = self._start()

    def places(self) -> set[str]:
        """Return the names of the sandboxes that no attempt has taken."""
        with self._lock:
            return {each.name for each in (*self._left, self._ready) if each is not None}

    def take(
        self, folder: Path, task: Task, attempt_id: str, note: Callable[[str], None]
    ) -> tuple[Ready, str] | None:
        """Take the sandbox that waits, with its supervisor.

        Args:
            folder: of the attempt.
            task: of the attempt.
            attempt_id: the name of the attempt.
            note: is called with the name of the sandbox before that leaves `places`.

        Returns:
            The sandbox, and its orders; None if none waits that fits.

        Raises:
            TaskError: the task is impossible.
        """
        with self._lock:
            ready, supervisor = self._ready, self._waiting
            if ready is None or supervisor is None or supervisor.poll() is not None:
                return None
            if not ready.is_made:
                return None
            orders = ready.orders(task, attempt_id)
            if orders is None:
                return None
            note(ready.name)
            self._taken.append((ready, folder))
            self._ready = self._waiting = None
            self._make_at = 0.0
            self._started[folder] = supervisor
            return ready, orders

    def give(self, folder: Path, *, has_taken: bool = False) -> None:
        """Start the attempt in a folder.

        Args:
            folder: of the attempt.
            has_taken: whether the attempt has a supervisor by `take`.

        Raises:
            OSError: no supervisor can be started.
        """
        with self._lock:
            supervisor = self._started.get(folder) if has_taken else self._fresh()
            if supervisor is not None:  # else it was killed, which the attempt finds
                self._started[folder] = supervisor
                _tell(supervisor, os.fsencode(folder) + b"\n")

    def _fresh(self) -> subprocess.Popen[bytes]:
        """Return the supervisor that waits, or another one; it ends its sandbox, if it has one."""
        supervisor, self._waiting = self._waiting, None
        self._put_away()
        self._make_at = 0.0
        # None waits if two jobs come in one moment, or if the waiting supervisor was killed.
        if supervisor is None or supervisor.poll() is not None:
            supervisor = self._start()
        return supervisor

    def has_ended(self, folder: Path) -> bool:
        """Return whether the supervisor of the attempt in a folder has ended."""
        with self._lock:
            supervisor = self._started.get(folder)
            return supervisor is None or supervisor.poll() is not None

    def replenish(self) -> None:
        """Have a supervisor wait, with a sandbox; the next attempt gets the reason of a failure."""
        with self._lock:
            self._retire(time.monotonic())
        self._remove_left()
        with self._lock, suppress(OSError):
            if self._waiting is None:
                self._waiting = self._start()
            has_room = len(self._left) + len(self._taken) < _LEFT_MAX
            if self._ready is None and has_room and time.monotonic() >= self._make_at:
                self._begin_ready(self._waiting)

    def _begin_ready(self, supervisor: subprocess.Popen[bytes]) -> None:
        """Have the supervisor that waits make a sandbox."""
        if self._make_ready is None:
            return
        ready = self._ready = self._make_ready()  # in `places` before anything of it is there
        now = time.monotonic()
        self._make_at, self._retire_at = now + _AGAIN_SECONDS, now + self._ready_seconds
        try:
            line = ready.prepare()
        except (OSError, TaskError) as error:
            _logger.warning("no sandbox waits for a job: %s", error)
            self._put_away()
            return
        if line is None:
            self._put_away()
            self._make_ready = None
        else:
            _say(supervisor, line)

    def _retire(self, now: float) -> None:
        """Put a sandbox away that has waited for too long, or has ended by itself."""
        supervisor = self._waiting
        if supervisor is None or self._ready is None:
            return
        if supervisor.poll() is not None:
            _logger.warning("the sandbox that waited for a job has ended")
        elif now >= self._retire_at:
            _tell(supervisor, b"")
            self._started[Path(self._ready.name)] = supervisor  # until it has ended
            self._make_at = now
        else:
            return
        self._waiting = None
        self._put_away()

    def _put_away(self) -> None:
        if self._ready is not None:
            self._left.append(self._ready)
            self._ready = None

    def _remove_left(self) -> None:
        """Remove the sandboxes that no attempt has taken, and the rest of the others."""
        self._remove_all(self._left, lambda ready: ready.remove)
        self._remove_all(self._taken, self._removal_of_taken)

    def _remove_all(
        self, entries: list[_Entry], removal_of: Callable[[_Entry], Callable[[], None] | None]
    ) -> None:
        """Carry out the removals of a list; None is one that must wait.

        A failure is tried again after the others. A late failure ends the round.
        """
        with self._lock:
            tried = list(entries)
        end = time.monotonic() + _ROUND_SECONDS
        for entry in tried:
            remove = removal_of(entry)
            if remove is None:
                continue
            is_done = _is_done(remove)
            with self._lock:
                entries.remove(entry)
                if not is_done:
                    entries.append(entry)
            if not is_done and time.monotonic() >= end:
                break

    def _removal_of_taken(self, entry: tuple[Ready, Path]) -> Callable[[], None] | None:
        ready, folder = entry
        if ready.is_settled:
            return ready.remove_rest
        if folder.exists():
            return None
        # The attempt ended before its sandbox was settled, and never settles it.
        self._dismiss(folder)
        return ready.remove

    def _dismiss(self, folder: Path) -> None:
        """End the supervisor of an attempt that never started it."""
        with self._lock:
            supervisor = self._started.get(folder)
            if supervisor is not None and supervisor.stdin and not supervisor.stdin.closed:
                _tell(supervisor, b"")

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
            self._put_away()
            for each in self._started.values():
                each.poll()
                each.returncode = each.returncode or 0  # it is no longer ours to wait for
            self._started = {}
        self._remove_left()

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


def _is_done(remove: Callable[[], None]) -> bool:
    """Remove something of a sandbox; False after a failure, which is logged."""
    try:
        remove()
    except (OSError, files.FileError, TaskError) as error:
        _logger.warning("a sandbox that waited cannot be removed: %s", error)
        return False
    return True


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


def _say(supervisor: subprocess.Popen[bytes], line: bytes) -> None:
    """Send a line to a supervisor; one that was killed is found to have ended."""
    assert supervisor.stdin is not None  # noqa: S101 - it was asked for
    with suppress(BrokenPipeError):
        view = memoryview(line)
        while view:
            view = view[supervisor.stdin.write(view) :]


def _tell(supervisor: subprocess.Popen[bytes], line: bytes) -> None:
    """Send the last line to a supervisor."""
    assert supervisor.stdin is not None  # noqa: S101 - it was asked for
    with supervisor.stdin:
        _say(supervisor, line)

"""Runs at the agent's side: lets a job on a node begin, shows its output, and ends as it ends.

The supervisor starts this as it would start the job itself, so that to the agent the two are one:
the output here is the job's log, and a signal to this process is for the job.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxyctl import files
from proxyctl.worker.attempt.supervisor import write
from proxyctl.worker.base import names
from proxyctl_clusters.slurm import slurm_calls
from proxyctl_clusters.slurm.slurm import GO, LOST, OVER_FILE, RUN
from proxyctl_clusters.slurm.slurm_calls import OVER, SlurmError

if TYPE_CHECKING:
    from types import FrameType

_READ_BYTES: Final = 1 << 18
# A job that prints is looked at often, and one that does not, ten times a second at most.
_LOOK_SECONDS: Final = 0.005
_LOOK_MAX_SECONDS: Final = 0.1
_ASK_SECONDS: Final = 5.0  # between two questions to Slurm about the job
# The delay of a slow shared folder between a node's last write and a read here.
_LATE_SECONDS: Final = 5.0
_GONE: Final = "GONE"  # the controller has forgotten it, minutes after its end
_TOLD_SECONDS: Final = 20.0  # for the supervisor to end this once the time of the job is over


class Client:
    """Client of one Slurm job, from the start order to its end.

    Args:
        exchange: the folder that both sides have.
        name: of Slurm's job.
    """

    def __init__(self, exchange: Path, name: str) -> None:
        self._exchange = exchange
        self._name = name
        self._is_asked = False
        self._logs = [
            _Log(exchange / RUN / names.LOGS[stream], number)
            for stream, number in (("out", 1), ("err", 2))
        ]

    def run(self) -> int:
        """Return the job's status; ends by the same signal where that has ended the job."""
        signal.signal(signal.SIGTERM, self._ask)
        launch = files.read(self._exchange.parent / names.LAUNCH)
        if launch is None:
            return 1
        told = ("seconds", "grace_s", "log_bytes")
        write(str(self._exchange / GO), {each: launch[each] for each in told})
        over = self._follow()
        if over is None:
            return 1
        ended = over["ended"]
        if ended.get("failed"):
            return 1
        self._show_rest(ended["log_kept"])
        if ended["timed_out"]:
            time.sleep(_TOLD_SECONDS)  # the supervisor of this side ends it, and says why
        if ended["signal"] is not None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with suppress(OSError):  # SIGKILL can be given no other meaning
                signal.signal(ended["signal"], signal.SIG_DFL)
            os.kill(os.getpid(), ended["signal"])
        return int(ended["status"] or 0)

    def _follow(self) -> dict[str, Any] | None:
        """Show the output; return the final report, or None if the job left none."""
        pause, gone_at = _LOOK_SECONDS, 0.0
        ask_at = time.monotonic() + _ASK_SECONDS
        while True:
            over = self._last_words()
            has_more = [each.show() for each in self._logs]  # of all, so no short circuit
            if over is not None:
                return over
            now = time.monotonic()
            if now >= ask_at:
                ask_at = now + _ASK_SECONDS
                state = self._state_if_over()
                if state and gone_at and now - gone_at >= _LATE_SECONDS:
                    write(str(self._exchange / LOST), {"state": state})
                    return None
                gone_at = (gone_at or now) if state else 0.0
            if self._is_asked:
                self._is_asked = not self._tell()
            pause = _LOOK_SECONDS if any(has_more) else min(pause * 1.5, _LOOK_MAX_SECONDS)
            time.sleep(pause)

    def _last_words(self) -> dict[str, Any] | None:
        try:
            return files.read(self._exchange / OVER_FILE)
        except files.FileError:  # a shared folder that is away for a moment
            return None

    def _show_rest(self, kept: dict[str, int]) -> None:
        """Show the present output, and wait for the part that a shared folder does not show yet."""
        deadline = time.monotonic() + _LATE_SECONDS
        sizes = (kept["out"], kept["err"])
        while time.monotonic() < deadline:
            for log in self._logs:
                while log.show():
                    pass
            if all(log.offset >= size for log, size in zip(self._logs, sizes)):
                return
            time.sleep(_LOOK_SECONDS)

    def _state_if_over(self) -> str:
        """Return the final state of the job; "" while it runs, or Slurm is away."""
        try:
            state = slurm_calls.last_state(self._name) or _GONE
        except SlurmError:
            return ""
        return state if state == _GONE or state in OVER else ""

    def _tell(self) -> bool:
        """Send the job a signal to end, through Slurm; return False if Slurm does not answer."""
        try:
            for number, state in slurm_calls.jobs(self._name).items():
                if state not in OVER:
                    slurm_calls.ask(number)
        except SlurmError:
            return False
        return True

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        self._is_asked = True


class _Log:
    """One stream of the job, and the position of the next byte to show.

    Attributes:
        offset: how many bytes that are.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.offset = 0
        self._path = path
        self._descriptor = descriptor

    def show(self) -> bool:
        """Show a piece of the output; return False if nothing is new."""
        try:
            # Opened again each time, because only then files in shared folders are as new as
            # possible.
            with self._path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(_READ_BYTES)
        except OSError:  # nothing was printed yet, or a shared folder is away for a moment
            return False
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.offset += len(data)
        return bool(data)


def main(arguments: list[str]) -> None:
    """Follow one job to its end."""
    os.umask(0o077)
    sys.exit(Client(Path(arguments[0]), arguments[1]).run())

"""Starts a launch as `executors/base/base.py` describes, in place of the supervisor."""

import fcntl
import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from proxyctl.worker.attempt.supervisor import step_down
from proxyctl.worker.executors.base.base import GATE, STATUS, Launch, Task
from support.base.waiting import until_true

LOG_MAX_BYTES = 64 << 20
ABOVE = 200  # descriptors on their way to their numbers, out of the way of all of those


class Started:
    """A program that was started: its process, and its output so far."""

    def __init__(self, pid: int, out: int, err: int) -> None:
        self.pid = pid
        self.out = bytearray()
        self.err = bytearray()
        self.status: int | None = None
        self._threads = [
            threading.Thread(target=_read, args=(descriptor, kept))
            for descriptor, kept in ((out, self.out), (err, self.err))
        ]
        for each in self._threads:
            each.start()

    def has_ended(self) -> bool:
        """Return whether it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def wait(self) -> int:
        """Wait for its end, and for its complete output."""
        until_true(self.has_ended, lambda: f"{self.out[-500:]!r} {self.err[-500:]!r}")
        for each in self._threads:
            each.join(20)
        assert self.status is not None
        return self.status


def start(task: Task, launch: Launch) -> Started:
    """Start it. The child creates the resources of the job, in the order of the page."""
    out, out_within = os.pipe()
    err, err_within = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(task, launch, out_within, err_within)
        except BaseException as error:  # noqa: BLE001 - said where the test looks
            os.write(err_within, f"not started: {error!r}\n".encode())
        os._exit(127)
    os.close(out_within)
    os.close(err_within)
    return Started(pid, out, err)


def _become(task: Task, launch: Launch, out: int, err: int) -> None:
    os.setsid()
    places = {0: os.open(os.devnull, os.O_RDONLY), 1: out, 2: err}
    for number, content in launch.files.items():
        places[number] = os.memfd_create("launch")
        os.write(places[number], content)
        os.lseek(places[number], 0, os.SEEK_SET)
    if launch.gate is not None:
        places[launch.gate] = os.open(task.folder / GATE, os.O_RDWR)
    if launch.status is not None:
        places[launch.status] = os.open(
            task.folder / STATUS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
    away = {number: fcntl.fcntl(each, fcntl.F_DUPFD, ABOVE) for number, each in places.items()}
    os.closerange(0, ABOVE)
    for number, descriptor in away.items():
        os.dup2(descriptor, number)
    for path in launch.cgroups:
        Path(path).write_text("0")
    os.closerange(ABOVE, os.sysconf("SC_OPEN_MAX"))
    for number, soft, hard in launch.rlimits:
        resource.setrlimit(number, (soft, hard))
    step_down(launch)
    os.chdir(launch.cwd)
    os.execve(launch.argv[0], launch.argv, dict(launch.env))


def _read(descriptor: int, kept: bytearray) -> None:
    with open(descriptor, "rb", buffering=0) as file:
        while chunk := file.read(1 << 16):
            if len(kept) < LOG_MAX_BYTES:
                kept += chunk


def reached(connect: Callable[[], socket.socket]) -> bytes:
    """Connect to a job once it listens; return everything that it sends."""
    said: list[bytes] = []

    def answers() -> bool:
        with suppress(OSError), connect() as sock:  # it may not listen yet
            sock.settimeout(20)
            while data := sock.recv(4096):
                said.append(data)
        return bool(said)

    until_true(answers, "the job listens")
    return b"".join(said)

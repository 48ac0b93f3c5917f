"""Acts as systemd for the daemon: holds its sockets, reads its notifications, starts it again."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.base.waiting import until_true
from support.daemons.process import ROOT, environment
from support.database import sqlite

DAEMON = (sys.executable, "-m", "proxyd", "serve")


def listening() -> socket.socket:
    """Return a socket that listens on a free port, as a socket unit's."""
    return socket.create_server(("127.0.0.1", 0), backlog=4096)


class Supervisor:
    """Listening sockets and a notification socket, which outlive the daemon that uses them.

    Args:
        folder: where the daemon works.
        names: of the sockets, as in socket units.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ("api", "proxy")) -> None:
        self.folder = folder
        self.url = sqlite.database(folder)
        self.sockets = {name: listening() for name in names}
        self.told: list[str] = []
        self.watchdog_seconds = 0.3
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self.process: subprocess.Popen[bytes] | None = None
        self._hearing = threading.Thread(target=self._hear)
        self._hearing.start()

    def port(self, name: str) -> int:
        """Return the port of a socket."""
        return int(self.sockets[name].getsockname()[1])

    def start(self, *arguments: str, **settings: str) -> None:
        """Start the daemon, and wait until it reports that it is ready."""
        # A shell puts its own process id there and becomes the daemon, which keeps that id.
        names = ":".join(self.sockets)
        descriptors = [sock.fileno() for sock in self.sockets.values()]
        # Out of the way first, so that none is overwritten before it is copied.
        aside = " ".join(f"{203 + i}<&{each}" for i, each in enumerate(descriptors))
        placed = " ".join(f"{3 + i}<&{203 + i}" for i in range(len(descriptors)))
        script = f'export LISTEN_PID=$$; exec {aside}; exec "$@" {placed}'
        before = self.count("READY=1")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["/bin/bash", "-c", script, "sh", *DAEMON, *arguments],
                cwd=ROOT,
                env={
                    **environment(self.url, **settings),
                    "LISTEN_FDS": str(len(descriptors)),
                    "LISTEN_FDNAMES": names,
                    "NOTIFY_SOCKET": str(self.folder / "notify"),
                    "WATCHDOG_USEC": str(int(self.watchdog_seconds * 1_000_000)),
                },
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
            )
        until_true(lambda: self.count("READY=1") > before or self.process.poll() is not None)
        assert self.process.poll() is None, self.log

    def count(self, line: str) -> int:
        """Return how often the daemon has said something."""
        return self.told.count(line)

    def signal(self, number: int) -> None:
        """Send the daemon a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; return its status."""
        assert self.process is not None
        status = self.process.wait(timeout=60)
        self.process = None
        return status

    @property
    def log(self) -> str:
        """The daemon's log."""
        return (self.folder / "log").read_text()

    def close(self) -> None:
        """End everything."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.folder / "notify"))
        self._hearing.join()
        for sock in (*self.sockets.values(), self._notify):
            sock.close()

    def _hear(self) -> None:
        while heard := self._notify.recv(65_536):
            self.told += heard.decode().split("\n")


@contextmanager
def supervising(folder: Path, names: Sequence[str] = ("api", "proxy")) -> Iterator[Supervisor]:
    """Hold the sockets until the test is over."""
    supervisor = Supervisor(folder, names)
    try:
        yield supervisor
    finally:
        supervisor.close()

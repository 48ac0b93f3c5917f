"""Starts and stops the servers that are measured, each a process of its own with a password on."""

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import socks
from support.base.ports import free_port

from bench import usage

ROOT = Path(__file__).parent.parent.parent
LOOPBACK = "127.0.0.1"
PATIENCE_SECONDS = 30.0


class ServerError(Exception):
    """A server does not come up or ends too soon; the message has its name and its output."""


@dataclass(frozen=True)
class Place:
    """An address, and the prefix that runs a command at that address."""

    host: str = LOOPBACK
    prefix: tuple[str, ...] = ()


HERE = Place()


@dataclass(frozen=True)
class Kind:
    """A server to measure, before it runs.

    In the command, the files and the environment, {host}, {port}, {user}, {password} and {folder}
    (where the files are) stand for the values of the start.
    """

    name: str
    command: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "bench"
    password: str = "benchpwd"
    speaks_socks: bool = True


@dataclass
class Server:
    """A server that runs; without a process it stands for the way without any proxy."""

    name: str
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    process: "subprocess.Popen[bytes] | None" = None

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a socket connected to a target through this server."""
        if not self.user:
            return socket.create_connection((self.host or host, self.port or port), timeout=30)
        return socks.create_connection(
            (host, port),
            timeout=30,
            proxy_type=socks.SOCKS5,
            proxy_addr=self.host,
            proxy_port=self.port,
            proxy_username=self.user,
            proxy_password=self.password,
        )

    def processes(self) -> list[int]:
        """Return the process identifiers of everything that serves."""
        return usage.tree(self.process.pid) if self.process is not None else []

    def daemon(self) -> list[int]:
        """Return the process of proxyd's daemon, without that of a device beside it."""
        return [pid for pid in self.processes() if "serve" in psutil.Process(pid).cmdline()]


NO_PROXY = Server("no proxy")


@contextmanager
def started(kind: Kind, place: Place = HERE) -> Iterator[Server]:
    """Run a server until the measurement is over.

    Raises:
        ServerError: it ends before it is stopped, or accepts no connection for half a minute.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        known = {"host": place.host, "port": str(port), "folder": folder}
        known |= {"user": kind.user, "password": kind.password}
        for name, text in kind.files.items():
            Path(folder, name).write_text(_filled(text, known))
        environment = {name: _filled(text, known) for name, text in kind.environment.items()}
        printed = Path(folder, "output")
        with printed.open("wb") as output:
            running = subprocess.Popen(
                [*place.prefix, *(_filled(each, known) for each in kind.command)],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        user, password = (kind.user, kind.password) if kind.speaks_socks else ("", "")
        server = Server(kind.name, place.host, port, user, password, running)
        try:
            _wait_accepting(server, place, printed)
            yield server
        except Exception as error:
            status = running.poll()
            if status is None or isinstance(error, ServerError):
                raise
            said = printed.read_text(errors="replace").strip()
            message = f"{kind.name} ended with status {status} while it was measured: {said}"
            raise ServerError(message) from error
        finally:
            _stop(running)


@contextmanager
def all_started(kinds: list[Kind], place: Place = HERE) -> Iterator[list[Server]]:
    """Run several servers side by side; one that does not come up ends the measurement."""
    with ExitStack() as stack:
        yield [stack.enter_context(started(kind, place)) for kind in kinds]


def _filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def accepts(server: Server, place: Place) -> bool:
    """Say whether a server accepts a connection; one in another place is looked at from there."""
    if place.prefix:
        listening = subprocess.run(
            [*place.prefix, "cat", "/proc/net/tcp"], capture_output=True, text=True, check=True
        ).stdout
        return f":{server.port:04X} 00000000:0000 0A" in listening
    try:
        socket.create_connection((server.host, server.port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait_accepting(server: Server, place: Place, printed: Path) -> None:
    assert server.process is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not accepts(server, place):
        if server.process.poll() is not None or time.monotonic() > deadline:
            said = printed.read_text(errors="replace").strip()
            raise ServerError(f"{server.name} does not come up: {said or 'it says nothing'}")
        time.sleep(0.001)


def _stop(running: "subprocess.Popen[bytes]") -> None:
    """End a server as an operator would, and its remaining processes by force."""
    running.terminate()
    try:
        running.wait(timeout=10)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)


def words(command: str) -> tuple[str, ...]:
    """Split a command line as a shell does."""
    return tuple(shlex.split(command))

"""Daemons that are forked from one process, which has imported all that they need.

An interpreter and its imports are nine tenths of the processor time of a daemon's start, and the
tests start hundreds. So the first start of a process of tests runs the program below, which imports
the modules of `proxyd serve` and forks a child for each daemon, as the supervisor of several
processes does. It has built one daemon before, because the first one of a process fills the caches
of types and patterns, half of the time that is left. A child runs the command line from its
beginning, in an environment of its own, and ends as the command does.

Where several processes run the tests, the program runs once for all of them (`shared`), and forks
itself for each: its start takes a second of processor time.
"""

import asyncio
import atexit
import gc
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

ROOT = Path(__file__).parent.parent.parent.parent
REQUEST_MAX_BYTES = 131_072  # an environment, and lists of settings in it
START_SECONDS = 60.0  # many import at once, and a machine may be busy
STANDARD = 3  # input, output and error output
PROGRAMS = {"proxyd": "proxyd.__main__"}  # a package's module for `python -m`
DAEMONS = "tests.support.daemons.forked"
SHARED = "shared"  # the word on the command line


class ForkedProcess:
    """The interface of `subprocess.Popen` for a process that the forking process has forked.

    Args:
        pid: its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stdout: IO[str] | None = None  # for a caller that gave it a pipe
        self.returncode: int | None = None
        self._has_ended = threading.Event()

    def ended(self, status: int) -> None:
        """Take note of its exit status; that of a signal is the negative number."""
        self.returncode = status
        self._has_ended.set()

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"forked daemon {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Forker:
    """The process that forks, from the first start on, and everything that it has forked.

    Args:
        module: the program of that process.
        paths: more places for it to import from.
    """

    # The sockets of the programs that all processes of the tests share, by module: see `shared`.
    roots: ClassVar[dict[str, socket.socket]] = {}

    def __init__(self, module: str = DAEMONS, paths: Sequence[Path] = ()) -> None:
        self._module = module
        self._paths = paths
        self._lock = threading.Lock()
        self._has_begun = False
        self._process: subprocess.Popen[bytes] | None = None  # None where it is shared
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._forked: queue.Queue[ForkedProcess | None] = queue.Queue()
        self._running: dict[int, ForkedProcess] = {}

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        standard: Sequence[int],
        *,
        leads: bool,
        folder: Path = ROOT,
    ) -> ForkedProcess:
        """Fork a process.

        Args:
            program: the module whose `main` it runs.
            arguments: its command line.
            variables: its environment.
            standard: its standard input, output and error output, which stay open here.
            leads: whether it leads a session of its own.
            folder: where it begins.
        """
        request = {
            "program": program,
            "arguments": arguments,
            "variables": variables,
            "leads": leads,
            "folder": str(folder),
        }
        packet = json.dumps(request).encode()
        assert len(packet) <= REQUEST_MAX_BYTES
        with self._lock:
            if not self._has_begun:
                self._begin()
            socket.send_fds(self._socket, [packet], standard)
            forked = self._forked.get(timeout=START_SECONDS)
        assert forked is not None, "the process that forks daemons has ended"
        return forked

    def close(self) -> None:
        """End it. The processes that it has forked continue, and no process waits for them."""
        self._socket.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            self._process.wait(timeout=START_SECONDS)
        if self._has_begun:
            self._reader.join()
        self._theirs.close()
        self._socket.close()

    def _begin(self) -> None:
        root = self.roots.get(self._module)
        if root is None:
            self._process = _started(self._module, self._paths, self._theirs)
        else:
            socket.send_fds(root, [b"\0"], [self._theirs.fileno()])
        self._theirs.close()
        self._reader.start()
        self._has_begun = True

    def _read(self) -> None:
        """Read the fork and the end of each process."""
        while packet := self._socket.recv(REQUEST_MAX_BYTES):
            pid, status = json.loads(packet)
            if status is None:
                forked = self._running[pid] = ForkedProcess(pid)
                self._forked.put(forked)
            else:
                self._running.pop(pid).ended(status)
        self._forked.put(None)


@contextmanager
def shared(programs: Mapping[str, Sequence[Path]]) -> Iterator[None]:
    """Have the processes of the tests share each program; it imports at its first use.

    Args:
        programs: the places that each program also imports from, by its module.
    """
    processes = []
    for module, paths in programs.items():
        Forker.roots[module], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        processes.append(_started(module, paths, theirs, SHARED))
        theirs.close()
    try:
        yield
    finally:
        for module in programs:
            root = Forker.roots.pop(module)
            root.shutdown(socket.SHUT_RDWR)
            root.close()
        for process in processes:
            process.wait(timeout=START_SECONDS)


def _started(
    module: str, paths: Sequence[Path], theirs: socket.socket, *words: str
) -> subprocess.Popen[bytes]:
    places = os.pathsep.join(map(str, paths))
    return subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno()), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": places} if places else None,
        pass_fds=[theirs.fileno()],
        stdout=subprocess.DEVNULL,  # its output is kept back, as in a pipe
    )


# --- the program ---------------------------------------------------------------------------------


def _import_all() -> None:
    """Import the modules that daemons use in their first second, in the way of `proxyd serve`."""
    import_module("proxyd.cli.commands").import_servers()
    for name in import_module("proxyd.wiring.build").USED_LATER:
        import_module(name)
    load = import_module("storage.engines.open").load
    for url in ("sqlite:///", "postgresql://"):
        load(url)


def _fill_caches() -> None:
    """Parse a command line, and build a daemon that is closed before it serves."""
    with suppress(SystemExit):
        import_module(PROGRAMS["proxyd"]).main(["--version"])
    with tempfile.TemporaryDirectory(prefix="proxyd-forked-") as folder:
        asyncio.run(_build_daemon(Path(folder)))


async def _build_daemon(folder: Path) -> None:
    settings = {
        "storage": {"url": f"sqlite:///{folder}/proxyd.db"},
        "api": {"port": 0},
        "proxy": {"port": 0},
        "auth": {"signing_key": "k" * 40},
    }
    settings_type = import_module("config.settings").Settings
    build = import_module("proxyd.wiring.build").build
    daemon = await build(import_module("msgspec").convert(settings, settings_type))
    await daemon.close()


def _run(channel: socket.socket) -> NoReturn:
    request = forked_request(channel)
    program = import_module(PROGRAMS.get(request["program"], request["program"]))
    end(partial(program.main, request["arguments"]))


def end(main: Callable[[], int | None]) -> NoReturn:
    """Run a command line, and end as an interpreter does, but free no module.

    To free the modules would cost a forked process a copy of nearly all of its memory.
    """
    try:
        status = main() or 0
    except SystemExit as error:
        if not isinstance(error.code, int):
            raise
        status = error.code
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def forked_request(channel: socket.socket) -> dict[str, Any]:
    """Fork a child for each request; return the request in each child, whose own it then is."""
    gc.collect()
    gc.freeze()
    request = _serve(channel)
    if request["leads"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    return request


def channel_of(words: Sequence[str], prepare: Callable[[], None]) -> socket.socket:
    """Return the channel of a program's command line, and prepare it to fork.

    A shared program forks itself for each channel that it receives, and prepares at the first.
    """
    channel = socket.socket(fileno=int(words[0]))
    if words[1:] != [SHARED]:
        prepare()
        return channel
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in `_serve`
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    is_prepared = False
    while True:
        packet, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not packet:
            sys.exit()
        if not is_prepared:
            prepare()
            gc.collect()
            gc.freeze()
            is_prepared = True
        if os.fork() == 0:
            break
        os.close(descriptors[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, interrupt)
    channel.close()
    return socket.socket(fileno=descriptors[0])


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Fork a child for each request, and report its end; returns only in the children."""
    woken, wake = socket.socketpair()
    for each in (woken, wake):
        each.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    # A terminal's Ctrl-C is for the tests, which end this.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _reap(channel)
        if channel not in ready:
            continue
        packet, descriptors, _, _ = socket.recv_fds(channel, REQUEST_MAX_BYTES, STANDARD)
        if not packet:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        _say(channel, pid, None)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, interrupt)
    for each in (channel, woken, wake):
        each.close()
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    return dict(json.loads(packet))


def _reap(channel: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _say(channel, ended[0], os.waitstatus_to_exitcode(ended[1]))


def _say(channel: socket.socket, pid: int, status: int | None) -> None:
    with suppress(BrokenPipeError):  # the tests have ended
        channel.send(json.dumps((pid, status)).encode())


def _prepare() -> None:
    _import_all()
    _fill_caches()


if __name__ == "__main__":
    _run(channel_of(sys.argv[1:], _prepare))

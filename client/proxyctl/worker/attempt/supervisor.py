"""Starts the program of one attempt, and watches it to its end, even without the agent.

A process of its own. One waits in advance, with everything imported; the agent names it the folder
of an attempt on its standard input. The program gets pipes, never a file: it could open a file anew
and rewrite it. Its output is appended to the attempt's logs here, and its end is written to
`ended.json`, whole or not at all.

The agent may have it start a sandbox first, which waits for the program of that attempt alone. An
attempt that does not fit into this sandbox is started as if there were none, once it is ended.

A program whose supervisor is killed is killed by the kernel.

An attempt begins once: it belongs to the process that makes `begun.json` in its folder. The
supervisor makes this file before it starts anything. An agent that was killed while it handed the
attempt over makes it also, and then knows that no supervisor will start the attempt.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import math
import os
import resource
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.attempt.streams import Bell, Streams, make_pipes
from proxyctl.worker.base import names
from proxyctl.worker.base.libc import CLONE_NEWNS, LIBC, PR_SET_PDEATHSIG, checked, prctl
from proxyctl.worker.executors.base.base import GATE, PLACES, STATUS, WORK, Launch
from proxyctl.worker.executors.base.family import ask, family
from proxyctl.worker.executors.limits.disk import DiskWatch
from proxyctl.worker.task.processes import Identity, give_way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_PRIVATE: Final = 1 << 18
_PR_SET_CHILD_SUBREAPER: Final = 36
# Timers stand still while the machine sleeps, and the time limit does not: so it is looked at.
_TURN_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 2.0  # for the rest in a pipe when everything was killed
_AGAIN_SECONDS: Final = 0.1  # between two tries to kill a process that does not end
# For the job that has made the disk short to be ended by its own supervisor, which looks at it ten
# times a second then, and counts for half a second; the kernel's part of a kill takes the rest.
_OTHERS_SECONDS: Final = 3.0
# For the room of a job that was killed to come back: a moment by the kernel, some seconds by an
# engine, which ends a container only when its client is gone.
_BACK_SECONDS: Final = 2.0
_BACK_FROM_ENGINE_SECONDS: Final = 8.0
_HIGH: Final = 100  # the first descriptor that is reserved between fork and exec
_BALLAST_BYTES: Final = 256 << 10  # for the record of the end, and the agent's entry
_STATUS_MAX_BYTES: Final = 4096  # a few short lines
_NICE: Final = 19
_OOM_SCORE: Final = 500  # of 1000: the kernel ends jobs before anything of the owner's
_COULD_NOT_START: Final = 127


class Supervisor:
    """One attempt, from the start of its program to its end.

    Args:
        work: that the job writes to; beneath the folder of the attempt, unless it is elsewhere.
        waiting: a sandbox that waits for the program, or None.
    """

    def __init__(self, folder: str, work: str = "", waiting: _Waiting | None = None) -> None:
        self._folder = folder
        self._work = work or f"{folder}/{WORK}"
        self._bell = Bell(os.path.basename(folder))  # noqa: PTH119 - spares the supervisor pathlib
        self._streams = Streams(self._bell, self._filled)
        self._program = _Program(folder)
        self._waiting = waiting
        self._terms = 0  # the number of requests to end
        self._is_asked = False  # by a signal from outside
        self._kill_at: float | None = None
        self._is_timed_out = False
        self._disk = _Disk(os.path.dirname(folder))  # noqa: PTH120 - as above

    def run(self) -> None:
        """Start the program unless the attempt was claimed before; return when it is over."""
        if not claim(self._folder, Identity.of(os.getpid())):
            return
        started = _now()
        try:
            task = _read(self._path(names.LAUNCH))
            launch = Launch.of_fields(task["launch"])
            self._program.is_asked_inside = launch.is_asked_inside
            self._reserve()
            self._start(launch, int(task["log_bytes"]), task.get("orders"))
            self._disk.watch(self._work, launch.disk_bytes)
        except (OSError, ValueError, KeyError) as error:
            self._end({"failed": f"the sandbox could not be started: {_words(error)}"})
            return
        identity = Identity.of(self._program.pid)
        if identity is not None:  # else it has ended already, which is seen below
            # The first process of a sandbox that has waited is older than the attempt.
            fields = {**identity.as_fields(), "begun_at": started}
            write(self._path(names.RUNNING), fields, is_durable=False)
        self._bell.ring()
        status, usage = self._watch(started + float(task["seconds"]), float(task["grace_s"]))
        self._program.kill(signal.SIGKILL)
        self._streams.drain(_DRAIN_SECONDS)
        is_asked_inside = self._program.is_asked_inside
        self._disk.judge(_BACK_SECONDS if is_asked_inside else _BACK_FROM_ENGINE_SECONDS)
        if self._disk.is_full or status != 0:
            self._disk.look()  # whether it has failed for want of room, and has filled it itself
        self._streams.close()
        self._end(
            {
                "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "timed_out": self._is_timed_out,
                "asked": self._is_asked,
                "unstarted": launch.status is not None and self._program.is_unstarted(),
                "disk_full": self._disk.is_full,
                "disk_over": self._disk.over,
                "seconds": _now() - started,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "max_memory_bytes": usage.ru_maxrss * 1024,
                "log_bytes": self._streams.sizes,
                "log_kept": self._streams.kept,
            }
        )
        _sweep(launch.sweep_seconds)

    def _start(self, launch: Launch, log_bytes: int, orders: str | None) -> None:
        signal.set_wakeup_fd(self._streams.watch_signals(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked)
        waiting = self._waiting
        if orders is None:
            if waiting is not None:
                waiting.end()
            readers, writing = make_pipes()
            self._streams.open(self._folder, log_bytes, readers)
            self._program.start(launch, writing)
        elif waiting is None:
            raise ValueError("the sandbox that waited for it has ended")
        else:
            self._streams.open(self._folder, log_bytes, waiting.readers)
            self._program.pid = waiting.pid
            waiting.order(orders)

    def _watch(self, deadline: float, grace: float) -> tuple[int, resource.struct_rusage]:
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == self._program.pid:
                return status, usage
            if pid:  # whose own parent has ended; an engine waits for its end to be seen
                continue
            now = _now()
            if now >= deadline and not self._is_timed_out:
                self._is_timed_out = True
                self._terms = max(self._terms, 1)
            if self._disk.is_over(now):
                self._terms = 2
            if self._terms and self._kill_at is None:
                self._kill_at = now + grace
                self._program.ask_to_end()
            if self._kill_at is not None and (now >= self._kill_at or self._terms > 1):
                self._program.kill(signal.SIGKILL)
            until = min(now + _TURN_SECONDS, self._disk.look_at)
            if not self._is_timed_out:
                until = min(until, deadline)
            if self._kill_at is not None:
                until = min(until, max(self._kill_at, now + _AGAIN_SECONDS))
            self._streams.turn(until - now)

    def _filled(self) -> None:
        """End the program, because the disk has no room for its output."""
        self._disk.fill()
        self._terms = 2
        self._give_way()

    def _reserve(self) -> None:
        path = self._path(names.BALLAST)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _BALLAST_BYTES)
        finally:
            os.close(descriptor)

    def _give_way(self) -> None:
        """Make room for the record of the end, and keep no further output."""
        self._streams.stop()
        with suppress(OSError):
            os.unlink(self._path(names.BALLAST))  # noqa: PTH108 - see above

    def _end(self, fields: dict[str, Any]) -> None:
        self._give_way()
        write(self._path(names.ENDED), fields)
        self._bell.ring()

    def _asked(self, *_: object) -> None:
        self._is_asked = True
        self._terms += 1

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


class _Program:
    """The program of an attempt, and the processes that it starts.

    Attributes:
        pid: of its first process.
        is_asked_inside: the request to end goes to the processes in the sandbox.
    """

    def __init__(self, folder: str) -> None:
        self.pid = 0
        self.is_asked_inside = False
        self._folder = folder

    def start(self, launch: Launch, writing: list[int], orders: int | None = None) -> None:
        """Start the program.

        Args:
            launch: how to start it.
            writing: its standard output and standard error, which are closed here afterwards.
            orders: its standard input, if that is not /dev/null.

        Raises:
            ValueError: the program could not be started, for this reason.
        """
        failure, fails = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(launch, self._folder, (orders, *writing), fails, parent)
        os.close(fails)
        for writer in writing:
            os.close(writer)
        with os.fdopen(failure, "rb") as file:
            words = file.read().decode("utf-8", "replace")
        if words:
            os.waitpid(self.pid, 0)
            raise ValueError(words)

    def ask_to_end(self) -> None:
        """Ask the program to end by itself."""
        if self.is_asked_inside:
            ask(self.pid)
        else:
            self.kill(signal.SIGTERM)

    def kill(self, number: int) -> None:
        """Send a signal to the processes of the program."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def is_unstarted(self) -> bool:
        """Return whether the sandbox ended before it started the program."""
        status = f"{self._folder}/{STATUS}"
        with suppress(OSError), open(status, "rb") as file:  # noqa: PTH123 - see above
            return b"exit-code" not in file.read(_STATUS_MAX_BYTES)
        return False


class _Waiting:
    """A sandbox whose shell waits for the program of an attempt, and takes no second one.

    Args:
        folder: where it was made.
        launch: of the sandbox.

    Attributes:
        pid: of its first process.
        readers: the ends of its output.

    Raises:
        ValueError: it could not be started, for this reason.
    """

    def __init__(self, folder: str, launch: Launch) -> None:
        self.readers, writing = make_pipes()
        taking, self._orders = os.pipe()
        self._program = _Program(folder)
        self._program.start(launch, writing, taking)
        os.close(taking)
        self.pid = self._program.pid
        self._folder = folder

    def make(self, line: int) -> None:
        """Write down when it is whole; return as soon as that is done, or a line can be read."""
        os.write(self._orders, b"echo\n")
        poll = select.poll()
        for each in (self.readers[0], line):
            poll.register(each, select.POLLIN)
        if self.readers[0] in dict(poll.poll()):
            os.read(self.readers[0], 1)
            os.close(os.open(f"{self._folder}/{names.MADE}", os.O_CREAT | os.O_CLOEXEC, 0o600))

    def order(self, orders: str) -> None:
        """Have it become the program of an attempt.

        Raises:
            OSError: it has ended.
        """
        with os.fdopen(self._orders, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(orders)

    def end(self) -> None:
        """End it."""
        self._program.kill(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for each in (self._orders, *self.readers):
            os.close(each)


class _Disk:
    """The files of the job on the disk: in its folder, and its logs.

    Args:
        attempts: the folder of all attempts. While one supervisor ends its job because the disk is
            short, the others wait: the room that comes back is that job's, and may be enough.

    Attributes:
        is_full: the disk has no room for the job, by no fault of its own as far as is known.
        over: why the job must end: it has written more than it may.
        look_at: when the folder and the disk are to be looked at next, as `_now` tells time.
    """

    def __init__(self, attempts: str) -> None:
        self.is_full = False
        self.over = ""
        self.look_at = math.inf
        self._watch: DiskWatch | None = None
        self._attempts = attempts
        self._turn: int | None = None  # a descriptor with the lock
        self._short: DiskWatch | None = None  # to be judged, once the job has ended
        # Until then other jobs end first; None while the disk is not short.
        self._others_until: float | None = None

    def watch(self, folder: str, max_bytes: int) -> None:
        """Begin to measure the folder, if it has a bound."""
        if max_bytes:
            self._watch = DiskWatch(
                folder, max_bytes, processes=lambda: family(map(int, _children()))
            )
            self.look_at = _now() + self._watch.pause_seconds

    def fill(self) -> None:
        """Note that the disk is full; looks before and after the end show whose fault that is."""
        self.is_full = True
        if self._watch is not None:
            self.look_at = 0.0
            self._short = self._watch

    def look(self) -> None:
        """Add up all once more, when the program has ended."""
        if self._watch is not None:
            self._conclude(self._watch, self._watch.look())

    def is_over(self, now: float) -> bool:
        """Return whether the job must end; look at its files and the disk if it is time to."""
        watch = self._watch
        if watch is not None and now >= self.look_at:
            words = watch.look_on()
            if words and watch.is_short and self._turn is None:
                # Another job's end may have made room meanwhile.
                words = watch.shortage() if self._can_end(watch) else ""
            self.look_at = _now() + watch.pause_seconds
            if not watch.is_short:
                self._others_until = None
            self._conclude(watch, words)
        return bool(self.over)

    def _conclude(self, watch: DiskWatch, words: str) -> None:
        if words:
            self.is_full, self.over = watch.is_short, words
            self._short = watch if watch.is_short else None
            self._watch, self.look_at = None, math.inf
        if not watch.is_short:
            self._end_turn()

    def _can_end(self, watch: DiskWatch) -> bool:
        """Return whether the job may end for lack of room, or others end before it."""
        if self._others_until is None:
            self._others_until = _now() + _OTHERS_SECONDS
        if not watch.is_suspect() and _now() < self._others_until:
            return False
        return self._has_turn() or watch.is_half_gone()

    def judge(self, seconds: float) -> None:
        """Decide, after the end of the program, whether the job itself made the disk short.

        Args:
            seconds: for its room to come back.
        """
        deadline = _now() + seconds
        while self._short is not None:
            words = self._short.judge()
            if words:
                self.is_full, self.over = False, words
            if words or _now() >= deadline:
                break
            time.sleep(_AGAIN_SECONDS)
        self._end_turn()

    def _has_turn(self) -> bool:
        """Take the lock of the job that ends for lack of room; return False if another has it."""
        try:
            self._turn = os.open(self._attempts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._end_turn()
            return False
        except OSError:  # a file system without locks
            pass
        return True

    def _end_turn(self) -> None:
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None


def _sweep(seconds: float) -> None:
    """Kill the processes that have outlived the program; all are children of this process now.

    A process that an executor has left behind to clean up ends by itself first, if the agent does
    not end it.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if time.monotonic() >= deadline:
            for child in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(child), signal.SIGKILL)
        time.sleep(_AGAIN_SECONDS)


def claim(folder: str, identity: Identity | None) -> bool:
    """Make the file that assigns an attempt; return False if the file exists.

    Args:
        folder: of the attempt.
        identity: of its supervisor; None for an agent that has found no trace of one after it was
            started anew, and has to know that none will come.
    """
    path = f"{folder}/{names.BEGUN}"
    fresh = f"{path}.{os.getpid()}"
    write(fresh, {} if identity is None else identity.as_fields(), is_durable=False)
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(fresh)  # noqa: PTH108 - see above
    return True


def write(path: str, fields: Mapping[str, Any], *, is_durable: bool = True) -> None:
    """Replace a file, and return when it outlives a loss of power.

    A file that is not durable describes a process, which does not outlive that either; afterwards
    such a file may be missing, or empty.
    """
    fresh = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(fields))
        if is_durable:
            file.flush()
            os.fsync(descriptor)
    os.rename(fresh, path)  # noqa: PTH104 - see above


def main() -> None:
    """Wait for the folder of an attempt, and supervise the attempt."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    Identity.of(os.getpid())  # reads the identifier of the boot now, and not in an attempt's time
    waiting = None
    lines = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - reads no line too early
    line = lines.readline()
    if line.startswith(b"{"):
        # The agent sees that it has ended, and gives it no attempt.
        signal.signal(signal.SIGCHLD, lambda *_: os._exit(_COULD_NOT_START))
        fields = json.loads(line)
        waiting = _Waiting(fields["folder"], Launch.of_fields(fields["launch"]))
        waiting.make(lines.fileno())
        line = lines.readline()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not line.endswith(b"\n"):  # the agent has ended
        if waiting is not None:
            waiting.end()
        return
    folder = os.fsdecode(line[:-1])
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(f"{folder}/{names.SUPERVISOR_LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard, own in enumerate((nothing, log, log)):
        os.dup2(own, standard)
    os.close(nothing)
    os.close(log)
    supervise(folder, waiting=waiting)


def supervise(folder: str, work: str = "", waiting: _Waiting | None = None) -> None:
    """See the attempt in a folder to its end, in this process; see `Supervisor`."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    Supervisor(folder, work, waiting).run()


def _become(
    launch: Launch, folder: str, standard: Sequence[int | None], fails: int, parent: int
) -> None:  # pragma: no cover - a process of its own
    """Become the program, in the child; an obstacle is written to `fails`.

    Args:
        launch: how to become it.
        folder: with the gate and the status.
        standard: its first three descriptors; None for /dev/null.
        fails: a pipe.
        parent: the supervisor.
    """
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_COULD_NOT_START)
        sources = {
            number: os.open(os.devnull, os.O_RDONLY) if each is None else each
            for number, each in enumerate(standard)
        }
        for number, content in launch.files.items():
            sources[number] = _memory_file(content)
        if launch.gate is not None:
            sources[launch.gate] = os.open(f"{folder}/{GATE}", os.O_RDWR)
        if launch.status is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            sources[launch.status] = os.open(f"{folder}/{STATUS}", flags, 0o600)
        fails = _arrange(sources, fails)
        for path in launch.cgroups:
            with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - see above
                file.write("0")
        for limit, soft, hard in launch.rlimits:
            resource.setrlimit(limit, (soft, hard))
        give_way(_OOM_SCORE, _NICE)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        step_down(launch)
        os.chdir(launch.cwd)
        os.execve(launch.argv[0], launch.argv, dict(launch.env))  # noqa: S606 - no shell is wanted
    except BaseException as error:  # noqa: BLE001 - nothing of this process may go on
        with suppress(OSError):
            os.write(fails, _words(error).encode())
    os._exit(_COULD_NOT_START)


def _arrange(sources: Mapping[int, int], fails: int) -> int:
    """Put descriptors where the program has them, and close all others; return the new `fails`."""
    fails = fcntl.fcntl(fails, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    high = {
        number: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        for number, source in sources.items()
    }
    for number, source in high.items():
        if not 0 <= number < _HIGH:
            raise ValueError(f"descriptor {number} is out of range")
        os.dup2(source, number)
    start = 0
    for number in (*sorted(sources), _HIGH):
        if start < number:  # Python takes an empty range from 0 for all of them
            os.closerange(start, number)
        start = number + 1
    return fails  # all others are closed by exec


def step_down(launch: Launch) -> None:
    """Become the user of the program, and put its places where this user can reach them.

    Raises:
        OSError: the kernel does not allow that.
    """
    if launch.places:
        _lay(launch.places)
    if launch.user is not None:
        os.setgroups([])
        os.setresgid(launch.user, launch.user, launch.user)
        os.setresuid(launch.user, launch.user, launch.user)


def _lay(places: Sequence[tuple[str, str]]) -> None:
    """Mount folders where the program's user can reach them, and no other user sees them."""
    checked(LIBC.unshare(CLONE_NEWNS))
    _mount("none", "/", _MS_REC | _MS_PRIVATE)  # so that no mount of here is seen elsewhere
    _mount("none", PLACES, _MS_NOSUID | _MS_NODEV, kind="tmpfs", options="mode=0755,size=64k")
    for folder, name in places:
        place = f"{PLACES}/{name}"
        os.mkdir(place)  # noqa: PTH102 - see above
        _mount(folder, place, _MS_BIND)


def _mount(source: str, target: str, flags: int, *, kind: str = "none", options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode())
    checked(LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()), target)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("launch")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _children() -> list[str]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123 - see above
            return file.read().split()
    except FileNotFoundError:  # a kernel that was built without it
        return []


def _read(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - see above
        fields = json.load(file)
    assert isinstance(fields, dict)  # noqa: S101 - the agent has written it
    return fields


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        name = errno.errorcode.get(error.errno, "")
        return f"{error.strerror} ({name}): {error.filename or ''}".rstrip(": ")
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


def _now() -> float:
    """Return seconds that also count while the machine sleeps; no setting changes them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()

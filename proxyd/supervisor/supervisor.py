"""The supervisor: forks the processes, and is a service manager for them.

Theory of operation
-------------------
The supervisor imports all that a process needs, binds the ports, takes the claim on the database,
and forks: so a process starts in the time that it takes to open the store, shares the memory of the
code with the others, and runs the same code, even if the files have changed since. It has no event
loop, no thread and no connection to the database: it waits for signals and for messages of the
processes, in the form of sd_notify(3), each over its own socket. That socket is also how a process
notices that the supervisor was killed.

- Process 0 has the API and the work that only one process should do. Before it was ever ready its
  failure is the daemon's: everything stops, with its exit status. From then on, and for the others
  always, a process that ends is started again, after a pause that grows.
- The sockets stay open here. When a process drains or has died, its sockets for the proxy's clients
  stop listening until its successor is ready, so that new clients go to the others. At the API's
  they wait for the next process 0, and at those that the service manager holds for any process.
- A process that has fed its watchdog and then does not for the whole timeout is killed and started
  again. The service manager's watchdog is fed as long as the supervisor itself runs.
- SIGTERM and SIGINT are passed on as SIGTERM, which a process may hear any number of times; the
  second one as SIGINT, which cuts. Each process is in a process group of its own, because Ctrl-C
  signals the whole group of the supervisor.

Before the first fork the supervisor also imports the modules that a process alone imports at their
first use (`import_the_rest` in `build.py`), and reads the steps of the schema. So a process starts
within two tenths of a second. When the supervisor dies, each process cuts its connections, writes
its last counts and ends.
"""

import errno
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from config.changes import changes, with_reloadable
from config.load import SettingsError
from config.settings import Settings
from proxyd.limits import raise_descriptors
from proxyd.ops.base import logs
from proxyd.ops.processes.listening import (
    CannotListenError,
    listen_for_processes,
    load_certificate,
    tls_context,
)
from proxyd.ops.processes.role import METRICS_MAX_BYTES, OVERVIEW_MAX_BYTES, Overview, Role
from proxyd.ops.processes.sd_notify import FEEDS_PER_TIMEOUT, ServiceManager
from proxyd.ops.processes.shared_record import SharedRecord
from proxyd.supervisor.announcer import Announcer
from proxyd.supervisor.child import Child, in_words
from proxyd.supervisor.signals import Signals, blocked
from proxyd.wiring.listeners import Listeners

FAILED = 1
WATCHDOG_SECONDS = 30.0  # the value of the unit, without a service manager
START_SECONDS = 600.0  # a new version may have a large database to migrate first
TASKS = Path("/proc/self/task")  # the threads of this process, also of libraries

_logger = logging.getLogger("supervisor")

Work = Callable[[Settings, Listeners, Role], int]


class _Watchdog:
    """Kills the processes that hang.

    Args:
        seconds: the longest silence of a process that has fed its watchdog.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._looked_at = time.monotonic()

    def look(self, living: Collection[Child]) -> None:
        """Kill processes that no longer feed their watchdogs; the supervisor starts new ones."""
        now = time.monotonic()
        is_late = now - self._looked_at > self.seconds / 2
        self._looked_at = now
        for child in living:
            life = child.life
            if is_late and life.fed_at is not None:
                life.fed_at = now  # the supervisor was stopped itself, perhaps with all the others
            silent = now - (life.started_at if life.fed_at is None else life.fed_at)
            if silent > (START_SECONDS if life.fed_at is None else self.seconds):
                _logger.error(
                    "process %d (pid %d) timed out: silent for %.0f s; killed",
                    child.index,
                    child.pid,
                    silent,
                )
                os.kill(child.pid, signal.SIGKILL)
                life.started_at, life.fed_at = now, None  # once is enough


class Supervisor:
    """Runs `proxy.processes` processes until a signal stops it.

    Args:
        listeners: the sockets of process 0; the other processes get sockets beside them.
        work: runs in each process, and returns its exit status.
        read: reads the settings again, and raises `SettingsError`.
        manager: the supervisor's own service manager.

    Raises:
        CannotListenError: the other processes cannot listen.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Listeners,
        work: Work,
        read: Callable[[], Settings],
        manager: ServiceManager,
    ) -> None:
        raise_descriptors()  # a socket of each port and process may be more than are usual
        number = settings.proxy.processes
        self._settings = settings
        self._first = listeners
        self._work = work
        self._read = read
        self._watchdog = _Watchdog(manager.watchdog_seconds or WATCHDOG_SECONDS)
        self._shared = (
            [SharedRecord(METRICS_MAX_BYTES) for _ in range(number)],
            SharedRecord(OVERVIEW_MAX_BYTES),
        )
        self._children = [Child(0, listeners, time.monotonic)]
        self._children += [
            Child(index, listeners.beside(), time.monotonic) for index in range(1, number)
        ]
        # Where the others ask process 0 for exits: here, so that they can wait for its successor.
        self._exits_desk = listen_for_processes() if listeners.exits is not None else None
        self._announcer = Announcer(manager, self._children)
        self._restarts = 0
        self._stops = 0  # number of signals to stop
        self._status = 0

    def run(self) -> int:
        """Start the processes and watch them; return the exit status once none is left."""
        self._announcer.starting()
        signals, selector = Signals(), selectors.DefaultSelector()
        selector.register(signals, selectors.EVENT_READ)
        fed_at = -self._watchdog.seconds
        try:
            while not (self._stops and not self._living):
                self._start_due(signals, selector)
                now = time.monotonic()
                if now - fed_at >= self._watchdog.seconds / FEEDS_PER_TIMEOUT:
                    fed_at = now
                    self._announcer.alive()
                for key, _ in selector.select(self._pause(fed_at)):
                    if isinstance(key.fileobj, Signals):
                        self._signalled(key.fileobj.read())
                    elif not key.data.hear():
                        selector.unregister(key.fileobj)
                self._reap(selector)
                self._watchdog.look(self._living)
                self._reload_due()
                if not self._stops:
                    self._announcer.look()
        finally:
            selector.close()
            signals.close()
            for child in self._children:
                child.close()
            if self._exits_desk is not None:
                self._exits_desk.close()
        self._announcer.stopped()
        return self._status

    @property
    def _living(self) -> list[Child]:
        return [child for child in self._children if child.pid]

    def _pause(self, fed_at: float) -> float:
        """Return the seconds until the next task of the supervisor, unless an event comes first."""
        moments = [fed_at + self._watchdog.seconds / FEEDS_PER_TIMEOUT]
        if not self._stops:
            moments += [child.due_at for child in self._children if not child.pid]
        return max(0.0, min(moments) - time.monotonic())

    # --- starting and ending ----------------------------------------------------------------------

    def _start_due(self, signals: Signals, selector: selectors.BaseSelector) -> None:
        if self._stops:
            return
        now = time.monotonic()
        for child in self._children:
            if not child.pid and child.due_at <= now:
                self._fork(child, signals, selector)

    def _fork(self, child: Child, signals: Signals, selector: selectors.BaseSelector) -> None:
        with ExitStack() as opened:
            try:
                # A thread's locks would stay locked for ever in a process that was forked from it.
                if len([*TASKS.iterdir()]) > 1:
                    raise OSError(errno.EAGAIN, "a thread runs in the supervisor")
                ours, theirs = map(
                    opened.enter_context,
                    socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET),
                )
                ours.setblocking(False)
                selector.register(ours, selectors.EVENT_READ, child)
                opened.callback(selector.unregister, ours)
                with blocked() as mask:
                    pid = os.fork()
                    if pid == 0:
                        self._become(child, ours, theirs, signals, selector, mask)
            except OSError as error:
                pause = child.ended()
                _logger.error(
                    "process %d could not be started: %s; next attempt in %.1f s",
                    child.index,
                    error.strerror,
                    pause,
                )
                return
            theirs.close()
            opened.pop_all()
        child.started(pid, ours)
        self._publish()

    def _become(
        self,
        child: Child,
        ours: socket.socket,
        theirs: socket.socket,
        signals: Signals,
        selector: selectors.BaseSelector,
        mask: Collection[int],
    ) -> NoReturn:
        """Run as the forked process, without any part of the supervisor; never return."""
        status = FAILED
        try:
            signals.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            selector.close()
            ours.close()
            os.setpgid(0, 0)
            theirs.setblocking(False)
            for other in self._children:
                if other is not child:
                    other.close(but=child.listeners.sockets)
            with suppress(OSError):  # only a name for `top` and `ps`
                Path("/proc/self/comm").write_text(f"proxyd-{child.index}")
            log = self._settings.log
            logs.set_up(log.level, log.format, child.index)
            role = self._role(child, theirs)
            status = self._work(self._settings, child.listeners, role)
        except BaseException:
            logging.getLogger("daemon").critical("the process failed", exc_info=True)
        finally:
            # Not `sys.exit`: this process must not run the supervisor's own clean-up.
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)

    def _role(self, child: Child, channel: socket.socket) -> Role:
        """Return the role of the process that is forked for a number; called in that process."""
        desk, address = self._exits_desk, b""
        if desk is not None:
            address = desk.getsockname()
            if child.index:
                desk.close()
                desk = None
        return Role(
            child.index,
            child.was_ever_ready,
            channel,
            self._watchdog.seconds,
            *self._shared,
            desk,
            address,
        )

    def _reap(self, selector: selectors.BaseSelector) -> None:
        for child in self._living:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                if child.channel is not None and child.channel in selector.get_map():
                    child.hear()
                    selector.unregister(child.channel)
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, status: int) -> None:
        """Decide the consequence of the end of a process."""
        pid, was_ever_ready = child.pid, child.was_ever_ready
        pause = child.ended()
        self._publish()
        if self._stops:
            # One that was still starting had no handler yet: the signal has ended it, as it should.
            if status not in (0, -signal.SIGTERM):
                _logger.error("process %d (pid %d) %s", child.index, pid, in_words(status))
                self._status = self._status or FAILED
        elif child.index == 0 and not was_ever_ready:
            if status < 0:
                _logger.critical("process 0 (pid %d) %s while it started", pid, in_words(status))
            self._status = status if status > 0 else FAILED
            self._stop()
        else:
            self._restarts += 1
            _logger.log(
                logging.ERROR if status else logging.INFO,
                "process %d (pid %d) %s; it is started again in %.1f s",
                child.index,
                pid,
                in_words(status) if status else "has stopped",
                pause,
            )

    def _stop(self) -> None:
        """End every process, and close the listeners unless the service manager holds them."""
        self._stops += 1
        for child in self._children:
            child.close_listeners(but=self._first.held)
        for child in self._living:
            os.kill(child.pid, signal.SIGTERM if self._stops == 1 else signal.SIGINT)

    # --- signals ----------------------------------------------------------------------------------

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                if not self._stops:
                    self._announcer.stopping(self._settings.limits.drain_seconds)
                self._stop()
            elif number == signal.SIGHUP and not self._stops:
                self._reload()

    def _reload(self) -> None:
        """Make every process read the settings again; later processes get them from here.

        If they or the certificate are wrong, no process reloads: all keep the old ones.
        """
        self._announcer.reloading()
        try:
            read = self._read()
            changed, settings = changes(self._settings, read), with_reloadable(self._settings, read)
            if self._first.tls is not None:
                certificate, key = settings.api.tls_cert, settings.api.tls_key
                tls_context(certificate, key)
                load_certificate(self._first.tls, certificate, key)
        except (SettingsError, CannotListenError) as error:
            problems = error.problems if isinstance(error, SettingsError) else [error]
            _logger.error("not reloaded, the old settings stay: %s", "; ".join(map(str, problems)))
            return
        self._settings = settings
        logs.set_up(settings.log.level, settings.log.format)
        self._announcer.reloaded(changed, has_certificate=self._first.tls is not None)
        for child in self._living:
            child.life.must_reload = not child.life.is_draining

    def _reload_due(self) -> None:
        """Pass a reload on to each process once it is ready, because SIGHUP ends it before that.

        The next one waits for the end of the one before: this tells the messages of the processes
        apart.
        """
        for child in self._living:
            if child.life.may_reload:
                child.life.reload()
                os.kill(child.pid, signal.SIGHUP)

    def _publish(self) -> None:
        """Store the living processes, for the metrics."""
        pids = [child.pid for child in self._children]
        self._shared[1].write(Overview(pids, self._restarts).encode())

"""Reports of the supervisor about all its processes, to the log and to its service manager.

Each process logs the events that concern only itself. Lines that all of them would repeat, such as
their addresses or the changes of a reload, are written here once.
"""

import logging
from collections.abc import Collection, Sequence

from proxyd import __version__
from proxyd.compiled import finder
from proxyd.ops.base import logs
from proxyd.ops.processes.sd_notify import ServiceManager
from proxyd.supervisor.child import Child

_logger = logging.getLogger("supervisor")


class Announcer:
    """Notifies the service manager like a single daemon, and writes the common log lines of all.

    Args:
        manager: receives the reports.
        children: the processes; the first one has the API.
    """

    def __init__(self, manager: ServiceManager, children: Sequence[Child]) -> None:
        self._manager = manager
        self._children = children
        self._told = ""  # the last status; "" before the start is complete
        self._where = ""  # the addresses, from the message of process 0 when it is ready
        self._ready: frozenset[int] = (
            frozenset()
        )  # the pids of the processes that were ready at the last call
        self._is_reloading = False
        self._changed: set[str] | None = None  # by a reload; None if none was passed on
        self._has_certificate = False
        self._is_stopping = False

    def starting(self) -> None:
        """Log the version that starts."""
        _logger.info("this is proxyd %s, %s", __version__, finder.description())

    def reloading(self) -> None:
        """Report that the processes are about to reload."""
        self._is_reloading = True
        self._manager.reloading()

    def reloaded(self, changed: Collection[str], *, has_certificate: bool) -> None:
        """Store the changes that the processes should reload; `look` logs them when all have.

        Args:
            changed: the settings that were changed, each as `section.key`.
            has_certificate: whether a certificate was also read again.
        """
        self._changed = (self._changed or set()).union(changed)
        self._has_certificate = has_certificate

    def stopping(self, drain_seconds: float) -> None:
        """Report that the processes drain, and for how many seconds."""
        self._is_stopping = True
        living = sum(child.pid > 0 for child in self._children)
        _logger.info(
            "draining: %d processes have %.0f seconds to finish; a second signal cuts their "
            "connections",
            living,
            drain_seconds,
        )
        self._manager.stopping(f"{living} processes drain")

    def stopped(self) -> None:
        """Log that no process is left, if a signal has requested the stop."""
        if self._is_stopping:
            _logger.info("stopped")

    def alive(self) -> None:
        """Feed the manager's watchdog, if it has one."""
        if self._manager.watchdog_seconds is not None:
            self._manager.alive()

    def look(self) -> None:
        """Report a complete start or reload, or a new number of ready processes."""
        if not (self._told or all(child.is_settled for child in self._children)):
            return
        if self._children[0].life.is_ready:
            self._where = self._children[0].life.status
        ready = [child for child in self._children if child.life.is_ready]
        number = f"{len(ready)} of {len(self._children)} processes are ready"
        status = f"{number}: {self._where}"
        is_busy = any(child.life.must_reload or child.life.is_reloading for child in self._children)
        if not self._told:
            _logger.info("%s", status)
        else:
            for child in ready:
                if child.pid not in self._ready:
                    _logger.info("process %d (pid %d) is ready; %s", child.index, child.pid, number)
        if not self._told or (self._is_reloading and not is_busy):
            if not is_busy:  # a reload may have come before the start was complete
                self._is_reloading = False
                self._log_reload()
            self._manager.ready(status)
        elif status != self._told:
            self._manager.status(status)
        self._told, self._ready = status, frozenset(child.pid for child in ready)

    def _log_reload(self) -> None:
        if self._changed is not None:
            logs.log_reload(self._changed, has_certificate=self._has_certificate)
            self._changed = None

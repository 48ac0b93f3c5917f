"""What the supervisor tells its own service manager: how its processes are, when that changes."""

import logging
from collections.abc import Sequence

from proxyd.ops.sd_notify import ServiceManager
from proxyd.supervisor.child import Child

_logger = logging.getLogger("supervisor")


class Announcer:
    """Tells the service manager, in the words of one daemon.

    Args:
        manager: is told.
        children: the processes, of which the first has the API.
    """

    def __init__(self, manager: ServiceManager, children: Sequence[Child]) -> None:
        self._manager = manager
        self._children = children
        self._told = ""  # what was told last; "" before the start is complete
        self._where = ""  # where everything listens, as process 0 says when it is ready
        self._is_reloading = False

    def reloading(self) -> None:
        """Tell that the processes are about to reload."""
        self._is_reloading = True
        self._manager.reloading()

    def stopping(self) -> None:
        """Tell that the processes drain."""
        living = sum(child.pid > 0 for child in self._children)
        self._manager.stopping(f"{living} processes drain")

    def alive(self) -> None:
        """Feed the manager's watchdog, if it has one."""
        if self._manager.watchdog_seconds is not None:
            self._manager.alive()

    def look(self) -> None:
        """Tell what is new: the start or a reload is complete, or another number is ready."""
        if not (self._told or all(child.is_settled for child in self._children)):
            return
        if self._children[0].is_ready:
            self._where = self._children[0].status
        ready = sum(child.is_ready for child in self._children)
        status = f"{ready} of {len(self._children)} processes ready: {self._where}"
        is_busy = any(child.must_reload or child.is_reloading for child in self._children)
        if not self._told:
            _logger.info("%s", status)
        if not self._told or (self._is_reloading and not is_busy):
            self._is_reloading = False
            self._manager.ready(status)
        elif status != self._told:
            self._manager.status(status)
        self._told = status

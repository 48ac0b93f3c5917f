"""The watches of running containers, by attempt."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from proxyctl.worker.executors.containers.container_watch import ContainerWatch
from proxyctl.worker.executors.containers.naming import name_of

if TYPE_CHECKING:
    from proxyctl.worker.executors.containers.engine import Engine


class Watches:
    """Watches the use of containers; several threads use it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watches: dict[str, ContainerWatch] = {}
        self._lock = threading.Lock()

    def begin(self, attempt_id: str, pid: int) -> None:
        """Watch the container of an attempt, unless it is watched already.

        Args:
            attempt_id: of the attempt.
            pid: of the engine's client that is attached to the container.
        """
        with self._lock:
            if attempt_id not in self._watches:
                watch = ContainerWatch(self._engine, name_of(attempt_id), pid)
                self._watches[attempt_id] = watch
                watch.start()

    def find(self, attempt_id: str) -> ContainerWatch | None:
        """Return the watch of an attempt; None if it is not watched."""
        return self._watches.get(attempt_id)

    def end(self, attempt_id: str) -> None:
        """Stop watching an attempt."""
        with self._lock:
            watch = self._watches.pop(attempt_id, None)
        if watch is not None:
            watch.close()

    def close(self) -> None:
        """End all watches."""
        for attempt_id in list(self._watches):
            self.end(attempt_id)

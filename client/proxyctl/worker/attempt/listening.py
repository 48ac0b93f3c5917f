"""The ports of a job that runs: from the first check for readiness to the end of the job."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from proxyctl.worker.network.ports import Served
from proxyctl.worker.task.tasks import payload_of_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyctl.worker.executors.base.base import Executor
    from proxyctl.worker.network.ports import Ports
    from proxyctl.worker.task.journal import Entry


class Listening:
    """Serves the ports of one attempt.

    Args:
        ring: called when the job has become ready.
    """

    def __init__(self, attempt_id: str, ports: Ports, ring: Callable[[], None]) -> None:
        self._attempt_id = attempt_id
        self._ports = ports
        self._ring = ring
        self._ready: threading.Event | None = None  # None while nothing is served

    @property
    def is_ready(self) -> bool:
        """Whether the job has answered as ready since `begin`."""
        return self._ready is not None and self._ready.is_set()

    def begin(self, entry: Entry, executor: Callable[[], Executor]) -> None:
        """Check whether the job is ready, and let its users in; a second call does nothing.

        Args:
            entry: of the attempt.
            executor: returns the executor that connects to the job.
        """
        if self._ready is not None:
            return
        ready = threading.Event()
        payload = payload_of_work(entry.work)
        if payload.ports:
            self._ports.serve(
                Served(
                    attempt_id=self._attempt_id,
                    ports=tuple(each.port for each in payload.ports),
                    ready=None if entry.is_ready_known else payload.ready,
                    connect=partial(executor().connect, entry.place),
                    became_ready=partial(self._became_ready, ready),
                )
            )
        self._ready = ready

    def end(self) -> None:
        """Stop serving the ports."""
        if self._ready is not None:
            self._ports.forget(self._attempt_id)
            self._ready = None

    def _became_ready(self, ready: threading.Event) -> None:
        ready.set()
        self._ring()

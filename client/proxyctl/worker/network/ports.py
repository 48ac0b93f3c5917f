"""Ports of jobs that run here: whether they are ready, and the way in for their users.

One thread has an event loop for all of them, from the first job with ports to the end of the agent;
the loop sleeps while no job has ports. The daemon is attached to only while there are some.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.network.probe import is_ready

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from proxyctl.protocol.jobspec.payload import Ready

_logger = logging.getLogger("worker")

# Each joins a sandbox and makes a socket there, some milliseconds; a page opens a dozen in one
# moment.
_THREADS: Final = 4
_FIRST_SECONDS: Final = 0.25  # between the first looks; each pause is doubled
_CALL_SECONDS: Final = 10.0  # for the loop to take something up, on a busy machine
_END_SECONDS: Final = 2.0  # for cut connections to notice it


@dataclass(frozen=True)
class Served:
    """An attempt that runs, with its ports.

    Attributes:
        attempt_id: its name here.
        ports: that its buyer has declared: no others are ever connected to.
        ready: the check whether it is ready; None if the check is not needed (any more).
        connect: returns a socket to one of its ports, as `Executor.connect`.
        became_ready: is called once, from another thread; must not block.
    """

    attempt_id: str
    ports: tuple[int, ...]
    ready: Ready | None
    connect: Callable[[int], socket.socket]
    became_ready: Callable[[], None]


class WayIn(Protocol):
    """How users of jobs come in; its methods are called in the loop."""

    def serve(self, served: Served) -> None:
        """Admit users to one more attempt."""

    def forget(self, attempt_id: str) -> None:
        """Stop admitting users to an attempt, and cut its open streams."""

    async def close(self) -> None:
        """Stop admitting users."""


class Ports:
    """The ports of all attempts of an agent.

    Args:
        way_in: makes the way in of users, given the threads that may block; None to let no user in.
    """

    def __init__(self, way_in: Callable[[ThreadPoolExecutor], WayIn] | None = None) -> None:
        self._make_way_in = way_in
        self._way_in: WayIn | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._probes: dict[str, asyncio.Task[None]] = {}  # of attempts that are served

    def serve(self, served: Served) -> None:
        """Wait until an attempt is ready, and admit users; do nothing for a served attempt."""
        with self._lock:
            if not self._is_closed:
                _call(self._running(), self._serve(served))

    def forget(self, attempt_id: str) -> None:
        """Stop serving the ports of an attempt; harmless if nothing is done."""
        with self._lock:
            if self._loop is not None:
                _call(self._loop, self._forget(attempt_id))

    def close(self) -> None:
        """Stop serving all attempts, and end the thread."""
        with self._lock:
            self._is_closed = True
            loop, thread, pool = self._loop, self._thread, self._pool
            self._loop = self._thread = self._pool = None
        if loop is None or thread is None or pool is None:
            return
        _call(loop, self._end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        pool.shutdown(wait=False)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ports")
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="ports", daemon=True
            )
            self._thread.start()
        return self._loop

    # The methods from here on run in the loop.

    async def _serve(self, served: Served) -> None:
        if served.attempt_id in self._probes:
            return
        assert self._pool is not None  # noqa: S101 - it is there as long as the loop
        if self._way_in is None and self._make_way_in is not None:
            self._way_in = self._make_way_in(self._pool)
        loop = asyncio.get_running_loop()
        probe = loop.create_task(self._probe(served, self._pool))
        self._probes[served.attempt_id] = probe
        if self._way_in is not None:
            self._way_in.serve(served)

    async def _forget(self, attempt_id: str) -> None:
        probe = self._probes.pop(attempt_id, None)
        if probe is None:
            return
        probe.cancel()
        if self._way_in is not None:
            self._way_in.forget(attempt_id)

    async def _end(self) -> None:
        for attempt_id in list(self._probes):
            await self._forget(attempt_id)
        if self._way_in is not None:
            await self._way_in.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)
        await asyncio.sleep(0)  # sockets are closed in the next turn

    async def _probe(self, served: Served, pool: ThreadPoolExecutor) -> None:
        ready = served.ready
        if ready is None:
            return
        pause = min(_FIRST_SECONDS, ready.every_s)
        try:
            while not await is_ready(served.connect, ready, pool):
                await asyncio.sleep(pause)
                pause = min(2 * pause, ready.every_s)
        except TaskError as error:
            _logger.warning("job %s: never ready: %s", served.attempt_id, error.message)
        except Exception:
            _logger.exception("job %s: the check whether it is ready has failed", served.attempt_id)
        else:
            _logger.info("job %s: ready", served.attempt_id)
            served.became_ready()


def _call(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run_coroutine_threadsafe(coroutine, loop).result(_CALL_SECONDS)

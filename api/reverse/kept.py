"""Connections to jobs that are kept after an answer, for the next request of the same visitors.

A new one takes three round trips to the device, for the order, TCP and TLS, and some 5 ms of
processor on both sides, nearly all of it for the handshake. Only requests that do nothing and have
no body go over one that was kept: they can be repeated if the job has closed it meanwhile, and a
body that two programs read differently cannot turn into the request of another visitor.
"""

import asyncio
from typing import NamedTuple

from msgspec import Struct

from api.reverse.upstream import Upstream


class KeptBounds(Struct, frozen=True):
    """The number of connections that are kept, and the time.

    Attributes:
        idle_seconds: the time. Most programs close an idle connection after 5 s to 75 s. One that
            closes it sooner costs a second try.
        per_replica: the number for one replica. A browser opens six at once to a host. Connections
            that are kept count among the streams of a device.
        total: the number of all, a small part of the streams that may be open.
    """

    idle_seconds: float = 15.0
    per_replica: int = 8
    total: int = 256


USUAL_BOUNDS = KeptBounds()


class Way(NamedTuple):
    """Destination of a connection: it serves the same key at the same port, and no other."""

    app_id: str
    key_hash: str
    device_id: str
    job_id: str
    attempt: int
    port: int


class Kept:
    """Idle connections to workers, for one event loop."""

    def __init__(self, bounds: KeptBounds = USUAL_BOUNDS) -> None:
        self.bounds = bounds
        self._idle: dict[Way, dict[Upstream, asyncio.TimerHandle]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def take(self, way: Way) -> Upstream | None:
        """Return the connection that was used last, now owned by the caller; None without one."""
        while idle := self._idle.get(way):
            upstream = next(reversed(idle))
            self._remove(way, upstream)
            if upstream.can_ask_again:
                return upstream
            upstream.close()
        return None

    def keep(self, way: Way, upstream: Upstream) -> None:
        """Keep a connection for some seconds, or close it."""
        bounds, beside = self.bounds, len(self._idle.get(way, ()))
        is_full = self._size >= bounds.total or beside >= bounds.per_replica
        if is_full or not upstream.can_ask_again:
            upstream.close()
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(bounds.idle_seconds, self._drop, way, upstream)
        self._idle.setdefault(way, {})[upstream] = timer
        self._size += 1

    def forget(self, app_id: str = "") -> None:
        """Close the connections of an app; "" for all apps."""
        for way in [each for each in self._idle if app_id in ("", each.app_id)]:
            for upstream in list(self._idle[way]):
                self._drop(way, upstream)

    def _drop(self, way: Way, upstream: Upstream) -> None:
        self._remove(way, upstream)
        upstream.close()

    def _remove(self, way: Way, upstream: Upstream) -> None:
        idle = self._idle[way]
        idle.pop(upstream).cancel()
        if not idle:
            del self._idle[way]
        self._size -= 1

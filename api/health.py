"""Routes for operators: is it alive, is it ready, what is this."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from api.errors import Transport, TransportError
from api.routes import Call, Reply, Route

READY_SECONDS = 1.0  # for which an answer is good: the store is asked once for all who ask us


class AliveReply(Reply, kw_only=True):
    """The process answers."""

    service: str = "proxyd"


class HealthRoutes:
    """The routes of health.

    Args:
        ready: says whether the store is reachable and the listeners are up.
    """

    def __init__(self, ready: Callable[[], Awaitable[bool]]) -> None:
        self._ready = ready
        self._asking = asyncio.Lock()
        self._known = False
        self._known_until = 0.0

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/",
                "What this is",
                self.alive,
                AliveReply,
                while_draining=True,
                is_health=True,
            ),
            Route(
                "GET",
                "/healthz",
                "Alive?",
                self.alive,
                AliveReply,
                while_draining=True,
                is_health=True,
            ),
            Route(
                "GET",
                "/readyz",
                "Ready?",
                self.ready,
                AliveReply,
                is_health=True,
                unavailable=(Transport.NOT_READY,),
            ),
        ]

    async def alive(self, _: Call[Any, Any]) -> AliveReply:
        """Answer."""
        return AliveReply()

    async def ready(self, _: Call[Any, Any]) -> AliveReply:
        """Answer when everything works that a customer needs, or did a moment ago."""
        async with self._asking:
            if monotonic() >= self._known_until:
                self._known = await self._ready()
                self._known_until = monotonic() + READY_SECONDS
        if not self._known:
            raise TransportError(Transport.NOT_READY)
        return AliveReply()

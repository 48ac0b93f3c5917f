"""Routes for operators and load balancers: alive, ready, and the name of the service."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from api.http.errors import Transport, TransportError
from api.routing.routes import Call, Reply, Route

READY_SECONDS = 1.0  # an answer is reused for this time: probes cost one query a second


class AliveReply(Reply, kw_only=True):
    """The process answers."""

    service: str = "proxyd"


class HealthRoutes:
    """The routes of health.

    Args:
        why_not_ready: says why customers cannot be served; "" when they can.
        ready_seconds: for how long an answer to that is reused.
    """

    def __init__(
        self, why_not_ready: Callable[[], Awaitable[str]], ready_seconds: float = READY_SECONDS
    ) -> None:
        self.ready_seconds = ready_seconds
        self._why_not_ready = why_not_ready
        self._asking = asyncio.Lock()
        self._reason = ""
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
        """Answer when everything that a customer needs works, or did `ready_seconds` ago."""
        async with self._asking:
            if monotonic() >= self._known_until:
                self._reason = await self._why_not_ready()
                self._known_until = monotonic() + self.ready_seconds
        if self._reason:
            message = f"{Transport.NOT_READY.meaning} ({self._reason})"
            raise TransportError(Transport.NOT_READY, message=message)
        return AliveReply()

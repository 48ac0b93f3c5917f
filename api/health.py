"""Routes for operators: is it alive, is it ready, what is this."""

from collections.abc import Awaitable, Callable
from typing import Any

from api.errors import Transport, TransportError
from api.routes import Call, Reply, Route


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

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route("GET", "/", "What this is", self.alive, AliveReply, while_draining=True),
            Route("GET", "/healthz", "Alive?", self.alive, AliveReply, while_draining=True),
            Route(
                "GET",
                "/readyz",
                "Ready?",
                self.ready,
                AliveReply,
                unavailable=(Transport.NOT_READY,),
            ),
        ]

    async def alive(self, _: Call[Any, Any]) -> AliveReply:
        """Answer."""
        return AliveReply()

    async def ready(self, _: Call[Any, Any]) -> AliveReply:
        """Answer when everything works that a customer needs."""
        if not await self._ready():
            raise TransportError(Transport.NOT_READY)
        return AliveReply()

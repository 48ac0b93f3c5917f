"""Whether this process can serve customers, for load balancers: known facts, and one query."""

import asyncio

from proxyd.gateway import Gateway
from proxyd.metering.node import Node
from storage.engines.errors import Cause, StoreError, UnavailableError
from storage.engines.store import Store, probe

# The answer comes within three seconds, also from a silent database: load balancers wait for five.
PROBE_SECONDS = 1.5


class Readiness:
    """Checks whether this process can serve, and returns the reason if not.

    Args:
        node: this process among others; None where there are no others.
        seconds: how long the database has for an answer.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        node: Node | None,
        seconds: float = PROBE_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._gateway = gateway
        self._store = store
        self._node = node

    def is_listening(self) -> bool:
        """Return whether the proxy accepts clients."""
        return self._gateway.is_listening

    async def why_not(self) -> str:
        """Return the reason in a few words; "" when new clients are served."""
        if not self._gateway.is_listening:
            return "the proxy accepts no clients"
        if trouble := self._store.health().trouble:
            return f"store: {trouble}"
        return (self._node and self._node.trouble()) or await self._probed()

    async def _probed(self) -> str:
        try:
            async with asyncio.timeout(self._seconds):
                await self._store.set_aside().read(probe)
        except TimeoutError:
            return "store: no answer in time"
        except StoreError as error:
            cause = error.cause if isinstance(error, UnavailableError) else Cause.OTHER
            return f"store: {cause}"
        return ""

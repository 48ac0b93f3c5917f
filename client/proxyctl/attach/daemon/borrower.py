"""Another daemon of the same service, which the exit's own daemon has named.

It is to carry for that, or may attach to it when its own one is gone.

The exit judges each address that a daemon names like a target, so it cannot make the exit connect
to the home that it stands in. Only the address at which the daemon itself was reached needs no
judge, because the exit talks to it anyway.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from proxyctl.attach.network.lan import public_name
from proxyctl.attach.relay.dial import connect
from proxyctl.protocol.addresses import Address, plain

if TYPE_CHECKING:
    import asyncio

    from proxyctl.attach.network.lan import Guard

# One packet may be lost, and be sent again after a second. A buyer waits during this time. As soon
# as the daemon knows of a failure, it can serve the buyer in another way.
CONNECT_SECONDS: Final = 1.5


class Borrower:
    """Address where another daemon accepts connections of exits.

    Args:
        host: an address, or a name.
        home: where the exit's own daemon was reached; None if it was not reached yet.
        seconds: how long a buyer waits for a connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        home: Address | None,
        guard: Guard,
        loop: asyncio.AbstractEventLoop,
        seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._host = host
        self._port = port
        self._home = None if home is None else plain(home)
        self._guard = guard
        self._loop = loop

    async def connect(self, seconds: float | None = None) -> socket.socket:
        """Return a socket that is connected to it.

        Args:
            seconds: how long that may take; None for as long as a buyer waits.

        Raises:
            OSError: no address connects, or none is permitted.
        """
        until = self._loop.time() + (self._seconds if seconds is None else seconds)
        for address in await self._addresses():
            if self._permits(address):
                return await connect(address, self._port, max(0.0, until - self._loop.time()))
        raise PermissionError("none of its addresses may be dialled")

    def _permits(self, address: Address) -> bool:
        """Judge as things stand now: the device may be carried elsewhere."""
        if address == self._home:
            return 0 < self._port < 1 << 16
        return self._guard.permits(address, self._port)

    async def _addresses(self) -> list[Address]:
        try:
            return [plain(ip_address(self._host))]
        except ValueError:
            name = public_name(self._host)
        if name is None:
            raise PermissionError("its name is not a public one")
        try:
            rows = await self._loop.getaddrinfo(name, self._port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise PermissionError("its name cannot be looked up") from None
        return [plain(ip_address(row[4][0])) for row in rows if "%" not in str(row[4][0])]

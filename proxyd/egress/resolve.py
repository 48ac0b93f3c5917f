"""Names to addresses."""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

Address = IPv4Address | IPv6Address


class NameNotFoundError(Exception):
    """Nobody knows an address for this name."""


class Resolver(Protocol):
    """Looks names up."""

    def cached(self, name: str) -> list[Address] | None:
        """Return the addresses of a name if they are known without asking anybody."""

    async def resolve(self, name: str) -> list[Address]:
        """Return the addresses of a name, the best first, at least one.

        Raises:
            NameNotFoundError: there is none.
        """


class SystemResolver:
    """The machine's own resolver, with its hosts file and search rules."""

    def cached(self, name: str) -> list[Address] | None:
        """See `Resolver.cached`."""

    async def resolve(self, name: str) -> list[Address]:
        """See `Resolver.resolve`."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NameNotFoundError(name) from error
        texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
        if not texts:
            raise NameNotFoundError(name)
        return [ip_address(text) for text in texts]

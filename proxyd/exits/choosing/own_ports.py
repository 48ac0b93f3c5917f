"""The service's own ports and addresses, which no buyer reaches through an exit.

The service takes the address of a connection for the one of its client: at the port of exits, where
an exit calls (`origin.py`) and attaches, and at ports without passwords. A connection through an
exit would come from the exit's address. The API and apps decide nothing by it alone, and buyers
look there from where they leave (`GET /ip`): these stay open.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from market.base.networks import Address, plain
from market.exits.consents import Door
from proxyctl.protocol.frames import DENIED_MAX, Deny
from proxyd.egress.resolve import LookupFailedError, NameNotFoundError, Resolver
from proxyd.wire.hosts import address_of

LOOK_SECONDS: Final = 60.0  # between look-ups of the service's own names, which rarely change
ADDRESSES_MAX: Final = 64  # of all nodes; the bound of agents is the same
NETWORKS_MAX: Final = 1024  # the bound of agents; with more networks no exit looks names up

_logger = logging.getLogger("exits")


class OwnPorts:
    """The addresses and ports that are the service's own.

    Args:
        ports: this daemon's ports, for clients on this machine and from outside.
        hosts: names and addresses of this daemon, beside those of doors.
        networks: networks that the operator denies to all sessions (CIDR).
    """

    def __init__(
        self,
        is_here: Callable[[Address], bool],
        resolver: Resolver,
        ports: Iterable[int],
        hosts: Iterable[str],
        networks: Iterable[str],
    ) -> None:
        self._is_here = is_here
        self._resolver = resolver
        self._own = frozenset(ports) - {0}
        self._hosts = frozenset(hosts) - {""}
        self._networks = tuple(networks)
        if not self.fits:
            words = "egress.deny has more than %d networks: no exit looks names up"
            _logger.warning(words, NETWORKS_MAX)
        self._ports = self._own
        self._addresses: frozenset[Address] = frozenset()

    @property
    def fits(self) -> bool:
        """Whether agents can take the whole list of denied networks."""
        return len(self._networks) <= NETWORKS_MAX

    def has(self, address: Address, port: int) -> bool:
        """Return whether a port of an address is the service's own."""
        return port in self._ports and (address in self._addresses or self._is_here(address))

    def frames(self) -> list[Deny]:
        """Return the frames for agents, with the targets that names must not lead to."""
        addresses = tuple(sorted(map(str, self._addresses)))
        ports, networks = tuple(sorted(self._ports)), self._networks
        parts = [networks[at : at + DENIED_MAX] for at in range(0, len(networks), DENIED_MAX)]
        last = parts.pop() if parts else ()
        left = range(len(parts), 0, -1)
        begun = [Deny(part, (), (), each) for part, each in zip(parts, left, strict=True)]
        return [*begun, Deny(last, addresses, ports)]

    async def run(self, doors: Callable[[], Iterable[Door]], changed: Callable[[], None]) -> None:
        """Look up the service's addresses repeatedly.

        Args:
            doors: returns where exits attach, on each node.
            changed: called when an address or a port has come or gone.
        """
        while True:
            if await self.look(doors()):
                changed()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, doors: Iterable[Door]) -> bool:
        """Look up the service's addresses. Return whether they have changed."""
        doors = tuple(doors)
        known: set[Address] = set()
        for host in self._hosts | {door.host for door in doors}:
            known.update(await self._addresses_of(host))
        addresses = frozenset(sorted(known, key=str)[:ADDRESSES_MAX])
        ports = self._own | {door.port for door in doors}
        has_changed = (addresses, ports) != (self._addresses, self._ports)
        self._addresses, self._ports = addresses, ports
        return has_changed

    async def _addresses_of(self, host: str) -> list[Address]:
        """Return the addresses of a host; the last known ones if the lookup fails."""
        try:
            return [plain(address_of(host))]
        except ValueError:
            pass
        try:
            return [plain(each) for each in await self._resolver.resolve(host)]
        except NameNotFoundError:
            return []
        except LookupFailedError as error:
            _logger.warning("%s cannot be looked up: %s", host, error)
            return list(self._addresses)

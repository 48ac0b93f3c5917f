"""The address of a client: the peer of its connection, or one that a trusted proxy forwards."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Network,
    ip_address,
    ip_network,
)

from market.base.networks import Address, plain

Network = IPv4Network | IPv6Network

MAPPED_BITS = 96

# An IPv4 address with a port, an IPv6 address in brackets with or without one.
_WITH_PORT = re.compile(r"(?:(?P<v4>[^:]+):\d+|\[(?P<v6>[^\]]+)\](?::\d+)?)")


class Clients:
    """Finds the address of a client; an IPv4-mapped IPv6 address is the IPv4 address.

    Args:
        trusted_proxies: networks whose X-Forwarded-For is believed.
    """

    def __init__(self, trusted_proxies: Iterable[str]) -> None:
        self._trusted = tuple(_plain_network(ip_network(text)) for text in trusted_proxies)

    def identify(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the client's address.

        Each proxy appends the address that it was connected from. So hops are read from the right
        for as long as the hop that reported them is trusted; an entry that is not an address ends
        the reading.

        Args:
            peer: the address that the connection came from.
            forwarded: every X-Forwarded-For line of the request, in order.
        """
        if not forwarded:
            return _spelled(peer)
        address = _address(peer)
        if address is None:
            return peer
        hops = [hop.strip() for hop in ",".join(forwarded).split(",") if hop.strip()]
        while hops and self._is_trusted(address):
            hop = _address(hops.pop())
            if hop is None:
                break
            address = hop
        return str(address)

    def believes(self, peer: str) -> bool:
        """Return whether the X-Forwarded-For of a peer is believed."""
        address = _address(peer)
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(
            address.version == network.version and address in network for network in self._trusted
        )


@lru_cache(maxsize=4096)
def _spelled(peer: str) -> str:
    """Return the counted form of a peer's address: many requests have the same peer."""
    address = _address(peer)
    return peer if address is None else str(address)


def _address(text: str) -> Address | None:
    with_port = _WITH_PORT.fullmatch(text)
    if with_port is not None:
        text = with_port["v4"] or with_port["v6"]
    try:
        return plain(ip_address(text))
    except ValueError:
        return None


def _plain_network(network: Network) -> Network:
    """Return the IPv4 network that a network of mapped addresses stands for."""
    if isinstance(network, IPv6Network) and network.prefixlen >= MAPPED_BITS:
        address = plain(network.network_address)
        if isinstance(address, IPv4Address):
            return IPv4Network((address, network.prefixlen - MAPPED_BITS))
    return network

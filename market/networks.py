"""Addresses, and the networks that a client is counted by.

An IPv4 client counts as its address, an IPv6 client as its /64 and the networks around that. One
address has one spelling here: an IPv4 address that an IPv6 socket reports as mapped is `plain`.
"""

from functools import lru_cache
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from proxyctl.protocol.addresses import Address, plain
from proxyctl.protocol.policy import is_global

__all__ = [
    "Address",
    "NetworkCounts",
    "counted_network",
    "crowded",
    "enclosing",
    "plain",
    "site",
]

SUBSCRIBER_BITS = 64

# A site is assigned a /56 or a /48 (RFC 6177), which are 256 and 65,536 networks of one subscriber.
# Each is bounded, too, by so many times the bound of one: more than a household or an office needs,
# and far less than 256 or 65,536 times.
WIDER = ((56, 4), (48, 16))


@lru_cache(maxsize=4096)
def counted_network(address: str) -> str:
    """Return the network that an address is counted as, wherever something is bounded by client.

    One subscriber has a /64 at least, and with it as many IPv6 addresses as they like (RFC 6177),
    so these count as one. An address counts as it is `plain`, and a zone is left out (RFC 4007).
    What is no IPv6 address is returned as it is.
    """
    if ":" not in address:
        return address
    try:
        parsed = plain(IPv6Address(address.partition("%")[0]))
    except AddressValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    return str(IPv6Network((parsed, SUBSCRIBER_BITS), strict=False))


@lru_cache(maxsize=4096)
def enclosing(network: str) -> tuple[tuple[str, int], ...]:
    """Return a counted network and those around it, each with its share.

    Args:
        network: what `counted_network` returned; anything else is alone, such as an identifier.

    Returns:
        The narrowest first. The share says how many times the bound of one network it may have.
    """
    alone = ((network, 1),)
    if ":" not in network:
        return alone
    try:
        parsed = IPv6Network(network)
    except ValueError:
        return alone
    if parsed.prefixlen != SUBSCRIBER_BITS:
        return alone
    wider = ((str(parsed.supernet(new_prefix=bits)), share) for bits, share in WIDER)
    return alone + tuple(wider)


@lru_cache(maxsize=4096)
def site(address: str) -> str:
    """Return the network of whoever has an address: what one household or company has together.

    That is an IPv4 /24, and an IPv6 /48, which is what a site has at most (RFC 6177). An address
    that is not of the internet says nothing of where somebody is: then it is "".
    """
    try:
        parsed = plain(ip_address(address.partition("%")[0]))
    except ValueError:
        return ""
    if not is_global(parsed):
        return ""
    bits = 24 if isinstance(parsed, IPv4Address) else 48
    return str(ip_network((parsed, bits), strict=False))


class NetworkCounts:
    """Counts by network; `total` is the sum.

    A network also counts for the networks around it.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[str, int] = {}

    def __getitem__(self, network: str) -> int:
        return self._counts.get(network, 0)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, network: str, amount: int = 1) -> None:
        """Add to the count of a network; below zero subtracts."""
        self.total += amount
        for name, _ in enclosing(network):
            count = self._counts.get(name, 0) + amount
            if count:
                self._counts[name] = count
            else:
                self._counts.pop(name, None)


def crowded(network: str, most: int, *counts: NetworkCounts, more: int = 1) -> str:
    """Return the network that is at its bound: `network`, one around it, or "" for none.

    Args:
        network: the network that wants more.
        most: the bound of one network; those around it have their share.
        counts: what is added up for each network.
        more: how many more it wants.
    """
    for name, share in enclosing(network):
        wanted = more
        for count in counts:
            wanted += count[name]
        if wanted > most * share:
            return name
    return ""

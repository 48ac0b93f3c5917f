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

from proxyctl.protocol.addresses import Address, plain, text_of_ipv4
from proxyctl.protocol.policy import is_global

__all__ = [
    "Address",
    "NetworkCounts",
    "counted_network",
    "crowded",
    "enclosing",
    "parsed_address",
    "plain",
    "site",
    "text_of",
]

SUBSCRIBER_BITS = 64

# A site is assigned a /56 or a /48 (RFC 6177), which are 256 and 65,536 networks of one subscriber.
# A /56 or /48 has this multiple of the bound of one network: more than a household or an office
# needs, and far less than 256 or 65,536 times.
WIDER = ((56, 4), (48, 16))


def text_of(address: Address) -> str:
    """Return the text of an address: `addresses.text_of`, in compiled code."""
    return text_of_ipv4(int(address)) if isinstance(address, IPv4Address) else str(address)


def parsed_address(text: str) -> Address | None:
    """Return an address in its one spelling and without a zone; None for another text."""
    try:
        return plain(ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def counted_network(address: str) -> str:
    """Return the network of an address, for limits per client.

    One subscriber has at least a /64, with any number of IPv6 addresses (RFC 6177), so these count
    as one. An address counts in its `plain` form, without a zone (RFC 4007). Any other text is
    returned unchanged.
    """
    return _network_of_ipv6(address) if ":" in address else address


@lru_cache(maxsize=4096)
def _network_of_ipv6(address: str) -> str:
    try:
        parsed = plain(IPv6Address(address.partition("%")[0]))
    except AddressValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    return str(IPv6Network((parsed, SUBSCRIBER_BITS), strict=False))


def enclosing(network: str) -> tuple[tuple[str, int], ...]:
    """Return a counted network and the networks around it, each with its share.

    Args:
        network: a result of `counted_network`; another text, such as an identifier, has no network
            around it.

    Returns:
        The narrowest first. The share is the multiple of the bound of one network.
    """
    return _around_ipv6(network) if ":" in network else ((network, 1),)


@lru_cache(maxsize=4096)
def _around_ipv6(network: str) -> tuple[tuple[str, int], ...]:
    alone = ((network, 1),)
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
    """Return the network of the household or company of an address.

    This is an IPv4 /24 or an IPv6 /48, the largest network of a site (RFC 6177). For an address
    outside the internet it is "", because such an address names no place.
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
        if ":" not in network:  # no network is around it
            self._add(network, amount)
            return
        for name, _ in enclosing(network):
            self._add(name, amount)

    def _add(self, name: str, amount: int) -> None:
        count = self._counts.get(name, 0) + amount
        if count:
            self._counts[name] = count
        else:
            self._counts.pop(name, None)


def crowded(network: str, most: int, *counts: NetworkCounts, more: int = 1) -> str:
    """Return the network that is at its bound: `network`, one around it, or "" for none.

    Args:
        network: the network that wants more.
        most: the bound of one network; the networks around it have their share.
        counts: the counts to add for each network.
        more: the number that it wants in addition.
    """
    for name, share in enclosing(network):
        wanted = more
        for count in counts:
            wanted += count[name]
        if wanted > most * share:
            return name
    return ""

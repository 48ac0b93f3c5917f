"""The network that a client is counted by: an IPv4 address, or the /64 around an IPv6 address."""

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address, IPv6Network

SUBSCRIBER_BITS = 64


@lru_cache(maxsize=4096)
def counted_network(address: str) -> str:
    """Return what everything that is bounded per address counts an address as.

    One subscriber has a /64 at least, and with it as many IPv6 addresses as they like (RFC 6177),
    so these count as one. An IPv4 address that IPv6 carries is that address (RFC 4291, section
    2.5.5.2), and a zone is left out (RFC 4007). What is no IPv6 address is returned as it is.
    """
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except AddressValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, SUBSCRIBER_BITS), strict=False))

"""For whom a client's address counts where clients are counted."""

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address, IPv6Network

# What one subscriber is given (RFC 6177): whoever has one of its addresses has all of them.
SUBSCRIBER_BITS = 64


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return what one client can call its own: an IPv4 address, or the /64 of an IPv6 one.

    An IPv4 address that IPv6 carries is that address (RFC 4291, section 2.5.5.2), and a zone is
    left out (RFC 4007); what is no IPv6 address is returned as it is.
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

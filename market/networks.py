"""The network that a caller is counted by: an IPv4 address, or the /64 around an IPv6 address."""

from ipaddress import IPv6Address, ip_address

HOST_BITS = 64


def counted_network(address: str) -> str:
    """Return what everything that is bounded per address counts an address as.

    One customer has a /64 at least, and with it as many IPv6 addresses as they like (RFC 6177), so
    these count as one. An IPv4 address is the same one when IPv6 carries it. What is no address
    counts as itself.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return f"{IPv6Address(int(found) >> HOST_BITS << HOST_BITS)}/{HOST_BITS}"
    return str(found)

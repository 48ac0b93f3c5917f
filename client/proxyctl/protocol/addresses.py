"""Addresses, each in one spelling."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Union

Address = Union[IPv4Address, IPv6Address]


def plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one carries (RFC 4291, section 2.5.5.2), or itself."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address

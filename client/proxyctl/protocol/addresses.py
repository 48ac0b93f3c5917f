"""Addresses, each in one spelling."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Union

Address = Union[IPv4Address, IPv6Address]

TEXTS_KEPT: Final = 4096


def plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one carries (RFC 4291, section 2.5.5.2), or itself."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address


def text_of(address: Address) -> str:
    """Return the text of an address, which Python computes anew each time.

    Texts of IPv6 addresses are not kept: see `Policy`.
    """
    return text_of_ipv4(int(address)) if isinstance(address, IPv4Address) else str(address)


@lru_cache(maxsize=TEXTS_KEPT)
def text_of_ipv4(number: int) -> str:
    """Return the text of the IPv4 address with this number."""
    return str(IPv4Address(number))

"""Hosts as clients write them: addresses, names, and malformed texts."""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from market.base.networks import plain
from proxyd.wire.events import Address

_PRINTABLE: Final = re.compile(rb"[\x21-\x7e]+")
_ENDS_AS_IPV4: Final = frozenset("0123456789")


def host_from_text(encoded: bytes) -> Address | str | None:
    """Return the host in a text: an address, or a name.

    None when it can be neither an address nor a name: empty, with bytes no name has, or an address
    that means something on one machine's links alone (a scope, RFC 4007).
    """
    if _PRINTABLE.fullmatch(encoded) is None:
        return None
    text = encoded.decode("ascii")
    bare = text[1:-1] if text[0] == "[" and text[-1] == "]" else text
    if ":" in bare or bare[-1:] in _ENDS_AS_IPV4:  # other texts cost no exception
        try:
            address = ip_address(bare)
        except ValueError:
            pass
        else:
            return None if isinstance(address, IPv6Address) and address.scope_id else address
    return text.removesuffix(".") or None


@lru_cache(maxsize=4096)
def address_from_packed(packed: bytes) -> Address:
    """Return the address in 4 or 16 bytes in network order."""
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


@lru_cache(maxsize=4096)
def address_of(text: str) -> Address:
    """Return the address that a system call reports; an IPv4-mapped IPv6 address becomes IPv4."""
    return plain(ip_address(text.partition("%")[0]))


@lru_cache(maxsize=4096)
def unmapped(text: str) -> str:
    """Return an address as `address_of` reads it, in text again."""
    return str(address_of(text))

"""Names as they are looked up: one spelling each, and none that a library could misread.

A name that ends in a number (`127.1`, `0x7f.1`) can only be an address. It is read as an address
and judged by the policy, without a look-up.
"""

import re
import socket
from ipaddress import IPv4Address

NAME_MAX_CHARACTERS = 253

# Letters, digits and hyphens (RFC 1123), and the underscore that real names have all the same.
_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_NOWHERE = "invalid"


def canonical(name: str) -> str | None:
    """Return the one spelling of a name that is a name at all: lower case, without the last dot.

    None for names that no name server knows: characters that names do not have (a NUL would end the
    name early in C), labels and names that are too long, and names below `invalid` (RFC 6761,
    section 6.4).
    """
    key = name.lower().removesuffix(".")
    if len(key) > NAME_MAX_CHARACTERS or not _NAME.fullmatch(key):
        return None
    return None if key.rpartition(".")[2] == _NOWHERE else key


def is_number(key: str) -> bool:
    """Return whether a canonical name ends in a number, and so can only be an address.

    The rule of the URL standard ("ends in a number checker"): no such name is in the DNS, and name
    servers should not receive one.
    """
    return _NUMBER.fullmatch(key) is not None


def address_of_number(key: str) -> IPv4Address | None:
    """Return the address that an old spelling means: 127.1, 2130706433, 0x7f.1, 0177.0.0.1."""
    try:
        return IPv4Address(socket.inet_aton(key))
    except OSError:
        return None

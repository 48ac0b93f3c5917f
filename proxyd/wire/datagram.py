"""The header in front of every datagram that goes through the proxy (RFC 1928, section 7)."""

from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from proxyd.wire.events import Address
from proxyd.wire.hosts import host_from_text
from proxyd.wire.socks5 import DOMAINNAME, IPV4, IPV6

_START_V4: Final = bytes((0, 0, 0, IPV4))
_START_V6: Final = bytes((0, 0, 0, IPV6))
_SHORTEST: Final = 4 + 1 + 1 + 2


class Datagram(NamedTuple):
    """A client's datagram: its payload and its destination; `payload` is a slice of the input."""

    host: Address | str
    port: int
    payload: bytes | memoryview


def unwrap(data: bytes | memoryview) -> Datagram | None:
    """Return the content of a client's datagram; None when it must be dropped.

    Dropped are those that are too short, that are fragments (which section 7 lets a server refuse),
    and whose address is of no known type or no host. The reserved bytes are not looked at.
    """
    if len(data) < _SHORTEST or data[2] != 0:
        return None
    kind = data[3]
    start = 4
    if kind == IPV4:
        end = 8
    elif kind == DOMAINNAME:
        start = 5
        end = 5 + data[4]
    elif kind == IPV6:
        end = 20
    else:
        return None
    if len(data) < end + 2:
        return None
    encoded = bytes(data[start:end])
    host: Address | str | None
    if kind == IPV4:
        host = IPv4Address(encoded)
    elif kind == IPV6:
        host = IPv6Address(encoded)
    else:
        host = host_from_text(encoded)
    if host is None:
        return None
    return Datagram(host, data[end] << 8 | data[end + 1], data[end + 2 :])


def header(host: Address | str, port: int) -> bytes:
    """Return the header of a datagram: its sender for a client, its target for an exit."""
    if isinstance(host, str):
        name = host.encode("ascii")
        return bytes((0, 0, 0, DOMAINNAME, len(name))) + name + port.to_bytes(2, "big")
    start = _START_V4 if host.version == 4 else _START_V6
    return start + host.packed + port.to_bytes(2, "big")

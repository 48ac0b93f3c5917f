"""Reads the networks of a device from Linux (rtnetlink(7)). Needs no privilege.

On other systems, and where a sandbox forbids these sockets, both classes raise `OSError` when they
are made. The exit then uses only the knowledge of `surroundings.py`.
"""

from __future__ import annotations

import socket
import struct
import threading
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ipaddress import IPv4Network, IPv6Network
    from typing import Union

    from proxyctl.protocol.addresses import Address

    Network = Union[IPv4Network, IPv6Network]

# A route to fewer addresses leads to the owner's own network, or to one configured by hand. It is
# no way to the internet. The default route has length 0; programs that replace it use halves and
# quarters.
PREFIX_MIN_LENGTH: Final = {4: 8, 6: 16}

_REPLY_MAX_BYTES: Final = 1 << 16  # more than the kernel puts into one datagram of a dump
_ANSWER_BYTES: Final = 4096  # of a route: only its head is read
_NETWORKS_MAX: Final = 4096  # a machine with more routes is a router, and its largest are enough

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ADDRESS: Final = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
# All three, before an address: one call packs them.
_QUESTION: Final = struct.Struct(
    "=" + "".join(each.format.lstrip("=") for each in (_HEADER, _ROUTE, _ATTRIBUTE))
)

_ERROR, _DONE = 2, 3
_NEW_ADDRESS, _GET_ADDRESS = 20, 22
_NEW_ROUTE, _GET_ROUTE = 24, 26
_REQUEST, _DUMP = 1, 0x300
_MATCHED_ROUTE: Final = 0x2000  # answer with the route that matches, not with one to the address
_HOST_ROUTE: Final = 0x200  # the answer of a kernel before 4.13, which ignores the former
_UNICAST: Final = 1
_IPV4, _IPV6 = 2, 10  # AF_INET and AF_INET6, as Linux numbers them
_ADDRESS_ATTRIBUTES: Final = (1, 2)  # IFA_ADDRESS, IFA_LOCAL
_DESTINATION, _GATEWAY, _SEVERAL = 1, 5, 9
_NEXT_HOP: Final = struct.Struct("=HBBi")


def networks() -> set[Network]:
    """Return each network that an address or a route of this machine names, and its gateways.

    The default route is not included.

    Raises:
        OSError: the kernel does not tell.
    """
    kernel = _open()
    try:
        found: set[Network] = set()
        for body in _dump(kernel, _GET_ADDRESS, _NEW_ADDRESS):
            found.update(_of_address(body))
        for body in _dump(kernel, _GET_ROUTE, _NEW_ROUTE):
            found.update(_of_route(body))
            if len(found) > _NETWORKS_MAX:
                break
        return found
    finally:
        kernel.close()


class Routes:
    """Checks whether this machine would send to an address by its default route; thread-safe.

    Raises:
        OSError: the kernel does not tell.
    """

    def __init__(self) -> None:
        self._kernel = _open()
        self._sequence = 0
        self._reply = bytearray(_ANSWER_BYTES)
        self._lock = threading.Lock()  # one thread must not read the reply to another one

    def leads_out(self, address: Address) -> bool:
        """Return False if the address is this machine's, on a link of it, or routed specially.

        Where there is no route at all the answer is True: connecting will say so.

        Raises:
            OSError: the kernel does not tell.
        """
        with self._lock:
            return self._ask(address)

    def _ask(self, address: Address) -> bool:
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        self._kernel.send(_question(address, self._sequence))
        while True:
            reply = self._reply
            self._kernel.recv_into(reply)
            _, kind, _, sequence, _ = _HEADER.unpack_from(reply)
            if sequence != self._sequence:
                continue
            if kind != _NEW_ROUTE:
                return True
            _, length, _, _, _, _, _, route_type, flags = _ROUTE.unpack_from(reply, _HEADER.size)
            if route_type != _UNICAST:
                return False
            return bool(flags & _HOST_ROUTE) or length < PREFIX_MIN_LENGTH[address.version]

    def close(self) -> None:
        """Close the socket; closing it twice is harmless."""
        self._kernel.close()


def _open() -> socket.socket:
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        raise OSError("this system has no netlink")
    kernel = socket.socket(family, socket.SOCK_RAW, 0)
    kernel.setblocking(False)  # a reply is there when `send` returns, and none ever comes later
    return kernel


def _question(address: Address, sequence: int) -> bytes:
    packed = address.packed
    size = len(packed)
    head = _HEADER.size + _ROUTE.size + _ATTRIBUTE.size + size, _GET_ROUTE, _REQUEST, sequence, 0
    family = _IPV4 if size == 4 else _IPV6
    route = family, 8 * size, 0, 0, 0, 0, 0, 0, _MATCHED_ROUTE
    return _QUESTION.pack(*head, *route, _ATTRIBUTE.size + size, _DESTINATION) + packed


def _dump(kernel: socket.socket, question: int, answer: int) -> Iterator[bytes]:
    size = _HEADER.size + _ROUTE.size
    kernel.send(_HEADER.pack(size, question, _REQUEST | _DUMP, question, 0) + bytes(_ROUTE.size))
    while True:
        datagram = kernel.recv(_REPLY_MAX_BYTES)
        while len(datagram) >= _HEADER.size:
            length, kind, _, sequence, _ = _HEADER.unpack_from(datagram)
            if length < _HEADER.size:
                raise OSError("a reply of the kernel that cannot be understood")
            if sequence == question and kind == answer:
                yield datagram[_HEADER.size : length]
            elif sequence == question and kind in (_DONE, _ERROR):
                if kind == _ERROR:
                    raise OSError("the kernel does not list its addresses and routes")
                return
            datagram = datagram[_aligned(length) :]


def _attributes(body: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    while len(body) - offset >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind, body[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)


def _of_address(body: bytes) -> Iterator[Network]:
    family, length, _, _, _ = _ADDRESS.unpack_from(body)
    if family not in (_IPV4, _IPV6):
        return
    for kind, value in _attributes(body, _ADDRESS.size):
        if kind in _ADDRESS_ATTRIBUTES:
            address = ip_address(value)
            yield ip_network(address)
            yield ip_network((address, length), strict=False)


def _of_route(body: bytes) -> Iterator[Network]:
    family, length, _, _, _, _, _, _, _ = _ROUTE.unpack_from(body)
    if family not in (_IPV4, _IPV6):
        return
    for kind, value in _attributes(body, _ROUTE.size):
        if kind == _DESTINATION and length >= PREFIX_MIN_LENGTH[4 if family == _IPV4 else 6]:
            yield ip_network((ip_address(value), length), strict=False)
        elif kind == _GATEWAY:
            yield ip_network(ip_address(value))
        elif kind == _SEVERAL:
            yield from _of_next_hops(value)


def _of_next_hops(value: bytes) -> Iterator[Network]:
    while len(value) >= _NEXT_HOP.size:
        length = _NEXT_HOP.unpack_from(value)[0]
        if length < _NEXT_HOP.size:
            return
        for kind, gateway in _attributes(value[:length], _NEXT_HOP.size):
            if kind == _GATEWAY:
                yield ip_network(ip_address(gateway))
        value = value[_aligned(length) :]


def _aligned(length: int) -> int:
    return length + 3 & ~3

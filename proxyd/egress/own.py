"""Addresses that lead to this machine itself, as its kernel would route them (rtnetlink(7)).

A globally routable address of our own passes every list of special ranges, and bytes sent to it
never meet the firewall that keeps others from the machine's services.
"""

import errno
import logging
import socket
import struct
import time
from collections.abc import Callable
from ipaddress import IPv4Address

from market.base.networks import Address

KEPT_SECONDS = 10.0
KEPT_MAX = 4096
ANSWER_MAX_BYTES = 4096

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, bits, source bits, TOS, table, protocol, scope, type
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NETLINK_ROUTE = 0
_NEWROUTE = 24
_GETROUTE = 26
_REQUEST = 1
_DESTINATION = 1
_KIND_OFFSET = _HEADER.size + 7
_HERE = frozenset((2, 3, 4))  # local, broadcast, anycast

_OUT_OF_RESOURCES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_logger = logging.getLogger("egress")


class OwnAddresses:
    """Checks whether an address leads to this machine, or to every machine on one of its links.

    An answer of the kernel is believed for ten seconds.

    Args:
        now: a clock that never goes back, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kernel: socket.socket | None = None
        # IPv4 by number, as in `Policy`: Python computes the hash of an address.
        self._known: dict[Address | int, bool] = {}
        self._until = 0.0
        self._sequence = 0
        self._is_refused = False

    def open(self) -> None:
        """Open the socket for queries to the kernel, while descriptors are left for it."""
        try:
            self._opened()
        except OSError as error:
            self._unanswered(error)

    def __call__(self, address: Address) -> bool:
        """Return whether the address does; True if the query lacks descriptors or memory."""
        now = self._now()
        if now >= self._until or len(self._known) >= KEPT_MAX:
            self._known.clear()
            self._until = now + KEPT_SECONDS
        key = int(address) if isinstance(address, IPv4Address) else address
        known = self._known.get(key)
        if known is None and not self._is_refused:
            try:
                known = self._known[key] = self._ask(address)
            except OSError as error:
                return self._unanswered(error)
        return bool(known)

    def close(self) -> None:
        """Close the opened socket; closing twice is harmless."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def _ask(self, address: Address) -> bool:
        kernel = self._opened()
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        kernel.send(question(address, self._sequence))
        while True:
            answer = kernel.recv(ANSWER_MAX_BYTES)  # it is there when `send` returns
            _, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            if sequence == self._sequence:
                return kind == _NEWROUTE and answer[_KIND_OFFSET] in _HERE

    def _opened(self) -> socket.socket:
        if self._kernel is None:
            self._kernel = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_ROUTE
            )
        return self._kernel

    def _unanswered(self, error: OSError) -> bool:
        self.close()
        if error.errno in _OUT_OF_RESOURCES or isinstance(error, BlockingIOError):
            return True
        self._is_refused = True
        _logger.warning(
            "the kernel does not list this machine's addresses: %s; sessions can reach "
            "those that are globally routable, unless egress.deny names them",
            error.strerror,
        )
        return False


def question(address: Address, sequence: int) -> bytes:
    """Return the message that asks for the route to an address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    route = _ROUTE.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    destination = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _DESTINATION)
    body = route + destination + address.packed
    return _HEADER.pack(_HEADER.size + len(body), _GETROUTE, _REQUEST, sequence, 0) + body

"""Connections that this device makes for strangers, each judged by the guard that exits have.

Inputs, images and the way out of jobs all go by that guard: the policy of the service, the networks
of the owner, the routes of the kernel, and the peer of the connected socket. A name is looked up
once, each of its addresses is judged, and one of those is dialled. Names that mean something at
home alone are not looked up.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
import time
from contextlib import closing
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from proxyctl.attach.network.lan import make_guard, public_name
from proxyctl.protocol.addresses import plain
from proxyctl.protocol.frames import CANDIDATES_MAX
from proxyctl.worker.base.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from urllib.parse import SplitResult

    from proxyctl.attach.network.lan import Guard
    from proxyctl.protocol.addresses import Address

    # Host, port, and the seconds that each later read or write of the socket may take.
    Dial = Callable[[str, int, float], socket.socket]

_logger = logging.getLogger("worker")

CONNECT_SECONDS: Final = 10.0  # for each address, as for targets of exits
# Between two questions for the public address of this device. A home line gets another one once a
# day at most, and a device can be carried elsewhere.
LEARN_SECONDS: Final = 60.0
_REPLY_MAX_BYTES: Final = 64 << 10
# Of a look-up: the name, or the address that stands for it, has none of the family.
_NO_ADDRESS: Final = frozenset(
    getattr(socket, name)
    for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY")
    if hasattr(socket, name)
)


class ForbiddenError(Exception):
    """Strangers may not reach this place from this device."""


class Outward:
    """Connects to places that strangers name; safe for threads.

    Args:
        guard: judges each address before it is dialled, and each socket after it has connected.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def refresh(self) -> None:
        """Read the networks of this device again, because it may have moved."""
        self.guard.surroundings.refresh()

    def dial(self, host: str, port: int, seconds: float) -> socket.socket:
        """Return a connected socket; the first address that answers is taken.

        Args:
            host: an address or a name, as it stands in a URL.
            port: of the target.
            seconds: that each later read or write of the socket may take.

        Raises:
            ForbiddenError: the guard permits none of its addresses.
            OSError: no permitted address answers.
        """
        self.refresh()
        permitted = [
            each
            for each in dict.fromkeys(map(plain, _addresses_of(host, port)))
            if self.guard.permits(each, port)
        ]
        if not permitted:
            raise ForbiddenError(f"{host} is not a place that strangers may reach from here")
        sock = _connected(permitted[:CANDIDATES_MAX], port)
        try:
            peer = sock.getpeername()
            if not self.guard.permits_peer(peer[0], peer[1]):
                raise ForbiddenError(f"{host} led to {peer[0]}, which strangers may not reach")
            sock.settimeout(seconds)
        except BaseException:
            sock.close()
            raise
        return sock


class WayOut(Outward):
    """The one of this device, with its own guard; to be closed.

    The guard learns the public addresses of this device from the service: from inside, such an
    address leads to the owner's router, and the device has no other way to know it. Until the
    service has answered, nothing is permitted of a family in which it has an address.
    """

    def __init__(self, api: str) -> None:
        guard, self._routes = make_guard(must_know=True)
        super().__init__(guard)
        self._lock = threading.Lock()
        self._questions = {
            4: _Question(api, socket.AF_INET),
            6: _Question(api, socket.AF_INET6),
        }

    def refresh(self) -> None:
        """Read this device's networks again, and request its public address from the service."""
        super().refresh()
        with self._lock:  # other threads wait for the answer
            for each in self._questions.values():
                self.guard.surroundings.learn_public(each.answer())
            # In a family in which the service has no address, nothing can be learned.
            self.guard.must_know(
                version for version, each in self._questions.items() if each.has_place
            )

    def close(self) -> None:
        """Close the guard's socket to the kernel."""
        if self._routes is not None:
            self._routes.close()


class _Question:
    """The question for the public address in one family, asked again from time to time.

    Attributes:
        has_place: whether the service has, or may have, an address in this family.
    """

    def __init__(self, api: str, family: socket.AddressFamily) -> None:
        self.has_place = True
        self._parts = urlsplit(api)
        self._family = family
        self._retries = Retries()
        self._ask_at = 0.0  # monotonic

    def answer(self) -> str:
        """Return the address, or "" without an answer or a new question."""
        if time.monotonic() < self._ask_at:
            return ""
        is_tls = self._parts.scheme == "https"
        port = self._parts.port or (443 if is_tls else 80)
        try:
            found = _asked(self._parts, port, self._family, is_tls=is_tls)
        except (OSError, http.client.HTTPException, ValueError) as error:
            _logger.debug("the public address of %s: %s", self._family.name, error)
            is_none = isinstance(error, socket.gaierror) and error.errno in _NO_ADDRESS
            self.has_place = not is_none
            seconds = LEARN_SECONDS if is_none else self._retries.failed()
            self._ask_at = time.monotonic() + seconds
            return ""
        self.has_place = True
        self._retries.succeeded()
        self._ask_at = time.monotonic() + LEARN_SECONDS
        return found


def anywhere(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to a place that the owner or the owner's own settings have named.

    Raises:
        OSError: the place does not answer.
    """
    sock = socket.create_connection((host, port), CONNECT_SECONDS)
    sock.settimeout(seconds)
    return sock


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself, without a look-up."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _asked(parts: SplitResult, port: int, family: socket.AddressFamily, *, is_tls: bool) -> str:
    host = parts.hostname or ""
    place = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
    with closing(http.client.HTTPConnection(host, port)) as connection:
        connection.sock = socket.create_connection((str(place[0]), port), CONNECT_SECONDS)
        if is_tls:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        connection.request("GET", f"{parts.path}/api/ip", headers={"Accept": "application/json"})
        with connection.getresponse() as response:
            fields = json.loads(response.read(_REPLY_MAX_BYTES))
    if not isinstance(fields, dict):
        raise ValueError("the service has not named it")  # noqa: TRY004 - of JSON, not of a call
    return str(ip_address(str(fields.get("ip"))))


def _addresses_of(host: str, port: int) -> list[Address]:
    try:
        # One with a scope (fe80::1%eth0) is on a link, and no name either.
        return [] if "%" in host else [ip_address(host)]
    except ValueError:
        pass
    name = public_name(host)
    if name is None:
        return []
    try:
        rows = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is no label
        return []
    return [ip_address(row[4][0]) for row in rows if "%" not in str(row[4][0])]


def _connected(addresses: Sequence[Address], port: int) -> socket.socket:
    failure: OSError | None = None
    for address in addresses:
        sock = socket.socket(
            socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM
        )
        try:
            sock.settimeout(CONNECT_SECONDS)
            sock.connect((str(address), port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            failure = error
            sock.close()
            continue
        return sock
    assert failure is not None  # noqa: S101 - there was an address, and each has failed
    raise failure

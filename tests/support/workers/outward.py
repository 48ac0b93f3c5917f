"""Ways out of a device for strangers: one that leads to this machine, and one that does not."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from proxyctl.attach.network.lan import Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.protocol.policy import Policy
from proxyctl.worker.network.outward import Outward

if TYPE_CHECKING:
    import socket

    from proxyctl.worker.network.outward import Dial


class Dialled:
    """A way out that keeps the sockets of its connections."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._made: list[socket.socket] = []

    def __call__(self, host: str, port: int, seconds: float) -> socket.socket:
        """Connect."""
        self._made.append(self._dial(host, port, seconds))
        return self._made[-1]

    def left_open(self) -> list[socket.socket]:
        """Return the sockets with a descriptor."""
        return [each for each in self._made if each.fileno() >= 0]


def to_loopback() -> Outward:
    """Permit the servers of the tests."""
    return _outward("127.0.0.0/8")


def to_nowhere_near() -> Outward:
    """Permit the destinations of a device in no network."""
    return _outward()


def _outward(*allow: str) -> Outward:
    opened = [ip_network(each) for each in allow]
    surroundings = Surroundings(set)
    return Outward(Guard(policy=Policy(), surroundings=surroundings, kernel=None, allow=opened))

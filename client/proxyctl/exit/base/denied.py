"""Targets that the service denies to all buyers: networks of its operator, and its own ports.

The daemon judges addresses itself. This list is for names that the device looks up.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final, Union

from proxyctl.protocol.addresses import Address, plain
from proxyctl.protocol.frames import FrameError
from proxyctl.protocol.policy import embedded_ipv4

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from proxyctl.protocol.frames import Deny

    Network = Union[IPv4Network, IPv6Network]

NETWORKS_MAX: Final = 1024  # a tenth of a millisecond for one address
ADDRESSES_MAX: Final = 64
FRAMES_MAX: Final = 64  # of one list: four times as many as it needs


class Denied:
    """The networks and addresses that the daemon denies; none before its first frame."""

    def __init__(self) -> None:
        self._networks: tuple[Network, ...] = ()
        self._places: frozenset[tuple[Address, int]] = frozenset()
        self._ports: frozenset[int] = frozenset()  # of these: the hash of an address costs more
        self._begun: list[Deny] = []

    def learn(self, frame: Deny) -> None:
        """Take one frame; the last frame of a list replaces the present list.

        Raises:
            FrameError: it names too much, or something that is no network or address.
        """
        self._begun.append(frame)
        texts = [each for part in self._begun for each in part.networks]
        is_much = len(texts) > NETWORKS_MAX or len(self._begun) > FRAMES_MAX
        if is_much or len(frame.addresses) > ADDRESSES_MAX:
            raise FrameError("a frame of the type Deny that names too much")
        if frame.left:
            return
        try:
            networks = tuple(ip_network(each) for each in texts)
            addresses = [plain(ip_address(each)) for each in frame.addresses]
        except ValueError:
            raise FrameError("a frame of the type Deny that names no network") from None
        self._networks = networks
        self._places = frozenset((each, port) for each in addresses for port in frame.ports)
        self._ports = frozenset(frame.ports)
        self._begun.clear()

    def has(self, address: Address, port: int) -> bool:
        """Return whether the service denies an address at a port."""
        if port in self._ports and (plain(address), port) in self._places:
            return True
        if not self._networks:
            return False
        inside = embedded_ipv4(address)
        return any(
            each.version == network.version and each in network
            for each in (address, inside)
            if each is not None
            for network in self._networks
        )

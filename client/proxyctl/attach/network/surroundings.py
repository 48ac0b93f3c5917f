"""The networks that a device is in, and the addresses that seem far away but lead back to it.

On Linux the kernel tells every address and route (`netlink.py`). Elsewhere it is inferred from the
addresses that the system would send from: an IPv4 network at home is private, so it is in `PRIVATE`
already, and an IPv6 one lies within the /48 that a provider gives to one customer at most.

Seen from inside, a router also answers at its public address, with its own pages and with every
port that it forwards. The device cannot see that address behind a translator; the daemon sees it,
once for each family of addresses. Until then the device carries nothing of that family (`knows`). A
device that sends from a public address of its own knows it without the daemon. An address that the
daemon saw on another line proves nothing about this line, so the old addresses stay closed, but
their families are unknown again.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final, Union

from proxyctl.attach.network import netlink
from proxyctl.protocol.addresses import Address, plain
from proxyctl.protocol.policy import embedded_ipv4, is_global

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Network = Union[IPv4Network, IPv6Network]

# The policy contains these networks as well: each layer must hold without the other.
PRIVATE: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "224.0.0.0/3",
        "::/16",  # the unspecified one, loopback, and IPv4 addresses inside
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "fc00::/7",
        "fe80::/9",
        "ff00::/8",
    )
)

# The most that a provider gives to one customer (RFC 6177); routers at home answer on all of it.
HOME_IPV6_LENGTH: Final = 48
_HOME_IPV4_LENGTH: Final = 24  # the usual size at home, where the system does not report it
_RESOLVER_FILES: Final = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
_NAMESERVERS_MAX: Final = 16
PUBLIC_KEPT: Final = 16
ANSWERS_KEPT: Final = 4096  # half a megabyte
# Root name servers. Nothing is sent: a connected datagram socket knows where it would send from.
_FAR: Final = ((socket.AF_INET, "198.41.0.4"), (socket.AF_INET6, "2001:503:ba3e::2:30"))


class Surroundings:
    """The networks that no stranger may reach through this device.

    Args:
        read: returns those that are known now; asked again by `refresh`.
        read_own: returns the addresses that the device sends from, one of each family.
    """

    def __init__(
        self,
        read: Callable[[], set[Network]],
        read_own: Callable[[], list[Address]] | None = None,
    ) -> None:
        self._read = read
        self._read_own = read_own or _own_addresses
        self._public: tuple[Network, ...] = ()
        self._line: Network | None = None
        self._seen: frozenset[int] = frozenset()  # families that the daemon has seen on this line
        self._networks: tuple[Network, ...] = ()
        self._own: frozenset[int] = frozenset()
        # Answers of `contains`, by the bytes of an address: a stranger could choose IPv6 addresses
        # whose numbers have the same hash. Replaced when an answer may change, and behind that
        # change: a thread that still looks at the old networks keeps its answer in the old
        # dictionary.
        self._answers: dict[bytes, bool] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the networks again, because the device may have moved."""
        networks = self._read()
        if networks != set(self._networks):
            self._networks = tuple(networks)
            self._answers = {}
        self._own = frozenset(each.version for each in self._read_own() if is_global(each))

    def knows(self, address: Address) -> bool:
        """Return whether this device knows its public address in the family of an address."""
        version = plain(address).version
        return version in self._own or version in self._seen

    def attached_from(self, text: str) -> None:
        """Add the address that the daemon sees when this device attaches.

        On another line than before the device has another router, whose addresses are not known.
        """
        line = _public_network(text)
        if line != self._line:
            self._line, self._seen = line, frozenset()
        self.learn_public(text)

    def learn_public(self, text: str) -> None:
        """Add the address that the daemon sees: from inside it leads to the router itself.

        The last few are kept, because a device may be on two networks at the same time.
        """
        network = _public_network(text)
        if network is None:
            return
        known = [each for each in self._public if each != network]
        self._public = (*known[1 - PUBLIC_KEPT :], network)
        self._answers = {}
        self._seen |= {network.version}

    def contains(self, address: Address) -> bool:
        """Return whether an address, or one embedded in it, is in the device's surroundings."""
        answers = self._answers
        key = address.packed
        answer = answers.get(key)
        if answer is None:
            inside = embedded_ipv4(address)
            answer = self._has(address) or (inside is not None and self._has(inside))
            if len(answers) >= ANSWERS_KEPT:
                answers.clear()
            answers[key] = answer
        return answer

    def _has(self, address: Address) -> bool:
        return any(
            address.version == network.version and address in network
            for networks in (PRIVATE, self._public, self._networks)
            for network in networks
        )


def read_networks() -> set[Network]:
    """Return the networks of this device, as far as the system reports them."""
    found: set[Network] = set()
    try:
        found.update(netlink.networks())
    except OSError:  # not Linux, or not allowed
        found.update(_assumed_networks())
    addresses = [network.network_address for network in found]
    addresses += _own_addresses()
    found.update(_home_of(each) for each in addresses if each.version == 6 and each.is_global)
    found.update(ip_network(each) for each in _nameservers(_RESOLVER_FILES))
    return found


def _public_network(text: str) -> Network | None:
    """Return the network around an address that the daemon sees; None if it is no address."""
    try:
        return _home_of(plain(ip_address(text)))
    except ValueError:
        return None


def _assumed_networks() -> Iterable[Network]:
    for address in _own_addresses():
        if isinstance(address, IPv4Address):
            yield ip_network((address, _HOME_IPV4_LENGTH), strict=False)
        else:
            yield _home_of(address)


def _home_of(address: Address) -> Network:
    if isinstance(address, IPv4Address):
        return ip_network(address)
    return ip_network((address, HOME_IPV6_LENGTH), strict=False)


def _own_addresses() -> list[Address]:
    found: list[Address] = []
    for family, far in _FAR:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 53))  # fails where there is no network of that family
            found.append(ip_address(probe.getsockname()[0].partition("%")[0]))
    return found


def _nameservers(files: Iterable[str]) -> list[Address]:
    found: list[Address] = []
    for name in files:
        try:
            lines = Path(name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                try:
                    found.append(ip_address(words[1].partition("%")[0]))
                except ValueError:
                    continue
    return found[:_NAMESERVERS_MAX]

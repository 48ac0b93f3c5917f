"""Judges the addresses and ports that a session may reach. Pure: it looks nothing up."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final, Union

from proxyctl.protocol.addresses import Address, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Network = Union[IPv4Network, IPv6Network]

VERDICTS_KEPT: Final = 4096

# Networks that the standard library calls global and that a proxy must not reach: multicast, the
# forms that carry an IPv4 address inside, ranges that no version of its tables has (RFC 6890 and
# the IANA special-purpose registries), and networks that clouds use for themselves.
_NEVER: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        # Looks global, and is answered by the host beneath a cloud's machine: Azure's WireServer,
        # which has the certificates of the machine; IBM Cloud's service network.
        "168.63.129.16/32",
        "161.26.0.0/16",
        "166.8.0.0/14",
    )
)
_GLOBAL_UNICAST_V6: Final = IPv6Network("2000::/3")
_NEVER_V6: Final = tuple(
    IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_COMPATIBLE: Final = IPv6Network("::/96")
_TRANSLATED: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_LOW_32_BITS: Final = 0xFFFFFFFF


class Verdict(Enum):
    """Fixed judgement of an address; only the list of the machine's own addresses changes."""

    ALLOWED = auto()
    DENIED = auto()
    UNLESS_OWN = auto()


# Names of this module: a look-up of an enumeration's member costs six times that (3.11).
_ALLOWED: Final = Verdict.ALLOWED
_DENIED: Final = Verdict.DENIED


class Policy:
    """The operator's rules over the built-in ones.

    A denied network is refused without exception; an allowed one is reachable although it is not
    globally routable, or this machine's own; blocked ports are refused everywhere.

    Args:
        allow: networks in CIDR notation.
        deny: networks in CIDR notation.
        blocked_ports: target ports.
        is_own: says whether an address leads to this machine; that may change.
        is_closed: says whether an address is refused at a port, although it is allowed; that may
            change.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        blocked_ports: Iterable[int] = (),
        is_own: Callable[[Address], bool] = lambda _: False,
        is_closed: Callable[[Address, int], bool] | None = None,
    ) -> None:
        self._allow = tuple(ip_network(text) for text in allow)
        self._deny = tuple(ip_network(text) for text in deny)
        self._blocked_ports = frozenset(blocked_ports) | {0}
        self._is_own = is_own
        self._is_closed = is_closed
        self._verdict = lru_cache(maxsize=VERDICTS_KEPT)(self._judge)
        # By number: the hash of an address is computed in Python, at six times the cost. Not so for
        # IPv6, where a client could choose targets whose numbers have the same hash.
        self._verdict_of_ipv4 = lru_cache(maxsize=VERDICTS_KEPT)(self._judge_ipv4)

    def permits(self, address: Address, port: int) -> bool:
        """Return whether a connection to this address and port may be made."""
        if port in self._blocked_ports:
            return False
        if isinstance(address, IPv4Address):
            verdict = self._verdict_of_ipv4(int(address))
        else:
            verdict = self._verdict(address)
            address = plain(address)
        if verdict is _DENIED or (self._is_closed is not None and self._is_closed(address, port)):
            return False
        return verdict is _ALLOWED or not self._is_own(address)

    def permits_port(self, port: int) -> bool:
        """Return whether any address may be reached at this port."""
        return port not in self._blocked_ports

    def _judge_ipv4(self, number: int) -> Verdict:
        return self._judge(IPv4Address(number))

    def _judge(self, address: Address) -> Verdict:
        inside = embedded_ipv4(address)
        if _within(address, self._deny) or (inside is not None and _within(inside, self._deny)):
            return Verdict.DENIED
        carried = plain(address)
        if carried is not address:
            return self._judge(carried)
        if _within(address, self._allow):
            return Verdict.ALLOWED
        return Verdict.UNLESS_OWN if is_global(address) else Verdict.DENIED


def is_global(address: Address) -> bool:
    """Return whether an address is globally routable unicast, without another address inside."""
    if isinstance(address, IPv4Address):
        return address.is_global and not _within(address, _NEVER)
    return address.is_global and address in _GLOBAL_UNICAST_V6 and not _within(address, _NEVER_V6)


def embedded_ipv4(address: Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 one: mapped, compatible, NAT64, 6to4, Teredo."""
    if isinstance(address, IPv4Address):
        return None
    carried = plain(address)
    if isinstance(carried, IPv4Address):
        return carried
    value = int(address)
    if address in _COMPATIBLE or _within(address, _TRANSLATED):
        return IPv4Address(value & _LOW_32_BITS)
    if address in _SIX_TO_FOUR:
        return IPv4Address(value >> 80 & _LOW_32_BITS)
    if address in _TEREDO:
        return IPv4Address(~value & _LOW_32_BITS)
    return None


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)

"""Keeps strangers' connections away from the owner's network, by judging their addresses.

There are four judges, and each of them can refuse; the operating system may be a fifth (the units
in `client/autostart`), and the daemon has judged before:

1. the policy that the daemon has, on the address that is dialled;
2. the networks that this device stands in (`surroundings.py`), with its public address, its
   gateways and its name servers;
3. the kernel: is its present route to the address the default route?
4. the connected socket: where did it lead?

A name is resolved once, each of its addresses is judged, and one of those is dialled, so it does
not help to give another address the next time. Names that only mean something at home are not even
looked up.

`tests/support/exits/home.py` is a home in network namespaces with a sniffer, which holds this.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING, Final

from proxyctl.attach.network import netlink
from proxyctl.attach.network.surroundings import Network, Surroundings, read_networks
from proxyctl.protocol.addresses import Address, plain
from proxyctl.protocol.policy import VERDICTS_KEPT, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable

# Mail (spam), Telnet and Android's debugger (used by botnets to spread), Windows' file sharing and
# desktop, discovery of devices and names, the remote control of routers.
NEVER_PORTS: Final = frozenset(
    (23, 25, 135, 136, 137, 138, 139, 445, 465, 587, 1900, 3389, 5353, 5555, 7547)
)

# Names that are answered at home, by the router or by devices themselves: RFC 6761, 6762, 7686 and
# 8375, ICANN's `internal`, and the names that routers assign.
_HOME_NAMES: Final = frozenset(
    (
        "alt",
        "arpa",
        "corp",
        "example",
        "home",
        "internal",
        "intranet",
        "invalid",
        "lan",
        "local",
        "localdomain",
        "localhost",
        "mail",
        "onion",
        "private",
        "test",
    )
)
_FAR: Final = ip_address("198.41.0.4")  # a root name server; nothing is sent to it
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NAME_MAX_CHARACTERS: Final = 253


class Guard:
    """Judges where connections may go.

    Args:
        policy: the first judge; it also refuses `NEVER_PORTS`.
        surroundings: the second.
        kernel: the third; None if the system has no interface for this question.
        allow: networks that the owner opens to strangers, to try an exit out on one machine.
        must_know: whether it permits a family of addresses only if the public address of this
            device is known there. A daemon tells it to exits; workers ask for it.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        surroundings: Surroundings,
        kernel: netlink.Routes | None,
        allow: Iterable[Network] = (),
        must_know: bool = False,
    ) -> None:
        self.surroundings = surroundings
        self._must_know = frozenset((4, 6)) if must_know else frozenset[int]()
        self._policy = policy
        self._kernel = kernel
        self._allow = tuple(allow)
        # By number, as in `Policy`.
        self._is_opened_ipv4 = lru_cache(maxsize=VERDICTS_KEPT)(self._has_opened_number)

    def permits(self, address: Address, port: int) -> bool:
        """Return whether a connection may be made, as things stand now."""
        if port in NEVER_PORTS or not 0 < port < 1 << 16:
            return False
        if self.is_opened(address):
            return True
        return self.is_far(address, port) and self.knows(address)

    def knows(self, address: Address) -> bool:
        """Return whether enough is known of this device to judge an address of this family."""
        return plain(address).version not in self._must_know or self.surroundings.knows(address)

    def must_know(self, versions: Iterable[int]) -> None:
        """Permit these families of addresses (4, 6) only where the public address is known."""
        self._must_know = frozenset(versions)

    def is_far(self, address: Address, port: int) -> bool:
        """Return whether an address is outside of the home, as far as is known."""
        return (
            port not in NEVER_PORTS
            and self._policy.permits(address, port)
            and not self.surroundings.contains(address)
            and self._leads_out(plain(address))
        )

    @property
    def has_opened(self) -> bool:
        """Whether the owner has opened any address by `--allow`, on all its ports."""
        return bool(self._allow)

    def is_opened(self, address: Address) -> bool:
        """Return whether the owner opened this address to strangers by `--allow`."""
        if not self._allow:
            return False
        inner = plain(address)
        if isinstance(inner, IPv4Address):
            return self._is_opened_ipv4(int(inner))
        return any(inner in each for each in self._allow if each.version == inner.version)

    def _has_opened_number(self, number: int) -> bool:
        address = IPv4Address(number)
        return any(address in each for each in self._allow if each.version == address.version)

    def permits_peer(self, host: str, port: int) -> bool:
        """Check again the address and port that a connected socket has as its peer."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return self.permits(address, port)

    def _leads_out(self, address: Address) -> bool:
        if self._kernel is None:
            return True
        try:
            return self._kernel.leads_out(address)
        except OSError:  # out of descriptors or memory: an unknown route is not allowed
            return False


def make_guard(
    allow: Iterable[Network] = (), *, must_know: bool = False
) -> tuple[Guard, netlink.Routes | None]:
    """Return the guard of this device, and the socket that its kernel answers on."""
    routes = _open_routes()
    guard = Guard(
        policy=Policy(blocked_ports=NEVER_PORTS),
        surroundings=Surroundings(read_networks),
        kernel=routes,
        allow=allow,
        must_know=must_know,
    )
    return guard, routes


def _open_routes() -> netlink.Routes | None:
    try:
        routes = netlink.Routes()
    except OSError:  # not Linux, or not allowed
        return None
    try:
        routes.leads_out(_FAR)
    except OSError:  # Android lets some open it, and ask nothing
        routes.close()
        return None
    return routes


def public_name(text: str) -> str | None:
    """Return a name in the form for the look-up, or None if it means nothing in public.

    The form ends in a dot, so that no search domain of the home is put behind it.
    """
    name = text.lower().rstrip(".")
    labels = name.split(".")
    if len(name) > _NAME_MAX_CHARACTERS or len(labels) < 2:
        return None
    if not all(_LABEL.fullmatch(label) for label in labels):
        return None
    # A name that ends in a number is an address in a spelling that systems read differently.
    if labels[-1] in _HOME_NAMES or labels[-1][0].isdigit():
        return None
    return f"{name}."

"""Target of a dial: a name that the exit looks up, or addresses that were permitted here."""

from ipaddress import IPv4Address
from typing import Final, final

from market.base.networks import Address, plain, text_of
from proxyctl.protocol.frames import CANDIDATES_MAX, NAME_MAX_BYTES
from proxyctl.protocol.policy import Policy
from proxyd.egress.candidates import candidates
from proxyd.egress.names import canonical, is_number
from proxyd.exits.attached.attached import Attached
from proxyd.exits.choosing.entries import ANY_PORT

TLS_PORT: Final = 443


@final
class Target:
    """Target of a dial.

    `host` is a name, or its permitted addresses; "" before one is known, and for datagrams.

    Args:
        port: the target's port; `ANY_PORT` for datagrams.
    """

    __slots__ = ("_first", "host", "port")

    def __init__(self, port: int) -> None:
        self.port = port
        self.host: tuple[Address, ...] | str = ""
        self._first = ""  # the text of the first address

    @property
    def is_datagrams(self) -> bool:
        """Whether the exit should carry datagrams."""
        return self.port == ANY_PORT

    @property
    def is_name(self) -> bool:
        """Whether the exit looks the name up."""
        return isinstance(self.host, str)

    @property
    def site(self) -> str:
        """Its name, or its first address; "" for any."""
        return self.host if isinstance(self.host, str) else self._first

    def judge(self, addresses: list[Address], policy: Policy) -> bool:
        """Keep the addresses that a policy permits; return False without any."""
        permitted = candidates(addresses, self.port, policy)
        self.host = tuple(permitted[:CANDIDATES_MAX])
        if permitted:
            self._first = text_of(permitted[0])
        return bool(permitted)

    def may_be_dialled_by(self, attached: Attached) -> bool:
        """Return whether an exit may dial it, which must not dial its own network."""
        return not self.host or bool(attached.permitted(self.host))

    def tests_routes_of(self, attached: Attached) -> bool:
        """Return whether it has an address of the family that an exit is attached by.

        Many exits have one family only, and no route by the other one.
        """
        version, host = attached.address.version, self.host
        return not isinstance(host, str) and any(each.version == version for each in host)


def name_at_exit(host: str) -> str:
    """Return the spelling of a name for a look-up at the exit; "" for a host to look up here.

    An address in an old spelling is looked up here, where it is judged.
    """
    name = canonical(host) or ""
    return name if len(name) <= NAME_MAX_BYTES and not is_number(name) else ""


def seen_address(known: Address, claimed: Address | None) -> Address:
    """Return the address that a target sees, as far as that is known.

    Args:
        known: the source address of the exit's control connection.
        claimed: the exit's own word. It is believed for the other family alone: the daemon sees
            the address of its own, and a device behind a translator knows its private one.
    """
    if claimed is None or (isinstance(known, IPv4Address) and isinstance(claimed, IPv4Address)):
        return known
    address = plain(claimed)
    return address if address.version != known.version and address.is_global else known

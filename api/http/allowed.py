"""The networks whose clients a server answers."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_network

from market.base.networks import plain

# Headers in which web servers name their clients.
FORWARDED = frozenset(
    {
        "Forwarded",
        "Via",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Real-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
    }
)


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Return whether a header shows that a web server has passed the request on."""
    return any(name in headers for name in FORWARDED)


class Allowed:
    """A list of networks.

    Args:
        networks: the networks, as texts.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(text) for text in networks)

    def permits(self, client: str) -> bool:
        """Return whether an address is in one of the networks."""
        try:
            address = plain(ip_address(client.partition("%")[0]))
        except ValueError:
            return False
        return any(
            address.version == network.version and address in network for network in self._networks
        )

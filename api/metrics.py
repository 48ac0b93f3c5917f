"""The metrics, and the clients that may read them."""

from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network

from market.networks import plain

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """The metrics, for this machine and a list of networks.

    Args:
        render: returns the metrics as text, in the format of `CONTENT_TYPE`.
        allow: networks that may read them, too.
    """

    def __init__(self, render: Callable[[], bytes], allow: Iterable[str] = ()) -> None:
        self.render = render
        self._allow = tuple(ip_network(text) for text in allow)

    def permits(self, client: str, *, forwarded: bool) -> bool:
        """Say whether a client may read them.

        Args:
            client: its address.
            forwarded: whether the request was forwarded by a proxy that is not trusted: then the
                address is the proxy's, and no reader is allowed.
        """
        try:
            address = plain(ip_address(client))
        except ValueError:
            return False
        if forwarded:
            return False
        return address.is_loopback or any(
            address.version == network.version and address in network for network in self._allow
        )

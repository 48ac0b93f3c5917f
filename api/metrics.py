"""Who may read the metrics, and what they are."""

from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network

from market.networks import plain

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """The metrics, for this machine and the networks that are named.

    Args:
        render: returns them as text, in the format of `CONTENT_TYPE`.
        allow: networks that may read them too.
    """

    def __init__(self, render: Callable[[], bytes], allow: Iterable[str] = ()) -> None:
        self.render = render
        self._allow = tuple(ip_network(text) for text in allow)

    def permits(self, client: str, *, forwarded: bool) -> bool:
        """Say whether a client may read them.

        Args:
            client: its address.
            forwarded: whether somebody who is not trusted says that he asks for another; then the
                address is not the reader's.
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

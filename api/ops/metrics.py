"""The metrics, and the clients that may read them."""

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from api.http.allowed import Allowed
from market.base.networks import plain

PATH = "/metrics"
_HOST = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<name>[^\[\]:@]+))(?::\d{1,5})?", re.ASCII)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def is_this_machine(host: str) -> bool:
    """Return whether the header Host names this machine, and no service on the internet."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["v6"] or match["name"]
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


class Exposition:
    """The metrics, for this machine and a list of networks.

    Args:
        render: returns the metrics as text, in the format of `CONTENT_TYPE`.
        allow: networks that may also read them.
    """

    def __init__(self, render: Callable[[], bytes], allow: Iterable[str] = ()) -> None:
        self.render = render
        self._allow = Allowed(allow)

    def permits(self, client: str, host: str, *, forwarded: bool) -> bool:
        """Return whether a client may read them.

        Args:
            client: its address.
            host: the header Host. A program on this machine asks for this machine; a web server on
                it may pass on the Host of its clients. The server cannot tell a web server that
                changes Host, and adds no header, from such a program.
            forwarded: whether a proxy has passed the request on without a client that is believed:
                then the address is the proxy's, and no reader is allowed.
        """
        try:
            address = plain(ip_address(client))
        except ValueError:
            return False
        if forwarded:
            return False
        if address.is_loopback:
            return is_this_machine(host)
        return self._allow.permits(client)

"""Addresses of apps on the web: a host for each app, or a path for each app on one host.

Only hosts keep apps from one another: apps on one host are one origin to a browser.
"""

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from market.base.ids import parsed

PATHS = "/apps/"
_LABEL = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-([1-9][0-9]{0,4}))?")
_HOST = re.compile(r"[a-z0-9.-]{1,253}(?::[0-9]{1,5})?|\[[0-9a-f:.]{2,45}\](?::[0-9]{1,5})?")
PORT_MAX = 65_535


class Place(NamedTuple):
    """App of a request, and its target.

    Attributes:
        app_id: the identifier of a job or a deploy.
        port: one of its ports; 0 for the first one.
        origin: as browsers name it.
        prefix: the path below which the job's own paths stand, without a slash at the end; "" on a
            host.
        target: the rest of the request's target, which the job receives; it has no slash at its
            beginning where that behind the prefix is missing.
    """

    app_id: str
    port: int
    origin: str
    prefix: str
    target: str


class Places:
    """Maps apps to their addresses, and requests to apps.

    Args:
        public_url: scheme, host and port at which clients reach the listener.
        domain: the name above the hosts of apps; "" where each has a path of `public_url`.
    """

    def __init__(self, public_url: str, domain: str) -> None:
        parts = urlsplit(public_url)
        self.scheme = parts.scheme
        self.is_secure = parts.scheme == "https"
        self.domain = domain.lower().rstrip(".")
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._port = "" if parts.port is None else f":{parts.port}"

    @property
    def has_hosts(self) -> bool:
        """Whether each app has a host of its own."""
        return bool(self.domain)

    def url(self, app_id: str, port: int = 0) -> str:
        """Return the address of an app; `port` is 0 for the first one of its ports."""
        label = f"{app_id}-{port}" if port else app_id
        if self.has_hosts:
            return f"{self.scheme}://{label}.{self.domain}{self._port}/"
        return f"{self._origin}{PATHS}{label}/"

    def find(self, host: str, target: str) -> Place | None:
        """Return which app a request is for; None for none.

        Args:
            host: the header Host.
            target: the request's target, which begins with a slash.
        """
        host = host.lower()
        if _HOST.fullmatch(host) is None:
            return None
        if not self.has_hosts:
            return self._of_path(target)
        name = host.rpartition(":")[0] if ":" in host else host
        label, dot, domain = name.rstrip(".").partition(".")
        if not dot or domain != self.domain:
            return None
        return _place(label, f"{self.scheme}://{host}", "", target)

    def _of_path(self, target: str) -> Place | None:
        path, mark, query = target.partition("?")
        if not path.startswith(PATHS):
            return None
        label, slash, rest = path.removeprefix(PATHS).partition("/")
        return _place(label, self._origin, PATHS + label, slash + rest + mark + query)


def _place(label: str, origin: str, prefix: str, target: str) -> Place | None:
    match = _LABEL.fullmatch(label)
    if match is None or int(match[2] or 0) > PORT_MAX:
        return None
    try:
        app_id = parsed(match[1])
    except ValueError:
        return None
    return Place(app_id, int(match[2] or 0), origin, prefix, target)

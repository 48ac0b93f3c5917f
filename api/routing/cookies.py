"""The cookie that keeps a person logged in to the console, and when it counts.

A browser sends cookies with every request, even if the page of another origin makes it. So this one
counts only beside a header that no form can send, and that a script of another origin may send only
with leave, which is never given.
"""

from collections.abc import Mapping

REQUESTED_BY = "X-Requested-By"
CONSOLE = "console"
# The name of a login's cookie, and the beginning of the names of all others of this service.
SERVICE = "proxyd"
FETCH_SITE = "Sec-Fetch-Site"


def is_of_service(name: str) -> bool:
    """Return whether a cookie has a name of this service, however the name is written.

    A browser keeps no ports apart: where apps have the host of the console or of the staff, it
    sends their logins to apps as well. No job may read or set a cookie of such a name.
    """
    bare = name.strip().lower().removeprefix("__host-").removeprefix("__secure-")
    return bare == SERVICE or bare.startswith(f"{SERVICE}-")


def is_console(headers: Mapping[str, str]) -> bool:
    """Return whether a request was made by a page of this origin itself."""
    site = headers.get(FETCH_SITE, "same-origin")
    return headers.get(REQUESTED_BY) == CONSOLE and site == "same-origin"


class Cookies:
    """Makes the cookie of a login, and reads it.

    Args:
        is_secure: whether browsers come over https. Then the cookie is sent over nothing else, and
            its name keeps other hosts of the domain from setting it (`__Host-`).
        lifetime_seconds: how long a browser keeps it, which is how long its token is valid.
        name: its name, without the prefix.
    """

    def __init__(self, *, is_secure: bool, lifetime_seconds: int, name: str = SERVICE) -> None:
        self.name = f"__Host-{name}" if is_secure else name
        self._attributes = "Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if is_secure else "")
        self._lifetime_seconds = lifetime_seconds

    def keep(self, token: str) -> str:
        """Return the header Set-Cookie that has a browser keep a token."""
        return f"{self.name}={token}; Max-Age={self._lifetime_seconds}; {self._attributes}"

    def forget(self) -> str:
        """Return the header Set-Cookie that has a browser forget it."""
        return f"{self.name}=; Max-Age=0; {self._attributes}"

    def token(self, headers: Mapping[str, str]) -> str | None:
        """Return the token in a request's cookie; None if it is absent or does not count."""
        sent = headers.get("Cookie")
        if sent is None or not is_console(headers):
            return None
        # Cookies of other programs on this host may hold anything, and do not break ours.
        for each in sent.split(";"):
            name, separator, value = each.strip().partition("=")
            if name == self.name and separator:
                return value
        return None

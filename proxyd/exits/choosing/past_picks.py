"""Memory of picks: the last exit of each rotating session, and the picks of a minute by site."""

from typing import Final, final

from proxyd.exits.choosing.bounds import DirectoryBounds

# Through one exit to one site, a minute: more draws a site's attention to the exit's address. Where
# there is no other exit, this bound does not count.
PER_SITE_AND_MINUTE: Final = 30


@final
class Picks:
    """The picks that later choices depend on."""

    __slots__ = ("_bounds", "_last", "_last_before", "_minute", "_sites")

    def __init__(self, bounds: DirectoryBounds) -> None:
        self._bounds = bounds
        # The last exit of each session that rotates, in two generations of half the bound.
        self._last: dict[str, str] = {}
        self._last_before: dict[str, str] = {}
        self._minute = 0
        self._sites: dict[tuple[str, str], int] = {}  # picks of a device for a site, in the minute

    def begin(self, minute: int) -> None:
        """Begin a choice in a minute; each minute counts its own picks."""
        if minute != self._minute:
            self._minute = minute
            self._sites.clear()

    def is_worn(self, device_id: str, site: str) -> bool:
        """Return whether an exit has reached the bound on picks for a site in this minute."""
        return self._sites.get((device_id, site), 0) >= PER_SITE_AND_MINUTE

    def count(self, device_id: str, site: str) -> None:
        """Count a pick of an exit for a site."""
        sites = self._sites
        if len(sites) >= self._bounds.sites_total:
            sites.clear()
        if site:
            key = device_id, site
            sites[key] = sites.get(key, 0) + 1

    def last_of(self, session_id: str) -> str:
        """Return the last exit of a session that rotates; "" if that is not known."""
        return self._last.get(session_id) or self._last_before.get(session_id, "")

    def rotate(self, session_id: str, device_id: str) -> None:
        """Remember the last exit of a session that rotates."""
        if len(self._last) >= self._bounds.rotating_total // 2:
            self._last, self._last_before = {}, self._last
        self._last[session_id] = device_id

    def forget(self, session_id: str) -> None:
        """Forget the last exit of a session that is over."""
        self._last.pop(session_id, None)
        self._last_before.pop(session_id, None)

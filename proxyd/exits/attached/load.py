"""The load of one exit: buyers' connections, their places, and the bytes of the day."""

from collections.abc import Callable
from typing import final

from proxyd.exits.choosing.places import Carried, Place, Places


@final
class Load:
    """The connections and bytes of an exit.

    `relays` are the buyers' connections that go through it, `places` says which buyers have its
    places, and with `is_spent` the bytes of its day are used up. `connections_elsewhere` are
    those from other nodes.

    Args:
        now: the loop's clock.
    """

    __slots__ = (
        "_day",
        "_ended_bytes",
        "_yesterdays_bytes",
        "connections_elsewhere",
        "is_spent",
        "now",
        "places",
        "relays",
    )

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.relays: dict[Carried, Place | None] = {}
        self.places = Places()
        self.is_spent = False
        self.connections_elsewhere = 0
        self._ended_bytes = 0  # of relays that are over
        self._yesterdays_bytes = 0  # of all relays, up to the beginning of the day
        self._day = 0

    @property
    def carried(self) -> int:
        """The bytes carried since it attached, and earlier on the same day."""
        return self._ended_bytes + sum(sum(relay.traffic) for relay in self.relays)

    @property
    def taken(self) -> int:
        """Number of connections through it, from all nodes."""
        return self.places.taken + self.connections_elsewhere

    def carried_elsewhere(self, connections: int, size: int) -> None:
        """Add the use of the exit by other nodes: connections, and bytes."""
        self.connections_elsewhere += connections
        self._ended_bytes += size

    def begin(self, relay: Carried, place: Place | None) -> None:
        """Count a connection in the place that its dial has taken."""
        self.relays[relay] = place
        if place is None:
            self.places.others += 1
        else:
            self.places.begin(place, relay)

    def end(self, relay: Carried) -> None:
        """Stop counting a connection; its bytes still count."""
        if relay in self.relays:
            place = self.relays.pop(relay)
            if place is None:
                self.places.others -= 1
            else:
                self.places.leave(place, self.now())
        up, down = relay.traffic
        self._ended_bytes += up + down

    def carried_before(self, size: int, day: int) -> None:
        """Add the bytes that the exit carried before its attachment on the day with this number."""
        self._ended_bytes, self._day, self._yesterdays_bytes = size, day, 0

    def spend(self, day: int, most: int) -> None:
        """Check whether the bytes of the day with this number are used up; 0 for no bound."""
        carried = self.carried
        if day != self._day:
            self._day, self._yesterdays_bytes = day, carried
        self.is_spent = bool(most) and carried - self._yesterdays_bytes >= most

    def cut(self) -> None:
        """Cut the buyers' connections."""
        for relay in tuple(self.relays):
            relay.abort()

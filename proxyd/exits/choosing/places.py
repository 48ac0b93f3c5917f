"""The places of one exit: the share of each buyer, and the connections that give way.

Theory of operation
-------------------
The owner limits the connections at once, in the account and at the device. Each dial of an exit
takes a place, which its connection keeps. A buyer is an account: its sessions share.

* Below half of the places a buyer takes any free one. Beyond half it takes one only if no other
  buyer has wanted a place for a minute, and leaves a quarter of the places to newcomers.
* When no place is free, a connection gives way that has moved no byte for a while, or that one side
  has ended: of the buyer with the most places first. A buyer with half of the places has only its
  own give way.
* A buyer below its share, the places divided by their buyers and itself, takes one place of a buyer
  above it: the connection with the fewest bytes of the last minute, after its first seconds. So
  several accounts divide an exit, and do not close it to any other account.
* Where buyers with one connection each have all places, a connection that hardly moves a byte gives
  way to a buyer without one.

A device learns of the end of a connection later than the daemon. One that reports ends (`Over`)
keeps a place taken here until that report, so that both sides count alike. The report goes over
another connection than the bytes, so it can come before the end of the connection itself: then the
place is free at that end. So such a device is hardly ever full where there is a place here: an exit
that reports again and again that it is full, and carries nothing in between, is tried less and less
often.
"""

from math import inf
from typing import Final, Protocol, final

# Answers take less, and a browser opens a connection anew that was closed after that.
IDLE_SECONDS = 30.0
# One side has ended: the last bytes of the other one are a round trip away.
HALF_CLOSED_SECONDS = 2.0
WANTED_SECONDS: Final = 60.0  # a buyer that has wanted a place may want the next one
# A device ends a stuck relay after ten seconds: after that its report was lost.
LEAVING_SECONDS: Final = 15.0
FULL_SECONDS: Final = 1.0  # until an exit that was full is tried again
FULL_MOST_SECONDS: Final = 32.0  # the same, of one that reports ends: doubled each time
# A request of a page is answered after that, and a buyer who redials for ever gains nothing.
SETTLED_SECONDS: Final = 2.0
# A minute of a terminal session has more bytes; a byte a second is less.
BARELY_BYTES: Final = 1024
BARELY_SECONDS: Final = 10.0  # how long a connection with so few bytes is left alone at first
MEASURED_SECONDS: Final = 60.0  # the time in which bytes count
AGAIN_SECONDS: Final = 0.25  # before a search in vain is repeated: a draw asks many exits
RESERVED_SHARE: Final = 4  # a quarter of the places is for buyers with less than half


class Carried(Protocol):
    """A buyer's connection that goes through an exit."""

    __slots__ = ()

    @property
    def traffic(self) -> tuple[int, int]:
        """The bytes relayed so far, from the client and to it."""

    def yields_at(self) -> float:
        """Return the loop time at which it gives way to others if it moves nothing until then."""

    def abort(self) -> None:
        """Cut it now, after giving back the bytes that were not delivered."""


def yields_at(active_at: float, *, is_half_closed: bool) -> float:
    """Return when a connection gives way that has moved its last byte at a time (loop time)."""
    return active_at + (HALF_CLOSED_SECONDS if is_half_closed else IDLE_SECONDS)


@final
class Place:
    """One place that is taken.

    `number` is that of its order, 0 before there is one and after the device has released it.
    `relay` is its connection, if there is one by now. `began_at` is when it was taken (loop time).
    """

    __slots__ = (
        "_before",
        "_marked_at",
        "_moved",
        "began_at",
        "buyer",
        "is_datagrams",
        "number",
        "relay",
    )

    def __init__(self, buyer: str, is_datagrams: bool, now: float) -> None:
        self.began_at = self._marked_at = now
        self._moved = self._before = 0  # bytes at the last mark, and at the one before
        self.buyer = buyer
        self.is_datagrams = is_datagrams
        self.number = 0
        self.relay: Carried | None = None

    def recent_bytes(self, now: float) -> int:
        """Return the bytes that it has moved in the last minute, or a little longer."""
        if self.relay is None:
            return 0
        up, down = self.relay.traffic
        moved = up + down
        if now >= self._marked_at + MEASURED_SECONDS / 2:
            self._before, self._moved, self._marked_at = self._moved, moved, now
        return moved - self._before


@final
class Kind:
    """Places of one kind: for all connections, or only for associations.

    `full_until` is how long the device is known to be full (loop time), `full_times` how often it
    was so since it has carried something.
    """

    __slots__ = ("full_times", "full_until", "held", "taken")

    def __init__(self) -> None:
        self.full_until = 0.0
        self.full_times = 0
        self.taken = 0
        self.held: dict[str, int] = {}  # by buyer

    def add(self, buyer: str, amount: int) -> None:
        """Count places of a buyer."""
        self.taken += amount
        held = self.held.get(buyer, 0) + amount
        if held:
            self.held[buyer] = held
        else:
            del self.held[buyer]


@final
class Wanting:
    """The last two buyers that wanted a place of an exit, and when (loop time)."""

    __slots__ = ("_at", "_at_before", "_buyer")

    def __init__(self) -> None:
        self._buyer = ""
        self._at = 0.0
        self._at_before = 0.0  # by another buyer

    def note(self, buyer: str, now: float) -> None:
        """Note that a buyer wants a place."""
        if self._buyer != buyer:
            self._buyer, self._at_before = buyer, self._at
        self._at = now

    def is_of_others(self, buyer: str, now: float) -> bool:
        """Return whether another buyer has wanted a place lately."""
        at = self._at_before if self._buyer == buyer else self._at
        return at > 0.0 and now < at + WANTED_SECONDS


@final
class Places:
    """The places of one exit; see the theory above.

    `reports_ends` says that the device reports the end of each connection. `others` are connections
    without a place: other nodes', the house's, and those of a daemon before this one.
    """

    __slots__ = (
        "_all",
        "_associations",
        "_leaving",
        "_none_before",
        "_none_slow_before",
        "_ordered",
        "_placed",
        "_wanting",
        "others",
        "reports_ends",
    )

    def __init__(self) -> None:
        self.reports_ends = False
        self.others = 0
        self._all = Kind()
        # Most exits are idle, and need neither: each is made for the first buyer that uses it.
        self._associations: Kind | None = None
        self._wanting: Wanting | None = None
        self._placed: dict[Place, None] = {}  # the oldest first
        self._ordered: dict[int, Place] = {}  # by number, until the device has released it
        self._leaving: dict[int, float] = {}  # by number: until when; the oldest first
        self._none_before = 0.0  # until then no connection gives way
        self._none_slow_before = 0.0  # until then no one has a slow connection to spare

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._all.taken + self.others

    def has(self, buyer: str, most: int, associations: int, now: float, *, datagrams: bool) -> bool:
        """Return whether a place is free for a buyer. Note that the buyer wants one.

        Args:
            buyer: whose connection it would be.
            most: how many connections the exit takes; 0 for any number.
            associations: how many of them may be associations; 0 for any number.
            now: loop time, in seconds.
            datagrams: whether it would be an association.
        """
        if self._is_free(buyer, most, associations, now, datagrams):
            return True
        self._note_want(buyer, now)
        return self._yielding(buyer, most, associations, now, datagrams) is not None

    def take(
        self, buyer: str, most: int, associations: int, now: float, *, datagrams: bool
    ) -> Place:
        """Take a place; a connection that gives way for it is cut."""
        if not self._is_free(buyer, most, associations, now, datagrams):
            yielding = self._yielding(buyer, most, associations, now, datagrams)
            if yielding is not None and yielding.relay is not None:
                yielding.relay.abort()
        self._note_want(buyer, now)
        place = Place(buyer, datagrams, now)
        self._placed[place] = None
        self._count(place, 1)
        return place

    def order(self, place: Place, number: int) -> None:
        """Note the number of the order that a place has."""
        place.number = number
        self._ordered[number] = place

    def give(self, place: Place) -> None:
        """Free a place immediately; a second call is harmless."""
        if place in self._placed:
            del self._placed[place]
            self._ordered.pop(place.number, None)
            self._leaving.pop(place.number, None)
            self._count(place, -1)
            self._none_before = self._none_slow_before = 0.0

    def leave(self, place: Place, now: float) -> None:
        """Free a place once the device reports the end of its connection."""
        place.relay = None
        if place in self._placed and place.number and self.reports_ends:
            self._leaving[place.number] = now + LEAVING_SECONDS
        else:
            self.give(place)

    def over(self, number: int) -> None:
        """Note that the device has released a connection; ignore an unexpected report.

        The place is free now, or at the end of the connection if that has not come yet.
        """
        place = self._ordered.get(number)
        if place is None:
            return
        if number in self._leaving:
            self.give(place)
        else:
            del self._ordered[number]
        place.number = 0

    def fill(self, now: float, *, datagrams: bool) -> None:
        """Note that the device has reported that it is full."""
        kind = self._of_associations() if datagrams else self._all
        if now < kind.full_until:  # orders of one moment
            return
        seconds = FULL_SECONDS
        if self.reports_ends:
            seconds = min(FULL_SECONDS * 2.0 ** min(kind.full_times, 10), FULL_MOST_SECONDS)
        kind.full_times += 1
        kind.full_until = now + seconds

    def begin(self, place: Place, relay: Carried) -> None:
        """Put a connection into a place."""
        place.relay = relay
        self._all.full_times = 0
        if place.is_datagrams:
            self._of_associations().full_times = 0

    def _count(self, place: Place, amount: int) -> None:
        self._all.add(place.buyer, amount)
        if place.is_datagrams:
            self._of_associations().add(place.buyer, amount)

    def _of_associations(self) -> Kind:
        if self._associations is None:
            self._associations = Kind()
        return self._associations

    def _note_want(self, buyer: str, now: float) -> None:
        if self._wanting is None:
            self._wanting = Wanting()
        self._wanting.note(buyer, now)

    def _is_wanted_by_others(self, buyer: str, now: float) -> bool:
        return self._wanting is not None and self._wanting.is_of_others(buyer, now)

    def _is_free(
        self, buyer: str, most: int, associations: int, now: float, datagrams: bool
    ) -> bool:
        """Return whether a place of each needed kind is free for a buyer."""
        return self._is_free_of(self._all, buyer, most, now) and not (
            datagrams and not self._is_free_of(self._of_associations(), buyer, associations, now)
        )

    def _is_free_of(self, kind: Kind, buyer: str, most: int, now: float) -> bool:
        if now < kind.full_until:
            return False
        if not most:
            return True
        if self._leaving:
            self._forget_leaving(now)
        taken = kind.taken + (self.others if kind is self._all else 0)
        if taken >= most:
            return False
        if kind.held.get(buyer, 0) < max(1, most // 2):
            return True
        return taken + most // RESERVED_SHARE < most and not self._is_wanted_by_others(buyer, now)

    def _forget_leaving(self, now: float) -> None:
        """Free places whose reports were lost."""
        while self._leaving:
            number = next(iter(self._leaving))
            if self._leaving[number] > now:
                return
            self.over(number)

    def _yielding(
        self, buyer: str, most: int, associations: int, now: float, datagrams: bool
    ) -> Place | None:
        """Return the place whose connection gives way to a buyer's next one."""
        if now < self._all.full_until:
            return None
        lacks_association = datagrams and not self._is_free_of(
            self._of_associations(), buyer, associations, now
        )
        kind, limit = self._all, most
        if lacks_association:
            kind, limit = self._of_associations(), associations
        if now >= self._none_before:
            idle = self._idle(kind, buyer, limit, now)
            if idle is not None:
                return idle
        return self._slow(kind, buyer, limit, now)

    def _idle(self, kind: Kind, buyer: str, limit: int, now: float) -> Place | None:
        """Return the place whose connection has moved nothing for a while."""
        is_own = kind.held.get(buyer, 0) >= max(1, limit // 2)
        best: Place | None = None
        best_key = (0, 0.0)
        soonest = now + IDLE_SECONDS
        for place in self._placed:
            relay = place.relay
            if relay is None:
                continue
            at = relay.yields_at()
            soonest = min(soonest, at)
            if at > now or (kind is self._associations and not place.is_datagrams):
                continue
            if is_own and place.buyer != buyer:
                continue
            key = kind.held.get(place.buyer, 0), -at
            if best is None or key > best_key:
                best, best_key = place, key
        if soonest > now:
            # Each may give way later than that; earlier only if one side ends.
            self._none_before = min(soonest, now + HALF_CLOSED_SECONDS)
        return best

    def _slow(self, kind: Kind, buyer: str, limit: int, now: float) -> Place | None:
        """Return the slowest connection of a buyer above its share, for one that is below."""
        held = kind.held.get(buyer, 0)
        share = max(1, limit // (len(kind.held) + (not held)))
        if held >= share or now < self._none_slow_before:
            return None
        best: Place | None = None
        best_key = (False, 0)
        for place in self._placed:
            relay = place.relay
            if relay is None or (kind is self._associations and not place.is_datagrams):
                continue
            seconds = now - place.began_at
            if seconds < SETTLED_SECONDS or place.buyer == buyer or relay.yields_at() == inf:
                continue
            moved = place.recent_bytes(now)
            has_more = kind.held.get(place.buyer, 0) > share
            if not has_more and (held or moved >= BARELY_BYTES or seconds < BARELY_SECONDS):
                continue
            key = has_more, -moved
            if best is None or key > best_key:
                best, best_key = place, key
        if best is None and not held:  # a buyer with places may find less than one without
            self._none_slow_before = now + AGAIN_SECONDS
        return best

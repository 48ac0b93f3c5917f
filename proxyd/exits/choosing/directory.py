"""The exits that are attached, and which of them a connection leaves through.

Theory of operation
-------------------
Pure: the clock is handed in, and so is chance. Every active exit stands in buckets: one of all
exits, one of its country, its state, its city and its network's number, each of these once more for
its kind, and all of them once more if it carries datagrams, which few do. A wish is answered out of
the smallest bucket that holds all exits it can mean; what the bucket does not say is asked of each
exit that is looked at (`_Wish.takes`). A bucket is kept in the order of its exits' hashes, as a
ring.

Without a label two exits that will do are drawn, and the better one is taken (`_Standing.weight`).
That spreads connections nearly evenly, and what it costs depends on how many will do, not on how
many there are. When draws find none, a bounded part of the bucket is searched from end to end.

A label is bound to its exit until its lifetime ends. Its first exit is found without chance: the
label's own hash says where on the ring to look. So a daemon that was restarted finds the same exits
again, although bindings are kept in memory alone. While the exit of a label is away,

* a soft label moves to another exit, of the same country if there is one, and stays there;
* a strict one has none, until its exit is back or its lifetime is over.

Owners allow some ports of targets alone. Who does not allow the port of a connection is not chosen
for it; the first exit of a label is one that allows the port of the label's first connection, and
other ports are refused from then on where that one does not allow them.

A label keeps an exit that could not reach the target: a target that does not answer must not cost
the buyer an address.

Exits on one line stand behind the one that has been attached for longest: another one is chosen
only for a connection that no older one of the line offers to carry, by its price, ports, features
and owner. An older one that is full holds others back, and one that rests does not. So nobody earns
more by attaching more devices to one line, and an exit that nobody can use blocks nobody. A label
keeps its exit when an older one on the line is back. A line is an IPv4 address or an IPv6 /56;
devices of one account in an IPv6 /48 are on one line, too. An exit that has attached from elsewhere
is behind all others of the line, whatever its calls say (`origin.py`). The exits may be attached to
any of several nodes: the order depends on `is_elsewhere`, `since` and the device alone, so that all
nodes choose the same one.

What an exit did is remembered (`_Standing`), for a while after it has gone, too: an exit that fails
rests, and longer each time, also if it comes back in between. A target can have an exit fail, and
a buyer chooses targets. So

* the faults of an exit that one buyer meets have it rest for that buyer alone (`_Grudge`);
* for all it rests when it has failed at several sites for as many buyers;
* when a second exit fails at a site, the faults there are the site's, and count no more;
* for all a site counts against one exit in five minutes, because it chooses which exits it answers:
  a few sites would otherwise have every exit rest (`_count_for_all`);
* an exit that is full is not at fault;
* an exit that sends a TLS client something else is at fault for that buyer alone, until another
  exit gets TLS from the same target (`suspect`, `prove`): a target can send anything.

A target's refusal that another exit contradicts counts as a fault, too. The word of an exit is
checked (`doubts`) while that is new, after a contradiction, and now and then.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from heapq import merge
from itertools import chain, islice
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, final

from market.base.networks import enclosing
from proxyctl.protocol.frames import UDP, Outcome
from proxyd.wire.wants import Wants

ANY_PORT: Final = 0
DRAWS: Final = 32  # if 10 % of the exits will do, one of these does in all but one of 30 cases
# Of so many neighbours on the ring a label has one: gaps between hashes are uneven, and an exit
# after a wide one would have many times the labels of another.
NEIGHBOURS: Final = 8

HALF_LIFE_DIALS: Final = 200  # what an exit did so long ago counts half
NEWCOMER_DIALS: Final = 50  # before that it is not known what an exit is worth
NEWCOMER_SHARE: Final = 0.1  # of what others get
# Who would lose a comparison is chosen so often all the same: or newcomers were never known, and
# nobody would see that a bad exit has become good.
EXPLORED_SHARE: Final = 0.1
# The share of refusals that a second exit checks: each costs a dial and some time.
CHECKED_SHARE: Final = 0.1
COOLING_FAILURES: Final = 3  # in a row: one or two happen to every exit
# How long the fault of an exit at a site is compared with the dials of other exits there.
SUSPECT_SECONDS: Final = 300.0
COOLING_SECONDS: Final = 30.0  # doubled each time
COOLING_MOST_SECONDS: Final = 3600.0
MINUTE_SECONDS: Final = 60
# Through one exit to one site, a minute: more draws a site's attention to the exit's address. Where
# there is no other exit, it is not minded.
PER_SITE_AND_MINUTE: Final = 30

SITES_CACHED: Final = 4096
GONE_SECONDS: Final = COOLING_MOST_SECONDS
# After its lifetime: whoever uses the label again until then gets another exit than before.
LABEL_KEPT_SECONDS: Final = 3600.0

_HASH_BYTES: Final = 8
_HASH_MASK: Final = 2**64 - 1
_MIXING: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: low bits decide about high ones
_FADING: Final = 1 - 0.5 ** (1 / HALF_LIFE_DIALS)
# Which bucket: by what.
_ALL: Final = 0
_COUNTRY: Final = 1
_STATE: Final = 2
_CITY: Final = 3
_ASN: Final = 4
_WITH_UDP: Final = "+udp"  # behind the kind, in the buckets of those that carry datagrams

# Under these labels of a country's domain anybody registers names.
_KINDS: Final = frozenset(
    [
        "ac",
        "co",
        "com",
        "edu",
        "go",
        "gob",
        "gouv",
        "gov",
        "gv",
        "ltd",
        "me",
        "mil",
        "ne",
        "net",
        "nom",
        "or",
        "org",
        "plc",
        "sch",
    ]
)
_CONNECTED: Final = Outcome.CONNECTED
# The exit's own doing. Everything else are the target's words.
_FAULTS: Final = (Outcome.PAUSED, Outcome.FAILED)

NO_FEATURES: Final[frozenset[str]] = frozenset()  # that a choice asks for


@dataclass(frozen=True, slots=True)
class DirectoryBounds:
    """How much a directory remembers and searches; labels and the rest have about 300 bytes each.

    Attributes:
        searched_max: 0.1 ms: the most that one connection may cost the others. A search begins
            anywhere, so another try may find an exit that is rarer than that.
        labels_per_session: of one session, here and in the store.
        labels_total: of all sessions.
        labels_per_sweep: that are looked at in one turn of the loop; a millisecond.
        rotating_total: sessions whose last exit is remembered.
        sites_total: pairs of an exit and a site, of one minute.
        grudges_total: pairs of a buyer and an exit that has failed for them.
        suspects_total: sites at which an exit has failed.
        gone_total: exits that are remembered after they have gone.
    """

    searched_max: int = 512
    labels_per_session: int = 4096
    labels_total: int = 131_072
    labels_per_sweep: int = 8192
    rotating_total: int = 65_536
    sites_total: int = 65_536
    grudges_total: int = 65_536
    suspects_total: int = 16_384
    gone_total: int = 16_384


USUAL: Final = DirectoryBounds()


class Place(NamedTuple):
    """Where an exit is, in lower case; empty and 0 are unknown.

    `country` is an ISO 3166 code, `asn` the number of the network, and `kind` one of residential,
    mobile and datacenter.
    """

    country: str = ""
    state: str = ""
    city: str = ""
    asn: int = 0
    kind: str = ""


class Region(NamedTuple):
    """What exits are counted by; `state` and `city` may be empty."""

    country: str
    state: str
    city: str


class Missing(Enum):
    """Why there is no exit: none will do, or not for this port, or a strict label's is away."""

    NO_EXIT = 1
    EXIT_LOST = 2
    NOT_ALLOWED = 3


class Entry(Protocol):
    """An exit, as far as it matters for a choice."""

    __slots__ = ()

    @property
    def device_id(self) -> str:
        """Which device it is."""

    @property
    def owner_id(self) -> str:
        """Whose: it never carries connections that its owner has bought."""

    @property
    def place(self) -> Place:
        """Where it is."""

    @property
    def network(self) -> str:
        """What it is counted by: see `market.base.networks.counted_network`."""

    @property
    def since(self) -> int:
        """When it attached, in UTC milliseconds."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether its connections leave from another network than it has attached from."""

    @property
    def is_spent(self) -> bool:
        """Whether its bytes of the day are used up."""

    @property
    def min_price_per_gb(self) -> int:
        """What a session has to cost, in micro-USD per GB."""

    @property
    def features(self) -> tuple[str, ...]:
        """What it offers beyond connections."""

    def allows(self, port: int) -> bool:
        """Say whether it may be asked for a port of targets."""

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        """Say whether it takes one more connection of a buyer now."""


Exit = TypeVar("Exit", bound=Entry)
Key = TypeVar("Key")
Value = TypeVar("Value")


@final
class _Rest:
    """Rests after failures in a row: each is longer than the one before.

    `coolings` counts them since the last success.
    """

    __slots__ = ("coolings", "until")

    def __init__(self) -> None:
        self.coolings = 0
        self.until = 0.0

    def begin(self, now: float) -> None:
        """Rest, unless it rests already: what failed meanwhile had begun before that."""
        if now >= self.until:
            seconds = COOLING_SECONDS * 2.0 ** min(self.coolings, 10)
            self.until = now + min(seconds, COOLING_MOST_SECONDS)
            self.coolings += 1


@final
class _Grudge:
    """The faults of one exit for one buyer since their last success; `failures` are in a row."""

    __slots__ = ("failures", "rest")

    def __init__(self) -> None:
        self.failures = 0
        self.rest = _Rest()

    def fail(self, now: float) -> None:
        """Count a fault."""
        self.failures += 1
        if self.failures >= COOLING_FAILURES:
            self.rest.begin(now)

    def forgive(self) -> None:
        """Count one fault less: it was the target's."""
        self.failures -= 1
        if self.failures < COOLING_FAILURES:
            self.rest = _Rest()


@final
class _Standing:
    """The record of an exit: its score, and its rest.

    `score` is the mean of its dials' successes, the latest counting most. `faults` are its own
    since its last success, by site, with the buyer that met each: one of each buyer counts.
    `has_failed` says whether the latest dial was a fault, and `noted_at` when that was.
    `is_contradicted` says that another exit has reached a target that it called unreachable.
    `picks` is how often it was chosen in the minute `minute`.
    """

    __slots__ = (
        "dials",
        "faults",
        "has_failed",
        "is_contradicted",
        "minute",
        "noted_at",
        "picks",
        "rest",
        "score",
    )

    def __init__(self) -> None:
        self.score = 1.0
        self.dials = 0
        self.faults: dict[str, str] = {}
        self.rest = _Rest()
        self.has_failed = False
        self.is_contradicted = False
        self.noted_at = 0.0
        self.minute = 0
        self.picks = 0

    def succeed(self) -> None:
        """It has reached a target."""
        self._rate(1.0)
        self.faults.clear()
        self.rest.coolings = 0

    def fail(self, site: str, buyer: str, now: float) -> None:
        """It has failed at a site for a buyer."""
        if site in self.faults or buyer in self.faults.values():
            return
        self._rate(0.0)
        self.faults[site] = buyer
        if len(self.faults) >= COOLING_FAILURES:
            self.rest.begin(now)
            # The next fault after its rest has it rest again.
            del self.faults[next(iter(self.faults))]

    def absolve(self, site: str) -> None:
        """A fault was the site's."""
        if self.faults.pop(site, None) is not None:
            self.score = min(1.0, self.score + max(_FADING, 1 / self.dials))

    def count(self, minute: int) -> None:
        """It was chosen."""
        if self.minute != minute:
            self.minute, self.picks = minute, 0
        self.picks += 1

    def weight(self, minute: int) -> float:
        """Return how good a choice it is: better with a good score, worse when it is in use."""
        weight = self.score if self.dials >= NEWCOMER_DIALS else self.score * NEWCOMER_SHARE
        return weight / (1 + self.picks) if self.minute == minute else weight

    def _rate(self, success: float) -> None:
        self.dials += 1
        self.score += max(_FADING, 1 / self.dials) * (success - self.score)


@final
class _Member(Generic[Exit]):
    """An exit and the keys of its buckets; `elders` are older ones on the same line."""

    __slots__ = (
        "carries_datagrams",
        "elders",
        "entry",
        "is_first",
        "lines",
        "place",
        "ring",
        "standing",
    )

    def __init__(self, entry: Exit, standing: _Standing) -> None:
        self.entry = entry
        self.lines = _lines(entry)
        self.elders: list[_Member[Exit]] = []
        self.is_first = False  # on its lines; counted in its region then
        self.place = entry.place
        self.carries_datagrams = UDP in entry.features
        self.ring = _hash(entry.device_id)
        self.standing = standing


@final
class _Bucket(Generic[Exit]):
    """Exits in the order of their hashes: any of them by its position, or the next after a hash."""

    __slots__ = ("members", "rings")

    def __init__(self) -> None:
        self.rings = array("Q")
        self.members: list[_Member[Exit]] = []

    def add(self, member: _Member[Exit]) -> None:
        """File an exit."""
        at = bisect_left(self.rings, member.ring)
        self.rings.insert(at, member.ring)
        self.members.insert(at, member)

    def remove(self, member: _Member[Exit]) -> None:
        """Take an exit out."""
        at = self.members.index(member, bisect_left(self.rings, member.ring))
        del self.rings[at]
        del self.members[at]

    def around(self, ring: int) -> "Iterator[tuple[int, str, _Member[Exit]]]":
        """Yield all exits once, from a hash on: the distance, a tie-breaker and the exit."""
        first = bisect_left(self.rings, ring)
        for at in chain(range(first, len(self.members)), range(first)):
            member = self.members[at]
            yield (member.ring - ring) & _HASH_MASK, member.entry.device_id, member


@final
class _Wish(Generic[Exit]):
    """What an exit has to be for one connection."""

    __slots__ = (
        "asn",
        "city",
        "countries",
        "features",
        "grudges",
        "is_bound",
        "is_datagrams",
        "kind",
        "last",
        "minute",
        "now",
        "owner_id",
        "port",
        "price_per_gb",
        "site",
        "state",
        "tried",
    )

    def __init__(
        self,
        wants: Wants,
        owner_id: str,
        price_per_gb: int,
        target: str,
        tried: Sequence[str],
        now: float,
        features: frozenset[str],
        port: int,
        grudges: dict[tuple[str, str], _Grudge],
    ) -> None:
        self.features = features
        self.is_bound = False  # to the exit that is looked at
        self.is_datagrams = UDP in features
        self.grudges = grudges
        self.countries = wants.countries
        self.state = wants.state
        self.city = wants.city
        self.asn = wants.asn
        self.kind = wants.kind
        self.owner_id = owner_id
        self.port = port
        self.price_per_gb = price_per_gb
        self.tried = tried
        self.last = ""
        self.now = now
        self.minute = int(now) // MINUTE_SECONDS
        self.site = _site(target)

    def takes(self, member: _Member[Exit]) -> bool:
        """Say whether an exit will do."""
        return self.is_free(member) and self.is_at(member.place)

    def is_at(self, place: Place) -> bool:
        """Say whether an exit is where it is wanted."""
        return (
            (not self.countries or place.country in self.countries)
            and (not self.kind or place.kind == self.kind)
            and (not self.city or place.city == self.city)
            and (not self.state or place.state == self.state)
            and (not self.asn or place.asn == self.asn)
        )

    def is_free(self, member: _Member[Exit]) -> bool:
        """Say whether an exit can be chosen for this connection, wherever it is."""
        entry = member.entry
        device_id = entry.device_id
        return (
            member.standing.rest.until <= self.now
            and self.is_offered_by(entry)
            and device_id != self.last
            and device_id not in self.tried
            and not (self.grudges and self.rests_for_buyer(device_id))
            and (self.is_bound or not member.elders or not self.is_offered_earlier(member))
            and entry.has_place_for(self.owner_id, datagrams=self.is_datagrams)
        )

    def is_offered_by(self, entry: Exit) -> bool:
        """Say whether an exit carries such connections at all, whether or not it can now."""
        return (
            (not self.features or self.features.issubset(entry.features))
            and entry.min_price_per_gb <= self.price_per_gb
            and entry.owner_id != self.owner_id
            and (not self.port or entry.allows(self.port))
        )

    def is_offered_earlier(self, member: _Member[Exit]) -> bool:
        """Say whether an older exit on the same line carries such connections.

        One that is full does: a line has no more places by more devices. One does not that rests
        after failures, or for the rest of the day.
        """
        for elder in member.elders:
            rests = elder.standing.rest.until > self.now or elder.entry.is_spent
            if not rests and self.is_offered_by(elder.entry):
                return True
        return False

    def rests_for_buyer(self, device_id: str) -> bool:
        """Say whether an exit has failed too often for this buyer."""
        grudge = self.grudges.get((self.owner_id, device_id))
        return grudge is not None and grudge.rest.until > self.now

    def takes_for_any_port(self, member: _Member[Exit]) -> bool:
        """Say whether an exit will do, but for the port."""
        port, self.port = self.port, ANY_PORT
        takes = self.takes(member)
        self.port = port
        return takes


# What a label is known by within its session: the same one for another place is another label.
_Label = tuple[str, tuple[str, ...], str, str, int, str]


@final
class Binding:
    """The exit of a label, until a time.

    `country` is where its first exit was. `lifetimes` counts those that are over: each begins
    elsewhere on the ring. `has_moved` says that the label has another exit than before, and its
    buyer was not told yet.

    Where several nodes agree on exits (`exits/choosing/labels.py`), `label` is what these know it
    by, `agreed_id` the device that was agreed on last, and `agreement` says whether that still
    counts.
    """

    __slots__ = (
        "agreed_id",
        "agreement",
        "country",
        "device_id",
        "has_moved",
        "label",
        "lifetimes",
        "until",
    )

    def __init__(self, device_id: str, country: str, until: float, lifetimes: int) -> None:
        self.device_id = device_id
        self.country = country
        self.until = until
        self.lifetimes = lifetimes
        self.has_moved = False
        self.label = ""
        self.agreed_id = ""
        self.agreement = 0


# More than 12 fields: who is there, how they are filed, and what is remembered of them.
@final
class Directory(Generic[Exit]):
    """The exits that are attached; see the theory above.

    Args:
        chance: returns numbers from 0 to below 1; tests hand in a seeded one.
        bounds: how much it remembers and searches.
    """

    __slots__ = (
        "_bindings",
        "_blamed",
        "_bounds",
        "_buckets",
        "_chance",
        "_gone",
        "_grudges",
        "_held",
        "_holders",
        "_labels",
        "_last",
        "_last_before",
        "_lines",
        "_members",
        "_minute",
        "_regions",
        "_sites",
        "_suspects",
        "_unproven",
        "_unswept",
        "_watchers",
    )

    def __init__(
        self, chance: Callable[[], float] | None = None, bounds: DirectoryBounds = USUAL
    ) -> None:
        self._bounds = bounds
        self._chance = chance or Random().random  # noqa: S311 - it spreads load, and hides nothing
        self._watchers: list[Callable[[Exit], None]] = []
        self._members: dict[str, _Member[Exit]] = {}
        self._lines: dict[str, list[_Member[Exit]]] = {}
        self._grudges: dict[tuple[str, str], _Grudge] = {}  # by buyer and device
        # By site: the exit that failed there last, its buyer, and the end of the suspicion. No
        # exit: the fault was the site's.
        self._suspects: dict[str, tuple[str, str, float]] = {}
        # By site: the exit against which it counts for all, and until when against no other one.
        self._blamed: dict[str, tuple[str, float]] = {}
        self._buckets: dict[tuple[int, str | int, str], _Bucket[Exit]] = {}
        self._regions: dict[Region, int] = {}
        self._bindings: dict[str, dict[_Label, Binding]] = {}  # by session
        self._labels = 0  # bindings of all sessions
        self._holders: dict[str, str] = {}  # whose each of these sessions is
        self._held: dict[str, int] = {}  # how many labels each of them has
        self._unswept: list[str] = []  # sessions
        # The last exit of each session that rotates, in two generations of half the bound.
        self._last: dict[str, str] = {}
        self._last_before: dict[str, str] = {}
        self._minute = 0
        # By target: the exit that sent a TLS client something else, its buyer, and until when.
        self._unproven: dict[str, tuple[str, str, float]] = {}
        self._sites: dict[tuple[str, str], int] = {}  # picks of a device for a site, in the minute
        self._gone: dict[str, tuple[_Standing, float]] = {}

    def __len__(self) -> int:
        """Return how many exits are the first on their lines."""
        return sum(self._regions.values())

    # --- who is there --------------------------------------------------------------------------

    def add(self, entry: Exit) -> None:
        """Let an exit be chosen from now on; it replaces an older attachment of the same device."""
        older = self.get(entry.device_id)
        if older is not None:
            self.remove(older)
        standing = self._gone.pop(entry.device_id, (_Standing(), 0.0))[0]
        member = _Member(entry, standing)
        self._members[entry.device_id] = member
        self._file(member)
        for line in member.lines:
            self._lines.setdefault(line, []).append(member)
        self._rank(member.lines)

    def remove(self, entry: Exit) -> None:
        """Let an exit be chosen no more; nothing happens when it is not there."""
        member = self._members.get(entry.device_id)
        if member is None or member.entry is not entry:
            return
        del self._members[entry.device_id]
        self._unfile(member)
        if member.is_first:
            self._count_region(member.place, -1)
        self._remember(entry.device_id, member.standing)
        for line in member.lines:
            self._lines[line].remove(member)
            if not self._lines[line]:
                del self._lines[line]
        self._rank(member.lines)

    def move(self, entry: Exit) -> None:
        """File an exit anew: its place has changed."""
        member = self._members.get(entry.device_id)
        if member is not None and member.entry is entry:
            self._unfile(member)
            if member.is_first:
                self._count_region(member.place, -1)
                self._count_region(entry.place, 1)
            member.place = entry.place
            self._file(member)

    def get(self, device_id: str) -> Exit | None:
        """Return the exit that a device is; None when it is away."""
        member = self._members.get(device_id)
        return None if member is None else member.entry

    def watch(self, changed: Callable[[Exit], None]) -> None:
        """Call `changed` with each exit that stands behind another one on its line, or no more."""
        self._watchers.append(changed)

    def is_standby(self, entry: Exit) -> bool:
        """Say whether an exit carries only what no older one on its line offers."""
        member = self._members.get(entry.device_id)
        return member is not None and member.entry is entry and bool(member.elders)

    def coverage(self) -> dict[Region, int]:
        """Return how many lines have exits, by where they are."""
        return dict(self._regions)

    # --- the choice ----------------------------------------------------------------------------

    def pick(
        self,
        wants: Wants,
        *,
        session_id: str,
        owner_id: str,
        price_per_gb: int,
        target: str,
        tried: Sequence[str],
        now: float,
        features: frozenset[str] = NO_FEATURES,
        port: int = ANY_PORT,
    ) -> Exit | Missing:
        """Choose an exit for one connection.

        Args:
            wants: what the buyer wants of it.
            session_id: whose label it is, if there is one.
            owner_id: the buyer's account, whose own exits are out of the question.
            price_per_gb: what the session costs, in micro-USD.
            target: the name or address to be dialled: no exit is worn out on one site.
            tried: the devices that were asked for this connection, in vain.
            now: seconds of a clock that never goes back, the same one in all calls.
            features: what it has to offer beyond connections.
            port: the target's port; `ANY_PORT` for no matter which, as of datagrams, each of which
                names its own.
        """
        wish: _Wish[Exit] = _Wish(
            wants, owner_id, price_per_gb, target, tried, now, features, port, self._grudges
        )
        if wish.minute != self._minute:
            self._minute = wish.minute
            self._sites.clear()
        if wants.session:
            chosen = self._of_label(wants, wish, session_id)
        elif wants.rotate:
            chosen = self._rotated(wish, session_id)
        else:
            chosen = self._drawn(wish)
        if isinstance(chosen, Missing):
            return chosen
        entry = chosen.entry
        chosen.standing.count(wish.minute)
        self._count_site(entry.device_id, wish.site)
        return entry

    def note(
        self, entry: Exit, outcome: Outcome | None, now: float, *, buyer: str, target: str
    ) -> None:
        """Remember how a dial through an exit went.

        Args:
            entry: the exit.
            outcome: its answer; None if it was lost.
            now: as for `pick`.
            buyer: whose dial it was.
            target: the name or address that was dialled.
        """
        device_id, site = entry.device_id, _site(target)
        standing = self._standing_of(device_id)
        standing.noted_at = now
        standing.has_failed = outcome is None or outcome in _FAULTS
        if standing.has_failed:
            self._blame(device_id, standing, buyer, site, now)
        elif outcome is _CONNECTED:
            standing.succeed()
            self._suspects.pop(site, None)
            self._grudges.pop((buyer, device_id), None)
        self._keep(device_id, standing)

    def contradict(self, entry: Exit, now: float, *, buyer: str, target: str) -> None:
        """Another exit has reached a target that this one has called unreachable."""
        standing = self._standing_of(entry.device_id)
        standing.noted_at = now
        standing.is_contradicted = True
        self._blame(entry.device_id, standing, buyer, _site(target), now)
        self._keep(entry.device_id, standing)

    def suspect(self, entry: Exit, now: float, *, buyer: str, target: str) -> None:
        """An exit has sent a TLS client something else: a fault for its buyer alone."""
        device_id = entry.device_id
        _make_room(self._grudges, self._bounds.grudges_total)
        self._grudges.setdefault((buyer, device_id), _Grudge()).fail(now)
        _make_room(self._unproven, self._bounds.suspects_total)
        self._unproven[target] = device_id, buyer, now + SUSPECT_SECONDS

    def prove(self, entry: Exit, now: float, *, target: str) -> None:
        """An exit has sent a TLS client TLS: another one at this target is at fault for all."""
        device_id, buyer, until = self._unproven.get(target, ("", "", 0.0))
        if not device_id or device_id == entry.device_id:
            return
        del self._unproven[target]
        if now < until:
            standing = self._standing_of(device_id)
            standing.noted_at = now
            standing.is_contradicted = True
            self._count_for_all(device_id, standing, buyer, _site(target), now)
            self._keep(device_id, standing)

    def doubts(self, entry: Exit) -> bool:
        """Say whether a target's refusal is to be checked through a second exit."""
        member = self._members.get(entry.device_id)
        if member is None:
            return False
        standing = member.standing
        is_new = standing.dials < NEWCOMER_DIALS or standing.is_contradicted
        return is_new or self._chance() < CHECKED_SHARE

    def _blame(
        self, device_id: str, standing: _Standing, buyer: str, site: str, now: float
    ) -> None:
        """Count a fault, unless it is the site's."""
        first, its_buyer, until = self._suspects.pop(site, ("", "", 0.0))
        is_suspect = bool(site) and now < until
        if is_suspect and first != device_id:
            if first:
                self._standing_of(first).absolve(site)
                grudge = self._grudges.get((its_buyer, first))
                if grudge is not None:
                    grudge.forgive()
            first = its_buyer = ""
        else:
            first, its_buyer = device_id, buyer
            _make_room(self._grudges, self._bounds.grudges_total)
            self._grudges.setdefault((buyer, device_id), _Grudge()).fail(now)
            self._count_for_all(device_id, standing, buyer, site, now)
        if site:
            _make_room(self._suspects, self._bounds.suspects_total)
            self._suspects[site] = first, its_buyer, now + SUSPECT_SECONDS

    def _count_for_all(
        self, device_id: str, standing: _Standing, buyer: str, site: str, now: float
    ) -> None:
        """Count a fault for all buyers, unless its site counts against another exit."""
        if site:
            blamed, until = self._blamed.get(site, ("", 0.0))
            if blamed != device_id and now < until:
                return
            _make_room(self._blamed, self._bounds.suspects_total)
            self._blamed[site] = device_id, now + SUSPECT_SECONDS
        standing.fail(site, buyer, now)

    def _standing_of(self, device_id: str) -> _Standing:
        member = self._members.get(device_id)
        if member is not None:
            return member.standing
        standing, _ = self._gone.get(device_id, (_Standing(), 0.0))
        return standing

    def _keep(self, device_id: str, standing: _Standing) -> None:
        """Remember an exit that has gone meanwhile."""
        if device_id not in self._members:
            self._gone.pop(device_id, None)
            self._remember(device_id, standing)

    def binding(self, wants: Wants, session_id: str) -> Binding | None:
        """Return the binding of a label; None for one that is not known."""
        return self._bindings.get(session_id, {}).get(_label(wants))

    def bindings(self, session_id: str) -> list[Binding]:
        """Return all bindings of a session."""
        return [*self._bindings.get(session_id, {}).values()]

    def adopt(self, wants: Wants, session_id: str, binding: Binding, holder: str) -> None:
        """Bind a label that is new here as other nodes have; it counts at the holder's account."""
        self._bind(session_id, _label(wants), binding, holder)

    def take_move(self, wants: Wants, session_id: str) -> bool:
        """Say whether a label has another exit than before; yes is said once for each move.

        To be asked when the buyer is told the exit.
        """
        binding = self._bindings.get(session_id, {}).get(_label(wants)) if wants.session else None
        if binding is None or not binding.has_moved:
            return False
        binding.has_moved = False
        return True

    def forget(self, session_id: str) -> None:
        """Forget what was kept for a session, which is over."""
        self._drop_labels(session_id, len(self._bindings.get(session_id, ())))
        self._last.pop(session_id, None)
        self._last_before.pop(session_id, None)

    def expire(self, now: float) -> None:
        """Forget what is over, or some of it; to be called every few seconds.

        It only saves memory: a label whose lifetime is over is seen to be so anyway.
        """
        for device_id in [each for each, (_, until) in self._gone.items() if until <= now]:
            del self._gone[device_id]
        if not self._unswept:
            self._unswept = list(self._bindings)
        seen = 0
        while self._unswept and seen < self._bounds.labels_per_sweep:
            session_id = self._unswept.pop()
            labels = self._bindings.get(session_id)
            if labels is not None:
                seen += len(labels)
                self._expire_labels(session_id, labels, now)

    # --- drawn by chance -----------------------------------------------------------------------

    def _drawn(self, wish: _Wish[Exit]) -> _Member[Exit] | Missing:
        """Return the better one of two that will do."""
        buckets, total = self._buckets_of(wish), 0
        for bucket in buckets:
            total += len(bucket.members)
        first = self._one_of(wish, buckets, total) if total else None
        if first is None:
            return self._none(wish)
        second = self._one_of(wish, buckets, total)
        if second is None or second is first or self._chance() < EXPLORED_SHARE:
            return first
        is_better = second.standing.weight(wish.minute) > first.standing.weight(wish.minute)
        return second if is_better else first

    def _one_of(
        self, wish: _Wish[Exit], buckets: Sequence[_Bucket[Exit]], total: int
    ) -> _Member[Exit] | None:
        """Return one that will do, by chance; rather none that is worn."""
        chance, sites, site = self._chance, self._sites, wish.site
        # What a bucket holds is in one of the countries, and of the kind.
        takes = wish.takes if wish.state or wish.city or wish.asn else wish.is_free
        members = buckets[0].members
        if len(buckets) > 1:  # of several countries one, as often as it has exits
            members = _bucket_at(buckets, int(chance() * total)).members
        size, worn = len(members), None
        for _ in range(DRAWS):
            member = members[int(chance() * size)]
            if takes(member):
                if sites.get((member.entry.device_id, site), 0) < PER_SITE_AND_MINUTE:
                    return member
                worn = member
        return worn or next(filter(takes, self._walk(buckets, total, int(chance() * total))), None)

    def _walk(
        self, buckets: Sequence[_Bucket[Exit]], total: int, start: int
    ) -> Iterator[_Member[Exit]]:
        """Yield one exit after the other, as if the buckets were one ring; of many not all.

        Args:
            buckets: the buckets.
            total: how many exits there are in them.
            start: the position to begin at.
        """
        left = min(total, self._bounds.searched_max)
        for bucket in (*buckets, *buckets):
            part = bucket.members[start : start + left]
            start -= min(start, len(bucket.members))
            left -= len(part)
            yield from part

    def _none(self, wish: _Wish[Exit]) -> Missing:
        """Return why no exit will do: the port alone, or more than that."""
        if wish.port:
            wish.port = ANY_PORT
            buckets = self._buckets_of(wish)
            total = sum([len(bucket.members) for bucket in buckets])
            if any(wish.takes(member) for member in self._walk(buckets, total, 0)):
                return Missing.NOT_ALLOWED
        return Missing.NO_EXIT

    def _rotated(self, wish: _Wish[Exit], session_id: str) -> _Member[Exit] | Missing:
        """Return another exit than the session's last one."""
        wish.last = self._last.get(session_id) or self._last_before.get(session_id, "")
        chosen = self._drawn(wish)
        if isinstance(chosen, Missing):
            return chosen
        if len(self._last) >= self._bounds.rotating_total // 2:
            self._last, self._last_before = {}, self._last
        self._last[session_id] = chosen.entry.device_id
        return chosen

    def _count_site(self, device_id: str, site: str) -> None:
        sites = self._sites
        if len(sites) >= self._bounds.sites_total:
            sites.clear()
        if site:
            key = device_id, site
            sites[key] = sites.get(key, 0) + 1

    # --- labels --------------------------------------------------------------------------------

    def _of_label(
        self, wants: Wants, wish: _Wish[Exit], session_id: str
    ) -> _Member[Exit] | Missing:
        """Return the exit of a label; bind the label if it has none, or may have another one."""
        binding = self._bindings.get(session_id, {}).get(_label(wants))
        if binding is None or wish.now >= binding.until:
            lifetimes = 0 if binding is None else binding.lifetimes + 1
            return self._first(wants, wish, session_id, lifetimes)
        member = self._members.get(binding.device_id)
        wish.is_bound = True
        if member is not None and wish.takes(member):
            return member
        if member is not None and wish.takes_for_any_port(member):
            return Missing.NOT_ALLOWED  # a label keeps its exit, whatever that is good for
        wish.is_bound = False
        if member is not None and (
            _is_only_busy(member, wish, is_strict=wants.strict)
            or not wish.features.issubset(member.entry.features)  # the same
        ):
            return Missing.NO_EXIT
        if wants.strict:
            return Missing.EXIT_LOST
        return self._moved(wish, binding, _ring(session_id, wants.session, binding.lifetimes))

    def _first(
        self, wants: Wants, wish: _Wish[Exit], session_id: str, lifetimes: int
    ) -> _Member[Exit] | Missing:
        """Bind a label whose lifetime begins now."""
        member = self._on_ring(wish, _ring(session_id, wants.session, lifetimes))
        if member is None:
            return self._none(wish)
        until = wish.now + wants.lifetime_seconds
        binding = Binding(member.entry.device_id, member.place.country, until, lifetimes)
        self._bind(session_id, _label(wants), binding, wish.owner_id)
        return member

    def _moved(self, wish: _Wish[Exit], binding: Binding, ring: int) -> _Member[Exit] | Missing:
        """Bind a label to another exit: of the same country, or at least of those that will do."""
        countries = wish.countries
        wish.countries = (binding.country,) if binding.country else countries
        member = self._on_ring(wish, ring)
        if member is None and wish.countries != countries:
            wish.countries = countries
            member = self._on_ring(wish, ring)
        if member is None:
            return self._none(wish)
        binding.device_id = member.entry.device_id
        binding.has_moved = True
        return member

    def _on_ring(self, wish: _Wish[Exit], ring: int) -> _Member[Exit] | None:
        """Return the exit at a hash: always the same one, as long as the same ones are there."""
        around = merge(*[bucket.around(ring) for bucket in self._buckets_of(wish)])
        near: list[_Member[Exit]] = []
        # A loop, because the compiler makes a list of a generator expression: all would be judged.
        for _, _, member in islice(around, self._bounds.searched_max):
            if wish.takes(member):
                near.append(member)
                if len(near) == NEIGHBOURS:
                    break
        return max(
            near,
            key=lambda member: ((member.ring ^ ring) * _MIXING) & _HASH_MASK,
            default=None,
        )

    def _bind(self, session_id: str, label: _Label, binding: Binding, holder: str) -> None:
        """Keep a binding, and no more than are allowed: of a session the oldest ones go first.

        Of all sessions the holders with the most labels lose some first, so that no holder loses
        a label to one with more.
        """
        labels = self._bindings.setdefault(session_id, {})
        holder = self._holders.setdefault(session_id, holder)
        before = len(labels)
        labels.pop(label, None)
        _make_room(labels, self._bounds.labels_per_session)
        labels[label] = binding
        self._count_labels(holder, len(labels) - before)
        if self._labels > self._bounds.labels_total:
            self._evict_labels()

    def _evict_labels(self) -> None:
        """Drop a quarter of all labels: the oldest of each holder beyond one bound for all."""
        most = self._bounds.labels_total - self._bounds.labels_total // 4
        low, high = 0, max(self._held.values())
        while low < high:  # the most that all may keep
            middle = (low + high + 1) // 2
            if sum([min(each, middle) for each in self._held.values()]) <= most:
                low = middle
            else:
                high = middle - 1
        surplus = {holder: held - low for holder, held in self._held.items() if held > low}
        for session_id in tuple(self._bindings):
            left = surplus.get(self._holders[session_id], 0)
            if left > 0:
                dropped = min(left, len(self._bindings[session_id]))
                surplus[self._holders[session_id]] = left - dropped
                self._drop_labels(session_id, dropped)

    def _drop_labels(self, session_id: str, number: int) -> None:
        """Drop the oldest labels of a session."""
        labels = self._bindings.get(session_id)
        if labels is None:
            return
        for label in list(islice(labels, number)):
            del labels[label]
        self._count_labels(self._holders[session_id], -number)
        if not labels:
            del self._bindings[session_id], self._holders[session_id]

    def _count_labels(self, holder: str, more: int) -> None:
        self._labels += more
        held = self._held.get(holder, 0) + more
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)

    def _expire_labels(self, session_id: str, labels: dict[_Label, Binding], now: float) -> None:
        old = [
            each for each, binding in labels.items() if binding.until + LABEL_KEPT_SECONDS <= now
        ]
        for label in old:
            del labels[label]
        self._count_labels(self._holders[session_id], -len(old))
        if not labels:
            del self._bindings[session_id], self._holders[session_id]

    # --- the files -----------------------------------------------------------------------------

    def _rank(self, lines: tuple[str, ...]) -> None:
        """Find anew which exits of some lines stand behind which others."""
        for member in {each: None for line in lines for each in self._lines.get(line, ())}:
            age = _age(member.entry)
            elders = {
                other: None
                for line in member.lines
                for other in self._lines[line]
                if _age(other.entry) < age
            }
            member.elders = list(elders)
            if member.is_first is bool(elders):
                member.is_first = not elders
                self._count_region(member.place, 1 if member.is_first else -1)
                for changed in self._watchers:
                    changed(member.entry)

    def _count_region(self, place: Place, more: int) -> None:
        region = _region(place)
        self._regions[region] = self._regions.get(region, 0) + more
        if not self._regions[region]:
            del self._regions[region]

    def _remember(self, device_id: str, standing: _Standing) -> None:
        """Keep what an exit did, in case it comes back."""
        if standing.dials:
            _make_room(self._gone, self._bounds.gone_total)
            self._gone[device_id] = standing, standing.noted_at + GONE_SECONDS

    def _file(self, member: _Member[Exit]) -> None:
        for key in _keys(member.place, carries_datagrams=member.carries_datagrams):
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket()
            bucket.add(member)

    def _unfile(self, member: _Member[Exit]) -> None:
        for key in _keys(member.place, carries_datagrams=member.carries_datagrams):
            bucket = self._buckets[key]
            bucket.remove(member)
            if not bucket.members:
                del self._buckets[key]

    def _buckets_of(self, wish: _Wish[Exit]) -> Sequence[_Bucket[Exit]]:
        """Return the fewest exits that hold all that a wish can mean."""
        kind = wish.kind + _WITH_UDP if UDP in wish.features else wish.kind
        if not (wish.city or wish.asn or wish.state):
            if wish.countries:
                keys = [(_COUNTRY, country, kind) for country in wish.countries]
                return [bucket for key in keys if (bucket := self._buckets.get(key))]
            everything = self._buckets.get((_ALL, "", kind))
            return [everything] if everything else []
        smallest: _Bucket[Exit] | None = None
        for level, value in ((_CITY, wish.city), (_ASN, wish.asn), (_STATE, wish.state)):
            if not value:
                continue
            bucket = self._buckets.get((level, value, kind))
            if bucket is None:
                return []
            if smallest is None or len(bucket.members) < len(smallest.members):
                smallest = bucket
        return [smallest] if smallest else []


def _age(entry: Entry) -> tuple[bool, int, str]:
    """Return a key that is least for the first exit of a line.

    An exit that has attached from the network goes before one that only says that it leaves there.
    """
    return entry.is_elsewhere, entry.since, entry.device_id


def _lines(entry: Entry) -> tuple[str, ...]:
    """Return the lines of an exit: its household's, and in an IPv6 /48 its account's."""
    around = enclosing(entry.network)
    if len(around) == 1:
        return (entry.network,)
    return around[1][0], f"{entry.owner_id} in {around[-1][0]}"


def _is_only_busy(member: _Member[Exit], wish: _Wish[Exit], *, is_strict: bool) -> bool:
    """Say whether a label keeps its exit although that takes no connection now.

    It does when the exit was in vain because of the target, and a strict one when the exit is full.
    """
    if member.entry.device_id in wish.tried:
        return not member.standing.has_failed
    return is_strict and not member.entry.has_place_for(wish.owner_id, datagrams=wish.is_datagrams)


def _keys(place: Place, *, carries_datagrams: bool) -> Iterator[tuple[int, str | int, str]]:
    """Yield the buckets that an exit stands in, by where it is and what it carries."""
    kinds = ["", place.kind] if place.kind else [""]
    if carries_datagrams:
        kinds += [kind + _WITH_UDP for kind in kinds]
    for kind in kinds:
        yield _ALL, "", kind
        if place.country:
            yield _COUNTRY, place.country, kind
        if place.state:
            yield _STATE, place.state, kind
        if place.city:
            yield _CITY, place.city, kind
        if place.asn:
            yield _ASN, place.asn, kind


def _region(place: Place) -> Region:
    return Region(place.country, place.state, place.city)


def _bucket_at(buckets: Sequence[_Bucket[Exit]], position: int) -> _Bucket[Exit]:
    """Return the bucket of an exit, by the exit's position as if the buckets were one."""
    for bucket in buckets:
        if position < len(bucket.members):
            return bucket
        position -= len(bucket.members)
    raise IndexError(position)


def _label(wants: Wants) -> _Label:
    return wants.session, wants.countries, wants.state, wants.city, wants.asn, wants.kind


def _ring(session_id: str, label: str, lifetimes: int) -> int:
    """Return where on a ring a label begins to look, in one of its lifetimes."""
    return _hash(f"{session_id} {label} {lifetimes}")


def _hash(text: str) -> int:
    """Return a number that another process finds, too: Python's own is its own."""
    return int.from_bytes(blake2b(text.encode(), digest_size=_HASH_BYTES).digest())


@lru_cache(maxsize=SITES_CACHED)
def _site(target: str) -> str:
    """Return what connections to a target are counted as together: its /24, its /48 or its domain.

    A domain is taken for the last two labels of a name, or three where these are a country's and a
    kind, as in `co.uk`. Where that is wrong, a site is counted with others: a name that gave many
    sites would cost its owner nothing.
    """
    if ":" in target:
        return ":".join(target.split(":", 3)[:3])
    if target[-1:].isdigit():
        return target.rpartition(".")[0]
    labels = target.rsplit(".", 3)
    has_kind = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _KINDS
    return ".".join(labels[-3:] if has_kind else labels[-2:])


def _make_room(rows: dict[Key, Value], most: int) -> None:
    """Drop the oldest quarter of what has reached its bound: one by one takes longer."""
    if len(rows) >= most:
        for key in list(islice(rows, max(1, most // 4))):
            del rows[key]

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

Of the exits behind one address only one is active, the one that has been attached for longest; the
others stand by and move up. So nobody earns more by attaching more devices to one line. An exit
that has attached from elsewhere is behind all of them, whatever its calls say (`origin.py`). The
exits may be attached to any of several nodes: which one is active depends on `is_elsewhere`,
`since` and the device alone, so that all nodes choose the same one.

What an exit did is remembered (`_Standing`), for a while after it has gone, too: who fails, rests,
and longer each time, also if it comes back in between.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from heapq import merge
from itertools import chain, islice
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, final

from proxyctl.protocol.frames import UDP, Outcome
from proxyd.wire.wants import Wants

ANY_PORT: Final = 0
DRAWS: Final = 32  # if 10 % of the exits will do, one of these does in all but one of 30 cases
# 0.1 ms: the most that one connection may cost the others. It begins anywhere: who wants what is
# rarer than that finds it at another try.
SEARCHED_MAX = 512
# Of so many neighbours on the ring a label has one: gaps between hashes are uneven, and an exit
# after a wide one would have many times the labels of another.
NEIGHBOURS: Final = 8

HALF_LIFE_DIALS: Final = 200  # what an exit did so long ago counts half
NEWCOMER_DIALS: Final = 50  # before that it is not known what an exit is worth
NEWCOMER_SHARE: Final = 0.1  # of what others get
# Who would lose a comparison is chosen so often all the same: or newcomers were never known, and
# nobody would see that a bad exit has become good.
EXPLORED_SHARE: Final = 0.1
COOLING_FAILURES: Final = 3  # in a row: one or two happen to every exit
COOLING_SECONDS: Final = 30.0  # doubled each time
COOLING_MOST_SECONDS: Final = 3600.0
MINUTE_SECONDS: Final = 60
# Through one exit to one site, a minute: more draws a site's attention to the exit's address. Where
# there is no other exit, it is not minded.
PER_SITE_AND_MINUTE: Final = 30

# About 300 bytes each. What a test replaces is not Final, which would be compiled in.
LABELS_PER_SESSION = 4096
LABELS_TOTAL = 131_072
ROTATING_TOTAL = 65_536  # sessions whose last exit is remembered
SITES_TOTAL = 65_536  # pairs of an exit and a site, of one minute
SITES_CACHED: Final = 4096
GONE_TOTAL = 16_384  # exits that are remembered after they have gone
GONE_SECONDS: Final = COOLING_MOST_SECONDS
LABELS_PER_SWEEP = 8192  # a millisecond
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

_CONNECTED: Final = Outcome.CONNECTED
# The exit's own doing. Everything else are the target's words.
_FAULTS: Final = (Outcome.PAUSED, Outcome.AT_LIMIT, Outcome.FAILED)

NO_FEATURES: Final[frozenset[str]] = frozenset()  # that a choice asks for


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
        """What it is counted by: see `market.networks.counted_network`."""

    @property
    def since(self) -> int:
        """When it attached, in UTC milliseconds."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether its connections leave from another network than it has attached from."""

    @property
    def has_place(self) -> bool:
        """Whether it takes one more connection now."""

    @property
    def min_price_per_gb(self) -> int:
        """What a session has to cost, in micro-USD per GB."""

    @property
    def features(self) -> tuple[str, ...]:
        """What it offers beyond connections."""

    def allows(self, port: int) -> bool:
        """Say whether it may be asked for a port of targets."""


Exit = TypeVar("Exit", bound=Entry)
Key = TypeVar("Key")
Value = TypeVar("Value")


@final
class _Standing:
    """What an exit did: its score, and whether it rests.

    `score` is the mean of its dials' successes, the latest counting most. `failures` says how many
    in a row were its own fault, `has_failed` whether the latest was, and `noted_at` when that was.
    `coolings` counts its rests since its last success. `picks` is how often it was chosen in the
    minute `minute`.
    """

    __slots__ = (
        "cool_until",
        "coolings",
        "dials",
        "failures",
        "has_failed",
        "minute",
        "noted_at",
        "picks",
        "score",
    )

    def __init__(self) -> None:
        self.score = 1.0
        self.dials = 0
        self.failures = 0
        self.coolings = 0
        self.cool_until = 0.0
        self.has_failed = False
        self.noted_at = 0.0
        self.minute = 0
        self.picks = 0

    def note(self, outcome: Outcome | None, now: float) -> None:
        """Remember how a dial went; None: the exit was lost."""
        self.noted_at = now
        self.has_failed = outcome is None or outcome in _FAULTS
        if self.has_failed:
            self._rate(0.0)
            self.failures += 1
            # What failed while it rests had begun before that.
            if self.failures >= COOLING_FAILURES and now >= self.cool_until:
                rest = COOLING_SECONDS * 2.0 ** min(self.coolings, 10)
                self.cool_until = now + min(rest, COOLING_MOST_SECONDS)
                self.coolings += 1
        elif outcome is _CONNECTED:
            self._rate(1.0)
            self.failures = self.coolings = 0

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
    """An active exit, with what it is filed by."""

    __slots__ = ("carries_datagrams", "entry", "place", "ring", "standing")

    def __init__(self, entry: Exit, standing: _Standing) -> None:
        self.entry = entry
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
        features: frozenset[str] = NO_FEATURES,
        port: int = ANY_PORT,
    ) -> None:
        self.features = features
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
            entry.has_place
            and member.standing.cool_until <= self.now
            and (not self.features or self.features.issubset(entry.features))
            and entry.min_price_per_gb <= self.price_per_gb
            and entry.owner_id != self.owner_id
            and device_id != self.last
            and device_id not in self.tried
            and (not self.port or entry.allows(self.port))
        )

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

    Where several nodes agree on exits (`exits/labels.py`), `label` is what these know it by,
    `agreed_id` the device that was agreed on last, and `agreement` says whether that still counts.
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
    """

    __slots__ = (
        "_active",
        "_bindings",
        "_buckets",
        "_chance",
        "_gone",
        "_labels",
        "_last",
        "_last_before",
        "_minute",
        "_networks",
        "_queues",
        "_regions",
        "_sites",
        "_standby",
        "_unswept",
    )

    def __init__(self, chance: Callable[[], float] | None = None) -> None:
        self._chance = chance or Random().random  # noqa: S311 - it spreads load, and hides nothing
        self._active: dict[str, _Member[Exit]] = {}
        self._networks: dict[str, str] = {}  # the device that is active in each
        self._standby: dict[str, Exit] = {}
        self._queues: dict[str, list[str]] = {}  # who stands by in each network
        self._buckets: dict[tuple[int, str | int, str], _Bucket[Exit]] = {}
        self._regions: dict[Region, int] = {}
        self._bindings: dict[str, dict[_Label, Binding]] = {}  # by session
        self._labels = 0  # bindings of all sessions
        self._unswept: list[str] = []  # sessions
        # The last exit of each session that rotates, in two generations of half the bound.
        self._last: dict[str, str] = {}
        self._last_before: dict[str, str] = {}
        self._minute = 0
        self._sites: dict[tuple[str, str], int] = {}  # picks of a device for a site, in the minute
        self._gone: dict[str, tuple[_Standing, float]] = {}

    def __len__(self) -> int:
        """Return how many exits are active."""
        return len(self._active)

    # --- who is there --------------------------------------------------------------------------

    def add(self, entry: Exit) -> None:
        """Let an exit be chosen from now on, or stand by if an older one of its network is active.

        It replaces an older attachment of the same device.
        """
        older = self.get(entry.device_id)
        if older is not None:
            self.remove(older)
        active = self._networks.get(entry.network)
        if active is None:
            self._activate(entry)
            return
        member = self._active[active]
        if _age(member.entry) < _age(entry):
            self._stand_by(entry)
            return
        del self._active[active]
        self._unfile(member)
        self._remember(active, member.standing)
        self._stand_by(member.entry)
        self._activate(entry)

    def remove(self, entry: Exit) -> None:
        """Let an exit be chosen no more; nothing happens when it is not there.

        If it was active, the next one of its network is from now on.
        """
        if self.get(entry.device_id) is not entry:
            return
        device_id, network = entry.device_id, entry.network
        member = self._active.pop(device_id, None)
        if member is None:
            del self._standby[device_id]
            self._queues[network].remove(device_id)
        else:
            self._unfile(member)
            self._remember(device_id, member.standing)
            del self._networks[network]
            queue = self._queues.get(network)
            if queue:
                oldest = min(queue, key=lambda each: _age(self._standby[each]))
                queue.remove(oldest)
                self._activate(self._standby.pop(oldest))
        if not self._queues.get(network, True):
            del self._queues[network]

    def move(self, entry: Exit) -> None:
        """File an exit anew: its place has changed."""
        member = self._active.get(entry.device_id)
        if member is not None and member.entry is entry:
            self._unfile(member)
            member.place = entry.place
            self._file(member)

    def get(self, device_id: str) -> Exit | None:
        """Return the exit that a device is, active or standing by; None when it is away."""
        member = self._active.get(device_id)
        return self._standby.get(device_id) if member is None else member.entry

    def is_standby(self, entry: Exit) -> bool:
        """Say whether an exit is not chosen because another one of its network is."""
        return self._standby.get(entry.device_id) is entry

    def coverage(self) -> dict[Region, int]:
        """Return how many exits are active, by where they are."""
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
        wish: _Wish[Exit] = _Wish(wants, owner_id, price_per_gb, target, tried, now, features, port)
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

    def note(self, entry: Exit, outcome: Outcome | None, now: float) -> None:
        """Remember how a dial through an exit went; None: the exit was lost."""
        member = self._active.get(entry.device_id)
        if member is not None:
            member.standing.note(outcome, now)
            return
        standing = self._gone.pop(entry.device_id, (_Standing(), now))[0]
        standing.note(outcome, now)
        self._remember(entry.device_id, standing)

    def binding(self, wants: Wants, session_id: str) -> Binding | None:
        """Return the binding of a label; None for one that is not known."""
        return self._bindings.get(session_id, {}).get(_label(wants))

    def bindings(self, session_id: str) -> list[Binding]:
        """Return all bindings of a session."""
        return [*self._bindings.get(session_id, {}).values()]

    def adopt(self, wants: Wants, session_id: str, binding: Binding) -> None:
        """Bind a label that is new here as other nodes have."""
        self._bind(session_id, _label(wants), binding)

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
        self._labels -= len(self._bindings.pop(session_id, ()))
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
        while self._unswept and seen < LABELS_PER_SWEEP:
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
        return worn or next(filter(takes, _walk(buckets, total, int(chance() * total))), None)

    def _none(self, wish: _Wish[Exit]) -> Missing:
        """Return why no exit will do: the port alone, or more than that."""
        if wish.port:
            wish.port = ANY_PORT
            buckets = self._buckets_of(wish)
            total = sum([len(bucket.members) for bucket in buckets])
            if any(wish.takes(member) for member in _walk(buckets, total, 0)):
                return Missing.NOT_ALLOWED
        return Missing.NO_EXIT

    def _rotated(self, wish: _Wish[Exit], session_id: str) -> _Member[Exit] | Missing:
        """Return another exit than the session's last one."""
        wish.last = self._last.get(session_id) or self._last_before.get(session_id, "")
        chosen = self._drawn(wish)
        if isinstance(chosen, Missing):
            return chosen
        if len(self._last) >= ROTATING_TOTAL // 2:
            self._last, self._last_before = {}, self._last
        self._last[session_id] = chosen.entry.device_id
        return chosen

    def _count_site(self, device_id: str, site: str) -> None:
        sites = self._sites
        if len(sites) >= SITES_TOTAL:
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
        member = self._active.get(binding.device_id)
        if member is not None and wish.takes(member):
            return member
        if member is not None and wish.takes_for_any_port(member):
            return Missing.NOT_ALLOWED  # a label keeps its exit, whatever that is good for
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
        self._bind(session_id, _label(wants), binding)
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
        near = (member for _, _, member in islice(around, SEARCHED_MAX) if wish.takes(member))
        return max(
            islice(near, NEIGHBOURS),
            key=lambda member: ((member.ring ^ ring) * _MIXING) & _HASH_MASK,
            default=None,
        )

    def _bind(self, session_id: str, label: _Label, binding: Binding) -> None:
        """Keep a binding, and no more than are allowed: the oldest ones go first."""
        labels = self._bindings.setdefault(session_id, {})
        self._labels -= len(labels)
        labels.pop(label, None)
        _make_room(labels, LABELS_PER_SESSION)
        labels[label] = binding
        self._labels += len(labels)
        if self._labels > LABELS_TOTAL:
            others = iter([each for each in self._bindings if each != session_id])
            while self._labels > LABELS_TOTAL - LABELS_TOTAL // 4:
                self._labels -= len(self._bindings.pop(next(others)))

    def _expire_labels(self, session_id: str, labels: dict[_Label, Binding], now: float) -> None:
        for label in [
            each for each, binding in labels.items() if binding.until + LABEL_KEPT_SECONDS <= now
        ]:
            del labels[label]
            self._labels -= 1
        if not labels:
            del self._bindings[session_id]

    # --- the files -----------------------------------------------------------------------------

    def _activate(self, entry: Exit) -> None:
        standing = self._gone.pop(entry.device_id, (_Standing(), 0.0))[0]
        member = _Member(entry, standing)
        self._active[entry.device_id] = member
        self._networks[entry.network] = entry.device_id
        self._file(member)

    def _stand_by(self, entry: Exit) -> None:
        self._standby[entry.device_id] = entry
        self._queues.setdefault(entry.network, []).append(entry.device_id)

    def _remember(self, device_id: str, standing: _Standing) -> None:
        """Keep what an exit did, in case it comes back."""
        if standing.dials:
            _make_room(self._gone, GONE_TOTAL)
            self._gone[device_id] = standing, standing.noted_at + GONE_SECONDS

    def _file(self, member: _Member[Exit]) -> None:
        for key in _keys(member.place, carries_datagrams=member.carries_datagrams):
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket()
            bucket.add(member)
        region = _region(member.place)
        self._regions[region] = self._regions.get(region, 0) + 1

    def _unfile(self, member: _Member[Exit]) -> None:
        for key in _keys(member.place, carries_datagrams=member.carries_datagrams):
            bucket = self._buckets[key]
            bucket.remove(member)
            if not bucket.members:
                del self._buckets[key]
        region = _region(member.place)
        self._regions[region] -= 1
        if not self._regions[region]:
            del self._regions[region]

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
    """Return what is least for the exit of a network that is active.

    An exit that has attached from the network goes before one that only says that it leaves there.
    """
    return entry.is_elsewhere, entry.since, entry.device_id


def _is_only_busy(member: _Member[Exit], wish: _Wish[Exit], *, is_strict: bool) -> bool:
    """Say whether a label keeps its exit although that takes no connection now.

    It does when the exit was in vain because of the target, and a strict one when the exit is full.
    """
    if member.entry.device_id in wish.tried:
        return not member.standing.has_failed
    return is_strict and not member.entry.has_place


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


def _walk(buckets: Sequence[_Bucket[Exit]], total: int, start: int) -> Iterator[_Member[Exit]]:
    """Yield one exit after the other, as if the buckets were one ring; of many not all.

    Args:
        buckets: the buckets.
        total: how many exits there are in them.
        start: the position to begin at.
    """
    left = min(total, SEARCHED_MAX)
    for bucket in (*buckets, *buckets):
        part = bucket.members[start : start + left]
        start -= min(start, len(bucket.members))
        left -= len(part)
        yield from part


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

    A domain is taken for the last two labels of a name, or three where the second is as short as
    in `co.uk`: where that is wrong, a site is counted with others, or as several.
    """
    if ":" in target:
        return ":".join(target.split(":", 3)[:3])
    if target[-1:].isdigit():
        return target.rpartition(".")[0]
    labels = target.rsplit(".", 3)
    is_short = len(labels) > 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3:] if is_short else labels[-2:])


def _make_room(rows: dict[Key, Value], most: int) -> None:
    """Drop the oldest quarter of what has reached its bound: one by one takes longer."""
    if len(rows) >= most:
        for key in list(islice(rows, max(1, most // 4))):
            del rows[key]

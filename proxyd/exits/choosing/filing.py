"""Files of the directory: exits by device, by line, by place and by region.

The theory of operation is in `directory.py`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, final

from market.base.networks import enclosing
from proxyctl.protocol.frames import UDP
from proxyd.exits.choosing.entries import Entry, Exit, Place, Region, hash_of
from proxyd.exits.choosing.standing import Standing

HASH_MASK: Final = 2**64 - 1

# Levels of the buckets: the field of the place that all exits of a bucket share.
_ALL: Final = 0
_COUNTRY: Final = 1
_STATE: Final = 2
_CITY: Final = 3
_ASN: Final = 4
_WITH_UDP: Final = "+udp"  # behind the kind, in the buckets of the exits that carry datagrams


@final
class Member(Generic[Exit]):
    """An exit and the keys of its buckets; `elders` are older exits on the same line."""

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

    def __init__(self, entry: Exit, standing: Standing) -> None:
        self.entry = entry
        self.lines = _lines(entry)
        self.elders: tuple[Member[Exit], ...] = ()
        self.is_first = False  # on its lines; counted in its region then
        self.place = entry.place
        self.carries_datagrams = UDP in entry.features
        self.ring = hash_of(entry.device_id)
        self.standing = standing


@final
class Bucket(Generic[Exit]):
    """Exits in the order of their hashes: any of them by its position, or the next after a hash."""

    __slots__ = ("members", "rings")

    def __init__(self) -> None:
        self.rings = array("Q")
        self.members: list[Member[Exit]] = []

    def add(self, member: Member[Exit]) -> None:
        """File an exit."""
        at = bisect_left(self.rings, member.ring)
        self.rings.insert(at, member.ring)
        self.members.insert(at, member)

    def remove(self, member: Member[Exit]) -> None:
        """Remove an exit."""
        at = self.members.index(member, bisect_left(self.rings, member.ring))
        del self.rings[at]
        del self.members[at]

    def around(self, ring: int) -> "Iterator[tuple[int, str, Member[Exit]]]":
        """Yield all exits once, beginning at a hash: the distance, a tie-breaker and the exit."""
        first = bisect_left(self.rings, ring)
        for at in chain(range(first, len(self.members)), range(first)):
            member = self.members[at]
            yield (member.ring - ring) & HASH_MASK, member.entry.device_id, member


@final
class Area:
    """Places that a buyer wants exits in; empty fields and 0 allow any."""

    __slots__ = ("asn", "city", "countries", "kind", "state")

    def __init__(
        self, countries: tuple[str, ...], state: str, city: str, asn: int, kind: str
    ) -> None:
        self.countries = countries
        self.state = state
        self.city = city
        self.asn = asn
        self.kind = kind

    def has(self, place: Place) -> bool:
        """Return whether a place is in the area."""
        return (
            (not self.countries or place.country in self.countries)
            and (not self.kind or place.kind == self.kind)
            and (not self.city or place.city == self.city)
            and (not self.state or place.state == self.state)
            and (not self.asn or place.asn == self.asn)
        )

    @property
    def is_fine(self) -> bool:
        """Whether it is smaller than a country; then a bucket may hold exits of other places."""
        return bool(self.state or self.city or self.asn)


@final
class Files(Generic[Exit]):
    """The exits that are attached, by device, line, place and region."""

    __slots__ = ("_buckets", "_lines", "_members", "_regions", "_watchers")

    def __init__(self) -> None:
        self._members: dict[str, Member[Exit]] = {}
        self._lines: dict[str, list[Member[Exit]]] = {}
        self._buckets: dict[tuple[int, str | int, str], Bucket[Exit]] = {}
        self._regions: dict[Region, int] = {}
        self._watchers: list[Callable[[Exit], None]] = []

    def __contains__(self, device_id: str) -> bool:
        return device_id in self._members

    def find(self, device_id: str) -> Member[Exit] | None:
        """Return the exit of a device; None when it is away."""
        return self._members.get(device_id)

    def watch(self, changed: Callable[[Exit], None]) -> None:
        """Call `changed` with each exit that becomes a standby on its line, or stops being one."""
        self._watchers.append(changed)

    def regions(self) -> dict[Region, int]:
        """Return the number of lines that have exits, by region."""
        return dict(self._regions)

    def lines(self) -> int:
        """Return the number of exits that are the first on their lines."""
        return sum(self._regions.values())

    def add(self, member: Member[Exit]) -> None:
        """File an exit whose device has no other exit here."""
        self._members[member.entry.device_id] = member
        self._file(member)
        for line in member.lines:
            self._lines.setdefault(line, []).append(member)
        self._rank(member.lines)

    def remove(self, member: Member[Exit]) -> None:
        """Remove an exit."""
        del self._members[member.entry.device_id]
        self._unfile(member)
        if member.is_first:
            self._count_region(member.place, -1)
        for line in member.lines:
            self._lines[line].remove(member)
            if not self._lines[line]:
                del self._lines[line]
        self._rank(member.lines)

    def move(self, member: Member[Exit]) -> None:
        """File an exit again: its place has changed."""
        place = member.entry.place
        self._unfile(member)
        if member.is_first:
            self._count_region(member.place, -1)
            self._count_region(place, 1)
        member.place = place
        self._file(member)

    def buckets_of(self, area: Area, *, datagrams: bool) -> Sequence[Bucket[Exit]]:
        """Return the smallest buckets that hold all exits of an area."""
        kind = area.kind + _WITH_UDP if datagrams else area.kind
        if not area.is_fine:
            if area.countries:
                keys = [(_COUNTRY, country, kind) for country in area.countries]
                return [bucket for key in keys if (bucket := self._buckets.get(key))]
            everything = self._buckets.get((_ALL, "", kind))
            return [everything] if everything else []
        smallest: Bucket[Exit] | None = None
        for level, value in ((_CITY, area.city), (_ASN, area.asn), (_STATE, area.state)):
            if not value:
                continue
            bucket = self._buckets.get((level, value, kind))
            if bucket is None:
                return []
            if smallest is None or len(bucket.members) < len(smallest.members):
                smallest = bucket
        return [smallest] if smallest else []

    def _rank(self, lines: tuple[str, ...]) -> None:
        """Rank the exits of some lines again."""
        for member in {each: None for line in lines for each in self._lines.get(line, ())}:
            age = _age(member.entry)
            elders = {
                other: None
                for line in member.lines
                for other in self._lines[line]
                if _age(other.entry) < age
            }
            member.elders = tuple(elders)
            if member.is_first is bool(elders):
                member.is_first = not elders
                self._count_region(member.place, 1 if member.is_first else -1)
                for changed in self._watchers:
                    changed(member.entry)

    def _count_region(self, place: Place, more: int) -> None:
        region = Region(place.country, place.state, place.city)
        self._regions[region] = self._regions.get(region, 0) + more
        if not self._regions[region]:
            del self._regions[region]

    def _file(self, member: Member[Exit]) -> None:
        for key in _keys(member.place, carries_datagrams=member.carries_datagrams):
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = Bucket()
            bucket.add(member)

    def _unfile(self, member: Member[Exit]) -> None:
        for key in _keys(member.place, carries_datagrams=member.carries_datagrams):
            bucket = self._buckets[key]
            bucket.remove(member)
            if not bucket.members:
                del self._buckets[key]


def bucket_at(buckets: Sequence[Bucket[Exit]], position: int) -> Bucket[Exit]:
    """Return the bucket of an exit, by the exit's position as if the buckets were one."""
    for bucket in buckets:
        if position < len(bucket.members):
            return bucket
        position -= len(bucket.members)
    raise IndexError(position)


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


def _keys(place: Place, *, carries_datagrams: bool) -> Iterator[tuple[int, str | int, str]]:
    """Yield the buckets of an exit, by its place and whether it carries datagrams."""
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

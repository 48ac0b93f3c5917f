"""Matching of waiting jobs and waiting devices, by two books in memory without a query.

All jobs with the same needs are one shape, and a shape is compared with a device once for all its
jobs. In a shape the jobs lie in bands of price, and each band is a heap. The job with the highest
price per hour comes first, but a job rises while it waits, so that no job waits forever.

A job takes about 600 bytes here, a shape some 2 KB beside them, a device that waits 500 bytes.
"""

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from proxyctl.protocol.jobspec import Capacity, Resources
from proxyctl.protocol.jobspec.matching import fits, rank

MILLION = 1_000_000
# Prices in a band differ by less than a fifth. Only of the band in which a device's least price
# lies must jobs be looked at one by one.
BANDS_PER_OCTAVE = 4
# Jobs of suitable shapes that one search looks at. Jobs that pay too little for this device, or
# that its owner failed at, are in its way. A search takes half a millisecond. The jobs behind these
# have to wait until these are gone, or until they have risen by age.
LOOKS_MAX = 512
# Different offers that a new job is compared with, in one millisecond. Devices behind them find the
# job at their next request.
OFFERS_LOOKED_AT_MAX = 1_024
# Devices that one new job is compared with, whose owners have failed at it, or whose reputation is
# too low: a third of a millisecond. Devices behind them find the job at their next request.
DEVICES_LOOKED_AT_MAX = 4_096
# Offers whose suitable shapes are remembered. A device repeats its offer until it has something.
OFFERS_KEPT_MAX = 256
# Shapes of one buyer. Most buyers have a few, and every search goes through the shapes of all
# buyers. A job with still other needs is not kept here, but offered now and then to the waiting
# devices.
SHAPES_PER_BUYER_MAX = 64
# Removed entries are cleared away once they are half of the kept ones, but not below this number.
COMPACTED_FROM = 64
# Executor that needs no image and uses the programs of the device itself; every other executor runs
# images.
WITHOUT_IMAGE: Final = "bwrap"
_WITHOUT_IMAGE: Final = frozenset((WITHOUT_IMAGE,))


class Lack(Enum):
    """Property that a job needs and that a device lacks, even when the device is idle."""

    JOB_TYPE = auto()
    NETWORK = auto()
    EXECUTOR = auto()
    PORTS = auto()
    ARCHIVES = auto()


class Runs(Protocol):
    """Work of a job: its payload, or the part of the payload that shows the needs."""

    @property
    def image(self) -> str:
        """The image; "" without one."""

    @property
    def network(self) -> str:
        """The kind of network, in one word; "none" without one."""

    @property
    def ports(self) -> Sequence[object]:
        """The ports at which it listens."""


class Needs(NamedTuple):
    """Needs of a job from a device; jobs with the same needs are one shape.

    `min_reputation` is in millionths, and is not compared with the offer: see `JobBook.best`. A job
    with `has_archives` has inputs or checkpoints that the device unpacks.
    """

    resources: Resources
    job_type: str
    has_image: bool = False
    has_network: bool = False
    min_reputation: int = 0
    has_ports: bool = False
    has_archives: bool = False

    @classmethod
    def of(
        cls,
        runs: Runs,
        resources: Resources,
        job_type: str,
        *,
        min_reputation: int,
        has_archives: bool = False,
    ) -> "Needs":
        """Return the needs of a job from the work that it runs."""
        return cls(
            resources,
            job_type,
            has_image=bool(runs.image),
            has_network=runs.network != "none",
            min_reputation=min_reputation,
            has_ports=bool(runs.ports),
            has_archives=has_archives,
        )


class Offer(Struct, frozen=True, cache_hash=True):
    """Free resources of a device, its abilities, and its least price.

    The price is per hour, in millionths of a micro-USD. `ports` are the executors whose jobs can be
    reached at their ports. `archives`: it can unpack them safely. Devices that offer the same are
    compared with a job once.
    """

    capacity: Capacity
    executors: frozenset[str]
    job_types: frozenset[str]
    has_network: bool = False
    least_price: int = 0
    ports: frozenset[str] = frozenset()
    archives: bool = True


def suits(needs: Needs, offer: Offer) -> bool:
    """Return whether a device with this offer meets these needs.

    Prices are another matter, and so is reputation.
    """
    return lack(needs, offer) is None and fits(needs.resources, offer.capacity)


def lack(needs: Needs, offer: Offer) -> Lack | None:
    """Return the property that a device with `offer` lacks for `needs`, or None.

    The free resources, the price and the reputation are not compared.
    """
    if needs.job_type not in offer.job_types:
        return Lack.JOB_TYPE
    if needs.has_network and not offer.has_network:
        return Lack.NETWORK
    executors = offer.executors
    can_run = executors - _WITHOUT_IMAGE if needs.has_image else executors & _WITHOUT_IMAGE
    if not can_run:
        return Lack.EXECUTOR
    if needs.has_ports and can_run.isdisjoint(offer.ports):
        return Lack.PORTS
    return Lack.ARCHIVES if needs.has_archives and not offer.archives else None


class WaitingJob(Struct, eq=False):
    """A job that waits: its price per hour as in an `Offer`, and `place`, the least comes first.

    `attempts` is their number when the job was read, and `excluded` are the owners whose devices do
    not get the job any more. A copy has a `group`, and `networks` whose devices do not get it. The
    book stores its `shape`, so that no search by its needs is necessary.
    """

    id: str
    needs: Needs
    price: int
    created_at: int
    buyer: str = ""
    attempts: int = 0
    excluded: frozenset[str] = frozenset()
    group: str = ""
    networks: frozenset[str] = frozenset()
    place: float = 0.0
    is_taken: bool = False
    shape: "_Shape | None" = None

    def __post_init__(self) -> None:
        """Compute the job's place in the order."""
        self.place = -rank(self.price // MILLION, self.created_at)

    def __lt__(self, other: "WaitingJob") -> bool:
        """Compare places; an earlier entry of the same job may be in the heap, in any order."""
        return False

    def again(self) -> "WaitingJob":
        """Return a copy for another book, because the removed entry may still be in a heap."""
        return replace(self, is_taken=False, shape=None)

    def is_for(self, offer: Offer, owner: str, network: str = "") -> bool:
        """Return whether a device with a suitable offer may have the job, by price and by owner."""
        return self.price >= offer.least_price and self.permits(owner, network)

    def permits(self, owner: str, network: str) -> bool:
        """Return whether devices of an owner, in a network, may have it."""
        return owner not in self.excluded and network not in self.networks

    def exclude(self, owner: str, network: str) -> None:
        """Exclude the devices of an owner and of a network."""
        self.excluded |= {owner}
        if network:
            self.networks |= {network}


# Compared without running Python: by place, then by identifier, which grows with time.
_Entry = tuple[float, str, WaitingJob]
_Heap = list[_Entry]


class _Shape:
    """Jobs with the same needs, in bands of price; each band is a heap.

    Jobs that were taken out stay in their heaps until they come up, or are half of them.
    """

    __slots__ = ("bands", "is_gone", "live", "needs", "stored")

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.bands: dict[int, _Heap] = {}
        self.live = 0
        self.stored = 0
        self.is_gone = False

    def add(self, job: WaitingJob) -> None:
        """Add a job."""
        heapq.heappush(self.bands.setdefault(_band(job.price), []), (job.place, job.id, job))
        self.live += 1
        self.stored += 1

    def forget_one(self) -> None:
        """Note that one of its jobs was removed."""
        self.live -= 1
        if self.stored > 2 * self.live + COMPACTED_FROM:
            self._compact()

    def heaps(self, least: int) -> list[_Heap]:
        """Return the heaps of a band and of the higher ones, each with a job at its top."""
        found = []
        for band, heap in tuple(self.bands.items()):
            if band < least:
                continue
            while heap and heap[0][2].is_taken:
                heapq.heappop(heap)
                self.stored -= 1
            if heap:
                found.append(heap)
            else:
                del self.bands[band]
        return found

    def jobs(self) -> Iterator[WaitingJob]:
        """Yield its jobs, in no order."""
        for heap in self.bands.values():
            for _, _, job in heap:
                if not job.is_taken:
                    yield job

    def _compact(self) -> None:
        for band, heap in tuple(self.bands.items()):
            heap[:] = [entry for entry in heap if not entry[2].is_taken]
            if heap:
                heapq.heapify(heap)
            else:
                del self.bands[band]
        self.stored = self.live


class _Suitable:
    """The shapes that suit one offer, among those compared so far."""

    __slots__ = ("gone", "seen", "shapes")

    def __init__(self) -> None:
        # How many shapes there had ever been, and how many of all were gone.
        self.seen = self.gone = 0
        self.shapes: list[_Shape] = []


class JobBook:
    """Jobs that wait.

    Args:
        shapes_per_buyer: how many different needs the jobs of one buyer have.
    """

    def __init__(self, shapes_per_buyer: int = SHAPES_PER_BUYER_MAX) -> None:
        self.shapes_per_buyer = shapes_per_buyer
        self._jobs: dict[str, WaitingJob] = {}
        self._shapes: dict[Needs, _Shape] = {}
        # Number of jobs that each buyer has of each shape.
        self._of_buyer: dict[str, Counter[_Shape]] = {}
        # The waiting copies, by their group; a group has few.
        self._of_group: dict[str, set[str]] = {}
        # Every shape in the order in which they came, numbered from `_first` on.
        self._in_order: list[_Shape] = []
        self._first = 0
        self._gone = 0
        self._suitable: OrderedDict[Offer, _Suitable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._jobs))

    def attempts(self, job_id: str) -> int | None:
        """Return the number of a job's attempts at its last reading; None for an unknown job."""
        job = self._jobs.get(job_id)
        return None if job is None else job.attempts

    @property
    def shapes(self) -> int:
        """Number of different needs."""
        return len(self._shapes)

    def kinds(self, most: int) -> Iterator[tuple[Needs, int, Iterator[WaitingJob]]]:
        """Yield each kind of needs, the number of its jobs, and these jobs.

        At most `most` kinds are yielded. The book must not change meanwhile.
        """
        for needs, shape in islice(self._shapes.items(), most):
            yield needs, shape.live, shape.jobs()

    def has_room(self, job: WaitingJob) -> bool:
        """Return whether the buyer of a job has room for its shape."""
        theirs = self._of_buyer.get(job.buyer, ())
        return len(theirs) < self.shapes_per_buyer or self._shapes.get(job.needs) in theirs

    def add(self, job: WaitingJob) -> None:
        """Add a job that is in no book; it takes the place of one with its identifier."""
        assert not job.is_taken  # noqa: S101 - it may still lie in a heap, and would come up twice
        self.remove(job.id)
        shape = self._shapes.get(job.needs)
        if shape is None:
            shape = self._shapes[job.needs] = _Shape(job.needs)
            self._in_order.append(shape)
        job.needs, job.shape = shape.needs, shape  # equal needs, and one object for all
        self._jobs[job.id] = job
        self._of_buyer.setdefault(job.buyer, Counter())[shape] += 1
        if job.group:
            self._of_group.setdefault(job.group, set()).add(job.id)
        shape.add(job)

    def remove(self, job_id: str) -> WaitingJob | None:
        """Remove a job, and return it."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return None
        shape = job.shape
        assert shape is not None  # noqa: S101 - it is in the book
        job.is_taken = True
        theirs = self._of_buyer[job.buyer]
        theirs[shape] -= 1
        if not theirs[shape]:
            del theirs[shape]
            if not theirs:
                del self._of_buyer[job.buyer]
        if job.group:
            self._of_group[job.group].discard(job.id)
            if not self._of_group[job.group]:
                del self._of_group[job.group]
        shape.forget_one()
        if not shape.live:
            del self._shapes[shape.needs]
            shape.is_gone = True
            self._gone += 1
            self._drop_gone()
        return job

    def copies(self, group: str) -> list[WaitingJob]:
        """Return the jobs of a group of copies; none for "", which is no group."""
        if not group:
            return []
        return [self._jobs[job_id] for job_id in sorted(self._of_group.get(group, ()))]

    def best(
        self, offer: Offer, owner: str, reputation: int = 0, network: str = ""
    ) -> Iterator[WaitingJob]:
        """Yield the jobs for a device, the best first, from the first `LOOKS_MAX` suitable jobs.

        The book must not change meanwhile.

        Args:
            offer: the free resources and the abilities of the device.
            owner: the user that owns the device.
            reputation: the reputation of the device, in millionths.
            network: the network of the device, or "" if unknown.
        """
        least = _band(offer.least_price)
        heaps: list[_Heap] = []
        for shape in self._suiting(offer):
            if shape.needs.min_reputation <= reputation:
                heaps += shape.heaps(least)
        for job in islice(_merged(heaps), LOOKS_MAX):
            if not job.is_taken and job.is_for(offer, owner, network):
                yield job

    def _suiting(self, offer: Offer) -> list[_Shape]:
        """Return the shapes that suit an offer."""
        kind = replace(offer, least_price=0) if offer.least_price else offer
        suitable = self._suitable.get(kind)
        if suitable is None:
            suitable = self._suitable[kind] = _Suitable()
            if len(self._suitable) > OFFERS_KEPT_MAX:
                self._suitable.popitem(last=False)
        self._suitable.move_to_end(kind)
        seen = self._first + len(self._in_order)
        if suitable.seen != seen:
            new = self._in_order[max(suitable.seen - self._first, 0) :]
            suitable.seen = seen
            suitable.shapes.extend(
                shape for shape in new if not shape.is_gone and suits(shape.needs, offer)
            )
        if suitable.gone != self._gone:
            suitable.gone = self._gone
            suitable.shapes = [shape for shape in suitable.shapes if not shape.is_gone]
        return suitable.shapes

    def _drop_gone(self) -> None:
        """Forget empty shapes once they are more than half of the kept shapes."""
        if len(self._in_order) <= 2 * len(self._shapes) + COMPACTED_FROM:
            return
        # Offers count the shapes that they have seen since the start, so they look at all shapes
        # again.
        self._first += len(self._in_order)
        self._in_order = [shape for shape in self._in_order if not shape.is_gone]
        self._suitable.clear()


class Waiter(Protocol):
    """A device that waits for work."""

    @property
    def offer(self) -> Offer:
        """The offer of the device."""

    @property
    def owner(self) -> str:
        """The user that owns the device."""

    @property
    def network(self) -> str:
        """The network of the device, or "" if unknown."""

    @property
    def reputation(self) -> int:
        """The reputation of the device, in millionths."""


_Waiter = TypeVar("_Waiter", bound=Waiter)


class DeviceBook(Generic[_Waiter]):
    """Devices that wait; devices with the same offer together, in the order in which they came."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Offer, OrderedDict[_Waiter, None]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, waiter: _Waiter) -> None:
        """Add a device that is not here."""
        self._groups.setdefault(waiter.offer, OrderedDict())[waiter] = None
        self._length += 1

    def remove(self, waiter: _Waiter) -> None:
        """Remove a device, if present."""
        group = self._groups.get(waiter.offer)
        if group is None or waiter not in group:
            return
        del group[waiter]
        self._length -= 1
        if not group:
            del self._groups[waiter.offer]

    def find(self, job: WaitingJob, is_full: Callable[[str], bool] | None = None) -> _Waiter | None:
        """Return the suitable device that has waited longest for the job.

        Devices of a full owner get none.
        """
        least, looks = job.needs.min_reputation, DEVICES_LOOKED_AT_MAX
        for offer, group in islice(self._groups.items(), OFFERS_LOOKED_AT_MAX):
            if job.price < offer.least_price or not suits(job.needs, offer):
                continue
            for waiter in group:
                has_room = is_full is None or not is_full(waiter.owner)
                is_permitted = has_room and job.permits(waiter.owner, waiter.network)
                if is_permitted and waiter.reputation >= least:
                    return waiter
                looks -= 1
                if not looks:
                    return None
        return None


def _band(price: int) -> int:
    return int(math.log2(price + 1) * BANDS_PER_OCTAVE)


def _merged(heaps: Sequence[_Heap]) -> Iterator[WaitingJob]:
    """Yield the entries of heaps in order, without changes to the heaps.

    The next entry is either a top that was not yielded, or a child of a yielded entry.
    """
    front = [(heap[0], 0, heap) for heap in heaps]
    heapq.heapify(front)
    while front:
        entry, at, heap = front[0]
        yield entry[2]
        left = 2 * at + 1
        if left >= len(heap):
            heapq.heappop(front)
            continue
        heapq.heapreplace(front, (heap[left], left, heap))
        if left + 1 < len(heap):
            heapq.heappush(front, (heap[left + 1], left + 1, heap))

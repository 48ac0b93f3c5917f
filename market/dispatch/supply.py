"""Supply of the market: the devices that request work from this daemon, by their resources.

It is counted from memory from time to time, in parts, so that no request waits for the count.
Strangers report these devices. A count shows that a kind of device exists. Its other figures
(country, least price, reputation) are shown only for devices of several proven owners.
"""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median_low
from typing import Final, NamedTuple

from msgspec import Struct

from market.jobs.matching import Offer
from proxyctl.protocol.jobspec import Capacity, gpus

# Counting fifty thousand devices takes a tenth of a second, so it is done as rarely as this.
KEPT_SECONDS: Final = 30.0
# Devices that are counted at once: about half a millisecond, which a connection may wait.
PART_DEVICES: Final = 50
# Proven owners below which a figure is not shown. An account is free, a proven one takes paid jobs:
# with fewer, two accounts beside one owner would show that owner's figure.
OWNERS_MIN: Final = 5
# Recent jobs and buyers below which their prices are not shown: one buyer knows the own ones.
PAID_JOBS_MIN: Final = 5
PAID_BUYERS_MIN: Final = 3
REPUTATION_STEP: Final = 50_000  # millionths; a finer figure would move with each single job
ROWS_MAX: Final = 100  # of one list; more kinds of GPU than are on sale
PRICES_MAX: Final = 1_000  # jobs whose prices are kept: enough for a median of each GPU
PRICES_SECONDS: Final = 7 * 86_400.0
SAMPLES_MAX: Final = 2_000  # figures of one row that a median is made of
CORES: Final = (1, 4, 8, 16, 32, 64, 128)
MEMORY_GB: Final = (1, 8, 16, 32, 64, 128, 256, 512)
# Any device may report other names of sandboxes.
SANDBOXES: Final = ("bwrap", "docker", "podman", "gvisor", "slurm", "kubernetes")
OTHER: Final = "other"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ()+./-]{0,63}")


class Device(NamedTuple):
    """A device that asks for work: `whole` is everything that it lends, if that is known."""

    offer: Offer
    whole: Capacity | None
    owner: str
    network: str
    reputation: int
    is_proven: bool = False


class Given(NamedTuple):
    """A job that was given to a device: when, by a clock that cannot be set, and for how much."""

    at: float
    price: int
    gpu: str
    buyer: str


class Row(Struct, frozen=True):
    """Devices of one kind; prices as in an `Offer`, reputation in millionths.

    `free` have room for another job. `least_price` and `reputation` are rounded medians of proven
    owners, None for few of them. `paid` is the rounded median price of recent jobs, None where
    there were few.
    """

    name: str
    devices: int
    free: int
    gpus: int = 0
    free_gpus: int = 0
    vram_gb: float = 0.0
    least_price: int | None = None
    reputation: int | None = None
    paid: int | None = None


class Paid(Struct, frozen=True):
    """The prices of recent jobs: how many, and their quartiles, as in an `Offer`."""

    jobs: int
    low: int
    median: int
    high: int


class Snapshot(Struct, frozen=True):
    """The supply at some moment. Cores and memory are in steps, named by the least of each."""

    total: Row
    gpus: Sequence[Row]
    cores: Sequence[Row]
    memory: Sequence[Row]
    sandboxes: Sequence[Row]
    countries: Sequence[Row]
    with_network: Row
    paid: Paid | None


class _Tally:
    """Counts the devices of one kind."""

    __slots__ = (
        "devices",
        "free",
        "free_gpus",
        "gpus",
        "names",
        "owners",
        "vram",
    )

    def __init__(self) -> None:
        self.devices = self.free = self.gpus = self.free_gpus = 0
        self.vram = 0.0
        # The least price and the least reputation of each proven owner: each counts once.
        self.owners: dict[str, tuple[int, int]] = {}
        self.names: Counter[str] = Counter()

    def add(self, device: Device) -> None:
        """Count a device."""
        capacity = device.offer.capacity
        whole = device.whole or capacity
        self.devices += 1
        self.free += capacity.slots > 0
        self.gpus += len(whole.gpu_names)
        self.free_gpus += capacity.gpus if capacity.slots else 0
        self.vram = max(self.vram, whole.vram_gb)
        for name in whole.gpu_names[:1]:
            if name in self.names or len(self.names) < ROWS_MAX:
                self.names[name] += 1
        if device.is_proven and (device.owner in self.owners or len(self.owners) < SAMPLES_MAX):
            own = device.offer.least_price, device.reputation
            price, score = self.owners.get(device.owner, own)
            self.owners[device.owner] = min(price, own[0]), min(score, own[1])

    @property
    def has_several(self) -> bool:
        """Whether the figures of these devices reveal none of their proven owners."""
        return len(self.owners) >= OWNERS_MIN

    def row(self, name: str, paid: int | None = None) -> Row:
        """Return the published figures of these devices."""
        figures = self.owners.values() if self.has_several else ()
        return Row(
            name,
            self.devices,
            self.free,
            self.gpus,
            self.free_gpus,
            self.vram,
            least_price=_rounded(median_low(price for price, _ in figures)) if figures else None,
            reputation=_score(median_low(score for _, score in figures)) if figures else None,
            paid=paid,
        )


class Supply:
    """Supply of the market.

    Args:
        devices: returns the devices that ask for work now, which are counted in parts.
        prices: the jobs that were given to devices, the latest last.
        country_of: returns the country of an address, "" for an unknown one.
        monotonic: a clock that cannot be set, in seconds.
    """

    def __init__(
        self,
        devices: Callable[[], Iterable[Device]],
        prices: deque[Given],
        country_of: Callable[[str], str],
        monotonic: Callable[[], float],
    ) -> None:
        self._country_of = country_of
        self._devices = devices
        self._prices = prices
        self._monotonic = monotonic
        self._counting: asyncio.Task[Snapshot] | None = None
        self._kept: Snapshot | None = None
        self._kept_at = 0.0

    async def find(self) -> Snapshot:
        """Return the supply, at most `KEPT_SECONDS` old; simultaneous requests share a count."""
        if self._kept is not None and self._monotonic() - self._kept_at < KEPT_SECONDS:
            return self._kept
        if self._counting is None:
            self._counting = asyncio.get_running_loop().create_task(self._count(), name="supply")
        try:
            return await asyncio.shield(self._counting)
        finally:
            if self._counting is not None and self._counting.done():
                self._counting = None

    async def _count(self) -> Snapshot:
        tallies: dict[tuple[str, str], _Tally] = {}
        for number, device in enumerate(self._devices()):
            for kind in self._kinds(device):
                tallies.setdefault(kind, _Tally()).add(device)
            if number % PART_DEVICES == PART_DEVICES - 1:
                await asyncio.sleep(0)
        self._kept, self._kept_at = self._snapshot(tallies), self._monotonic()
        return self._kept

    def _kinds(self, device: Device) -> Iterator[tuple[str, str]]:
        """Yield the rows that a device counts in."""
        whole = device.whole or device.offer.capacity
        yield "total", ""
        yield "gpu", _gpu(whole.gpu_names[0]) if whole.gpu_names else ""
        yield "cores", str(_step(whole.cores, CORES))
        yield "memory", str(_step(whole.ram_gb, MEMORY_GB))
        for sandbox in SANDBOXES:
            if sandbox in device.offer.executors:
                yield "sandbox", sandbox
        address = device.network.partition("/")[0]
        yield "country", self._country_of(address) if address else ""
        if device.offer.has_network:
            yield "network", ""

    def _snapshot(self, tallies: dict[tuple[str, str], _Tally]) -> Snapshot:
        since = self._monotonic() - PRICES_SECONDS
        recent = [each for each in self._prices if each.at >= since]
        of_gpu: dict[str, list[Given]] = {}
        for each in recent:
            of_gpu.setdefault(_gpu(each.gpu) if each.gpu else "", []).append(each)
        medians = {gpu: paid.median for gpu, jobs in of_gpu.items() if (paid := _paid(jobs))}
        none = _Tally()
        rows = {
            kind: [(key, tally) for (of, key), tally in tallies.items() if of == kind]
            for kind in ("gpu", "cores", "memory", "sandbox", "country")
        }
        return Snapshot(
            total=tallies.get(("total", ""), none).row(""),
            gpus=_most(
                tally.row(_shown(tally, key), medians.get(key)) for key, tally in rows["gpu"]
            ),
            cores=_ordered(rows["cores"]),
            memory=_ordered(rows["memory"]),
            sandboxes=_most(tally.row(key) for key, tally in rows["sandbox"]),
            countries=_countries(rows["country"]),
            with_network=tallies.get(("network", ""), none).row(""),
            paid=_paid(recent),
        )


def _gpu(name: str) -> str:
    """Return the key of a GPU's name, because devices may spell a name as they like."""
    return gpus.key(name) if _NAME.fullmatch(name) and gpus.is_known(name) else OTHER


def _shown(tally: _Tally, key: str) -> str:
    """Return the name of a kind of GPU that most of its devices use."""
    if key in ("", OTHER):
        return key
    return min(tally.names, key=lambda name: (-tally.names[name], name))


def _step(amount: float, steps: Sequence[int]) -> int:
    """Return the highest step that an amount reaches; 0 below the first one."""
    return max((step for step in steps if step <= amount), default=0)


def _most(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the most devices, in that order, up to a bound."""
    return sorted(rows, key=lambda row: (-row.devices, row.name))[:ROWS_MAX]


def _ordered(rows: Sequence[tuple[str, _Tally]]) -> list[Row]:
    return [tally.row(key) for key, tally in sorted(rows, key=lambda each: int(each[0]))]


def _countries(rows: Sequence[tuple[str, _Tally]]) -> list[Row]:
    """Return countries of several proven owners; the other devices are one row without a name."""
    shown = [(key, tally) for key, tally in rows if key and tally.has_several]
    rest = [tally for key, tally in rows if (key, tally) not in shown]
    others = Row(OTHER, sum(each.devices for each in rest), sum(each.free for each in rest))
    listed = _most(tally.row(key) for key, tally in shown)
    return [*listed, others] if rest else listed


def _paid(jobs: Sequence[Given]) -> Paid | None:
    """Return the prices of jobs; None for few jobs, or jobs of few buyers."""
    if len(jobs) < PAID_JOBS_MIN or len({each.buyer for each in jobs}) < PAID_BUYERS_MIN:
        return None
    ordered = sorted(each.price for each in jobs)
    count = len(ordered)
    low, median, high = ordered[count // 4], median_low(ordered), ordered[3 * count // 4]
    return Paid(count, _rounded(low), _rounded(median), _rounded(high))


def _rounded(price: int) -> int:
    """Return a price rounded to half of its first digit, so that no exact price is shown."""
    step = max(int(10 ** (len(str(price)) - 1)) // 2, 1)
    return (price + step // 2) // step * step


def _score(reputation: int) -> int:
    return (reputation + REPUTATION_STEP // 2) // REPUTATION_STEP * REPUTATION_STEP

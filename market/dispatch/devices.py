"""The devices that ask this daemon for work, and how jobs suit them, free or not."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from msgspec import structs

from market.base.errors import Code, MarketError
from market.dispatch import lacking
from market.dispatch.asks import DispatchPace, Standing, Takers
from market.dispatch.device import AskingDevice
from market.dispatch.lacking import Lacking, Seen
from market.dispatch.supply import Device as Supplying
from market.jobs.hindrances import Device, compare
from market.jobs.matching import JobBook, Needs, Offer, lack
from market.jobs.offers import reported
from storage.devices.devices import DeviceRow

# A device takes about a kilobyte. Of those asked for longest ago nothing is known; they are looked
# up when they ask again.
DEVICES_MAX = 50_000
# Among 200 devices, one runs a job that any device runs at all.
KINDS_LOOKED_AT_MAX = 200
# Devices that have left are passed over: a tenth of a millisecond.
LATEST_LOOKED_AT_MAX = 2_000


class Shares:
    """The number of devices that wait, by owner: no owner may have more than it leaves to others.

    An owner of any number of devices takes half of the room, and leaves the rest to the others.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[str] = Counter()

    def take(self, owner: str, most: int) -> None:
        """Count a waiting device, within the share of its owner.

        Raises:
            MarketError: `too_busy`.
        """
        if self._of[owner] >= most - self.total:
            raise MarketError(Code.TOO_BUSY)
        self._of[owner] += 1
        self.total += 1

    def give(self, owner: str) -> None:
        """Note that a device does not wait any more."""
        self.total -= 1
        self._of[owner] -= 1
        if not self._of[owner]:
            del self._of[owner]


class AskingDevices:
    """The devices that ask, or have asked.

    Args:
        pace: returns times and sizes.

    Attributes:
        held: counts the requests that are held.
    """

    def __init__(self, jobs: JobBook, pace: Callable[[], DispatchPace]) -> None:
        self.held = Shares()
        self._jobs = jobs
        self._pace = pace
        self._by_id: OrderedDict[str, AskingDevice] = OrderedDict()
        # Comparisons of jobs with the devices, each until a time of the loop.
        self._lacks: dict[
            tuple[Needs, int | None, frozenset[str]], tuple[float, Lacking | None]
        ] = {}

    def __iter__(self) -> Iterator[str]:
        """Yield the identifiers of the devices; some may come and go meanwhile."""
        return iter(tuple(self._by_id))

    def find(self, device_id: str) -> AskingDevice | None:
        """Return a device, if it is known."""
        return self._by_id.get(device_id)

    def offer_of(self, row: DeviceRow) -> Offer:
        """Return the last offer of a device here; else one by its heartbeats."""
        known = self._by_id.get(row.id)
        return known.offer if known is not None and known.offer is not None else reported(row)

    def is_asking(self, device_id: str) -> bool | None:
        """Return whether a device's agent requests work here; None if it never did."""
        known = self._by_id.get(device_id)
        if known is None or known.offer is None:
            return None
        return known.presence.is_asking(asyncio.get_running_loop().time(), self._pace())

    def slots(self, device_id: str) -> int | None:
        """Return the free slots in a device's last report; None without one."""
        known = self._by_id.get(device_id)
        return None if known is None or known.offer is None else known.offer.capacity.slots

    def standing(self, row: DeviceRow, reputation: int) -> Standing:
        """Return the state of a device, and the result of comparing it with the waiting jobs.

        Args:
            row: the device.
            reputation: its reputation, in millionths.
        """
        known = self._by_id.get(row.id)
        said = None if known is None else known.offer
        offer = reported(row) if said is None else said
        capacity = replace(offer.capacity, slots=max(offer.capacity.slots, 1))
        kind = Device(
            structs.replace(offer, capacity=capacity),
            row.user_id,
            reputation,
            "" if known is None else known.network,
        )
        compared = compare(self._jobs, kind)
        return Standing(bool(self.is_asking(row.id)), offer, said is None, compared)

    def lacks(
        self, needs: Needs, price: int | None = None, failed: frozenset[str] = frozenset()
    ) -> Lacking | None:
        """Return the needs of a job that the devices that ask now do not meet, free or not.

        None if one of them meets all. If no device asks, the result counts no device. Where there
        are many devices, the result may be two seconds old.

        Args:
            needs: the needs of the job.
            price: its price as in an `Offer`; None for one that every device takes.
            failed: the owners whose devices have failed at it.
        """
        if len(self._by_id) < self._pace().kept_from_devices:
            return self._compared(needs, price, failed)
        key, now = (needs, price, failed), asyncio.get_running_loop().time()
        kept = self._lacks.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        if len(self._lacks) >= self._pace().kept_max:
            self._lacks.clear()
        found = self._compared(needs, price, failed)
        self._lacks[key] = now + self._pace().kept_seconds, found
        return found

    def _compared(self, needs: Needs, price: int | None, failed: Container[str]) -> Lacking | None:
        """Compare a job with the devices that ask now."""
        seen = (
            Seen(offer, device.whole, device.reputation, device.owner)
            for device, offer in self._latest()
        )
        return lacking.compare(needs, price, seen, failed)

    def takers(
        self, needs: Needs, copies: int, owners: Container[str] = (), networks: Container[str] = ()
    ) -> Takers:
        """Return the number of copies that the latest requesting devices can take, free or not.

        Args:
            needs: the needs of each copy.
            copies: the number of copies that wait; no more are counted.
            owners: the buyer, and the owners that have taken another copy: their devices get none.
            networks: networks whose devices get none any more.
        """
        asked = 0
        able: dict[str, set[str]] = {}
        for device, offer in self._latest():
            asked += 1
            if device.owner in owners or (device.network and device.network in networks):
                continue
            is_trusted = needs.min_reputation <= device.reputation
            if is_trusted and lack(needs, offer) is None:
                able.setdefault(device.owner, set()).add(device.network)
        return Takers(asked, apart(able, copies))

    def asking(self) -> Iterator[Supplying]:
        """Yield the devices that ask for work here now; devices may come and go meanwhile."""
        now = asyncio.get_running_loop().time()
        for device in tuple(self._by_id.values()):
            if device.offer is not None and device.presence.is_asking(now, self._pace()):
                yield Supplying(
                    device.offer,
                    device.whole,
                    device.owner,
                    device.network,
                    device.reputation,
                    device.is_proven,
                )

    def _latest(self) -> Iterator[tuple[AskingDevice, Offer]]:
        """Yield the devices that ask for work now and asked last, with their offers."""
        now = asyncio.get_running_loop().time()
        latest = islice(reversed(self._by_id.values()), LATEST_LOOKED_AT_MAX)
        asking = (device for device in latest if device.presence.is_asking(now, self._pace()))
        for device in islice(asking, KINDS_LOOKED_AT_MAX):
            if device.offer is not None:
                yield device, device.offer

    def of(self, device_id: str) -> AskingDevice:
        """Return the object of a device that asks now, made at its first request."""
        device = self._by_id.get(device_id)
        if device is None:
            device = self._by_id[device_id] = AskingDevice()
            self._forget_some()
        self._by_id.move_to_end(device_id)
        return device

    def _forget_some(self) -> None:
        """Forget the device that asked longest ago, over the bound, unless it waits."""
        while len(self._by_id) > max(DEVICES_MAX, self.held.total + 1):
            device_id, device = self._by_id.popitem(last=False)
            if device.presence.request is not None or device.holding.claims:
                self._by_id[device_id] = device


def apart(networks: Mapping[str, Collection[str]], most: int) -> int:
    """Return the number of owners, up to `most`, that can have a copy from separate networks.

    Args:
        networks: the networks of each owner's devices; "" for an unknown one, like no other.
        most: the number of copies.
    """
    holders: dict[str, str] = {}  # by network

    def place(owner: str, tried: set[str]) -> bool:
        """Find a network for an owner; an owner with a second network gives way."""
        for network in networks[owner]:
            if not network:
                return True
            if network not in tried:
                tried.add(network)
                if network not in holders or place(holders[network], tried):
                    holders[network] = owner
                    return True
        return False

    placed = 0
    for owner in networks:
        if placed >= most:
            break
        placed += place(owner, set())
    return placed

"""How long a directory of many exits takes to choose one, and how much memory it needs.

    PYTHONPATH=.:tests .venv/bin/python -m bench.exits_directory [exits]

Places are as uneven as in life: a few countries have most exits, and each country a few networks
and cities. One exit in five is full, and one in four costs more than the session pays. Memory is
the directory's own, without the exits.
"""

import random
import sys
import time
import tracemalloc

from market.exits.wants import COUNTRIES, parse
from proxyctl.protocol.frames import DialOutcome
from proxyd.exits.choosing.directory import Directory
from proxyd.exits.choosing.entries import Missing, Place

EXITS = 100_000
PICKS = 20_000
PRICE = 1_500_000
WISHES = (
    "kind-any",
    "country-{0}",
    "country-{0}-kind-residential",
    "country-{0}_{1}_{2}",
    "country-eu",
    "country-{0}-city-{0}_city_1",
    "country-{0}-state-{0}_state_1-kind-mobile",
    "asn-{asn}",
    "country-{last}",
    "country-{0}-city-{1}_city_1",
    "country-{0}-rotate",
    "country-{0}-session-label",
    "country-{0}-session-first{number}",
)


class Device:
    """An exit."""

    __slots__ = (
        "device_id",
        "features",
        "has_place",
        "is_behind",
        "is_elsewhere",
        "is_spent",
        "min_price_per_gb",
        "network",
        "owner_id",
        "place",
        "since",
    )

    def __init__(self, number, place, chance):
        self.device_id = f"{number:032x}"
        self.owner_id = f"owner {number // 4}"
        self.network = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.place = place
        self.since = 1_700_000_000_000 + number
        self.has_place = chance() < 0.8
        self.is_elsewhere = self.is_spent = self.is_behind = False
        self.features = ()
        self.min_price_per_gb = int(chance() * PRICE / 0.75)

    def has_place_for(self, buyer, *, datagrams):
        """Say whether it takes a connection."""
        return self.has_place

    def allows(self, port):
        """Say whether it accepts a port; it accepts all."""
        return port != 0


def places(chance, count):
    """Return `count` places, and the countries with the most and the fewest of them."""
    countries = sorted(COUNTRIES)
    by_country = [
        [
            Place(
                country,
                f"{country}_state_{number % 6}",
                f"{country}_city_{number}",
                1000 + at * 8 + number % 5,
                ("residential", "residential", "mobile", "datacenter")[number % 4],
            )
            for number in range(30)
        ]
        for at, country in enumerate(countries)
    ]
    chosen = [
        by_country[int(len(countries) * chance() ** 3)][int(30 * chance() ** 2)]
        for _ in range(count)
    ]
    return chosen, countries


def measure(directory, wish, now):
    """Print how long picks of one wish take."""
    times, missing = [], 0
    for number in range(PICKS):
        wants = parse(wish.replace("{number}", str(number)))
        session = f"session {number % 100}"
        target = f"site{number % 200}.example"
        begun = time.perf_counter_ns()
        chosen = directory.pick(
            wants,
            session_id=session,
            owner_id="owner 7",
            price_per_gb=PRICE,
            target=target,
            tried=(),
            now=now + number / 1000,
            port=443,
        )
        times.append(time.perf_counter_ns() - begun)
        missing += isinstance(chosen, Missing)
    times.sort()
    p50, p99 = times[PICKS // 2] / 1e3, times[PICKS * 99 // 100] / 1e3
    found = "" if not missing else f"  {missing / PICKS:.0%} find none"
    print(f"{wish:48} p50 {p50:6.2f} us   p99 {p99:7.2f} us{found}")


def main():
    """Fill a directory, ask it, and empty it."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else EXITS
    chance = random.Random(1).random
    chosen, countries = places(chance, count)
    devices = [Device(number, place, chance) for number, place in enumerate(chosen)]
    tracemalloc.start()
    directory = Directory(chance)
    for device in devices:
        directory.add(device)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{count} exits, {used / 1e6:.1f} MB")

    directory = Directory(chance)
    begun = time.perf_counter()
    for device in devices:
        directory.add(device)
    print(f"one attaches in {(time.perf_counter() - begun) / count * 1e6:.0f} us")
    for device in devices[::2]:
        directory.note(device, DialOutcome.CONNECTED, 0.0, began=0.0, buyer="", target="")
    for number, wish in enumerate(WISHES):
        names = {"asn": 1000, "last": countries[-40], "number": "{number}"}
        measure(directory, wish.format(*countries, **names), 1e6 + number * 60)
    begun = time.perf_counter()
    for device in devices:
        directory.remove(device)
    print(f"one leaves in {(time.perf_counter() - begun) / count * 1e6:.0f} us")


if __name__ == "__main__":
    main()

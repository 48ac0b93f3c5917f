"""The needs of a job that no device meets: which ones, and the number of devices that come close.

Devices are judged by everything that they lend, free or not. Pure: it looks nothing up.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec import Struct

from market.hindrances import Hindrance
from market.hindrances import of_lack as hindrance_of_lack
from market.hindrances import of_shortage as hindrance_of_shortage
from market.matching import MILLION, Needs, Offer, lack
from proxyctl.protocol.jobspec import Capacity, Resources
from proxyctl.protocol.jobspec.matching import Shortage, shortage
from proxyctl.protocol.jobspec.requirements import text_of

# A job without each need, to see whether a device lacks anything else.
_WITHOUT: Final[Mapping[Shortage, Mapping[str, Any]]] = {
    "cores": {"cores": 0.0},
    "memory": {"ram_gb": 0.0},
    "disk": {"disk_gb": 0.0},
    "architecture": {"arch": ""},
    "gpu": {"gpus": 0, "gpu_model": "", "vram_gb": 0.0, "cuda": ""},
}


class Seen(Struct, frozen=True):
    """A device: its last offer, everything that it lends, if that is known, and its reputation."""

    offer: Offer
    whole: Capacity | None
    reputation: int


class Lacking(Struct, frozen=True):
    """The reason why no device runs a job.

    Attributes:
        devices: the number of devices that were compared.
        firsts: the number of devices by the first need that each does not meet.
        close: the number of devices that meet all needs but one.
        least_price: the least price of the devices that want more, as in an `Offer`; 0 for none.
    """

    devices: int
    firsts: Mapping[Hindrance, int]
    close: int
    least_price: int = 0


def compare(needs: Needs, price: int | None, devices: Iterable[Seen]) -> Lacking | None:
    """Compare a job with devices; None if one of them lacks nothing, or there are none.

    Args:
        needs: the needs of the job.
        price: its price as in an `Offer`; None for one that is not compared.
        devices: the devices.
    """
    firsts: Counter[Hindrance] = Counter()
    close, least_price = 0, 0
    for device in devices:
        found = list(_hindrances(needs, price, device))
        if not found:
            return None
        firsts[found[0]] += 1
        close += len(found) == 1
        wanted = device.offer.least_price
        if found[0] is Hindrance.PRICE:
            least_price = min(least_price or wanted, wanted)
    if not firsts:
        return None
    return Lacking(firsts.total(), firsts, close, least_price)


def _hindrances(needs: Needs, price: int | None, device: Seen) -> Iterator[Hindrance]:
    """Yield the needs that a device does not meet, each kind of them once."""
    missing = lack(needs, device.offer)
    if missing is not None:
        yield hindrance_of_lack(missing)
    resources = needs.resources
    while device.whole is not None:
        short = shortage(resources, replace(device.whole, slots=1))
        if short is None:
            break
        yield hindrance_of_shortage(short)
        resources = replace(resources, **_WITHOUT[short])
    if needs.min_reputation > device.reputation:
        yield Hindrance.REPUTATION
    if price is not None and price < device.offer.least_price:
        yield Hindrance.PRICE


def in_words(lacking: Lacking, resources: Resources) -> str:
    """Return the numbers of devices and the needs that they do not meet, as a clause."""
    gpus = Resources(
        gpus=resources.gpus,
        gpu_model=resources.gpu_model,
        vram_gb=resources.vram_gb,
        cuda=resources.cuda,
    )
    words = {
        Hindrance.JOB_TYPE: "take no jobs of this type",
        Hindrance.EXECUTOR: "have no sandbox for it (with an image or without)",
        Hindrance.NETWORK: "give jobs no network",
        Hindrance.PORTS: "cannot let anybody in at the ports of a job",
        Hindrance.ARCHIVES: "cannot unpack archives safely",
        Hindrance.CORES: f"lend fewer than {resources.cores:g} cores",
        Hindrance.MEMORY: f"lend less than {resources.ram_gb:g} GB of memory",
        Hindrance.DISK: f"lend less than {resources.disk_gb:g} GB of disk",
        Hindrance.ARCHITECTURE: f"are no {resources.arch}",
        Hindrance.GPU: f"lack the GPUs ({text_of(gpus)})",
        Hindrance.REPUTATION: "have less reputation than it asks for",
        Hindrance.PRICE: f"ask for more, at least {_usd(lacking.least_price)} USD an hour",
    }
    counts = lacking.firsts
    clause = ", ".join(f"{counts[each]} {words[each]}" for each in words if counts.get(each))
    if lacking.close and lacking.devices > 1:
        clause += f"; {lacking.close} of them lack nothing else"
    return clause


def _usd(price: int) -> str:
    """Return a price of an `Offer` in USD an hour."""
    return f"{price / MILLION / MILLION:.6f}".rstrip("0").rstrip(".")

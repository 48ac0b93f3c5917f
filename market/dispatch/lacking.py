"""The needs of a job that no device meets, and the number of devices that come close.

Devices are judged by everything that they lend, free or not. Pure: it looks nothing up.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from market.jobs.hindrances import Hindrance
from market.jobs.hindrances import of_lack as hindrance_of_lack
from market.jobs.hindrances import of_shortage as hindrance_of_shortage
from market.jobs.matching import MILLION, Needs, Offer, lack
from proxyctl.protocol.jobspec import Capacity, Resources
from proxyctl.protocol.jobspec.matching import short_of
from proxyctl.protocol.jobspec.requirements import text_of


class Seen(Struct, frozen=True):
    """A device: its last offer, everything that it lends, if known, its reputation and owner."""

    offer: Offer
    whole: Capacity | None
    reputation: int
    owner: str = ""


class Lacking(Struct, frozen=True):
    """The reason why no device runs a job.

    Attributes:
        devices: the number of devices that were compared; 0 if no device asks for work.
        counts: the number of devices by each need that they do not meet.
        close: the number of devices that meet all needs but one.
        least_price: the least price of the devices that want more, as in an `Offer`; 0 for none.
        most: the largest amounts that any of the devices lends.
    """

    devices: int
    counts: Mapping[Hindrance, int]
    close: int
    least_price: int = 0
    most: Capacity = Capacity()


def compare(
    needs: Needs,
    price: int | None,
    devices: Iterable[Seen],
    failed: Container[str] = (),
) -> Lacking | None:
    """Compare a job with devices; None if one of them lacks nothing.

    Args:
        needs: the needs of the job.
        price: its price as in an `Offer`; None for one that is not compared.
        devices: the devices.
        failed: the owners whose devices have failed at it and do not get it again.
    """
    counts: Counter[Hindrance] = Counter()
    amounts = _apart(needs.resources)
    compared, close, least_price = 0, 0, 0
    cores = ram_gb = disk_gb = 0.0
    for device in devices:
        found = set(_hindrances(needs, amounts, price, device))
        if device.owner in failed:
            found.add(Hindrance.OWNER)
        if not found:
            return None
        compared += 1
        counts.update(found)
        close += len(found) == 1
        wanted = device.offer.least_price
        if Hindrance.PRICE in found:
            least_price = min(least_price or wanted, wanted)
        whole = device.whole
        if whole is not None:
            cores, ram_gb = max(cores, whole.cores), max(ram_gb, whole.ram_gb)
            disk_gb = max(disk_gb, whole.disk_gb)
    most = Capacity(cores=cores, ram_gb=ram_gb, disk_gb=disk_gb)
    return Lacking(compared, counts, close, least_price, most)


def _apart(resources: Resources) -> list[Resources]:
    """Return each amount that a job needs by itself; made once, because each copy takes long."""
    none = Resources()
    apart = [
        replace(none, cores=resources.cores),
        replace(none, ram_gb=resources.ram_gb),
        replace(none, disk_gb=resources.disk_gb),
        replace(none, arch=resources.arch),
        replace(resources, cores=0.0, ram_gb=0.0, disk_gb=0.0, arch=""),
    ]
    return [each for each in apart if each != none]


def _hindrances(
    needs: Needs, amounts: Sequence[Resources], price: int | None, device: Seen
) -> Iterator[Hindrance]:
    """Yield the needs that a device does not meet, each kind of them once."""
    missing = lack(needs, device.offer)
    if missing is not None:
        yield hindrance_of_lack(missing)
    if device.whole is not None:
        for amount in amounts:
            short = short_of(amount, device.whole)
            if short is not None:
                yield hindrance_of_shortage(short)
    if needs.min_reputation > device.reputation:
        yield Hindrance.REPUTATION
    if price is not None and price < device.offer.least_price:
        yield Hindrance.PRICE


def in_words(lacking: Lacking, resources: Resources) -> str:
    """Return the devices that were compared and each need that they do not meet, as a sentence."""
    if not lacking.devices:
        return "No device has asked for work in the last two minutes."
    words = _words(lacking, resources)
    counts = [(lacking.counts[each], words[each]) for each in words if lacking.counts.get(each)]
    if lacking.devices == 1:
        clause = _listed([singular for _, (singular, _) in counts])
        return f"The only device that asks for work now does not run such a job: it {clause}."
    clause = _listed([f"{count} {forms[count > 1]}" for count, forms in counts])
    if lacking.close:
        lack = "lacks" if lacking.close == 1 else "lack"
        clause += f"; {lacking.close} of them {lack} nothing else"
    number = lacking.devices
    return f"None of the {number} devices that ask for work now runs such a job: {clause}."


def _words(lacking: Lacking, resources: Resources) -> Mapping[Hindrance, tuple[str, str]]:
    """Return the words for each need that is not met: of one device, and of several."""
    gpus = Resources(
        gpus=resources.gpus,
        gpu_model=resources.gpu_model,
        vram_gb=resources.vram_gb,
        cuda=resources.cuda,
    )
    most, least = lacking.most, _usd(lacking.least_price)
    cores = f"fewer than {resources.cores:g} cores (at most {most.cores:g})"
    memory = f"less than {resources.ram_gb:g} GB of memory (at most {most.ram_gb:g})"
    disk = f"less than {resources.disk_gb:g} GB of disk (at most {most.disk_gb:g})"
    return {
        Hindrance.JOB_TYPE: _forms("take", "no jobs of this type"),
        Hindrance.EXECUTOR: ("has no sandbox for it", "have no sandbox for it"),
        Hindrance.NETWORK: _forms("give", "jobs no network"),
        Hindrance.PORTS: ("cannot open the ports of a job",) * 2,
        Hindrance.ARCHIVES: ("cannot unpack archives safely",) * 2,
        Hindrance.CORES: _forms("lend", cores),
        Hindrance.MEMORY: _forms("lend", memory),
        Hindrance.DISK: _forms("lend", disk),
        Hindrance.ARCHITECTURE: (f"is not {resources.arch}", f"are not {resources.arch}"),
        Hindrance.GPU: _forms("lack", f"the GPUs ({text_of(gpus)})"),
        Hindrance.REPUTATION: (
            "has less reputation than the job asks for",
            "have less reputation than the job asks for",
        ),
        Hindrance.OWNER: (
            "belongs to an owner who has failed at it",
            "belong to owners who have failed at it",
        ),
        Hindrance.PRICE: _forms("ask", f"for more, at least {least} USD an hour"),
    }


def _forms(verb: str, rest: str) -> tuple[str, str]:
    """Return a clause of a regular verb in the singular and in the plural."""
    return f"{verb}s {rest}", f"{verb} {rest}"


def _listed(clauses: Sequence[str]) -> str:
    """Return clauses as a list in a sentence."""
    *first, last = clauses
    return f"{', '.join(first)} and {last}" if first else last


def _usd(price: int) -> str:
    """Return a price of an `Offer` in USD an hour."""
    return f"{price / MILLION / MILLION:.6f}".rstrip("0").rstrip(".")

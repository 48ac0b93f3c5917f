"""Reasons why waiting jobs do not suit a device; each job counts once, by its first reason.

They help the owner of a device that earns nothing. No query is needed, because the jobs are in
memory.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from market.jobs.matching import JobBook, Lack, Needs, Offer, WaitingJob, lack
from proxyctl.protocol.jobspec.matching import Shortage, shortage

# Kinds of jobs that one device is compared with: some milliseconds.
SHAPES_MAX: Final = 1_024
# Jobs whose prices and owners one comparison looks at; of more, the rest count as those before.
JOBS_MAX: Final = 4_096


class Hindrance(StrEnum):
    """Reason why a job does not suit a device; the first reason in this order counts."""

    JOB_TYPE = "job_type"
    NETWORK = "network"
    EXECUTOR = "executor"
    PORTS = "ports"
    ARCHIVES = "archives"
    SLOTS = "slots"
    CORES = "cores"
    MEMORY = "memory"
    DISK = "disk"
    ARCHITECTURE = "architecture"
    GPU = "gpu"
    REPUTATION = "reputation"
    OWNER = "owner"
    PRICE = "price"


_OF_LACK: Final[Mapping[Lack, Hindrance]] = {
    Lack.JOB_TYPE: Hindrance.JOB_TYPE,
    Lack.NETWORK: Hindrance.NETWORK,
    Lack.EXECUTOR: Hindrance.EXECUTOR,
    Lack.PORTS: Hindrance.PORTS,
    Lack.ARCHIVES: Hindrance.ARCHIVES,
}


_OF_SHORTAGE: Final[Mapping[Shortage, Hindrance]] = {
    "slots": Hindrance.SLOTS,
    "cores": Hindrance.CORES,
    "memory": Hindrance.MEMORY,
    "disk": Hindrance.DISK,
    "architecture": Hindrance.ARCHITECTURE,
    "gpu": Hindrance.GPU,
}


def of_lack(lack: Lack) -> Hindrance:
    """Return the hindrance for a lack."""
    return _OF_LACK[lack]


def of_shortage(shortage: Shortage) -> Hindrance:
    """Return the hindrance for a shortage."""
    return _OF_SHORTAGE[shortage]


class Compared(Struct, frozen=True):
    """How waiting jobs suit a device.

    Attributes:
        waiting: number of jobs that were compared.
        suitable: number of these jobs that suit the device.
        hindrances: number of the other jobs by reason.
        best_price: highest price of the jobs that pay too little, as in an `Offer`; 0 if no job
            pays too little.
    """

    waiting: int
    suitable: int
    hindrances: Mapping[Hindrance, int]
    best_price: int = 0


class Device(Struct, frozen=True):
    """Properties of a device that jobs are compared with: see `JobBook.best`."""

    offer: Offer
    owner: str
    reputation: int
    network: str = ""


def compare(book: JobBook, device: Device) -> Compared:
    """Compare the jobs that wait with a device."""
    counted: Counter[Hindrance] = Counter()
    waiting = suitable = best_price = 0
    looks = JOBS_MAX
    for needs, live, jobs in book.kinds(SHAPES_MAX):
        waiting += live
        hindrance = _of_kind(needs, device)
        if hindrance is not None:
            counted[hindrance] += live
            continue
        for job in jobs:
            hindrance = _of_job(job, device)
            if hindrance is None:
                suitable += 1
            else:
                counted[hindrance] += 1
            if hindrance is Hindrance.PRICE:
                best_price = max(best_price, job.price)
            looks -= 1
            if not looks:
                return Compared(waiting, suitable, counted, best_price)
    return Compared(waiting, suitable, counted, best_price)


def unmet(needs: Needs, offer: Offer) -> Hindrance | None:
    """Return the first need of a job that an offer does not meet, free room included."""
    missing = lack(needs, offer)
    if missing is not None:
        return _OF_LACK[missing]
    short = shortage(needs.resources, offer.capacity)
    return None if short is None else _OF_SHORTAGE[short]


def _of_kind(needs: Needs, device: Device) -> Hindrance | None:
    hindrance = unmet(needs, device.offer)
    if hindrance is not None:
        return hindrance
    return Hindrance.REPUTATION if needs.min_reputation > device.reputation else None


def _of_job(job: WaitingJob, device: Device) -> Hindrance | None:
    if not job.permits(device.owner, device.network):
        return Hindrance.OWNER
    return Hindrance.PRICE if job.price < device.offer.least_price else None

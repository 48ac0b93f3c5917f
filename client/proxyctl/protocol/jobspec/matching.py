"""The match of jobs and devices: the order of the jobs, equal requests, and fitting devices."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from proxyctl.protocol.jobspec import gpus
from proxyctl.protocol.jobspec.checks import architecture

if TYPE_CHECKING:
    from proxyctl.protocol.jobspec.payload import Capacity, Resources

# A card sold with 24 GB has a little less to give, or a little more, as its driver counts.
VRAM_SLACK: Final = 0.95
# The gain of a waiting job over later jobs: nothing starves, however low its price.
GAIN_PER_HOUR: Final = 1.1
HOUR_SECONDS: Final = 3_600
# Devices whose GPUs are counted by name once; each is compared with many jobs.
CAPACITIES_KEPT: Final = 1_024
# Below a rounding error of sums and differences of free amounts, in cores and GB.
_NEAR: Final = 1e-9


# The resource that a device lacks for a job; see `shortage`.
Shortage = Literal["slots", "cores", "memory", "disk", "architecture", "gpu"]


def fits(resources: Resources, capacity: Capacity) -> bool:
    """Return whether the free part of a device suffices for a job; unreported values are 0."""
    return shortage(resources, capacity) is None


def shortage(resources: Resources, capacity: Capacity) -> Shortage | None:
    """Return the first thing that a device has too little of for a job; None if that fits."""
    return "slots" if capacity.slots < 1 else short_of(resources, capacity)


def short_of(resources: Resources, capacity: Capacity) -> Shortage | None:
    """Return the same without regard to the slots of the device."""
    if resources.cores > capacity.cores + _NEAR:
        return "cores"
    if resources.ram_gb > capacity.ram_gb + _NEAR:
        return "memory"
    if resources.disk_gb > capacity.disk_gb + _NEAR:
        return "disk"
    if resources.arch and resources.arch != architecture(capacity.arch):
        return "architecture"
    return "gpu" if resources.needed_gpus and not _fits_gpus(resources, capacity) else None


def left(capacity: Capacity, resources: Resources) -> Capacity:
    """Return the free capacity of a device after it was given a job that fits it."""
    assert fits(resources, capacity)  # noqa: S101 - nothing may be lent twice
    return replace(
        capacity,
        slots=capacity.slots - 1,
        cores=max(capacity.cores - resources.cores, 0.0),
        ram_gb=max(capacity.ram_gb - resources.ram_gb, 0.0),
        disk_gb=max(capacity.disk_gb - resources.disk_gb, 0.0),
        gpus=capacity.gpus - resources.needed_gpus,
    )


def rank(price_per_hour: int, created_at: int) -> float:
    """Return the urgency of a job; the greatest comes first.

    A job gains `GAIN_PER_HOUR` on later ones at the same price. The order of two jobs never
    changes, so that it can be kept.

    Args:
        price_per_hour: in micro-credits.
        created_at: in UTC seconds.
    """
    waits_since = created_at / HOUR_SECONDS
    return math.log(max(price_per_hour, 1)) - waits_since * math.log(GAIN_PER_HOUR)


def version(text: str) -> tuple[int, ...]:
    """Return a version such as "12.1" as numbers for a comparison; () if the text is no version."""
    numbers = text.split(".")
    return tuple(map(int, numbers)) if all(each.isdecimal() for each in numbers) else ()


def _fits_gpus(resources: Resources, capacity: Capacity) -> bool:
    count = resources.needed_gpus
    if count > capacity.gpus or _vram_gb(resources) * VRAM_SLACK > capacity.vram_gb:
        return False
    needed = version(resources.cuda)
    if needed and not needed <= version(capacity.cuda):
        return False
    if not resources.gpu_model:
        return True
    # The device does not name its free GPUs: this number of fitting GPUs is free even if all others
    # are free as well.
    counted = _counted(capacity.gpu_names)
    fitting = sum(number for name, number in counted if gpus.fits(resources.gpu_model, name))
    others = len(capacity.gpu_names) - fitting
    return min(fitting, capacity.gpus - others) >= count


@lru_cache(maxsize=CAPACITIES_KEPT)
def _counted(names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return each name once, and how often it is there."""
    return tuple(Counter(names).items())


def _vram_gb(resources: Resources) -> float:
    """Return the memory that each GPU must have, also if only the name of the model contains it."""
    return max(resources.vram_gb, float(gpus.memory_gb(resources.gpu_model)))

"""The word of a device about itself, and whether it covers the needs of a job."""

import math
from dataclasses import replace
from typing import Final

from msgspec import structs

from market.jobs.hindrances import Hindrance, unmet
from market.jobs.matching import MILLION, WITHOUT_IMAGE, Needs, Offer
from proxyctl.protocol.jobspec import Capacity, Resources, gpus
from storage.devices.devices import DeviceRow

JOB_TYPES: Final = frozenset(("docker", "training", "inference", "script"))
IN_WORDS: Final = {
    Hindrance.JOB_TYPE: "The device takes no jobs of this type.",
    Hindrance.NETWORK: "The device gives jobs no network.",
    Hindrance.EXECUTOR: "The device has no sandbox for the job.",
    Hindrance.PORTS: "The device does not let others connect to the ports of a job.",
    Hindrance.ARCHIVES: "The device cannot unpack archives safely.",
    Hindrance.CORES: "The job needs more cores than the device has reported.",
    Hindrance.MEMORY: "The job needs more memory than the device has reported.",
    Hindrance.DISK: "The job needs more disk than the device has reported.",
    Hindrance.ARCHITECTURE: "The job needs another architecture than the device has reported.",
    Hindrance.GPU: "The job needs GPUs that the device has not reported.",
}


def reported(row: DeviceRow) -> Offer:
    """Return an offer of a device by its heartbeats, for anything that it can run."""
    names = (row.gpu_name,) if row.gpu_name else ()
    capacity = Capacity(
        slots=1,
        cores=row.cpu_cores,
        ram_gb=row.ram_gb,
        gpus=len(names),
        vram_gb=float(gpus.memory_gb(row.gpu_name)),
        gpu_names=names,
    )
    executors = frozenset((WITHOUT_IMAGE, "any"))
    least = (row.min_price_usd or 0) * MILLION
    return Offer(capacity, executors, JOB_TYPES, True, least, executors)


def missing(needs: Needs, offer: Offer, *, has_payload: bool, is_replica: bool) -> str | None:
    """Return the first thing that a device lacks for a job that it would accept, in words.

    A device must have reported everything that a job with a payload needs. A person reads a job
    without one, so there a device may be silent, but its reports must not say less. So it is with
    the GPUs of a replica: each deploy names some, for its price, even if its program uses none.
    """
    capacity = replace(offer.capacity, slots=1)
    resources = needs.resources
    if not has_payload:
        resources = _of_reported(resources, capacity)
    if not has_payload or is_replica:
        resources = _of_reported_gpus(resources, capacity)
        capacity = replace(capacity, vram_gb=capacity.vram_gb or math.inf)
    found = unmet(needs._replace(resources=resources), structs.replace(offer, capacity=capacity))
    return None if found is None else IN_WORDS[found]


def _of_reported(resources: Resources, capacity: Capacity) -> Resources:
    """Return a job's needs without those about which a device has reported nothing."""
    return replace(
        resources,
        cores=resources.cores if capacity.cores else 0.0,
        ram_gb=resources.ram_gb if capacity.ram_gb else 0.0,
        disk_gb=resources.disk_gb if capacity.disk_gb else 0.0,
        arch=resources.arch if capacity.arch else "",
    )


def _of_reported_gpus(resources: Resources, capacity: Capacity) -> Resources:
    """Return the same for GPUs."""
    has_gpus = bool(capacity.gpu_names)
    return replace(
        resources,
        gpus=resources.gpus if has_gpus else 0,
        gpu_model=resources.gpu_model if has_gpus else "",
        vram_gb=resources.vram_gb if has_gpus else 0.0,
        cuda=resources.cuda if capacity.cuda else "",
    )

"""The shares of attempts in the owner's loan: cores, memory and disk by amount, GPUs one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from proxyctl.protocol.jobspec.payload import Capacity, Resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxyctl.worker.base.record import Lend
    from proxyctl.worker.sensors.nvidia import Gpu

_NEAR: Final = 1e-6  # of a thousandth: sums of fractions are a little less than they should be


@dataclass(frozen=True)
class Share:
    """The share of one attempt."""

    cores: float
    ram_gb: float
    disk_gb: float


def share_of(resources: Resources, lend: Lend) -> Share:
    """Return the share of an attempt: its request, or an equal part where it requests nothing."""
    return Share(
        cores=resources.cores or lend.cores / lend.max_jobs,
        ram_gb=resources.ram_gb or lend.ram_gb / lend.max_jobs,
        disk_gb=resources.disk_gb or lend.disk_gb / lend.max_jobs,
    )


class Shares:
    """The loan of the owner, and its free part."""

    def __init__(self, lend: Lend, gpus: Iterable[Gpu]) -> None:
        self._lend = lend
        self._gpus = {each.uuid: each for each in gpus}
        self._shares: dict[str, tuple[Share, tuple[str, ...]]] = {}

    def take(self, attempt_id: str, resources: Resources) -> tuple[str, ...] | None:
        """Reserve the share of an attempt; return its GPUs, or None if the share is not free."""
        share = share_of(resources, self._lend)
        free = self.free()
        gpus = self._chosen(resources)
        has_room = free.slots > 0 and (
            # Amounts are sums of fractions: a billionth more than all is all.
            share.cores <= free.cores + 1e-9
            and share.ram_gb <= free.ram_gb + 1e-9
            and share.disk_gb <= free.disk_gb + 1e-9
        )
        if not has_room or len(gpus) < resources.needed_gpus:
            return None
        self._shares[attempt_id] = (share, gpus)
        return gpus

    def adopt(self, attempt_id: str, resources: Resources, gpus: tuple[str, ...]) -> None:
        """Note the share of an attempt of an earlier agent, even beyond the present loan."""
        self._shares[attempt_id] = (share_of(resources, self._lend), gpus)

    def give_back(self, attempt_id: str) -> None:
        """Free the share of an attempt."""
        self._shares.pop(attempt_id, None)

    def free(self) -> Capacity:
        """Return the free capacity."""
        shares = [share for share, _ in self._shares.values()]
        gpus = self._free_gpus()
        lend = self._lend
        return Capacity(
            slots=max(0, lend.max_jobs - len(shares)),
            cores=max(0.0, lend.cores - sum(each.cores for each in shares)),
            ram_gb=max(0.0, lend.ram_gb - sum(each.ram_gb for each in shares)),
            disk_gb=max(0.0, lend.disk_gb - sum(each.disk_gb for each in shares)),
            gpus=len(gpus),
            vram_gb=min((each.vram_mb * 1.048576 / 1000 for each in gpus), default=0.0),
        )

    def _free_gpus(self) -> list[Gpu]:
        used = {uuid for _, gpus in self._shares.values() for uuid in gpus}
        return [each for uuid, each in self._gpus.items() if uuid not in used]

    def _chosen(self, resources: Resources) -> tuple[str, ...]:
        """Return the smallest GPUs that suffice: larger ones stay free for larger jobs."""
        enough = sorted(
            (each for each in self._free_gpus() if each.fits(resources)),
            key=lambda each: each.vram_mb,
        )
        return tuple(each.uuid for each in enough[: resources.needed_gpus])


def capacity_fields(capacity: Capacity) -> Mapping[str, Any]:
    """Return the free capacity for the daemon, never rounded up."""
    return {
        "slots": capacity.slots,
        "cores": _rounded_down(capacity.cores),
        "ram_gb": _rounded_down(capacity.ram_gb),
        "disk_gb": _rounded_down(capacity.disk_gb),
        "gpus": capacity.gpus,
        "vram_gb": _rounded_down(capacity.vram_gb),
    }


def _rounded_down(amount: float) -> float:
    """Return an amount in whole thousandths; a job that asks for all of it must fit.

    A buyer could otherwise ask for just as much as rounding adds, and the device would fail.
    """
    return math.floor(amount * 1_000 + _NEAR) / 1_000

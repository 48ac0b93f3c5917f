"""Looks for reasons to alert the operators, and keeps the figures for the metrics."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from market.staff.site.alerts import Alerts, Finding, Looked
from proxyd.ops.watches.machine import Machine

LOOK_SECONDS = 60.0
DISK_MIN_SHARE = 0.10
CERTIFICATE_MIN_SECONDS = 14 * 86_400
DAY_SECONDS = 86_400


class Upkeep:
    """The figures of the newest look, for the metrics."""

    def __init__(self) -> None:
        self.free: Mapping[str, float] = {}
        self.certificates: Mapping[str, int] = {}
        self.looked = Looked(None, None)


class AlertWatch:
    """Looks once a minute.

    Args:
        alerts: sends the e-mails.
        machine: the disks and certificates of this machine.
        upkeep: takes the figures.
        dropped: returns the number of access records that were lost since the start.
        now: the wall clock, in UTC seconds.
    """

    def __init__(
        self,
        alerts: Alerts,
        machine: Machine,
        upkeep: Upkeep,
        dropped: Callable[[], int],
        now: Callable[[], int],
    ) -> None:
        self._alerts = alerts
        self._machine = machine
        self._upkeep = upkeep
        self._dropped = dropped
        self._now = now
        self._seen_dropped = 0

    async def look(self) -> None:
        """Send the alerts that are due.

        Raises:
            StoreError: they are sent later.
        """
        upkeep, now = self._upkeep, self._now()
        upkeep.free = await asyncio.to_thread(self._machine.free)
        upkeep.certificates = await asyncio.to_thread(self._machine.certificates, now)
        dropped = self._dropped()
        findings = list(self._findings(dropped))
        upkeep.looked = await self._alerts.look(findings)
        self._seen_dropped = dropped

    def _findings(self, dropped: int) -> Iterator[Finding]:
        # One finding of each kind: a second e-mail of the kind would wait six hours, and again
        # come after the first one.
        disks = [
            f"The disk of the folder {name} has {int(share * 100)} % left."
            for name, share in self._upkeep.free.items()
            if share < DISK_MIN_SHARE
        ]
        if disks:
            yield Finding("disk", " ".join(disks))
        certificates = [
            f"The certificate {name}.tls_cert expires in {max(seconds, 0) // DAY_SECONDS} days, "
            "or is unreadable."
            for name, seconds in self._upkeep.certificates.items()
            if seconds < CERTIFICATE_MIN_SECONDS
        ]
        if certificates:
            yield Finding("certificate", " ".join(certificates))
        if dropped > self._seen_dropped:
            lost = dropped - self._seen_dropped
            yield Finding("access_log", f"{lost} access records were lost: the disk is too slow.")

"""Bars: the exits that were found to lie are cut, and barred in the store."""

import asyncio
import logging
from collections.abc import Callable
from typing import final

from market.exits.canaries import ExitCanaries
from proxyd.counters import ExitCounters
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.offers import Verdicts
from proxyd.exits.watching.findings import Finding
from proxyd.loop.owned_tasks import OwnedTasks
from storage.engines.errors import StoreError

_logger = logging.getLogger("exits")


@final
class Bars:
    """Cuts exits and bars them.

    Args:
        condemned: called with each device that is cut, before a later round can count it as honest.
        tasks: run the writes of verdicts that no round waits for.
        write_again_seconds: between two attempts to write a verdict down.
    """

    __slots__ = (
        "_condemned",
        "_counters",
        "_devices",
        "_gate",
        "_judge",
        "_tasks",
        "_write_again_seconds",
    )

    def __init__(
        self,
        judge: ExitCanaries,
        gate: Verdicts,
        condemned: Callable[[str], None],
        counters: ExitCounters,
        tasks: OwnedTasks,
        write_again_seconds: float,
    ) -> None:
        self._judge = judge
        self._gate = gate
        self._condemned = condemned
        self._counters = counters
        self._tasks = tasks
        self._write_again_seconds = write_again_seconds
        self._devices: set[str] = set()  # that are being barred

    def suspect(self, attached: Attached, kind: str, evidence: str) -> None:
        """Bar an exit for an act on its control connection; a second call does nothing."""
        if attached.device_id not in self._devices:
            self._devices.add(attached.device_id)
            self._tasks.spawn(self.condemn(attached, Finding(kind, evidence, is_certain=True)))

    async def condemn(self, attached: Attached, finding: Finding) -> None:
        """Cut an exit, and bar it; repeat that until it is written down."""
        device_id, kind = attached.device_id, finding.kind
        self._devices.add(device_id)
        # A round may have ended between the verdict and this turn of the loop.
        self._condemned(device_id)
        self._counters.canaries["failed"] += 1
        self._counters.canary_failures[kind] += 1
        _logger.warning("exit %s: barred, %s: %s", device_id, kind, finding.evidence)
        self._gate.expel(attached, self._judge.words(kind))
        while True:
            try:
                await self._judge.bar(device_id, kind, finding.evidence)
            except StoreError as error:
                _logger.warning("exit %s: cannot be barred now: %s", device_id, error)
                await asyncio.sleep(self._write_again_seconds)
            else:
                break
        self._devices.discard(device_id)

"""Warnings that no device runs a job or a deploy, with the reasons, for replies that show one."""

import asyncio
from collections.abc import Sequence

from market.base.states import JobStatus
from market.deploys.deploys import Deploy
from market.dispatch import lacking
from market.dispatch.dispatch import Dispatch
from market.jobs.jobs import Jobs
from market.jobs.matching import Needs

# Kinds of jobs of one list that are compared with the devices: a hundred take half a second.
COMPARED_MAX = 20

MANUAL = (
    "It names nothing that a device could run by itself: it waits until somebody accepts it by"
    " hand."
)
MONEY = (
    "The price is held meanwhile. It comes back when you cancel, or after {days} days without a"
    " device."
)


class Shortages:
    """Compares jobs that wait with the devices that asked for work last."""

    def __init__(self, jobs: Jobs, dispatch: Dispatch) -> None:
        self._jobs = jobs
        self._dispatch = dispatch

    def of(
        self, needs: Needs | None, price: int, failed: frozenset[str] = frozenset()
    ) -> list[str]:
        """Return the warnings of a job.

        Args:
            needs: its needs; None for a job that is given to no device by itself.
            price: its price as in an `Offer`.
            failed: the owners whose devices have failed at it.
        """
        lacks = None if needs is None else self._dispatch.devices.lacks(needs, price, failed)
        if needs is None or lacks is None:
            return []
        words = lacking.in_words(lacks, needs.resources)
        return [f"{words} {self._money()}"]

    def manual(self) -> str:
        """Return the warning of a job that names nothing to run."""
        return f"{MANUAL} {self._money()}"

    def _money(self) -> str:
        return MONEY.format(days=self._jobs.waiting_days)

    async def of_waiting(self, job_ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the warnings of those of some waiting jobs that have any."""
        known: dict[tuple[Needs, int, frozenset[str]], list[str]] = {}
        found = await self._jobs.spec_warnings(job_ids)
        failed = await self._jobs.failed_owners(job_ids)
        for job_id, needs, price in await self._jobs.waiting_needs(job_ids):
            key = needs, self._dispatch.price(*price), failed.get(job_id, frozenset())
            if key not in known and len(known) < COMPARED_MAX:
                known[key] = self.of(*key)
                await asyncio.sleep(0)  # each takes up to some milliseconds
            if known.get(key):
                found[job_id] = [*found.get(job_id, ()), *known[key]]
        return found

    async def of_deploys(self, deploys: Sequence[Deploy]) -> dict[str, list[str]]:
        """Return the warnings of deploys with a replica that waits, by deploy."""
        waiting = {deploy.id: _waiting(deploy) for deploy in deploys}
        found = await self.of_waiting([job_id for job_id in waiting.values() if job_id])
        return {each: found[job_id] for each, job_id in waiting.items() if job_id in found}


def _waiting(deploy: Deploy) -> str:
    """Return the newest replica of a deploy that waits; "" for none."""
    rows = deploy.replicas if deploy.rollout is None else deploy.present
    return max((row.job_id for row in rows if row.status == JobStatus.WAITING), default="")

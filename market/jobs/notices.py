"""Notices of changes of jobs, to devices, readers of logs and rollouts, after the commit."""

from collections.abc import Sequence

from market.base.bus import ATTEMPTS, DEVICES, GONE, REPLICAS, WAITING, Bus
from storage.jobs.jobs import JobRow


class JobNotices:
    """Publishes changes of jobs, and counts how attempts ended.

    Args:
        bus: passes the notices on, also to other daemons.

    Attributes:
        ends: the number of attempts that ended here, by outcome.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.ends = dict.fromkeys(("completed", "failed", "lost", "cancelled"), 0)

    @property
    def are_carried(self) -> bool:
        """Whether other daemons may get the notices."""
        return WAITING in self._bus.carried

    def waiting(self, job_ids: Sequence[str]) -> None:
        """Publish that jobs may wait for a device."""
        self._bus.publish(WAITING, job_ids)

    def gone(self, job_id: str) -> None:
        """Publish that a job does not wait for a device any more."""
        self._bus.publish(GONE, [job_id])

    def device(self, device_id: str) -> None:
        """Publish that the work of a device has changed."""
        self._bus.publish(DEVICES, [device_id])

    def stopped(self, job: JobRow) -> None:
        """Publish that a job was cancelled, once that is committed.

        Args:
            job: the job as it was before.
        """
        self.gone(job.id)
        if job.device_id is not None:
            self.device(job.device_id)
            self.ended(job, "cancelled")
        else:
            self._replica_changed(job)

    def ended(self, job: JobRow, outcome: str) -> None:
        """Count and publish the end of an attempt."""
        self.ends[outcome] += 1
        self.changed(job)

    def changed(self, job: JobRow) -> None:
        """Notify the logs and the rollouts that an attempt began or ended."""
        self._bus.publish(ATTEMPTS, [job.id])
        self._replica_changed(job)

    def progressed(self, job_id: str) -> None:
        """Notify the rollouts that the work of an attempt began, or is ready."""
        self._bus.publish(REPLICAS, [job_id])

    def _replica_changed(self, job: JobRow) -> None:
        """Notify the rollouts of a change of a job, if it belongs to a deploy."""
        if job.deploy_id is not None:
            self._bus.publish(REPLICAS, [job.id])

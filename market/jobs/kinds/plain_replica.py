"""Replicas of deploys without revisions: plain jobs, whose last one ends the deploy."""

from market.base.states import JobStatus
from market.events.catalogue import DeployCancelled, DeployFinished
from market.events.recording import record
from market.jobs.kinds.base import JobOutcome
from market.jobs.kinds.plain import Plain
from storage.deploys import deploys as deploy_queries


class PlainReplica(Plain):
    """A replica of a deploy that is described in words."""

    async def _end_deploy(self, outcome: JobOutcome) -> None:
        """Record the end of the deploy, once this is its last replica.

        Nothing else locks the row of such a deploy, so that of two last replicas one sees that both
        are over.
        """
        job, deploy_id = self.job, self.job.deploy_id
        assert deploy_id is not None  # noqa: S101 - this kind has a deploy
        if outcome.status is JobStatus.WAITING:
            return
        await self.tx.lock("deploys", [deploy_id])
        if await deploy_queries.count_open(self.tx, deploy_id):
            return
        is_cancelled = outcome.status is JobStatus.CANCELLED and not outcome.failure_reason
        data = DeployCancelled(deploy_id) if is_cancelled else DeployFinished(deploy_id)
        await record(self.tx, self.frame.context, job.user_id, data, subject_id=deploy_id)

"""The kinds of jobs, as the rows name them."""

from enum import StrEnum

from storage.engines.store import Transaction


class JobKind(StrEnum):
    """The kind of a job: it is decided when the job is put up, and never changes."""

    PLAIN = "plain"
    SCRIPTED = "scripted"
    REPLICA = "replica"
    PLAIN_REPLICA = "plain_replica"
    COPY = "copy"
    SAMPLE = "sample"


async def find(tx: Transaction, job_id: str) -> JobKind | None:
    """Return the kind of a job; None where there is no such job.

    A replica is one that a rollout replaces; a plain replica is of a deploy without revisions. A
    scripted job has a payload.
    """
    word = await tx.one(
        str,
        """
        SELECT CASE
            WHEN EXISTS (SELECT 1 FROM job_samples AS s WHERE s.job_id = j.id) THEN 'sample'
            WHEN EXISTS (SELECT 1 FROM job_copies AS c WHERE c.job_id = j.id) THEN 'copy'
            WHEN EXISTS (SELECT 1 FROM deploy_replicas AS r WHERE r.job_id = j.id) THEN 'replica'
            WHEN EXISTS (
                SELECT 1 FROM job_specs AS p WHERE p.job_id = j.id AND p.payload IS NOT NULL
            ) THEN 'scripted'
            WHEN j.deploy_id IS NOT NULL THEN 'plain_replica'
            ELSE 'plain' END
        FROM jobs AS j WHERE j.id = :job_id
        """,
        job_id=job_id,
    )
    return None if word is None else JobKind(word)

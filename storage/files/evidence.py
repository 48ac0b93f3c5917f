"""The condition for logs and files that are the evidence of a dispute."""


def is_evidence(job: str) -> str:
    """Return SQL that is true for a job that is disputed, or was decided after `:decided_after`.

    Args:
        job: SQL for the identifier of the job.
    """
    # A count is computed for each row by the index of jobs; EXISTS may become a join that reads all
    # reviews.
    return f"""
        (
            SELECT COUNT(*) FROM job_reviews AS r WHERE r.job_id = {job}
                AND r.disputed_at IS NOT NULL
                AND (r.resolved_at IS NULL OR r.resolved_at > :decided_after)
        ) > 0
    """

"""The condition for logs and files that are the evidence of a dispute, or may become it."""


def is_evidence(job: str) -> str:
    """Return SQL that is true for a job whose files and logs a judge may need.

    Its payment is in review, is disputed, or was disputed and decided after `:decided_after`, or an
    appeal waits. A buyer that deletes a result in review, and disputes it then, would leave nothing
    to judge by.

    Args:
        job: SQL for the identifier of the job.
    """
    # A count is computed for each row by the index of jobs; EXISTS may become a join that reads all
    # reviews.
    return f"""
        (
            SELECT COUNT(*) FROM job_reviews AS r WHERE r.job_id = {job}
                AND (
                    r.resolved_at IS NULL
                    OR (r.disputed_at IS NOT NULL AND r.resolved_at > :decided_after)
                )
        ) + (
            SELECT COUNT(*) FROM appeals AS p WHERE p.job_id = {job} AND p.decided_at IS NULL
        ) > 0
    """

"""The retention of evidence: the log and the files of a job in review, and of a disputed one."""

DAY_SECONDS = 86_400
# After the decision: the time in which a side can ask for another one.
APPEAL_SECONDS = 14 * DAY_SECONDS


def decided_after(now: int) -> int:
    """Return the time of the oldest decision whose evidence is still kept."""
    return now - APPEAL_SECONDS

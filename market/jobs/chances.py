"""The chances of a job: how many attempts may fail before the job has failed for good."""

from market.attempts.attempts import HOST_KINDS, PROVEN_JOBS, Ending, FailureKind
from market.trust.reputation import NEW_RELIABILITY
from storage.engines.store import Transaction
from storage.jobs import jobs as queries
from storage.jobs.jobs import JobRow

# Owners of devices count, not devices or attempts: a user may register any number of devices.
# Accounts cost nothing either, so only owners count here whose devices have finished jobs.
PROVEN_OWNERS_MAX = 3
# Proven or not: else a job that no device can do would wait, and cost transactions, for long.
OWNERS_MAX = 10
# However many refuse it: each of them costs a transaction, and a line that its buyer is shown.
ATTEMPTS_MAX = 100


def attempt_outcome(ending: Ending) -> str:
    """Return the outcome of an attempt that its device could not complete."""
    return "lost" if ending.kind in HOST_KINDS else "failed"


async def has_failed(tx: Transaction, job: JobRow, ending: Ending) -> bool:
    """Return whether a job has failed for good, because the devices of too many owners failed."""
    if job.attempts >= ATTEMPTS_MAX:  # a replica's attempts that served do not count
        served = await queries.count_served(tx, job.id)
        if job.attempts - served >= ATTEMPTS_MAX:
            return True
    # Owners may have rules of their own, such as the images that they run: a refusal by those rules
    # does not count against the job, which waits for other owners.
    unsuccessful = await queries.count_unsuccessful(
        tx,
        job.id,
        None if ending.kind is FailureKind.REFUSED else job.attempts,
        proven_attempts=PROVEN_JOBS,
        proven_reliability=NEW_RELIABILITY,
    )
    return unsuccessful.proven >= PROVEN_OWNERS_MAX or unsuccessful.owners >= OWNERS_MAX

"""Files of disputed jobs for the members of the staff who decide about disputes."""

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.files.artifacts import NOT_WHOLE
from market.staff.base.acts import JOB, Act, Changes, act, require_name
from market.staff.base.roles import Action, Author
from market.staff.money import judging
from storage.engines.store import Transaction
from storage.files import artifacts as artifact_queries
from storage.files.artifacts import ArtifactRow
from storage.jobs import jobs as job_queries
from storage.jobs import reviews as review_queries
from storage.jobs.jobs import JobRow


async def opened(context: Context, author: Author, job_id: str, file_id: str) -> ArtifactRow:
    """Return a file that a disputed job has left; the log records that it was opened.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        job_id: a job that is disputed, or was.
        file_id: a whole output or checkpoint of one of its attempts.

    Raises:
        MarketError: `not_permitted`, also for a job that was never disputed, or whose review is
            about an own account; `invalid_field`, `job_not_found`; `artifact_not_found`, also for a
            file of another job.
    """
    require_name(job_id)
    require_name(file_id)
    job = await context.store.read(_find, job_id.lower())

    async def look(tx: Transaction) -> tuple[ArtifactRow, Changes]:
        await judging.require_no_side(tx, author, job.id)
        rows = await review_queries.of_job(tx, job.id)
        if all(row.disputed_at is None for row in rows):
            message = "Only files of a job that was disputed can be opened."
            raise MarketError(Code.NOT_PERMITTED, message)
        row = await artifact_queries.find(tx, file_id.lower())
        if row is None or row.job_id != job.id:
            raise MarketError(Code.ARTIFACT_NOT_FOUND)
        if row.content_id is None:
            raise MarketError(Code.ARTIFACT_NOT_FOUND, NOT_WHOLE)
        return row, {"file": (None, row.id)}

    new = Act(author, Action.JOB_FILE, JOB, job.id, job.user_id)
    return await context.store.write(act, context, new, look)


async def _find(tx: Transaction, job_id: str) -> JobRow:
    job = await job_queries.find(tx, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND, "There is no such job.")
    return job

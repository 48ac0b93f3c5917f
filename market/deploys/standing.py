"""The present replicas of a deploy, and the rest of the bought time of each.

A replica has the deploy's hours in all its jobs together. The last seconds are not worth a new job,
so a replica with less than `SECONDS_MIN` left is not replaced: it serves to its end, and is done.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from market.base.states import JobStatus
from market.jobs.draws import SECONDS_MIN
from storage.deploys import rollouts as queries
from storage.deploys.rollouts import PresentRow
from storage.engines.store import Transaction

HOUR_SECONDS = 3_600
OPEN = (JobStatus.WAITING, JobStatus.RUNNING)


class Standing(Struct, frozen=True):
    """The present replicas of a deploy, and their bought and paid time.

    Attributes:
        rows: the replicas that were not stopped, in the order in which they were posted.
        whole: the bought seconds of each replica.
        unpaid: the unpaid seconds of the jobs of these, and of the newest job of each replica.
        newest: the newest job of each replica, by its number.
    """

    rows: Sequence[PresentRow]
    whole: int
    unpaid: Mapping[str, int]
    newest: Mapping[int, str]

    def left(self, number: int, now: int) -> int:
        """Return the seconds that are left of a replica's bought time; below 0 if it ran too long.

        Each job was posted for the time that was left then, so the rest of the newest ready job is
        left, or without one the rest of the newest job. Time in which a surplus replica has served
        beside another one is not subtracted: it is paid on top.
        """
        ready = [row for row in self.rows if row.number == number and row.ready_at is not None]
        if not ready:
            job_id = self.newest.get(number)
            return self.whole if job_id is None else self.unpaid[job_id]
        row = ready[-1]
        assert row.ready_at is not None  # noqa: S101 - by the search above
        return self.unpaid[row.job_id] - max(now - row.ready_at, 0)

    def is_used_up(self, number: int, now: int) -> bool:
        """Return whether too little of a replica's time is left for another job."""
        return self.left(number, now) < SECONDS_MIN

    def done(self, now: int) -> set[int]:
        """Return the replicas that are over: completed, or used up and without an open job."""
        completed = {row.number for row in self.rows if row.status == JobStatus.COMPLETED}
        present = {row.number for row in self.rows if row.status in OPEN}
        ended = self.newest.keys() - present
        return completed | {number for number in ended if self.is_used_up(number, now)}

    def last(self, revision: int, now: int) -> set[str]:
        """Return the jobs of earlier revisions that serve to the end of their replica's time.

        For each replica it is the newest job that is ready.
        """
        newest = {
            row.number: row
            for row in self.rows
            if row.ready_at is not None and self.is_used_up(row.number, now)
        }
        current = {
            row.number for row in self.rows if row.revision == revision and row.status in OPEN
        }
        return {row.job_id for number, row in newest.items() if number not in current}


async def standings(tx: Transaction, deploy_ids: Sequence[str]) -> dict[str, Standing]:
    """Return the standing of each of these deploys that ever had a replica."""
    unpaid: dict[str, dict[str, int]] = {}
    newest: dict[str, dict[int, str]] = {}
    whole = {}
    for row in await queries.bought(tx, deploy_ids):
        unpaid.setdefault(row.deploy_id, {})[row.job_id] = row.seconds - row.paid
        newest.setdefault(row.deploy_id, {})[row.number] = row.job_id
        whole[row.deploy_id] = row.duration_hrs * HOUR_SECONDS
    rows: dict[str, list[PresentRow]] = {deploy_id: [] for deploy_id in whole}
    for present in await queries.present(tx, list(whole)):
        rows[present.deploy_id].append(present)
    return {each: Standing(rows[each], whole[each], unpaid[each], newest[each]) for each in whole}


async def standing_of(tx: Transaction, deploy_id: str) -> Standing:
    """Return the standing of a deploy with revisions; it had a replica at its creation."""
    return (await standings(tx, [deploy_id]))[deploy_id]

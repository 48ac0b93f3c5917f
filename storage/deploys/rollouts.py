"""Queries on the rollouts of deploys: revisions, and the replicas that jobs are."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row

IS_OPEN = "state IN ('progressing', 'available', 'stuck')"


class RolloutRow(NamedTuple):
    """State of a deploy's rollout; see the schema for each column."""

    deploy_id: str
    user_id: str
    revision: int
    desired: int
    strategy: str
    state: str
    replica_price: int
    replica_credit: int
    updated: int
    progressed_at: int
    problem: str | None


class RevisionRow(NamedTuple):
    """Configuration that a deploy should run from some time on.

    `template` is JSON, `secrets` is sealed.
    """

    deploy_id: str
    user_id: str
    revision: int
    template: str
    secrets: str | None
    size_bytes: int
    cause: str
    created_at: int
    state: str


class ReplicaRow(NamedTuple):
    """The replica of a job, and the time that is paid for.

    It is paid from the moment when its device reports it ready. An attempt has `ready_within`
    seconds for that. If `ready_within` is null, the device reports no readiness, and payment begins
    with the work. It is paid for `seconds` at most, in all its attempts.
    """

    job_id: str
    deploy_id: str
    number: int
    revision: int
    seconds: int
    ready_within: int | None
    stopped_at: int | None = None


class PresentRow(NamedTuple):
    """A replica that was not stopped: `ready_at` in UTC seconds, None unless it runs and is ready.

    From `again_at` on, devices of the owner of the last attempt may have it again; None if no such
    time was set.
    """

    deploy_id: str
    job_id: str
    number: int
    revision: int
    status: str
    ready_at: int | None
    failure_reason: str | None
    again_at: int | None = None


class ServingRow(NamedTuple):
    """A replica that can be used now; `payload` is JSON."""

    job_id: str
    attempt: int
    device_id: str
    number: int
    revision: int
    payload: str


class StateRow(NamedTuple):
    """The number of deploys in a state."""

    state: str
    deploys: int


class SpentRow(NamedTuple):
    """Cost of a deploy, in micro-units of its currency."""

    deploy_id: str
    amount: int


class BoughtRow(NamedTuple):
    """A job of a replica: the seconds that it was posted for, and those of them that are paid.

    `duration_hrs` are the hours of the deploy.
    """

    deploy_id: str
    number: int
    job_id: str
    seconds: int
    paid: int
    duration_hrs: int


_COLUMNS = ", ".join(RolloutRow._fields)
_REVISION_COLUMNS = ", ".join(RevisionRow._fields)
_REPLICA_COLUMNS = ", ".join(ReplicaRow._fields)


async def insert(tx: Transaction, rollout: RolloutRow) -> None:
    """Add the rollout of a deploy."""
    await insert_row(tx, "deploy_rollouts", **rollout._asdict())


async def find(tx: Transaction, deploy_id: str) -> RolloutRow | None:
    """Return the rollout of a deploy; None for one that has none."""
    return await tx.one(
        RolloutRow,
        f"SELECT {_COLUMNS} FROM deploy_rollouts WHERE deploy_id = :deploy_id",
        deploy_id=deploy_id,
    )


async def count_open(tx: Transaction, user_id: str) -> int:
    """Return how many deploys of a user have rollouts that are not over."""
    count = await tx.one(
        int,
        "SELECT COUNT(*) FROM deploy_rollouts WHERE user_id = :user_id AND state <> 'over'",
        user_id=user_id,
    )
    return count or 0


async def by_state(tx: Transaction) -> list[StateRow]:
    """Count the deploys whose rollouts are not over, by state."""
    return await tx.all(
        StateRow,
        "SELECT state, COUNT(*) FROM deploy_rollouts WHERE state <> 'over' GROUP BY state",
    )


async def of_deploys(tx: Transaction, deploy_ids: Sequence[str]) -> list[RolloutRow]:
    """Return the rollouts of all these deploys, in one statement."""
    columns = ", ".join(f"r.{name}" for name in RolloutRow._fields)
    return await tx.all(
        RolloutRow,
        f"""
        SELECT {columns} FROM {tx.table("wanted", id="TEXT")}
        JOIN deploy_rollouts AS r ON r.deploy_id = wanted.id
        """,
        wanted=json.dumps([{"id": deploy_id} for deploy_id in deploy_ids]),
    )


async def change(tx: Transaction, before: RolloutRow, after: RolloutRow) -> bool:
    """Change a rollout, unless its revision is another one than it was; False then."""
    row_count = await tx.run(
        """
        UPDATE deploy_rollouts SET revision = :revision, desired = :desired, state = :state,
            updated = :updated, progressed_at = :progressed_at, problem = :problem
        WHERE deploy_id = :deploy_id AND revision = :revision_before
        """,
        deploy_id=before.deploy_id,
        revision_before=before.revision,
        revision=after.revision,
        desired=after.desired,
        state=after.state,
        updated=after.updated,
        progressed_at=after.progressed_at,
        problem=after.problem,
    )
    return row_count == 1


async def set_price(tx: Transaction, deploy_id: str, price: int) -> None:
    """Record the price of all wanted replicas of a deploy for all their hours."""
    await tx.run("UPDATE deploys SET price = :price WHERE id = :id", id=deploy_id, price=price)


async def set_running(
    tx: Transaction, deploy_id: str, *, image: str | None, command: str | None
) -> None:
    """Record the image and the command that a deploy runs now, for display."""
    await tx.run(
        "UPDATE deploys SET image = :image, command = :command WHERE id = :id",
        id=deploy_id,
        image=image,
        command=command,
    )


async def open_ids(tx: Transaction, *, after: str, limit: int) -> list[str]:
    """Return deploys with unfinished rollouts, in order, from behind `after`."""
    return await tx.all(
        str,
        f"""
        SELECT deploy_id FROM deploy_rollouts WHERE {IS_OPEN} AND deploy_id > :after
        ORDER BY deploy_id LIMIT :limit
        """,
        after=after,
        limit=limit,
    )


async def of_jobs(tx: Transaction, job_ids: Sequence[str]) -> list[str]:
    """Return the deploys of these jobs, which are replicas."""
    return await tx.all(
        str,
        f"""
        SELECT DISTINCT r.deploy_id FROM {tx.table("wanted", id="TEXT")}
        JOIN deploy_replicas AS r ON r.job_id = wanted.id
        """,
        wanted=json.dumps([{"id": job_id} for job_id in job_ids]),
    )


async def insert_revision(tx: Transaction, revision: RevisionRow, *, keep: int) -> None:
    """Add a revision, and delete the oldest ones beyond the newest `keep`."""
    await insert_row(tx, "deploy_revisions", **revision._asdict())
    await tx.run(
        "DELETE FROM deploy_revisions WHERE deploy_id = :deploy_id AND revision <= :oldest",
        deploy_id=revision.deploy_id,
        oldest=revision.revision - keep,
    )


async def revisions(tx: Transaction, deploy_id: str) -> list[RevisionRow]:
    """Return the revisions of a deploy, the newest first."""
    return await tx.all(
        RevisionRow,
        f"""
        SELECT {_REVISION_COLUMNS} FROM deploy_revisions WHERE deploy_id = :deploy_id
        ORDER BY revision DESC
        """,
        deploy_id=deploy_id,
    )


async def revision_bytes(tx: Transaction, user_id: str, *, since: int) -> int:
    """Return the size of the kept revisions that a user has made since a moment."""
    size = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM deploy_revisions
        WHERE user_id = :user_id AND created_at > :since
        """,
        user_id=user_id,
        since=since,
    )
    return size or 0


async def forget_secrets(tx: Transaction, deploy_id: str) -> None:
    """Delete the secrets of a deploy that no longer runs."""
    await tx.run(
        """
        UPDATE deploy_revisions SET secrets = NULL
        WHERE deploy_id = :deploy_id AND secrets IS NOT NULL
        """,
        deploy_id=deploy_id,
    )


async def mark_revision(tx: Transaction, deploy_id: str, revision: int, state: str) -> None:
    """Record how far a revision has come; one that was available stays so."""
    await tx.run(
        """
        UPDATE deploy_revisions SET state = :state
        WHERE deploy_id = :deploy_id AND revision = :revision AND state <> 'available'
        """,
        deploy_id=deploy_id,
        revision=revision,
        state=state,
    )


async def insert_replica(tx: Transaction, replica: ReplicaRow) -> None:
    """Record which replica a job is."""
    await insert_row(tx, "deploy_replicas", **replica._asdict())


async def replica(tx: Transaction, job_id: str) -> ReplicaRow | None:
    """Return the replica that a job is; None for another job, or in a deploy without revisions."""
    return await tx.one(
        ReplicaRow,
        f"SELECT {_REPLICA_COLUMNS} FROM deploy_replicas WHERE job_id = :job_id",
        job_id=job_id,
    )


async def present(tx: Transaction, deploy_ids: Sequence[str]) -> list[PresentRow]:
    """Return the replicas of these deploys that were not stopped, by number, in one statement."""
    return await tx.all(
        PresentRow,
        f"""
        SELECT r.deploy_id, r.job_id, r.number, r.revision, j.status,
            CASE WHEN a.ended_at IS NOT NULL THEN NULL
                WHEN r.ready_within IS NOT NULL THEN a.ready_at ELSE a.work_started_at END,
            j.failure_reason, a.again_at
        FROM {tx.table("wanted", id="TEXT")}
        JOIN deploy_replicas AS r ON r.deploy_id = wanted.id AND r.stopped_at IS NULL
        JOIN jobs AS j ON j.id = r.job_id
        LEFT JOIN job_attempts AS a
            ON a.job_id = j.id AND a.attempt = j.attempts
        ORDER BY r.number, r.job_id
        """,
        wanted=json.dumps([{"id": deploy_id} for deploy_id in deploy_ids]),
    )


async def serving(tx: Transaction, deploy_id: str) -> list[ServingRow]:
    """Return the replicas of a deploy that can be used now, those of the newest revision first."""
    return await tx.all(
        ServingRow,
        """
        SELECT r.job_id, a.attempt, a.device_id, r.number, r.revision, s.payload
        FROM deploy_replicas AS r
        JOIN jobs AS j ON j.id = r.job_id AND j.status = 'running'
        JOIN job_attempts AS a
            ON a.job_id = j.id AND a.attempt = j.attempts AND a.ended_at IS NULL
        JOIN job_specs AS s ON s.job_id = j.id AND s.payload IS NOT NULL
        WHERE r.deploy_id = :deploy_id AND r.stopped_at IS NULL
            AND a.work_started_at IS NOT NULL
            AND (r.ready_within IS NULL OR a.ready_at IS NOT NULL)
        ORDER BY r.revision DESC, r.number, r.job_id
        """,
        deploy_id=deploy_id,
    )


async def stop(tx: Transaction, job_id: str, *, now: int) -> None:
    """Record that a replica was stopped for the sake of another one."""
    await tx.run(
        "UPDATE deploy_replicas SET stopped_at = :now WHERE job_id = :job_id",
        job_id=job_id,
        now=now,
    )


async def adopt(tx: Transaction, deploy_id: str, *, before: int, after: int) -> None:
    """Move the replicas of a revision that were not stopped to another revision."""
    await tx.run(
        """
        UPDATE deploy_replicas SET revision = :after
        WHERE deploy_id = :deploy_id AND stopped_at IS NULL AND revision = :before
        """,
        deploy_id=deploy_id,
        before=before,
        after=after,
    )


async def forget_failed(tx: Transaction, deploy_id: str, *, before: int, now: int) -> None:
    """Mark the failed and cancelled replicas of earlier revisions as stopped, to make room."""
    await tx.run(
        """
        UPDATE deploy_replicas SET stopped_at = :now
        WHERE deploy_id = :deploy_id AND stopped_at IS NULL
            AND revision < :before
            AND job_id IN (
                SELECT id FROM jobs
                WHERE deploy_id = :deploy_id AND status IN ('failed', 'cancelled')
            )
        """,
        before=before,
        deploy_id=deploy_id,
        now=now,
    )


async def spent(tx: Transaction, deploy_ids: Sequence[str]) -> dict[str, int]:
    """Return the cost of the replicas of each of these deploys, without refunds."""
    rows = await tx.all(
        SpentRow,
        f"""
        SELECT r.deploy_id, CAST(SUM(
            d.amount - CASE WHEN v.state = 'reversed' THEN v.price ELSE 0 END
        ) AS BIGINT)
        FROM {tx.table("wanted", id="TEXT")}
        JOIN deploy_replicas AS r ON r.deploy_id = wanted.id
        JOIN job_draws AS d ON d.job_id = r.job_id
        LEFT JOIN job_reviews AS v ON v.job_id = d.job_id AND v.attempt = d.attempt
        GROUP BY r.deploy_id
        """,
        wanted=json.dumps([{"id": deploy_id} for deploy_id in deploy_ids]),
    )
    return {row.deploy_id: row.amount for row in rows}


async def bought(tx: Transaction, deploy_ids: Sequence[str]) -> list[BoughtRow]:
    """Return the jobs of these deploys that were not stopped, and the newest one of each replica.

    They are in the order in which they were posted. This takes one statement.
    """
    return await tx.all(
        BoughtRow,
        f"""
        SELECT r.deploy_id, r.number, r.job_id, r.seconds, CAST(COALESCE((
                SELECT SUM(w.seconds) FROM job_draws AS w WHERE w.job_id = r.job_id
            ), 0) AS BIGINT), d.duration_hrs
        FROM {tx.table("wanted", id="TEXT")}
        JOIN deploys AS d ON d.id = wanted.id
        JOIN deploy_replicas AS r ON r.deploy_id = d.id
        WHERE r.stopped_at IS NULL OR r.job_id = (
            SELECT MAX(n.job_id) FROM deploy_replicas AS n
            WHERE n.deploy_id = r.deploy_id AND n.number = r.number
        )
        ORDER BY r.job_id
        """,
        wanted=json.dumps([{"id": deploy_id} for deploy_id in deploy_ids]),
    )

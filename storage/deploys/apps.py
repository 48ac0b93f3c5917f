"""Queries on apps: the keys that open them, and the attempts that they are reached at."""

from typing import NamedTuple

from storage.engines.store import Transaction


class KeyRow(NamedTuple):
    """Key that opens an app: either a job or a deploy, whose identifier is `app_id`."""

    app_id: str
    job_id: str | None
    deploy_id: str | None
    key_hash: str
    sealed_key: str
    created_at: int


class ReachedRow(NamedTuple):
    """The attempt at a job that runs; `payload` is JSON, the times None until it is so far."""

    attempt: int
    device_id: str
    work_started_at: int | None
    ready_at: int | None
    payload: str


_COLUMNS = ", ".join(KeyRow._fields)
_VALUES = ", ".join(f":{name}" for name in KeyRow._fields)


async def find(tx: Transaction, app_id: str) -> KeyRow | None:
    """Return the key that opens an app; None if it has not been requested yet."""
    return await tx.one(
        KeyRow, f"SELECT {_COLUMNS} FROM app_keys WHERE app_id = :app_id", app_id=app_id
    )


async def insert(tx: Transaction, key: KeyRow) -> None:
    """Add a key, unless the app has one."""
    await tx.run(
        f"INSERT INTO app_keys ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT (app_id) DO NOTHING",
        **key._asdict(),
    )


async def put(tx: Transaction, key: KeyRow) -> None:
    """Store the key that opens an app, in place of an earlier key."""
    await tx.run(
        f"""
        INSERT INTO app_keys ({_COLUMNS}) VALUES ({_VALUES})
        ON CONFLICT (app_id) DO UPDATE SET key_hash = excluded.key_hash,
            sealed_key = excluded.sealed_key, created_at = excluded.created_at
        """,
        **key._asdict(),
    )


async def forget_of(tx: Transaction, user_id: str) -> None:
    """Delete the keys of a user's apps; each app has another one when its buyer asks for it."""
    await tx.run(
        """
        DELETE FROM app_keys
        WHERE job_id IN (SELECT id FROM jobs WHERE user_id = :user_id)
            OR deploy_id IN (SELECT id FROM deploys WHERE user_id = :user_id)
        """,
        user_id=user_id,
    )


async def forget_over(tx: Transaction) -> int:
    """Delete the keys of jobs and deploys that are over. Return the number deleted."""
    return await tx.run(
        """
        DELETE FROM app_keys WHERE EXISTS (
            SELECT 1 FROM jobs AS j
            WHERE j.id = app_keys.job_id AND j.status NOT IN ('waiting', 'running')
        ) OR EXISTS (
            SELECT 1 FROM deploy_rollouts AS r
            WHERE r.deploy_id = app_keys.deploy_id AND r.state = 'over'
        )
        """
    )


async def reached(tx: Transaction, job_id: str) -> ReachedRow | None:
    """Return the running attempt at a job; None without one, or when the job has no payload."""
    return await tx.one(
        ReachedRow,
        """
        SELECT a.attempt, a.device_id, a.work_started_at, a.ready_at, s.payload
        FROM jobs AS j
        JOIN job_attempts AS a
            ON a.job_id = j.id AND a.attempt = j.attempts AND a.ended_at IS NULL
        JOIN job_specs AS s ON s.job_id = j.id AND s.payload IS NOT NULL
        WHERE j.id = :job_id AND j.status = 'running'
        """,
        job_id=job_id,
    )

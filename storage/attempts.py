"""Queries on the attempts of devices at jobs: what they hold, and how each attempt went."""

from typing import NamedTuple

from storage.store import Transaction


class LoadRow(NamedTuple):
    """How many jobs a device runs, and how many it has completed, counted up to a bound."""

    running: int
    completed: int


async def device_load(tx: Transaction, device_id: str, *, completed_max: int) -> LoadRow:
    """Count the jobs that a device runs, and those that it has completed, up to a bound."""
    row = await tx.one(
        LoadRow,
        """
        SELECT
            (SELECT COUNT(*) FROM jobs WHERE status = 'running' AND device_id = :device_id),
            (SELECT COUNT(*) FROM (
                SELECT 1 FROM job_attempts
                WHERE outcome = 'completed' AND device_id = :device_id
                LIMIT :completed_max
            ) AS completed)
        """,
        device_id=device_id,
        completed_max=completed_max,
    )
    return row or LoadRow(0, 0)

"""Queries on the payloads of jobs, and their needs."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class SpecRow(NamedTuple):
    """Specification of a job; `payload`, `resources` and `warnings` are JSON.

    `secrets` is sealed. `payload`, `timeout_seconds` and `review_hours` are null where the buyer
    gave none. `min_reputation` is the least reputation of the device, in millionths.
    """

    job_id: str
    payload: str | None
    secrets: str | None
    resources: str
    warnings: str
    is_manual: int
    timeout_seconds: int | None
    review_hours: int | None
    min_reputation: int = 0


class WarningsRow(NamedTuple):
    """The warnings of a job, in JSON."""

    job_id: str
    warnings: str


_COLUMNS = ", ".join(SpecRow._fields)


async def insert(tx: Transaction, spec: SpecRow) -> None:
    """Add the specification of a job."""
    await insert_row(tx, "job_specs", **spec._asdict())


async def find(tx: Transaction, job_id: str) -> SpecRow | None:
    """Return the specification of a job; None if it has only the fields of every job."""
    return await tx.one(
        SpecRow, f"SELECT {_COLUMNS} FROM job_specs WHERE job_id = :job_id", job_id=job_id
    )


async def warnings(tx: Transaction, job_ids: Sequence[str]) -> list[WarningsRow]:
    """Return the warnings of those of these jobs that have a specification."""
    return await tx.all(
        WarningsRow,
        f"""
        SELECT job_id, warnings FROM job_specs
        WHERE job_id IN (SELECT id FROM {tx.table("asked", id="TEXT")})
        """,
        asked=json.dumps([{"id": job_id} for job_id in job_ids]),
    )


async def forget_secrets(tx: Transaction, job_id: str) -> None:
    """Delete the secrets of a job that is over."""
    await tx.run(
        "UPDATE job_specs SET secrets = NULL WHERE job_id = :job_id AND secrets IS NOT NULL",
        job_id=job_id,
    )


async def set_timeout(tx: Transaction, job_id: str, seconds: int) -> None:
    """Set the new time limit of a job."""
    await tx.run(
        "UPDATE job_specs SET timeout_seconds = :seconds WHERE job_id = :job_id",
        job_id=job_id,
        seconds=seconds,
    )


async def min_reputation(tx: Transaction, job_id: str) -> int:
    """Return the least reputation for the device of a job, in millionths; 0 for nothing."""
    least = await tx.one(
        int, "SELECT min_reputation FROM job_specs WHERE job_id = :job_id", job_id=job_id
    )
    return least or 0

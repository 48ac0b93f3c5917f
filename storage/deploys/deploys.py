"""Queries on deploys; their replicas are jobs."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row
from storage.jobs.jobs import PAID


class DeployRow(NamedTuple):  # as wide as its table
    """A deploy: price in micro-units of its currency, created in UTC seconds."""

    id: str
    user_id: str
    job_name: str
    job_type: str
    gpu_model: str
    gpu_count: int
    duration_hrs: int
    replicas: int
    currency: str
    price: int
    created_at: int
    image: str | None
    command: str | None


class ReplicaRow(NamedTuple):
    """Replica of a deploy; `captured` is its cost in micro-units, None until it is over."""

    deploy_id: str
    job_id: str
    status: str
    captured: int | None


_COLUMNS = ", ".join(DeployRow._fields)


async def insert(tx: Transaction, deploy: DeployRow) -> None:
    """Add a deploy."""
    await insert_row(tx, "deploys", **deploy._asdict())


async def find(tx: Transaction, deploy_id: str) -> DeployRow | None:
    """Return a deploy."""
    return await tx.one(
        DeployRow, f"SELECT {_COLUMNS} FROM deploys WHERE id = :deploy_id", deploy_id=deploy_id
    )


async def page(tx: Transaction, *, user_id: str, before: str, limit: int) -> list[DeployRow]:
    """Return a user's deploys older than `before` ("" for the newest), newest first."""
    return await tx.all(
        DeployRow,
        f"""
        SELECT {_COLUMNS} FROM deploys
        WHERE user_id = :user_id AND id < :before
        ORDER BY id {NEWEST_FIRST}
        LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
    )


async def replicas(tx: Transaction, deploy_ids: Sequence[str]) -> list[ReplicaRow]:
    """Return the replicas of all these deploys, in one statement."""
    return await tx.all(
        ReplicaRow,
        f"""
        SELECT j.deploy_id, j.id, j.status, {PAID} FROM {tx.table("deploy_ids", id="TEXT")}
        JOIN jobs AS j ON j.deploy_id = deploy_ids.id
        LEFT JOIN holds AS h ON h.id = 'job:' || j.id
        ORDER BY j.id
        """,
        deploy_ids=json.dumps([{"id": deploy_id} for deploy_id in deploy_ids]),
    )


async def count_open(tx: Transaction, deploy_id: str) -> int:
    """Return how many jobs of a deploy wait or run."""
    count = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM jobs
        WHERE deploy_id = :deploy_id AND status IN ('waiting', 'running')
        """,
        deploy_id=deploy_id,
    )
    return count or 0

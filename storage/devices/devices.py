"""Queries on worker devices."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row

# In a payload as it is stored, without spaces: quotes within a text of it have backslashes.
_LISTENS = '%"ports":[{%'


class DeviceRow(NamedTuple):  # as wide as its table
    """A device: price in micro-USD per hour, memory in GB, times in UTC seconds."""

    id: str
    user_id: str
    token_hash: str
    name: str
    hostname: str
    device_type: str
    min_price_usd: int | None
    gpu_name: str
    cpu_cores: int
    ram_gb: float
    cpu_temp: float | None
    gpu_temp: float | None
    cpu_pct: float | None
    ram_pct: float | None
    created_at: int
    last_heartbeat_at: int | None
    offline_at: int | None
    revoked_at: int | None


class RunningRow(NamedTuple):
    """The number of running jobs of a device."""

    device_id: str
    jobs: int


class RevokedRow(NamedTuple):
    """A token that was revoked, by its hash, and the name of its device."""

    token_hash: str
    name: str


class PresentRow(NamedTuple):
    """A device that has come or left, and its owner."""

    id: str
    user_id: str
    name: str


_COLUMNS = ", ".join(DeviceRow._fields)


async def insert(tx: Transaction, device: DeviceRow) -> None:
    """Add a device."""
    await insert_row(tx, "devices", **device._asdict())


async def count_in_use(tx: Transaction, user_id: str) -> int:
    """Return how many devices a user has whose token was not revoked."""
    count = await tx.one(
        int,
        "SELECT COUNT(*) FROM devices WHERE user_id = :user_id AND revoked_at IS NULL",
        user_id=user_id,
    )
    return count or 0


async def find_by_tokens(tx: Transaction, token_hashes: Sequence[str]) -> list[DeviceRow]:
    """Return the devices that tokens belong to, in no order; unknown tokens are left out."""
    return await tx.all(
        DeviceRow,
        f"""
        SELECT {", ".join(f"d.{name}" for name in DeviceRow._fields)}
        FROM {tx.table("shown", digest="TEXT")}
        JOIN devices AS d ON d.token_hash = shown.digest
        """,
        shown=json.dumps([{"digest": each} for each in token_hashes]),
    )


async def find(tx: Transaction, *, device_id: str, user_id: str) -> DeviceRow | None:
    """Return a device of a user, revoked or not."""
    return await tx.one(
        DeviceRow,
        f"SELECT {_COLUMNS} FROM devices WHERE id = :device_id AND user_id = :user_id",
        device_id=device_id,
        user_id=user_id,
    )


async def running_on(tx: Transaction, device_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of running jobs of each of these devices that runs any."""
    rows = await tx.all(
        RunningRow,
        f"""
        SELECT j.device_id, COUNT(*) FROM {tx.table("asked", id="TEXT")}
        JOIN jobs AS j ON j.device_id = asked.id AND j.status = 'running'
        GROUP BY j.device_id
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
    )
    return {row.device_id: row.jobs for row in rows}


async def page(tx: Transaction, *, user_id: str, before: str, limit: int) -> list[DeviceRow]:
    """Return a user's devices, newest first.

    Args:
        tx: the transaction.
        user_id: whose.
        before: only devices older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        DeviceRow,
        f"""
        SELECT {_COLUMNS} FROM devices
        WHERE user_id = :user_id AND id < :before
        ORDER BY id {NEWEST_FIRST}
        LIMIT :limit
        """,
        user_id=user_id,
        before=behind(before),
        limit=limit,
    )


async def lock(tx: Transaction, device_id: str) -> None:
    """Lock a device, so that it is not revoked while it takes work."""
    await tx.lock("devices", [device_id])


async def is_revoked(tx: Transaction, device_id: str) -> bool:
    """Return whether a device's token was revoked, or there is no such device."""
    row = await tx.one(
        int,
        "SELECT 1 FROM devices WHERE id = :device_id AND revoked_at IS NULL",
        device_id=device_id,
    )
    return row is None


async def revoked_among(tx: Transaction, device_ids: Sequence[str]) -> list[str]:
    """Return those of some devices whose tokens were revoked."""
    return await tx.all(
        str,
        f"""
        SELECT d.id FROM {tx.table("asked", id="TEXT")} JOIN devices AS d ON d.id = asked.id
        WHERE d.revoked_at IS NOT NULL
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
    )


async def listening_among(tx: Transaction, device_ids: Sequence[str]) -> list[str]:
    """Return those of some devices that hold an open attempt at a job with ports."""
    return await tx.all(
        str,
        f"""
        SELECT DISTINCT j.device_id FROM {tx.table("asked", id="TEXT")}
        JOIN jobs AS j ON j.device_id = asked.id AND j.status = 'running'
        JOIN job_attempts AS a
            ON a.job_id = j.id AND a.attempt = j.attempts AND a.ended_at IS NULL
        JOIN job_specs AS s ON s.job_id = j.id AND s.payload LIKE :listens
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
        listens=_LISTENS,
    )


async def owner_of(tx: Transaction, device_id: str) -> str | None:
    """Return the owner of a device."""
    return await tx.one(
        str, "SELECT user_id FROM devices WHERE id = :device_id", device_id=device_id
    )


async def revoke(tx: Transaction, *, device_id: str, user_id: str, now: int) -> RevokedRow | None:
    """Revoke a device's token and return it; None when it is not the user's.

    A revoked device causes no notice that it is absent.
    """
    return await tx.one(
        RevokedRow,
        """
        UPDATE devices SET revoked_at = COALESCE(revoked_at, :now), is_present = 0
        WHERE id = :device_id AND user_id = :user_id
        RETURNING token_hash, name
        """,
        device_id=device_id,
        user_id=user_id,
        now=now,
    )


async def mark_present(
    tx: Transaction, device_ids: Sequence[str], *, since: int
) -> list[PresentRow]:
    """Mark devices present that showed life since then; return the newly marked ones."""
    return await tx.all(
        PresentRow,
        f"""
        UPDATE devices SET is_present = 1
        WHERE id IN (SELECT id FROM {tx.table("asked", id="TEXT")}) AND is_present = 0
            AND revoked_at IS NULL AND offline_at IS NULL AND last_heartbeat_at >= :since
        RETURNING id, user_id, name
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
        since=since,
    )


async def mark_left(tx: Transaction, device_ids: Sequence[str]) -> list[PresentRow]:
    """Mark those of these devices absent that have logged off; return those that were present."""
    return await tx.all(
        PresentRow,
        f"""
        UPDATE devices SET is_present = 0
        WHERE id IN (SELECT id FROM {tx.table("asked", id="TEXT")}) AND is_present = 1
            AND offline_at IS NOT NULL
        RETURNING id, user_id, name
        """,
        asked=json.dumps([{"id": each} for each in device_ids]),
    )


async def mark_silent(tx: Transaction, *, before: int, limit: int) -> list[PresentRow]:
    """Mark devices absent that showed no life since `before`; return those that were present.

    The condition stands twice: a device that shows life meanwhile is not silent.
    """
    silent = await tx.all(
        str,
        """
        SELECT id FROM devices WHERE is_present = 1 AND last_heartbeat_at < :before
        ORDER BY id LIMIT :limit
        """,
        before=before,
        limit=limit,
    )
    if not silent:
        return []
    await tx.lock("devices", silent)
    return await tx.all(
        PresentRow,
        f"""
        UPDATE devices SET is_present = 0
        WHERE id IN (SELECT id FROM {tx.table("asked", id="TEXT")}) AND is_present = 1
            AND last_heartbeat_at < :before
        RETURNING id, user_id, name
        """,
        asked=json.dumps([{"id": each} for each in silent]),
        before=before,
    )


def heard_of_at(device: DeviceRow) -> int:
    """Return when a device last reported or went offline, in UTC seconds; 0 for never."""
    return max(device.last_heartbeat_at or 0, device.offline_at or 0)


# The columns that a heartbeat changes, and their types.
_REPORTED = {
    "hostname": "TEXT",
    "gpu_name": "TEXT",
    "cpu_cores": "BIGINT",
    "ram_gb": "DOUBLE PRECISION",
    "cpu_temp": "DOUBLE PRECISION",
    "gpu_temp": "DOUBLE PRECISION",
    "cpu_pct": "DOUBLE PRECISION",
    "ram_pct": "DOUBLE PRECISION",
    "last_heartbeat_at": "BIGINT",
    "offline_at": "BIGINT",
}
_CHANGES = ", ".join(f"{column} = reports.{column}" for column in _REPORTED)


async def write_reports(
    tx: Transaction, devices: Sequence[DeviceRow], *, only_newer: bool = False
) -> None:
    """Write the last report of each of these devices, in one statement.

    With `only_newer`, a report does not overwrite one that is newer than itself. Nothing is written
    about a revoked device: a report may wait while its owner's account is erased.
    """
    await tx.lock("devices", [device.id for device in devices])
    reports = [
        {
            "id": device.id,
            "heard_of_at": heard_of_at(device) if only_newer else 0,
            **{column: getattr(device, column) for column in _REPORTED},
        }
        for device in devices
    ]
    await tx.run(
        f"""
        UPDATE devices AS d SET {_CHANGES}
        FROM {tx.table("reports", id="TEXT", heard_of_at="BIGINT", **_REPORTED)}
        WHERE d.id = reports.id AND d.revoked_at IS NULL AND (
            reports.heard_of_at = 0
            OR COALESCE(d.last_heartbeat_at, 0) <= reports.heard_of_at
            AND COALESCE(d.offline_at, 0) <= reports.heard_of_at
        )
        """,
        reports=json.dumps(reports),
    )

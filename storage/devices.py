"""Queries on worker devices."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.store import Transaction


class DeviceRow(NamedTuple):
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


_COLUMNS = ", ".join(DeviceRow._fields)
_VALUES = ", ".join(f":{name}" for name in DeviceRow._fields)


async def insert(tx: Transaction, device: DeviceRow) -> None:
    """Add a device."""
    await tx.run(f"INSERT INTO devices ({_COLUMNS}) VALUES ({_VALUES})", **device._asdict())


async def count_in_use(tx: Transaction, user_id: str) -> int:
    """Return how many devices a user has whose token was not revoked."""
    counted = await tx.one(
        int,
        "SELECT COUNT(*) FROM devices WHERE user_id = :user_id AND revoked_at IS NULL",
        user_id=user_id,
    )
    return counted or 0


async def find_by_token(tx: Transaction, token_hash: str) -> DeviceRow | None:
    """Return the device that a token belongs to."""
    return await tx.one(
        DeviceRow,
        f"SELECT {_COLUMNS} FROM devices WHERE token_hash = :token_hash",
        token_hash=token_hash,
    )


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
        WHERE user_id = :user_id AND (:before = '' OR id < :before)
        ORDER BY id DESC
        LIMIT :limit
        """,
        user_id=user_id,
        before=before,
        limit=limit,
    )


async def lock(tx: Transaction, device_id: str) -> None:
    """Lock a device, so that it is not revoked while it takes work."""
    await tx.lock("devices", [device_id])


async def is_revoked(tx: Transaction, device_id: str) -> bool:
    """Say whether a device's token was ended."""
    found = await tx.one(
        int,
        "SELECT 1 FROM devices WHERE id = :device_id AND revoked_at IS NULL",
        device_id=device_id,
    )
    return found is None


async def revoke(tx: Transaction, *, device_id: str, user_id: str, now: int) -> str | None:
    """End a user's device and return the hash of its token; None when it is not theirs."""
    return await tx.one(
        str,
        """
        UPDATE devices SET revoked_at = COALESCE(revoked_at, :now)
        WHERE id = :device_id AND user_id = :user_id
        RETURNING token_hash
        """,
        device_id=device_id,
        user_id=user_id,
        now=now,
    )


def heard_of_at(device: DeviceRow) -> int:
    """Return when a device last said anything, in UTC seconds; 0 for never."""
    return max(device.last_heartbeat_at or 0, device.offline_at or 0)


async def write_reports(
    tx: Transaction, devices: Sequence[DeviceRow], *, only_newer: bool = False
) -> None:
    """Write down what devices reported last; with `only_newer`, not over what they said later."""
    for device in sorted(devices, key=lambda each: each.id):  # so that two writers cannot deadlock
        await tx.run(
            """
            UPDATE devices SET hostname = :hostname, gpu_name = :gpu_name, cpu_cores = :cpu_cores,
                ram_gb = :ram_gb, cpu_temp = :cpu_temp, gpu_temp = :gpu_temp, cpu_pct = :cpu_pct,
                ram_pct = :ram_pct, last_heartbeat_at = :last_heartbeat_at, offline_at = :offline_at
            WHERE id = :id AND (
                CAST(:heard_of_at AS BIGINT) = 0
                OR COALESCE(last_heartbeat_at, 0) <= :heard_of_at
                AND COALESCE(offline_at, 0) <= :heard_of_at
            )
            """,
            id=device.id,
            heard_of_at=heard_of_at(device) if only_newer else 0,
            hostname=device.hostname,
            gpu_name=device.gpu_name,
            cpu_cores=device.cpu_cores,
            ram_gb=device.ram_gb,
            cpu_temp=device.cpu_temp,
            gpu_temp=device.gpu_temp,
            cpu_pct=device.cpu_pct,
            ram_pct=device.ram_pct,
            last_heartbeat_at=device.last_heartbeat_at,
            offline_at=device.offline_at,
        )

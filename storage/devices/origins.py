"""Queries on the addresses that devices were seen at."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction

DAY_SECONDS = 86_400


class SightingRow(NamedTuple):
    """A device at an address from the first to the last time (UTC seconds) it was seen there.

    `number` counts the rows of one device in one call from 1 on.
    """

    device_id: str
    address: str
    began_at: int
    ended_at: int
    number: int


async def write(
    tx: Transaction, rows: Sequence[SightingRow], *, gap_seconds: int, most: int
) -> None:
    """Add sightings: a row goes on until a gap, and each device has a number of them a day.

    Devices that do not exist are left out, and rows of a device above the number of its day.

    Args:
        tx: the transaction.
        rows: at most one for each device and address.
        gap_seconds: after a longer time without a sign of the device at an address, a row begins.
        most: rows of a device that begin in one day.
    """
    await tx.lock("devices", [each.device_id for each in rows])
    columns = {"device_id": "TEXT", "address": "TEXT", "began_at": "BIGINT", "ended_at": "BIGINT"}
    seen = tx.table("seen", **columns, number="BIGINT")
    is_same = """
        o.address = seen.address AND o.device_id = seen.device_id
        AND o.ended_at >= seen.began_at - :gap_seconds
    """
    seen_rows = json.dumps([each._asdict() for each in rows])
    await tx.run(
        f"""
        UPDATE device_origins AS o SET ended_at = seen.ended_at FROM {seen}
        WHERE {is_same} AND o.ended_at < seen.ended_at AND o.began_at <= seen.ended_at
        """,
        seen=seen_rows,
        gap_seconds=gap_seconds,
    )
    await tx.run(
        f"""
        INSERT INTO device_origins (device_id, began_at, address, ended_at)
        SELECT seen.device_id, seen.began_at, seen.address, seen.ended_at
        FROM {seen} JOIN devices AS d ON d.id = seen.device_id
        WHERE NOT EXISTS (SELECT 1 FROM device_origins AS o WHERE {is_same})
        AND seen.number + (
            SELECT COUNT(*) FROM device_origins AS o WHERE o.device_id = seen.device_id
            AND o.began_at >= seen.began_at - seen.began_at % {DAY_SECONDS}
        ) <= :most
        ON CONFLICT DO NOTHING
        """,
        seen=seen_rows,
        gap_seconds=gap_seconds,
        most=most,
    )


async def at(
    tx: Transaction, address: str, network: str, *, first: int, last: int, limit: int
) -> list[str]:
    """Return the devices that were seen at an address between two times, both included.

    A row has its `network`. Rows of earlier versions have the whole IPv6 address.
    """
    return await tx.all(
        str,
        """
        SELECT DISTINCT device_id FROM device_origins
        WHERE address IN (:address, :network) AND ended_at >= :first AND began_at <= :last
        ORDER BY device_id LIMIT :limit
        """,
        address=address,
        network=network,
        first=first,
        last=last,
        limit=limit,
    )


async def delete_old(tx: Transaction, *, before: int, limit: int) -> int:
    """Delete rows that ended before a time, and return their number."""
    return await tx.run(
        """
        DELETE FROM device_origins WHERE (device_id, began_at, address) IN (
            SELECT device_id, began_at, address FROM device_origins
            WHERE ended_at < :before ORDER BY ended_at LIMIT :limit
        )
        """,
        before=before,
        limit=limit,
    )

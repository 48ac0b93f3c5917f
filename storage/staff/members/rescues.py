"""Queries on the rescues of the staff: uses of the way in at the machine."""

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction, insert_row
from storage.staff.base.rows import RescueRow

COUNTED_MAX = 100


_SHOWN = """
    SELECT r.id, r.staff_id, (SELECT s.email FROM staff AS s WHERE s.id = r.staff_id), r.at,
        r.expires_at, r.acknowledged_at,
        (SELECT s.email FROM staff AS s WHERE s.id = r.acknowledged_by)
    FROM staff_rescues AS r
"""


async def insert(
    tx: Transaction, *, rescue_id: str, staff_id: str, at: int, expires_at: int
) -> None:
    """Add a rescue that waits for another operator."""
    await insert_row(
        tx, "staff_rescues", id=rescue_id, staff_id=staff_id, at=at, expires_at=expires_at
    )


async def find(tx: Transaction, rescue_id: str) -> RescueRow | None:
    """Return a rescue."""
    return await tx.one(RescueRow, f"{_SHOWN} WHERE r.id = :id", id=rescue_id)


async def newest(tx: Transaction, *, limit: int) -> list[RescueRow]:
    """Return the newest rescues, the newest first."""
    return await tx.all(
        RescueRow, f"{_SHOWN} ORDER BY r.id {NEWEST_FIRST} LIMIT :limit", limit=limit
    )


async def waiting(tx: Transaction) -> list[int]:
    """Return the times of the rescues that wait for another operator, at most `COUNTED_MAX`."""
    return await tx.all(
        int,
        """
        SELECT at FROM staff_rescues WHERE acknowledged_at IS NULL ORDER BY at, id LIMIT :limit
        """,
        limit=COUNTED_MAX,
    )


async def acknowledge(tx: Transaction, rescue_id: str, staff_id: str, now: int) -> bool:
    """Note the operator who acknowledges a rescue; return False if one did before."""
    changed = await tx.run(
        """
        UPDATE staff_rescues SET acknowledged_at = :now, acknowledged_by = :staff_id
        WHERE id = :id AND acknowledged_at IS NULL
        """,
        id=rescue_id,
        staff_id=staff_id,
        now=now,
    )
    return changed == 1

"""Queries on the keys of the staff."""

from storage.engines.store import Transaction, insert_row
from storage.staff.base.rows import OwnedKeyRow, StaffKeyRow

LISTED_MAX = 500


_COLUMNS = ", ".join(f"k.{name}" for name in StaffKeyRow._fields)
_OWNED = f"""
    SELECT {_COLUMNS}, s.email, s.role, s.locked_at
    FROM staff_keys AS k JOIN staff AS s ON s.id = k.staff_id
"""
_WIDTH = len(StaffKeyRow._fields)


def _owned(*row: object) -> OwnedKeyRow:
    return OwnedKeyRow(StaffKeyRow(*row[:_WIDTH]), *row[_WIDTH:])  # type: ignore[arg-type]


async def insert(tx: Transaction, row: StaffKeyRow) -> None:
    """Add a key."""
    await insert_row(tx, "staff_keys", **row._asdict())


async def find_by_hash(tx: Transaction, key_hash: str) -> OwnedKeyRow | None:
    """Return a key by its hash, with its member."""
    return await tx.one(_owned, f"{_OWNED} WHERE k.key_hash = :key_hash", key_hash=key_hash)


async def find(tx: Transaction, key_id: str) -> OwnedKeyRow | None:
    """Return a key by its identifier, with its member."""
    return await tx.one(_owned, f"{_OWNED} WHERE k.id = :id", id=key_id)


async def newest(tx: Transaction) -> list[OwnedKeyRow]:
    """Return the newest keys of all members, at most `LISTED_MAX`."""
    return await tx.all(_owned, f"{_OWNED} ORDER BY k.id DESC LIMIT :limit", limit=LISTED_MAX)


async def count_live(tx: Transaction, staff_id: str, now: int) -> int:
    """Return the number of a member's keys that have not ended."""
    found = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM staff_keys
        WHERE staff_id = :staff_id AND revoked_at IS NULL AND expires_at > :now
        """,
        staff_id=staff_id,
        now=now,
    )
    return found or 0


async def revoke(tx: Transaction, key_id: str, now: int) -> bool:
    """End a key; return False if it has ended before."""
    changed = await tx.run(
        """
        UPDATE staff_keys SET revoked_at = :now
        WHERE id = :id AND revoked_at IS NULL AND expires_at > :now
        """,
        id=key_id,
        now=now,
    )
    return changed == 1


async def use(tx: Transaction, key_id: str, now: int) -> None:
    """Note that a key was used."""
    await tx.run("UPDATE staff_keys SET last_used_at = :now WHERE id = :id", id=key_id, now=now)

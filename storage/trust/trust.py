"""Queries on the reputations of devices and of their owners."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class ReputationRow(NamedTuple):
    """The reputation of a device or of an owner.

    `kind` is "device" or "owner". `reliability` and `correctness` are shares in millionths.
    """

    id: str
    kind: str
    reliability: int
    correctness: int
    attempts: int
    checks: int
    streak: int


class OwnedRow(NamedTuple):
    """A device and its owner."""

    device_id: str
    user_id: str


_COLUMNS = ", ".join(ReputationRow._fields)
_TYPES = {
    "id": "TEXT",
    "kind": "TEXT",
    **dict.fromkeys(ReputationRow._fields[2:], "BIGINT"),
}


async def add(tx: Transaction, rows: Sequence[ReputationRow]) -> None:
    """Add the reputations that do not exist yet; others stay as they are."""
    names = ", ".join(f"added.{name}" for name in ReputationRow._fields)
    await tx.run(
        f"""
        INSERT INTO reputations ({_COLUMNS})
        SELECT {names} FROM {tx.table("added", **_TYPES)} WHERE TRUE
        ON CONFLICT (id) DO NOTHING
        """,
        added=_json(rows),
    )


async def find(tx: Transaction, ids: Sequence[str]) -> dict[str, ReputationRow]:
    """Return the reputations of devices and owners, by identifier; unknown ones are left out."""
    names = ", ".join(f"r.{name}" for name in ReputationRow._fields)
    rows = await tx.all(
        ReputationRow,
        f"""
        SELECT {names} FROM {tx.table("wanted", id="TEXT")}
        JOIN reputations AS r ON r.id = wanted.id
        """,
        wanted=json.dumps([{"id": each} for each in sorted(set(ids))]),
    )
    return {row.id: row for row in rows}


async def write(tx: Transaction, rows: Sequence[ReputationRow]) -> None:
    """Write reputations, which are locked."""
    changes = ", ".join(f"{name} = written.{name}" for name in ReputationRow._fields[2:])
    await tx.run(
        f"""
        UPDATE reputations SET {changes}
        FROM {tx.table("written", **_TYPES)} WHERE reputations.id = written.id
        """,
        written=_json(rows),
    )


async def count_buyer(
    tx: Transaction, *, owner_id: str, buyer_id: str, day: int, most: int
) -> bool:
    """Count one more attempt at a job of a buyer; False when `most` have counted that day."""
    counted = await tx.one(
        int,
        """
        INSERT INTO reputation_buyers (owner_id, buyer_id, day, counted)
        VALUES (:owner_id, :buyer_id, :day, 1)
        ON CONFLICT (owner_id, buyer_id) DO UPDATE SET
            counted = CASE WHEN reputation_buyers.day = excluded.day
                THEN reputation_buyers.counted + 1 ELSE 1 END,
            day = excluded.day
        WHERE reputation_buyers.day <> excluded.day OR reputation_buyers.counted < :most
        RETURNING counted
        """,
        owner_id=owner_id,
        buyer_id=buyer_id,
        day=day,
        most=most,
    )
    return counted is not None


async def count_differing(tx: Transaction, *, owner_id: str, buyer_id: str, day: int) -> bool:
    """Count a copy of a buyer that differs; False when one has counted that day."""
    counted = await tx.one(
        int,
        """
        INSERT INTO reputation_buyers (owner_id, buyer_id, day, counted, differed_on)
        VALUES (:owner_id, :buyer_id, :day, 0, :day)
        ON CONFLICT (owner_id, buyer_id) DO UPDATE SET differed_on = excluded.differed_on
        WHERE COALESCE(reputation_buyers.differed_on, -1) <> excluded.differed_on
        RETURNING counted
        """,
        owner_id=owner_id,
        buyer_id=buyer_id,
        day=day,
    )
    return counted is not None


async def owners(tx: Transaction, device_ids: Sequence[str]) -> dict[str, str]:
    """Return the owners of devices, by device."""
    rows = await tx.all(
        OwnedRow,
        f"""
        SELECT d.id, d.user_id FROM {tx.table("wanted", id="TEXT")}
        JOIN devices AS d ON d.id = wanted.id
        """,
        wanted=json.dumps([{"id": each} for each in sorted(set(device_ids))]),
    )
    return {row.device_id: row.user_id for row in rows}


def _json(rows: Sequence[ReputationRow]) -> str:
    return json.dumps([row._asdict() for row in rows])

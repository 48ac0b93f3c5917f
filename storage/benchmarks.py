"""Queries on what devices have shown that they have."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.store import Transaction


class BenchmarkRow(NamedTuple):
    """What a device has shown: hashes a second of one core and of all; time in UTC seconds."""

    device_id: str
    core_hashes: int
    hashes: int
    memory_bytes: int
    measured_at: int


_COLUMNS = ", ".join(BenchmarkRow._fields)
_VALUES = ", ".join(f":{name}" for name in BenchmarkRow._fields)
_CHANGES = ", ".join(f"{name} = excluded.{name}" for name in BenchmarkRow._fields[1:])


async def write(tx: Transaction, row: BenchmarkRow) -> None:
    """Write down what a device has shown, in the place of what it had shown before."""
    await tx.run(
        f"""
        INSERT INTO device_benchmarks ({_COLUMNS}) VALUES ({_VALUES})
        ON CONFLICT (device_id) DO UPDATE SET {_CHANGES}
        """,
        **row._asdict(),
    )


async def find(tx: Transaction, device_ids: Sequence[str]) -> dict[str, BenchmarkRow]:
    """Return what these devices have shown, of those that have."""
    names = ", ".join(f"b.{name}" for name in BenchmarkRow._fields)
    rows = await tx.all(
        BenchmarkRow,
        f"""
        SELECT {names} FROM {tx.table("wanted", id="TEXT")}
        JOIN device_benchmarks AS b ON b.device_id = wanted.id
        """,
        wanted=json.dumps([{"id": each} for each in sorted(set(device_ids))]),
    )
    return {row.device_id: row for row in rows}

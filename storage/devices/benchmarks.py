"""Queries on the benchmarks of devices."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class BenchmarkRow(NamedTuple):
    """Benchmark of a device: hashes a second of one core and of all; time in UTC seconds.

    The last two are the highest results of each that it has ever had.
    """

    device_id: str
    core_hashes: int
    hashes: int
    memory_bytes: int
    measured_at: int
    best_core_hashes: int
    best_hashes: int


_COLUMNS = ", ".join(BenchmarkRow._fields)
_VALUES = ", ".join(f":{name}" for name in BenchmarkRow._fields)
_LAST = ("core_hashes", "hashes", "measured_at")
_BEST = ("best_core_hashes", "best_hashes")
_CHANGES = ", ".join(
    [
        *(f"{name} = excluded.{name}" for name in _LAST),
        *(
            f"{name} = CASE WHEN excluded.{name} > device_benchmarks.{name}"
            f" THEN excluded.{name} ELSE device_benchmarks.{name} END"
            for name in _BEST
        ),
    ]
)


async def write(tx: Transaction, row: BenchmarkRow, *, keeps_memory: bool = False) -> BenchmarkRow:
    """Store the benchmark of a device in the place of the one before; return the stored row.

    With `keeps_memory` the stored size of the memory stays.
    """
    memory = "" if keeps_memory else "memory_bytes = excluded.memory_bytes, "
    stored = await tx.one(
        BenchmarkRow,
        f"""
        INSERT INTO device_benchmarks ({_COLUMNS}) VALUES ({_VALUES})
        ON CONFLICT (device_id) DO UPDATE SET {memory}{_CHANGES}
        RETURNING {_COLUMNS}
        """,
        **row._asdict(),
    )
    assert stored is not None  # noqa: S101 - it was just written
    return stored


async def find(tx: Transaction, device_ids: Sequence[str]) -> dict[str, BenchmarkRow]:
    """Return the benchmarks of the devices that have one."""
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

"""Queries on the evidence about a dispute: the attempts and disputes of a device."""

from typing import NamedTuple

from storage.engines.store import Transaction

COUNTED_MAX = 1_000


class DeviceHistoryRow(NamedTuple):
    """Attempts of a device by outcome, its decided samples, and its right samples."""

    attempts: int
    completed: int
    failed: int
    lost: int
    samples: int
    samples_right: int


async def device_history(tx: Transaction, device_id: str) -> DeviceHistoryRow:
    """Count the attempts of a device by outcome, at most `COUNTED_MAX`."""
    found = await tx.one(
        DeviceHistoryRow,
        """
        SELECT COUNT(*), COALESCE(SUM(CASE WHEN outcome = 'completed' THEN 1 ELSE 0 END), 0),
            COALESCE(SUM(CASE WHEN outcome = 'failed' THEN 1 ELSE 0 END), 0),
            COALESCE(SUM(CASE WHEN outcome = 'lost' THEN 1 ELSE 0 END), 0),
            COALESCE(SUM(CASE WHEN sample IN ('right', 'wrong') THEN 1 ELSE 0 END), 0),
            COALESCE(SUM(CASE WHEN sample = 'right' THEN 1 ELSE 0 END), 0)
        FROM (
            SELECT a.outcome, s.outcome AS sample FROM job_attempts AS a
            LEFT JOIN job_samples AS s ON s.job_id = a.job_id
            WHERE a.device_id = :device_id LIMIT :most
        ) AS attempts
        """,
        device_id=device_id,
        most=COUNTED_MAX,
    )
    return found or DeviceHistoryRow(0, 0, 0, 0, 0, 0)


async def text_of(tx: Transaction, log_number: int) -> str:
    """Return the text of an act of the log, "" if it has none."""
    found = await tx.one(
        str,
        """
        SELECT t.body FROM staff_log AS l JOIN texts AS t ON t.id = l.text_id
        WHERE l.number = :number
        """,
        number=log_number,
    )
    return found or ""

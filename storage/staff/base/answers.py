"""Queries on the answers to requests of the staff with an Idempotency-Key."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row

FORGET_MAX = 20  # answers that one new answer makes room for


class AnswerRow(NamedTuple):
    """The first answer to a request, sealed; created in UTC seconds."""

    staff_id: str
    idempotency_key: str
    request_hash: str
    sealed_answer: str
    created_at: int


async def find(tx: Transaction, staff_id: str, key: str) -> AnswerRow | None:
    """Return the answer that a member got with a key."""
    return await tx.one(
        AnswerRow,
        f"""
        SELECT {", ".join(AnswerRow._fields)} FROM staff_answers
        WHERE staff_id = :staff_id AND idempotency_key = :key
        """,
        staff_id=staff_id,
        key=key,
    )


async def put(tx: Transaction, row: AnswerRow, *, kept_since: int) -> None:
    """Keep an answer in place of an earlier one with its key; delete some that are too old."""
    await tx.run(
        "DELETE FROM staff_answers WHERE staff_id = :staff_id AND idempotency_key = :key",
        staff_id=row.staff_id,
        key=row.idempotency_key,
    )
    await tx.run(
        """
        DELETE FROM staff_answers WHERE (staff_id, idempotency_key) IN (
            SELECT staff_id, idempotency_key FROM staff_answers WHERE created_at <= :moment
            ORDER BY created_at LIMIT :limit
        )
        """,
        moment=kept_since,
        limit=FORGET_MAX,
    )
    await insert_row(tx, "staff_answers", **row._asdict())

"""Queries on the answers to requests with an idempotency key, for when they are repeated."""

from typing import NamedTuple

from storage.engines.store import Transaction


class AnswerRow(NamedTuple):
    """The first answer to a request, sealed; created in UTC seconds."""

    user_id: str
    idempotency_key: str
    request_hash: str
    sealed_answer: str
    created_at: int


async def insert(tx: Transaction, answer: AnswerRow) -> bool:
    """Keep an answer; False when the user has used this key before."""
    row_count = await tx.run(
        """
        INSERT INTO idempotency_keys
            (user_id, idempotency_key, request_hash, sealed_answer, created_at)
        VALUES (:user_id, :idempotency_key, :request_hash, :sealed_answer, :created_at)
        ON CONFLICT (user_id, idempotency_key) DO NOTHING
        """,
        **answer._asdict(),
    )
    return row_count == 1


async def replace(tx: Transaction, answer: AnswerRow) -> None:
    """Keep an answer in place of the one that a user got with this key before."""
    await tx.run(
        """
        UPDATE idempotency_keys SET request_hash = :request_hash, sealed_answer = :sealed_answer,
            created_at = :created_at
        WHERE user_id = :user_id AND idempotency_key = :idempotency_key
        """,
        **answer._asdict(),
    )


async def find(tx: Transaction, user_id: str, key: str) -> AnswerRow | None:
    """Return the answer that a user got with a key."""
    return await tx.one(
        AnswerRow,
        """
        SELECT user_id, idempotency_key, request_hash, sealed_answer, created_at
        FROM idempotency_keys WHERE user_id = :user_id AND idempotency_key = :key
        """,
        user_id=user_id,
        key=key,
    )


async def delete_before(tx: Transaction, moment: int, *, limit: int) -> int:
    """Delete the oldest answers up to a moment, at most `limit`. Return the number deleted."""
    return await tx.run(
        """
        DELETE FROM idempotency_keys WHERE (user_id, idempotency_key) IN (
            SELECT user_id, idempotency_key FROM idempotency_keys
            WHERE created_at <= :moment
            ORDER BY created_at
            LIMIT :limit
        )
        """,
        moment=moment,
        limit=limit,
    )

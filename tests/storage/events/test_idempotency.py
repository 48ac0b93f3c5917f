"""Answers that are kept for a day, and go in small parts."""

from support.market.market import Market

from storage.engines.store import Transaction
from storage.events import idempotency as queries
from storage.events.idempotency import AnswerRow


async def kept(tx: Transaction) -> list[str]:
    return await tx.all(str, "SELECT idempotency_key FROM idempotency_keys ORDER BY created_at")


async def test_old_answers_go_a_few_at_a_time_the_oldest_first(market: Market) -> None:
    """After any pause, no request pays for clearing all of it away."""
    user = await market.person()
    for moment in (5, 3, 1, 4, 2):
        answer = AnswerRow(user, f"key {moment}", "hash", "sealed", moment)
        await market.store.write(queries.insert, answer)
    assert await market.store.write(queries.delete_before, 4, limit=3) == 3
    assert await market.store.read(kept) == ["key 4", "key 5"]
    assert await market.store.write(queries.delete_before, 4, limit=3) == 1
    assert await market.store.read(kept) == ["key 5"]

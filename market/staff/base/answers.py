"""The answers to requests of the staff with an Idempotency-Key: repeated requests act once."""

from typing import Any

from market.base.errors import Code, MarketError
from market.events.idempotency import KEEP_SECONDS, Receipt, Replayed
from storage.engines.store import Transaction
from storage.staff.base import answers as queries
from storage.staff.base.answers import AnswerRow


async def replay(tx: Transaction, receipt: Receipt[Any]) -> None:
    """Raise the answer that a request with this key got before, if it exists.

    Raises:
        Replayed: the request was answered before; the transaction is rolled back.
        MarketError: `idempotency_key_reused`, when the key was used for another request.
    """
    request = receipt.request
    first = await queries.find(tx, request.user_id, request.name)
    if first is None or first.created_at <= request.now - KEEP_SECONDS:
        return
    answer = request.seal.open(first.sealed_answer)
    if first.request_hash != request.request_hash or answer is None:
        raise MarketError(Code.IDEMPOTENCY_KEY_REUSED, field="Idempotency-Key")
    raise Replayed(answer)


async def keep(tx: Transaction, receipt: Receipt[Any], outcome: object) -> None:
    """Keep the answer to a request, in the transaction of its act."""
    request = receipt.request
    sealed = request.seal.close(receipt.reply(outcome))
    row = AnswerRow(request.user_id, request.name, request.request_hash, sealed, request.now)
    await queries.put(tx, row, kept_since=request.now - KEEP_SECONDS)

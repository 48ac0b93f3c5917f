"""Doing something once however often it is asked: the Idempotency-Key of a request.

The first answer is stored in the transaction that does what was asked, so that either both are
there or neither is. It is sealed with a key of its own, because it may hold a secret.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from market.errors import Code, MarketError
from market.sealing import Sealing, derived
from storage import idempotency as queries
from storage.idempotency import AnswerRow
from storage.store import Arguments, Result, Store, Transaction, Unit

KEEP_SECONDS = 86_400
KEY_MAX_CHARACTERS = 255
# Each answer that is kept makes room for more than itself, and no request pays for a day of others.
FORGET_MAX_ANSWERS = 20


class Replayed(Exception):  # noqa: N818 - it is no error, the request was answered before
    """The request was answered before; `answer` is what it was answered with."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("answered before")
        self.answer = answer


class Seal(Sealing):
    """Seals answers, and tells requests apart.

    Args:
        secret: what the keys are derived from.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret, b"idempotency")
        self._fingerprint_key = derived(secret, b"fingerprint")

    def fingerprint(self, request: bytes) -> str:
        """Return what tells requests apart, and from which nobody can try what was in one."""
        return hmac.digest(self._fingerprint_key, request, "sha256").hex()


@dataclass(frozen=True, slots=True)
class Once:
    """A request to be done once.

    Args:
        user_id: who asks; keys of others are others. "" for somebody who is nobody yet.
        key: what the caller calls it.
        request_hash: what is asked, so that the same key does not answer something else.
        seal: seals the answer.
        now: UTC seconds.
    """

    user_id: str
    key: str
    request_hash: str
    seal: Seal
    now: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= KEY_MAX_CHARACTERS or not self.key.isprintable():
            message = f"An Idempotency-Key has 1 to {KEY_MAX_CHARACTERS} printable characters."
            raise MarketError(Code.INVALID_FIELD, message, field="Idempotency-Key")


@dataclass(frozen=True, slots=True)
class Remember:
    """What `write` stores: the request, and the answer to give whenever it comes again."""

    once: Once
    answer: Callable[[], bytes]


def forget(_: object) -> None:
    """Remember nothing: what is asked again is done again."""


async def write(
    store: Store,
    remember: Remember | None,
    unit: Unit[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Run a unit of work as `Store.write` does, once for each request to be remembered.

    Raises:
        Replayed: the request was answered before; nothing was done.
        MarketError: `idempotency_key_reused`, when the key was used for another request.
    """
    if remember is None:
        return await store.write(unit, *args, **kwargs)
    once = remember.once
    row = sealed(once, once.user_id, remember.answer())

    async def remembered(tx: Transaction) -> Result | AnswerRow:
        await queries.delete_before(tx, once.now - KEEP_SECONDS, limit=FORGET_MAX_ANSWERS)
        if not await queries.insert(tx, row):
            first = await queries.find(tx, once.user_id, once.key)
            if first is not None and first.created_at > once.now - KEEP_SECONDS:
                return first
            await queries.replace(tx, row)  # of a day that is over, and not forgotten yet
        return await unit(tx, *args, **kwargs)

    outcome = await store.write(remembered)
    if isinstance(outcome, AnswerRow):
        raise replay(once, outcome)
    return outcome


def sealed(once: Once, user_id: str, answer: bytes) -> AnswerRow:
    """Return a user's answer to a request as it is stored."""
    return AnswerRow(user_id, once.key, once.request_hash, once.seal.close(answer), once.now)


def replay(once: Once, first: AnswerRow) -> Exception:
    """Return what to raise for a request with a key that was used before.

    It is a `Replayed`, or a `MarketError` (`idempotency_key_reused`) when something else was asked.
    """
    answer = once.seal.open(first.sealed_answer)
    if first.request_hash != once.request_hash or answer is None:
        return MarketError(Code.IDEMPOTENCY_KEY_REUSED, field="Idempotency-Key")
    return Replayed(answer)

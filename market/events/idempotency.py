"""The Idempotency-Key of a request: repeated requests take effect once.

The first reply is kept by the transaction that does the work, so that either both are there or
neither is. It is sealed with a key of its own, because it may hold a secret.

Work in several transactions claims the key in its first one, and keeps the reply in its last one.
Until then a repetition finds the work that the first request has begun, and goes on with it.
"""

import hmac
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing, derived
from storage.engines.store import Transaction
from storage.events import idempotency as queries
from storage.events.idempotency import AnswerRow

KEEP_SECONDS = 86_400
KEY_MAX_CHARACTERS = 255
# Each reply that is kept makes room for more than itself, and no request pays for a day of others.
FORGET_MAX_ANSWERS = 20

Outcome = TypeVar("Outcome")


class Replayed(Exception):  # noqa: N818 - it is no error, the request was answered before
    """The request was answered before; `answer` is that reply."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("answered before")
        self.answer = answer


class Seal(Sealing):
    """Sealing of replies, and fingerprints of requests.

    Args:
        secret: the secret; the keys are derived from it.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__(secret, b"idempotency")
        self._fingerprint_key = derived(secret, b"fingerprint")
        # Sealed for another purpose, so that no claim is read as a reply.
        self.claims = Sealing(secret, b"idempotency claim")

    def fingerprint(self, request: bytes) -> str:
        """Return a keyed hash of a request: it distinguishes requests, and does not reveal them."""
        return hmac.digest(self._fingerprint_key, request, "sha256").hex()


class KeyedRequest(Struct, frozen=True):
    """A request with an Idempotency-Key.

    Args:
        user_id: the sender; each user has separate keys. "" for a sender without an account.
        key: the sender's name for the request.
        purse_id: the purse of the API key in use, "" for a login. Replies may hold secrets, so
            another key of the user has separate names; a key's successor continues with its names.
        request_hash: hash of its content, so that the same key does not return the reply to another
            request.
        seal: seals the reply.
        now: UTC seconds.
    """

    user_id: str
    key: str
    request_hash: str
    seal: Seal
    now: int
    purse_id: str = ""

    @property
    def name(self) -> str:
        """The stored name; the line break is in no key of a request."""
        return f"{self.purse_id}\n{self.key}" if self.purse_id else self.key

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= KEY_MAX_CHARACTERS or not self.key.isprintable():
            message = f"An Idempotency-Key has 1 to {KEY_MAX_CHARACTERS} printable characters."
            raise MarketError(Code.INVALID_FIELD, message, field="Idempotency-Key")


class Receipt(Struct, Generic[Outcome], frozen=True):
    """Storage of the reply to a keyed request, in the unit of work of the request.

    Args:
        request: the request, which takes effect once.
        reply: encodes the reply from the outcome.
    """

    request: KeyedRequest
    reply: Callable[[Outcome], bytes]

    async def keep(self, tx: Transaction, outcome: Outcome) -> None:
        """Store the reply for repetitions of the request.

        Call this before the work. Of two requests at the same time the second waits here for the
        first, so that effects of the first cannot cause a refusal of the second. The row refers to
        the user, so the account of the user is locked before (`bounds.lock_and_keep`).

        Args:
            tx: the transaction that does the work.
            outcome: the outcome of the work.

        Raises:
            Replayed: the request was answered before; the transaction is rolled back.
            MarketError: `idempotency_key_reused`, when the key was used for another request.
        """
        request, row = self.request, self._row(self.request.user_id, outcome)
        if await queries.insert(tx, row):
            await queries.delete_before(tx, request.now - KEEP_SECONDS, limit=FORGET_MAX_ANSWERS)
            return
        await self.replay(tx, row.user_id)
        await queries.replace(tx, row)  # a claim, or one of a day that is over and not deleted yet

    async def claimed(self, tx: Transaction, user_id: str) -> str | None:
        """Return the work that this request began in the last day; None if it began none.

        Raises:
            Replayed, MarketError: as `keep`.
        """
        first = await queries.find(tx, user_id, self.request.name)
        if first is None or first.created_at <= self.request.now - KEEP_SECONDS:
            return None
        return self._work_of(first)

    async def claim(self, tx: Transaction, work_id: str) -> None:
        """Claim the key for work that needs more transactions; the last one keeps the reply.

        The caller has locked the user, and then asked for earlier work (`claimed`), which this
        replaces.

        Args:
            tx: the transaction that begins the work.
            work_id: the identifier of the work.
        """
        request = self.request
        sealed = request.seal.claims.close(work_id.encode())
        row = self._sealed(request.user_id, sealed)
        if not await queries.insert(tx, row):
            await queries.replace(tx, row)
        await queries.delete_before(tx, request.now - KEEP_SECONDS, limit=FORGET_MAX_ANSWERS)

    async def keep_for(self, tx: Transaction, user_id: str, outcome: Outcome) -> None:
        """Store the reply for a user that this transaction has made, and that has used no key."""
        await queries.insert(tx, self._row(user_id, outcome))

    async def replay(self, tx: Transaction, user_id: str) -> None:
        """Raise the reply that a user got with this key in the last day, if it exists.

        For a request whose own effects would cause its refusal now.

        Raises:
            Replayed, MarketError: as `keep`.
        """
        await self.claimed(tx, user_id)

    def _row(self, user_id: str, outcome: Outcome) -> AnswerRow:
        return self._sealed(user_id, self.request.seal.close(self.reply(outcome)))

    def _sealed(self, user_id: str, sealed: str) -> AnswerRow:
        request = self.request
        return AnswerRow(user_id, request.name, request.request_hash, sealed, request.now)

    def _work_of(self, first: AnswerRow) -> str:
        """Return the work that has claimed the key; raise the reply if the work is done."""
        seal = self.request.seal
        if first.request_hash != self.request.request_hash:
            raise MarketError(Code.IDEMPOTENCY_KEY_REUSED, field="Idempotency-Key")
        answer = seal.open(first.sealed_answer)
        if answer is not None:
            raise Replayed(answer)
        work = seal.claims.open(first.sealed_answer)
        if work is None:  # sealed with an earlier secret
            raise MarketError(Code.IDEMPOTENCY_KEY_REUSED, field="Idempotency-Key")
        return work.decode()

"""Outbox: the transaction that causes a message first stores it, and a sender sends it later.

So a transaction that was rolled back sends nothing, and every committed message is sent, even after
a crash at any point. A sender claims an item for a while, sends it, and deletes it; an item is sent
twice only if its sender is killed between the last two. Items are sealed while they wait, because
they may hold secrets.

An `Outbox` is the queue of one channel: due rows, claims, growing pauses between attempts, and a
bound, beyond which rows are dropped. A row has a key: a later row replaces an earlier one that
still waits. Mail is one channel; requests for forgotten passwords are another, which
`market.recovery.recovery` reads.
"""

import asyncio
import logging
from collections.abc import Collection

from msgspec import Struct

from market.base.sealing import Sealing
from market.events.context import Context
from storage.accounts import outbox as queries
from storage.accounts.outbox import Backlog, OutboxRow
from storage.engines.store import Transaction

# At a kilobyte each, ten megabytes of the database; a day's e-mails of a busy service.
WAITING_MAX = 10_000
# Longer than any attempt may take. After a crash the other daemons wait for it to pass.
CLAIM_SECONDS = 120
OUTBOX_PURPOSE = b"outbox"  # of the key that seals waiting items
FIRST_PAUSE_SECONDS = 5  # a server that is overloaded for a moment is over it then
# Servers that refuse unknown senders at first (greylisting) accept them after five to fifteen
# minutes.
LONGEST_PAUSE_SECONDS = 900
_DOUBLINGS_MAX = 16  # far beyond the longest pause; keeps the number small

_logger = logging.getLogger("outbox")


class Item(Struct, frozen=True):
    """A claimed item: its row, and its payload unsealed."""

    row: OutboxRow
    payload: bytes

    @property
    def key(self) -> str:
        """The key of the item, for log lines."""
        return self.row.item_key


class Outbox:
    """Queue of one channel; `waiting` is its length when `tidy` last counted.

    Args:
        channel: the channel's name: "mail", for one.
        most: how many items may wait; beyond it the largest shares lose theirs.
    """

    def __init__(
        self,
        context: Context,
        sealing: Sealing,
        channel: str,
        *,
        most: int = WAITING_MAX,
    ) -> None:
        self._store = context.store
        self._sealing = sealing
        self._identifiers = context.identifiers
        self._now = context.now
        self._channel = channel
        self._most = most
        self._wakeup = asyncio.Event()
        self.waiting = 0

    def now(self) -> int:
        """Return the time of the queue, in UTC seconds."""
        return self._now()

    def item(self, key: str, *, share: str, payload: bytes, lifetime_seconds: int) -> OutboxRow:
        """Return an item's sealed row for `storage.accounts.outbox.put` in the causing transaction.

        Args:
            key: identifies the item; the item replaces a waiting one with the same key.
            share: the part of the queue that counts the item; an overflow drops items of the
                largest share.
            payload: the bytes to send.
            lifetime_seconds: the lifetime, after which it is not sent any more.
        """
        now = self._now()
        return OutboxRow(
            id=self._identifiers.new(),
            channel=self._channel,
            item_key=key,
            share=share,
            sealed_payload=self._sealing.close(payload),
            created_at=now,
            expires_at=now + lifetime_seconds,
            not_before=now,
            attempts=0,
        )

    def wake(self) -> None:
        """Wake the sender: an item was put, or a slot to send one is free."""
        self._wakeup.set()

    async def wait(self, seconds: float) -> None:
        """Wait for `wake`, at most `seconds`: another daemon's items do not cause a `wake` here."""
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()

    async def free_all(self) -> None:
        """Drop the claims of an earlier daemon; only where no other daemon can have one.

        Raises:
            StoreError: nothing was done.
        """
        await self._store.write(queries.free_all, self._channel, self._now())

    async def tidy(self) -> None:
        """Count the items, and delete those that have expired or are too many.

        Raises:
            StoreError: nothing was done.
        """
        now = self._now()
        latest = now + max(CLAIM_SECONDS, LONGEST_PAUSE_SECONDS)
        backlog = await self._store.read(queries.backlog, self._channel, now=now, latest=latest)
        self.waiting = backlog.waiting
        if backlog.expired or backlog.astray or backlog.waiting > self._most:
            await self._store.write(self._tidy, backlog, now, latest)
            self._log_losses(backlog)

    async def due(self, *, again: bool, limit: int, but: Collection[str] = ()) -> list[OutboxRow]:
        """Return the items that are due, earliest first.

        Args:
            again: True for items with an earlier attempt, False for the others.
            limit: the largest number of items.
            but: shares to leave out.

        Raises:
            StoreError: nothing was done.
        """
        return await self._store.read(
            queries.due, self._channel, again=again, but=but, now=self._now(), limit=limit
        )

    async def claim(self, row: OutboxRow) -> Item | None:
        """Claim an item; None when another sender has it, or it cannot be unsealed.

        Raises:
            StoreError: nothing was done.
        """
        now = self._now()
        if not await self._store.write(queries.claim, row, now=now, until=now + CLAIM_SECONDS):
            return None
        payload = self.opened(row)
        if payload is None:
            await self._store.write(queries.delete, row.id)
            _logger.error(
                "%s %s: given up: sealed with another signing key",
                row.channel,
                row.item_key,
            )
            return None
        return Item(row._replace(attempts=row.attempts + 1), payload)

    def opened(self, row: OutboxRow) -> bytes | None:
        """Return an item's payload; None when it was sealed with another key."""
        return self._sealing.open(row.sealed_payload)

    async def done(self, item: Item) -> None:
        """Delete an item that was sent, or is given up.

        Raises:
            StoreError: nothing was done.
        """
        await self._store.write(queries.delete, item.row.id)

    async def put_off(self, item: Item) -> int | None:
        """Give up the claim on an item that failed, and retry it after a pause that grows.

        Returns:
            The pause in seconds; None when the item expires before, so that it is given up.

        Raises:
            StoreError: nothing was done.
        """
        attempts = item.row.attempts
        assert attempts > 0  # noqa: S101 - a claim counts as one
        doublings = min(attempts - 1, _DOUBLINGS_MAX)
        pause = min(FIRST_PAUSE_SECONDS << doublings, LONGEST_PAUSE_SECONDS)
        retry_at = self._now() + pause
        if retry_at >= item.row.expires_at:
            await self.done(item)
            return None
        await self._store.write(queries.put_off, item.row, attempts=attempts, not_before=retry_at)
        return pause

    async def put_back(self, item: Item) -> None:
        """Release the claim on an item that was not tried after all; it is due immediately.

        Raises:
            StoreError: nothing was done.
        """
        attempts, now = item.row.attempts - 1, self._now()
        await self._store.write(queries.put_off, item.row, attempts=attempts, not_before=now)

    async def _tidy(self, tx: Transaction, backlog: Backlog, now: int, latest: int) -> None:
        if backlog.astray:
            await queries.bring_back(tx, self._channel, now=now, latest=latest)
        if backlog.expired:
            await queries.delete_expired(tx, self._channel, now)
        excess = backlog.waiting - backlog.expired - self._most
        if excess > 0:
            await queries.drop(tx, self._channel, excess)

    def _log_losses(self, backlog: Backlog) -> None:
        if backlog.expired:
            _logger.error(
                "%s: %d given up: expired before they could be sent",
                self._channel,
                backlog.expired,
            )
        excess = backlog.waiting - backlog.expired - self._most
        if excess > 0:
            _logger.error(
                "%s: %d dropped: more than %d were waiting", self._channel, excess, self._most
            )

"""What the service sends is stored by the transaction that causes it, and sent after that commits.

So nothing is sent that did not happen, and nothing that happened goes unsent, whatever dies in
between. An item is claimed for a while before it is sent: it is sent twice only if a daemon is
killed between sending it and deleting it. It is sealed as long as it waits.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass

from market.context import Context
from market.sealing import Sealing
from storage import outbox as queries
from storage.outbox import Backlog, OutboxRow
from storage.store import Transaction

# At a kilobyte each, ten megabytes of the database; a day's e-mails of a busy service.
WAITING_MAX = 10_000
# Longer than any attempt may take. After a crash the other daemons wait for it to pass.
CLAIM_SECONDS = 120
FIRST_PAUSE_SECONDS = 5
# Servers that put strangers off (greylisting) take them after five to fifteen minutes.
LONGEST_PAUSE_SECONDS = 900
_DOUBLINGS_MAX = 16  # far beyond the longest pause; keeps the number small

_logger = logging.getLogger("outbox")


@dataclass(frozen=True, slots=True)
class Item:
    """Something that waits: its row, and what is sealed in it."""

    row: OutboxRow
    payload: bytes

    @property
    def key(self) -> str:
        """What it is."""
        return self.row.item_key


class Outbox:
    """What waits to leave by one way.

    Args:
        context: the store, identifiers and the time.
        sealing: seals it meanwhile.
        channel: by which way it leaves.
        most: how many may wait; beyond it those go whose share is largest.
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
        self._news = asyncio.Event()
        self.waiting = 0

    def item(self, key: str, *, share: str, payload: bytes, lifetime_seconds: int) -> OutboxRow:
        """Return what is to leave as `put` stores it.

        Args:
            key: what it is; if an earlier one still waits, this takes its place.
            share: whose part of the queue it takes: who fills the queue drops their own.
            payload: what leaves.
            lifetime_seconds: how long anybody wants it.
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
        """Say that something was put, or that there is room to send more."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait until woken, or so long: other daemons put things too, and times come."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    async def free_all(self) -> None:
        """Release what an earlier daemon had claimed, where there is no other.

        Raises:
            StoreError: nothing was done.
        """
        await self._store.write(queries.free_all, self._channel, self._now())

    async def tidy(self) -> None:
        """Count what waits, and give up what has expired and what is too much.

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
        """Return what is due, earliest first.

        Args:
            again: what was tried before, or what was not.
            limit: how many at most.
            but: shares whose turn it is not.

        Raises:
            StoreError: nothing was done.
        """
        return await self._store.read(
            queries.due, self._channel, again=again, but=but, now=self._now(), limit=limit
        )

    async def claim(self, row: OutboxRow) -> Item | None:
        """Claim an item; None when another sender has it, or it cannot be unsealed any more.

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
                "%s %s is given up: it was sealed with another signing key",
                row.channel,
                row.item_key,
            )
            return None
        return Item(row._replace(attempts=row.attempts + 1), payload)

    def opened(self, row: OutboxRow) -> bytes | None:
        """Return what leaves; None when it was sealed with another key."""
        return self._sealing.open(row.sealed_payload)

    async def done(self, item: Item) -> None:
        """Delete an item that was sent, or is given up.

        Raises:
            StoreError: nothing was done.
        """
        await self._store.write(queries.delete, item.row.id)

    async def put_off(self, item: Item) -> int | None:
        """Release an item that failed; it is tried again later, each time after a longer pause.

        Returns:
            The seconds until then; None when it would have expired by then, so that it is given up.

        Raises:
            StoreError: nothing was done.
        """
        attempts = item.row.attempts
        doublings = min(attempts - 1, _DOUBLINGS_MAX)
        pause = min(FIRST_PAUSE_SECONDS << doublings, LONGEST_PAUSE_SECONDS)
        due = self._now() + pause
        if due >= item.row.expires_at:
            await self.done(item)
            return None
        await self._store.write(queries.put_off, item.row, attempts=attempts, not_before=due)
        return pause

    async def put_back(self, item: Item) -> None:
        """Release an item that was not tried after all.

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
                "%s given up, because nobody would want it any more: %d",
                self._channel,
                backlog.expired,
            )
        excess = backlog.waiting - backlog.expired - self._most
        if excess > 0:
            _logger.error(
                "%s dropped, because more than %d wait: %d", self._channel, self._most, excess
            )

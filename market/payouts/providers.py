"""Payouts that a payment service sends: the protocol of a provider, and the rounds of its batches.

A round marks approved payouts as sent, in a batch that is committed before the provider gets it. A
provider knows a batch by its identifier and sends it once, so a round after a crash sends it again
without harm. The outcomes come from questions to the provider, and each payout is booked once.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import PayoutStatus
from market.events.context import Context
from market.payments.provider import ProviderError
from market.payouts import steps
from market.payouts.details import Details, opened
from market.payouts.terms import FailReason, MethodKind
from storage.engines.store import Transaction
from storage.payouts import batches as batch_queries
from storage.payouts import methods as method_queries
from storage.payouts import payouts as queries
from storage.payouts.batches import BatchRow
from storage.payouts.payouts import PayoutRow

BATCH_MAX = 500
BATCHES_MAX = 20  # that one round asks about
_logger = logging.getLogger("payouts")


class Order(Struct, frozen=True):
    """A payout for a provider: its identifier, its destination, and the amount in micro-USD."""

    payout_id: str
    details: Details
    net: int


class Progress(Struct, frozen=True):
    """The outcome of a payout at a provider: arrived, failed for a reason, or neither yet."""

    is_paid: bool = False
    failed: FailReason | None = None


class Provider(Protocol):
    """A payment service.

    Attributes:
        name: of its batches.
        kind: of the methods that it pays to.
    """

    name: str
    kind: MethodKind

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str:
        """Send a batch once, also if it is called again. Return the provider's name of it.

        Raises:
            ProviderError: the provider did not take it; with `is_final` it never will, and nothing
                was sent.
        """

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        """Return the progress of a batch by the identifiers of its payouts.

        Raises:
            ProviderError: the provider did not answer.
        """

    async def close(self) -> None:
        """Close every connection; later calls open new ones."""


class ProviderRounds:
    """The rounds of a provider's batches."""

    def __init__(self, context: Context, sealing: Sealing, provider: Provider) -> None:
        self._context = context
        self._store = context.store
        self._sealing = sealing
        self._provider = provider

    async def run(self) -> int:
        """Send approved payouts, and book outcomes. Return the number of booked payouts.

        A batch that the provider does not take or know now waits for the next round.

        Raises:
            UnavailableError: the store did not answer.
        """
        booked = 0
        await self._store.write(self._gather)
        waiting = await self._store.read(
            batch_queries.unsettled, self._provider.name, limit=BATCHES_MAX
        )
        try:
            for batch in waiting:
                try:
                    booked += await self._advance(batch)
                except ProviderError as error:
                    _logger.warning("batch %s: %s: %s", batch.id, self._provider.name, error)
        finally:
            await self._provider.close()
        return booked

    async def _gather(self, tx: Transaction) -> None:
        """Mark approved payouts as sent, in a new batch."""
        rows = await queries.to_send(tx, (self._provider.kind,), limit=BATCH_MAX)
        if not rows:
            return
        batch_id, net = self._context.identifiers.new(), sum(row.net for row in rows)
        batch = BatchRow(batch_id, self._provider.name, len(rows), net, None, self._context.now())
        await batch_queries.insert(tx, batch)
        for row in rows:
            await steps.send(tx, self._context, row.id, batch_id)

    async def _advance(self, batch: BatchRow) -> int:
        """Send a batch, or ask about it. Return the number of payouts that ended."""
        rows = await self._store.read(queries.of_batch, batch.id)
        open_rows = [row for row in rows if row.state == PayoutStatus.SENT]
        outside_id = batch.outside_id
        if outside_id is None:
            try:
                outside_id = await self._provider.send(batch.id, await self._orders(rows))
            except ProviderError as error:
                if not error.is_final:
                    raise
                _logger.warning("batch %s: refused: %s", batch.id, error)
                refused = Progress(failed=FailReason.NOT_SENT)
                return await self._book(batch, open_rows, {row.id: refused for row in rows})
            await self._store.write(batch_queries.name_outside, batch.id, outside_id)
        return await self._book(batch, open_rows, await self._provider.look(outside_id))

    async def _orders(self, rows: Sequence[PayoutRow]) -> list[Order]:
        """Return the orders of a whole batch: the same ones each time."""
        orders = []
        for row in rows:
            method = await self._store.read(method_queries.find, row.method_id)
            assert method is not None  # noqa: S101 - a key of the schema
            try:
                details = opened(self._sealing, method.sealed)
            except MarketError as error:
                raise ProviderError(f"payout {row.id} has details that cannot be read") from error
            orders.append(Order(row.id, details, row.net))
        return orders

    async def _book(
        self, batch: BatchRow, rows: Sequence[PayoutRow], progress: Mapping[str, Progress]
    ) -> int:
        """Book the payouts that ended, and settle the batch when all have."""
        booked = 0
        for row in rows:
            found = progress.get(row.id, Progress())
            try:
                if found.failed is not None:
                    await self._store.write(steps.fail, self._context, row.id, found.failed)
                elif found.is_paid:
                    await self._store.write(steps.pay, self._context, row.id)
                else:
                    continue
            except MarketError as error:
                if error.code is not Code.PAYOUT_STATE:
                    raise
            booked += 1
        if booked == len(rows):
            await self._store.write(batch_queries.settle, batch.id, now=self._context.now())
        return booked

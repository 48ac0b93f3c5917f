"""Payouts that a payment service sends: the protocol of a provider, and the rounds of its batches.

A round marks approved payouts as sent, in a batch that is committed before the provider gets it. A
provider knows a batch by its identifier and sends it once, so a round after a crash sends it again
without harm, for as long as the provider remembers the identifier. The outcomes come from questions
to the provider, and each payout is booked once.

A provider refuses a whole batch for one wrong payout. That payout fails, and the others go on in a
new batch; if the provider does not name the wrong one, both halves go on by themselves. A batch
that may have been sent, and cannot be sent again without harm, is doubtful: the staff decides.

Money can come back weeks after it arrived. So the rounds look at a settled batch again for half a
year, at first each day and then rarer.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import PayoutStatus
from market.events.context import Context
from market.payments.provider import ProviderError
from market.payouts import steps
from market.payouts.details import Details, opened
from market.payouts.terms import DAY_SECONDS, FailReason, MethodKind
from storage.engines.store import Transaction
from storage.payouts import batches as batch_queries
from storage.payouts import methods as method_queries
from storage.payouts import payouts as queries
from storage.payouts.batches import BatchRow
from storage.payouts.payouts import PayoutRow

BATCH_MAX = 500
BATCHES_MAX = 20
# The rounds of other daemons leave a batch alone for this long; the calls about it take less.
CLAIM_SECONDS = 120
WATCH_MIN_SECONDS = DAY_SECONDS  # between two looks at a settled batch
WATCH_AGAIN_SECONDS = 3_600  # after a look without an answer
# A receiver at PayPal can send money back within 180 days.
WATCH_SECONDS = 185 * DAY_SECONDS
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


class Refusal(Struct, frozen=True):
    """A provider has refused a batch, and has sent nothing of it.

    `reasons` has the payouts that it named as the cause. Without any, each payout of the batch may
    be the cause; with `is_of_batch` none is.
    """

    words: str
    reasons: Mapping[str, FailReason] = {}
    is_of_batch: bool = False


class Provider(Protocol):
    """A payment service.

    Attributes:
        name: of its batches.
        kind: of the methods that it pays to.
        batch_max: the number of payouts in a batch, at most.
        remembers_seconds: for how long a batch that is sent again is certainly not paid again.
    """

    name: str
    kind: MethodKind
    batch_max: int
    remembers_seconds: int

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        """Send a batch once, also if it is called again. Return the provider's name of it.

        Raises:
            ProviderError: the provider did not take it now; with `is_final` it never will.
        """

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        """Return the progress of a batch by the identifiers of its payouts.

        Raises:
            ProviderError: the provider did not answer.
        """

    async def close(self) -> None:
        """Close every connection; later calls open new ones."""


async def settle_refusal(
    tx: Transaction, context: Context, batch: BatchRow, refusal: Refusal
) -> int:
    """End a refused batch: its wrong payouts fail, the others move to new batches.

    Returns:
        The number of payouts that failed; 0 if the batch has another end.
    """
    await tx.lock("payouts", [row.id for row in await queries.of_batch(tx, batch.id)])
    rows = await queries.of_batch(tx, batch.id)
    sent = [row for row in rows if row.state == PayoutStatus.SENT]
    reasons = _reasons(sent, refusal)
    rest = [row for row in sent if row.id not in reasons]
    moved = sum(row.net for row in rest)
    if not await batch_queries.settle_refused(
        tx,
        batch.id,
        payouts=len(rows) - len(rest),
        net_usd=sum(row.net for row in rows) - moved,
        now=context.now(),
    ):
        return 0
    for payout_id, reason in reasons.items():
        await steps.fail(tx, context, payout_id, reason)
    middle = len(rest) if reasons else (len(rest) + 1) // 2
    for part in (rest[:middle], rest[middle:]):
        if part:
            part_id = await add_batch(tx, context, batch.format, part, parent_id=batch.id)
            for row in part:
                await queries.move_to_part(tx, row.id, batch_id=batch.id, part_id=part_id)
    return len(reasons)


def _reasons(rows: Sequence[PayoutRow], refusal: Refusal) -> dict[str, FailReason]:
    """Return the payouts that fail by a refusal, with their reasons."""
    if refusal.is_of_batch:
        return {row.id: FailReason.NOT_SENT for row in rows}
    named = {row.id: refusal.reasons[row.id] for row in rows if row.id in refusal.reasons}
    if not named and len(rows) == 1:
        return {rows[0].id: FailReason.REFUSED}
    return named


async def add_batch(
    tx: Transaction,
    context: Context,
    form: str,
    rows: Sequence[PayoutRow],
    *,
    parent_id: str | None = None,
) -> str:
    """Add a batch for payouts, and return its identifier; the caller puts them into it."""
    batch_id, net = context.identifiers.new(), sum(row.net for row in rows)
    now = context.now()
    batch = BatchRow(batch_id, form, len(rows), net, None, now, parent_id=parent_id)
    await batch_queries.insert(tx, batch)
    return batch_id


class ProviderRounds:
    """The rounds of a provider's batches.

    Args:
        context: the store, identifiers and the time.
        sealing: opens the details of payout methods.
        provider: the payment service.
        batches_max: the number of batches that one round works on.
    """

    def __init__(
        self,
        context: Context,
        sealing: Sealing,
        provider: Provider,
        batches_max: int = BATCHES_MAX,
    ) -> None:
        self._context = context
        self._store = context.store
        self._sealing = sealing
        self._provider = provider
        self._batches_max = batches_max

    async def run(self) -> int:
        """Send approved payouts, and book outcomes. Return the number of booked payouts.

        A batch that the provider does not take or know now waits for a later round.

        Raises:
            UnavailableError: the store did not answer.
        """
        await self._store.write(self._gather)
        try:
            return await self._advance_open() + await self._watch_settled()
        finally:
            await self._provider.close()

    async def _advance_open(self) -> int:
        """Work on the batches whose payouts have not all ended."""
        booked = 0
        waiting = await self._store.read(
            batch_queries.unsettled,
            self._provider.name,
            looked_before=self._context.now() - CLAIM_SECONDS,
            limit=self._batches_max,
        )
        for batch in waiting:
            seen, at = batch.looked_at, self._context.now()
            if not await self._store.write(batch_queries.claim, batch.id, seen=seen, now=at):
                continue
            try:
                booked += await self._advance(batch._replace(looked_at=at))
            except ProviderError as error:
                _logger.warning("batch %s: %s: %s", batch.id, self._provider.name, error)
        return booked

    async def _watch_settled(self) -> int:
        """Look at settled batches again; return the number of payouts that came back."""
        booked, now = 0, self._context.now()
        due = await self._store.read(
            batch_queries.watched, self._provider.name, now=now, limit=self._batches_max
        )
        for batch in due:
            # Of two rounds one looks; after a crash or an error another round does, soon.
            soon = now + WATCH_AGAIN_SECONDS if next_watch(batch, now) else None
            plan = partial(batch_queries.watch, seen=batch.watch_at, watch_at=soon)
            if not await self._store.write(plan, batch.id):
                continue
            try:
                is_over, returned = await self._look_again(batch)
            except ProviderError as error:
                _logger.warning("batch %s: %s: %s", batch.id, self._provider.name, error)
                continue
            booked += returned
            later = None if is_over else next_watch(batch, now)
            plan = partial(batch_queries.watch, seen=soon, watch_at=later)
            await self._store.write(plan, batch.id)
        return booked

    async def _look_again(self, batch: BatchRow) -> tuple[bool, int]:
        """Book the returned payouts of a settled batch.

        Returns:
            Whether the batch needs no further look, and the number of its returned payouts.
        """
        rows = await self._store.read(queries.of_batch, batch.id)
        paid = [row for row in rows if row.state == PayoutStatus.PAID]
        if not paid or batch.outside_id is None:
            return True, 0
        progress = await self._provider.look(batch.outside_id)
        returned = 0
        for row in paid:
            failed = progress.get(row.id, Progress()).failed
            if failed is not None:
                _logger.warning("payout %s: came back: %s", row.id, failed)
                returned += await self._end(row.id, failed)
        return returned == len(paid), returned

    async def _gather(self, tx: Transaction) -> None:
        """Mark approved payouts as sent, in new batches."""
        rows = await steps.lock_approved(tx, (self._provider.kind,), BATCH_MAX)
        for begin in range(0, len(rows), self._provider.batch_max):
            part = rows[begin : begin + self._provider.batch_max]
            batch_id = await add_batch(tx, self._context, self._provider.name, part)
            for row in part:
                await steps.send(tx, self._context, row.id, batch_id)

    async def _advance(self, batch: BatchRow) -> int:
        """Send a batch, or ask about it. Return the number of payouts that ended."""
        rows = await self._store.read(queries.of_batch, batch.id)
        outside_id = batch.outside_id
        if outside_id is None:
            sent = await self._send(batch, rows)
            if not isinstance(sent, str):
                return sent
            outside_id = sent
        open_rows = [row for row in rows if row.state == PayoutStatus.SENT]
        return await self._book(batch, open_rows, await self._provider.look(outside_id))

    async def _send(self, batch: BatchRow, rows: Sequence[PayoutRow]) -> str | int:
        """Send a batch. Return the provider's name of it, or the number of payouts that failed."""
        now = self._context.now()
        if batch.tried_at is not None and now - batch.tried_at >= self._provider.remembers_seconds:
            return await self._doubt(batch, "it may have been sent, too long ago to send it again")
        try:
            orders, erased = await self._orders(rows)
        except MarketError as error:
            raise ProviderError("details of payouts cannot be read") from error
        if erased and batch.tried_at is not None:
            return await self._doubt(batch, "it may have been sent, and the user was erased since")
        if erased:
            gone = Refusal("users were erased", dict.fromkeys(erased, FailReason.METHOD_INVALID))
            return await self._store.write(settle_refusal, self._context, batch, gone)
        is_first = await self._store.write(batch_queries.begin_try, batch.id, now=now)
        try:
            sent = await self._provider.send(batch.id, orders)
        except ProviderError as error:
            if not error.is_final:
                if error.has_no_effect and is_first:
                    await self._store.write(
                        batch_queries.forget_try, batch.id, claimed_at=batch.looked_at
                    )
                raise
            sent = Refusal(str(error), is_of_batch=True)
        if isinstance(sent, str):
            await self._store.write(batch_queries.name_outside, batch.id, sent)
            return sent
        if not is_first:
            # An attempt before may have succeeded: to give the money back could pay it twice.
            return await self._doubt(
                batch, f"refused after an attempt without an answer: {sent.words}"
            )
        _logger.warning("batch %s: refused: %s", batch.id, sent.words)
        return await self._store.write(settle_refusal, self._context, batch, sent)

    async def _doubt(self, batch: BatchRow, words: str) -> int:
        """Leave a batch to the staff."""
        _logger.warning("batch %s: doubtful: %s", batch.id, words)
        await self._store.write(batch_queries.doubt, batch.id, now=self._context.now())
        return 0

    async def _orders(self, rows: Sequence[PayoutRow]) -> tuple[list[Order], list[str]]:
        """Return the orders of a whole batch, the same ones each time.

        Also the payouts without details: a database that is restored erases users again, also those
        with open payouts.
        """
        orders, erased = [], []
        for row in rows:
            method = await self._store.read(method_queries.find, row.method_id)
            assert method is not None  # noqa: S101 - a key of the schema
            if method.sealed:
                orders.append(Order(row.id, opened(self._sealing, method.sealed), row.net))
            else:
                erased.append(row.id)
        return orders, erased

    async def _book(
        self, batch: BatchRow, rows: Sequence[PayoutRow], progress: Mapping[str, Progress]
    ) -> int:
        """Book the payouts that ended, and settle the batch when all have."""
        booked = 0
        for row in rows:
            found = progress.get(row.id, Progress())
            if found.is_paid or found.failed is not None:
                await self._end(row.id, found.failed)
                booked += 1
        if booked == len(rows):
            now = self._context.now()
            await self._store.write(
                batch_queries.settle, batch.id, now=now, watch_at=now + WATCH_MIN_SECONDS
            )
        return booked

    async def _end(self, payout_id: str, failed: FailReason | None) -> bool:
        """Record that a payout arrived, or failed; False if it has another end."""
        try:
            if failed is None:
                await self._store.write(steps.pay, self._context, payout_id)
            else:
                await self._store.write(steps.fail, self._context, payout_id, failed)
        except MarketError as error:
            if error.code is not Code.PAYOUT_STATE:
                raise
            return False
        return True


def next_watch(batch: BatchRow, now: int) -> int | None:
    """Return the time of the next look at a settled batch; None when no money can come back."""
    age = now - (batch.settled_at or now)
    if age > WATCH_SECONDS:
        return None
    return now + max(WATCH_MIN_SECONDS, age // 2)

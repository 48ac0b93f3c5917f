"""The earnings of exits: paid out after a while, or reversed because an exit has cheated.

Each earning, of a session and a device, leaves its owner's pending account once: a guarded update
marks its row as paid or as reversed, in the transaction that posts the transfer.
"""

import logging
from collections.abc import Sequence

from msgspec import Struct

from market import ledger
from market.context import Context
from market.errors import Code, MarketError
from market.ledger import Movement, Transfer, TransferKind
from market.money import Currency, earned
from market.sweeping import Sweep
from storage import devices as device_queries
from storage import exits as queries
from storage.exits import ConsentRow
from storage.store import Transaction

PAID_MAX_OWNERS = 100
# Bounds a transaction; each earning is reversed by a transfer of its own.
REVERSED_MAX_EARNINGS = 200
REASON_MAX_CHARACTERS = 500

_logger = logging.getLogger("exits")


class ClawedBack(Struct, frozen=True):
    """What was taken back from an exit: earnings, their sum, and what buyers were refunded."""

    earnings: int
    amount: int
    refunded: int


class ExitPayouts:
    """Pays the owners of exits.

    Args:
        context: the store, identifiers and the time.
        hold_seconds: how long earnings stay pending.
    """

    def __init__(self, context: Context, hold_seconds: int) -> None:
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._hold_seconds = hold_seconds
        # Owners who could not be paid, and when each is tried again.
        self._paying = Sweep("exits: earnings of user %s cannot be paid out", _logger)

    async def pay_due(self) -> int:
        """Pay out what has been pending for long enough; return to how many owners.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()
        moment = now - self._hold_seconds

        async def find(limit: int) -> list[str]:
            return await self._store.read(queries.owners_to_pay, moment=moment, limit=limit)

        async def pay(user_id: str) -> None:
            transfer_id = self._identifiers.new()
            await self._store.write(_pay, user_id, transfer_id, moment=moment, now=now)

        return await self._paying.run(find, pay, most=PAID_MAX_OWNERS, now=now)


async def claw_back(context: Context, device_id: str, reason: str) -> ClawedBack:
    """Bar an exit that has cheated, and reverse what it has earned and was not paid.

    The buyers of settled sessions get the whole price of the bytes back: the owner's share from the
    pending account, the rest from the house. What it carries of sessions that are not settled
    earns and costs nothing. What was paid out before stays paid.

    Raises:
        MarketError: `token_not_found`, when it has never been an exit; `invalid_field`, when the
            reason is too long.
    """
    if not 0 < len(reason) <= REASON_MAX_CHARACTERS:
        message = f"A reason has 1 to {REASON_MAX_CHARACTERS} characters."
        raise MarketError(Code.INVALID_FIELD, message, field="reason")
    now = context.now()
    event = ConsentRow(context.identifiers.new(), device_id, "barred", "", reason, now)
    await context.store.write(_bar, event)
    total = ClawedBack(0, 0, 0)
    while True:
        transfer_ids = [context.identifiers.new() for _ in range(REVERSED_MAX_EARNINGS)]
        part = await context.store.write(_reverse, device_id, transfer_ids, now=now)
        if not part.earnings:
            return total
        total = ClawedBack(
            total.earnings + part.earnings,
            total.amount + part.amount,
            total.refunded + part.refunded,
        )


async def _pay(tx: Transaction, user_id: str, transfer_id: str, *, moment: int, now: int) -> None:
    paid = await queries.pay(tx, user_id, moment=moment, now=now)
    if not paid:
        return
    first = min(paid)
    amount = sum(row.amount for row in paid)
    movement = Movement(ledger.pending(user_id), ledger.available(user_id, Currency.USD), amount)
    # Each earning is paid once, so the first of them names this payout.
    key = f"exit:{first.session_id}:{first.device_id}:payout"
    await _post(
        tx, Transfer(transfer_id, key, TransferKind.PAYOUT, "exits", Currency.USD, (movement,), now)
    )


async def _bar(tx: Transaction, event: ConsentRow) -> None:
    await device_queries.lock(tx, event.device_id)
    if await queries.find(tx, event.device_id) is None:
        raise MarketError(Code.TOKEN_NOT_FOUND, "There is no such exit.", field="token_id")
    await queries.bar(tx, event.device_id, event.created_at)
    await queries.insert_consent(tx, event)


async def _reverse(
    tx: Transaction, device_id: str, transfer_ids: Sequence[str], *, now: int
) -> ClawedBack:
    rows = await queries.reverse(tx, device_id, now=now, limit=len(transfer_ids))
    transfers, refunded = [], 0
    for transfer_id, row in zip(transfer_ids, rows, strict=False):
        price = earned(row.used_bytes, row.price_per_gb)
        buyer = ledger.available(row.buyer_id, Currency.USD)
        house = ledger.revenue(Currency.USD)
        # By way of the house, so that the buyer's wallet has one entry.
        movements = (
            Movement(ledger.pending(row.user_id), house, row.amount),
            Movement(house, buyer, price),
        )
        key = f"exit:{row.session_id}:{device_id}:clawback"
        reference = f"bandwidth:{row.session_id}"
        transfers.append(
            Transfer(transfer_id, key, TransferKind.REFUND, reference, Currency.USD, movements, now)
        )
        refunded += price
    await ledger.lock(tx, [each for transfer in transfers for each in transfer.movements])
    for transfer in transfers:
        await _post(tx, transfer)
    return ClawedBack(len(rows), sum(row.amount for row in rows), refunded)


async def _post(tx: Transaction, transfer: Transfer) -> None:
    """Post what is posted once because its earnings are resolved once.

    Raises:
        LookupError: it was posted before; somebody has changed the earnings by hand.
    """
    if not await ledger.post(tx, transfer):
        raise LookupError(f"{transfer.business_key} was posted before")

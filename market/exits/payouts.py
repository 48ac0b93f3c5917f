"""The earnings of exits: paid out after the holding time, or reversed if an exit has cheated.

Each earning, of a session and a device, leaves its owner's pending account once: a guarded update
marks its row as paid or as reversed, in the transaction that posts the transfer.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.base.sweeping import Sweep
from market.events.context import Context
from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency, earned
from market.money.unclaimed import Return, put_aside
from market.money.unclaimed import movement as unclaimed_movement
from storage.bandwidth import sessions as bandwidth_queries
from storage.devices import devices as device_queries
from storage.engines.store import Transaction
from storage.exits import exits as queries
from storage.exits.exits import ConsentRow, DueRow, PendingRow, ReversedRow

PAID_MAX_OWNERS = 100
# Number of earnings that one search for unpaid owners reads.
DUE_MAX_EARNINGS = 10_000

_FROM_THE_OLDEST = DueRow(-1, "")
_logger = logging.getLogger("exits")


class ClawedBack(Struct, frozen=True):
    """Earnings that were taken back from an exit: number, sum, and refunds to buyers."""

    earnings: int = 0
    amount: int = 0
    refunded: int = 0

    def __add__(self, other: "ClawedBack") -> "ClawedBack":
        return ClawedBack(
            self.earnings + other.earnings,
            self.amount + other.amount,
            self.refunded + other.refunded,
        )


class ExitPayouts:
    """Payments to the owners of exits.

    Args:
        hold_seconds: how long earnings stay pending.
        due_max: among how many earnings owners to be paid are looked for at a time.
    """

    def __init__(
        self, context: Context, hold_seconds: int, due_max: int = DUE_MAX_EARNINGS
    ) -> None:
        self.due_max = due_max
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._hold_seconds = hold_seconds
        # Owners who could not be paid, and when each is tried again.
        self._paying = Sweep("exits: earnings of user %s cannot be paid out", _logger)
        self._after = _FROM_THE_OLDEST

    async def pay_due(self) -> int:
        """Pay out earnings that were pending for the holding time. Return the number of owners.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()
        moment = now - self._hold_seconds

        async def find(limit: int) -> list[str]:
            return await self._owners(moment, limit)

        async def pay(user_id: str) -> None:
            new_id = self._identifiers.new
            ids = EarningIds(new_id(), new_id())
            await self._store.write(_pay, user_id, ids, moment=moment, now=now)

        return await self._paying.run(find, pay, most=PAID_MAX_OWNERS, now=now)

    async def _owners(self, moment: int, limit: int) -> list[str]:
        """Return owners with earnings that were posted at `moment` or before.

        The search reads a bounded number of earnings. If these belong to fewer owners than `limit`,
        the next search reads the earnings behind them, and after the last it starts again with the
        oldest. So a few owners that cannot be paid never hide the others, with any number of
        earnings.
        """
        due = await self._store.read(
            queries.due_to_pay, moment=moment, after=self._after, limit=self.due_max
        )
        owners = list(dict.fromkeys(row.user_id for row in due))
        if len(due) < self.due_max:
            self._after = _FROM_THE_OLDEST
        elif len(owners) <= limit:
            self._after = due[-1]
        return owners[:limit]


class EarningIds(NamedTuple):
    """Identifiers of the transfer that pays or reverses an earning, and of the one to the house.

    The second transfer is only made if the receiver is erased.
    """

    payment: str
    unclaimed: str


async def _pay(tx: Transaction, user_id: str, ids: EarningIds, *, moment: int, now: int) -> None:
    """Pay the due earnings of an owner.

    Bytes of a session are posted as earnings later, perhaps after the erasure of the owner.
    """
    paid = await queries.pay(tx, user_id, moment=moment, now=now)
    if not paid:
        return
    first = min(paid)
    amount = sum(row.amount for row in paid)
    movement = Movement(
        ledger.pending(user_id),
        ledger.available(user_id, Currency.USD),
        amount,
        sum(row.earned for row in paid),
    )
    # Each earning is paid once, so the first of them names this payout.
    key = partial(_key, first.session_id, first.device_id, first.number)
    await ledger.lock(tx, [movement, unclaimed_movement(user_id, Currency.USD)])
    kind = TransferKind.PAYOUT
    await _post(
        tx, Transfer(ids.payment, key("payout"), kind, "exits", Currency.USD, (movement,), now)
    )
    reference = _reference(first.session_id)
    back = Return(user_id, Currency.USD, amount, key("unclaimed"), reference)
    await put_aside(tx, back, transfer_id=ids.unclaimed, now=now)


def _reference(session_id: str) -> str:
    """Return the reference of the transfers that belong to a session."""
    return f"bandwidth:{session_id}"


def _key(session_id: str, device_id: str, number: int, what: str) -> str:
    """Return the business key of the transfer that resolves an earning."""
    return f"exit:{session_id}:{device_id}:{number}:{what}"


async def bar(tx: Transaction, event: ConsentRow) -> None:
    """Bar a device from being an exit.

    Raises:
        MarketError: `token_not_found`, when it has never been one.
    """
    await device_queries.lock(tx, event.device_id)
    if await queries.find(tx, event.device_id) is None:
        raise MarketError(Code.TOKEN_NOT_FOUND, "There is no such exit.", field="token_id")
    await queries.bar(tx, event.device_id, event.created_at)
    await queries.insert_consent(tx, event)


def worth(row: PendingRow) -> int:
    """Return the micro-USD that the reversal of an earning moves at most.

    The buyer of a settled session gets the price of the bytes back, which is the owner's share and
    more.
    """
    return max(row.amount, earned(row.used_bytes, row.price_per_gb))


async def reverse(
    tx: Transaction,
    device_id: str,
    pending: Sequence[PendingRow],
    transfer_ids: Sequence[EarningIds],
    *,
    now: int,
) -> ClawedBack:
    """Reverse pending earnings of a barred exit; those that were just paid are left out.

    The buyers of settled sessions get the whole price of the bytes back: the owner's share from the
    pending account, the rest from the house. In sessions that are not settled, the bytes of this
    exit are free; their posted and pending earnings return to the house. Earnings that were paid
    out before stay paid. The money of a buyer who is erased stays with the house, as unclaimed.

    Args:
        tx: the transaction.
        device_id: the exit.
        pending: the earnings; each is reversed by a transfer of its own.
        transfer_ids: identifiers for each.
        now: the time.
    """
    # A settlement would decide the receiver of the money, so these sessions stay unsettled
    # meanwhile.
    await bandwidth_queries.lock(tx, sorted({row.session_id for row in pending}))
    rows = await queries.reverse(tx, device_id, pending, now=now)
    transfers, backs = [], []
    for ids, row in zip(transfer_ids, rows, strict=False):
        price = 0
        if row.status != SessionStatus.ACTIVE:
            price = earned(row.used_bytes, row.price_per_gb)
        transfers.append(_reversal(ids.payment, device_id, row, price, now))
        key = _key(row.session_id, device_id, row.number, "unclaimed")
        reference = _reference(row.session_id)
        backs.append((ids, Return(row.buyer_id, Currency.USD, price, key, reference)))
    aside = [unclaimed_movement(back.user_id, Currency.USD) for _, back in backs if back.amount]
    await ledger.lock(
        tx, [*(each for transfer in transfers for each in transfer.movements), *aside]
    )
    for transfer in transfers:
        await _post(tx, transfer)
    for ids, back in backs:
        await put_aside(tx, back, transfer_id=ids.unclaimed, now=now)
    refunded = sum(back.amount for _, back in backs)
    return ClawedBack(len(rows), sum(row.amount for row in rows), refunded)


def _reversal(transfer_id: str, device_id: str, row: ReversedRow, price: int, now: int) -> Transfer:
    """Return the transfer that takes an earning back, and refunds a buyer that has paid for it."""
    pending, house = ledger.pending(row.user_id), ledger.revenue(Currency.USD)
    if row.status == SessionStatus.ACTIVE:  # its buyer has not paid, and will not
        kind = TransferKind.REVERSAL
        movements: tuple[Movement, ...] = (Movement(pending, ledger.exit_payable(), row.amount),)
    else:
        kind = TransferKind.REFUND
        buyer = ledger.available(row.buyer_id, Currency.USD)
        # By way of the house, so that the buyer's wallet has one entry.
        movements = (Movement(pending, house, row.amount), Movement(house, buyer, price))
    key = _key(row.session_id, device_id, row.number, "clawback")
    reference = _reference(row.session_id)
    return Transfer(transfer_id, key, kind, reference, Currency.USD, movements, now)


async def _post(tx: Transaction, transfer: Transfer) -> None:
    """Post a transfer, which must be new, because its earnings are resolved once.

    Raises:
        LookupError: it was posted before; the table of earnings was changed by hand.
    """
    if not await ledger.post(tx, transfer):
        raise LookupError(f"{transfer.business_key} was posted before")

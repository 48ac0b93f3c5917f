"""Debts that a sweep pays with money that has arrived since.

The account buys nothing and gets no payout until then, so money that arrives stays. Deposits and
the ends of sessions pay debts themselves; this sweep pays with refunds of jobs, deploys and
claw-backs, and with earnings. A debt for a payment is paid by any available USD, as a deposit does.
A debt for earnings that were taken back after their payout is paid only by earned money: with a
reward in its place, the reward would leave the service as the payout that was not earned.
"""

import logging

from market.base.sweeping import Sweep
from market.events.context import Context
from market.money import debts, ledger
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money import debts as queries
from storage.money import ledger as ledger_queries
from storage.money.debts import DebtSource

SWEPT_MAX = 100

_logger = logging.getLogger("payouts")


class DebtSweeper:
    """The debts of users, paid with their available money."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store
        self._sweep = Sweep("the debt of %s cannot be paid", _logger)

    async def sweep(self) -> int:
        """Pay debts with the money that is available; return the number of users.

        Raises:
            UnavailableError: the store did not answer; they wait.
        """

        async def find(limit: int) -> list[str]:
            rows = await self._store.read(queries.debtors, limit=limit)
            return [f"{row.user_id}:{row.currency}" for row in rows]

        async def collect(debtor: str) -> None:
            user_id, _, currency = debtor.partition(":")
            await self._store.write(self._collect, user_id, Currency(currency))

        now = self._context.now()
        return await self._sweep.run(find, collect, most=SWEPT_MAX, now=now)

    async def _collect(self, tx: Transaction, user_id: str, currency: Currency) -> None:
        await ledger.lock(tx, debts.accounts(user_id, currency))
        # First those for earnings, which no other money pays.
        for source in (DebtSource.EARNINGS, DebtSource.PAYMENT):
            money = await ledger_queries.balances(tx, ledger.available(user_id, currency))
            new_id = self._context.identifiers.new
            await debts.pay(
                tx,
                user_id,
                money.earned if source is DebtSource.EARNINGS else money.balance,
                cause=new_id(),
                new_id=new_id,
                now=self._context.now(),
                currency=currency,
                only=source,
            )

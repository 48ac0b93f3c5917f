"""Debts for earnings that were taken back after their payout: later earnings pay them first.

The account buys nothing and gets no payout until then, so earned money that arrives stays until a
sweep pays with it. Only earned money pays here: with a reward in its place, the reward would leave
the service as the payout that was not earned.
"""

import logging

from market.base.sweeping import Sweep
from market.events.context import Context
from market.money import debts, ledger
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money import debts as queries
from storage.money import ledger as ledger_queries

SWEPT_MAX = 100

_logger = logging.getLogger("payouts")


class EarningDebts:
    """The debts of users for earnings."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store
        self._sweep = Sweep("the debt of %s cannot be paid", _logger)

    async def sweep(self) -> int:
        """Pay debts with the earned money that is available; return the number of users.

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
        balances = await ledger_queries.balances(tx, ledger.available(user_id, currency))
        new_id = self._context.identifiers.new
        await debts.pay(
            tx,
            user_id,
            balances.earned,
            cause=new_id(),
            new_id=new_id,
            now=self._context.now(),
            currency=currency,
            is_earned=True,
        )

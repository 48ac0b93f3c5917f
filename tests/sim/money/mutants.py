"""Faults of payments, top-ups and payouts that are put into the product; see `tests.sim.mutants`.

Each has its name, its module, the text there, and the text instead. Found by this seed of those
from 1 on, in the order of the list: 12, 1, 1, 3, 3, 499, 3, 41, 183, 16, 5, 5, 44, 5, 5.
"""

_BOOKING = "market.payments.booking"
_PAYMENTS = "market.payments.payments"
_RETURNING = "market.payments.returning"
_STEPS = "market.payouts.steps"
_ROWS = "storage.payouts.payouts"

MONEY_MUTANTS: tuple[tuple[str, ...], ...] = (
    (
        "payments: a payment is credited whatever the bank has",
        _BOOKING,
        "    difference = doubt(row, seen)\n",
        '    difference = ""\n',
    ),
    (
        "payments: the money is credited twice",
        _BOOKING,
        "        (Movement(ledger.deposits(Currency.USD), account, row.amount),),\n",
        "        (Movement(ledger.deposits(Currency.USD), account, row.amount),) * 2,\n",
    ),
    (
        "payments: nobody looks for lost notices",
        _PAYMENTS,
        "        return await self._sweep.run(find, look, most=SWEPT_MAX, now=self._now())\n",
        "        return 0 if find and look else 1\n",
    ),
    (
        "payments: a suspended user pays",
        "market.accounts.suspensions",
        "    await _require(tx, user_id, Part.PURCHASES)\n",
        "",
    ),
    (
        "refunds: nothing is held",
        _RETURNING,
        "    if held:\n        await ledger.hold(\n",
        "    if held < 0:\n        await ledger.hold(\n",
    ),
    (
        "refunds: an older report takes a refund back",
        _BOOKING,
        "    if row.status == ReturnStatus.DONE and after is ReturnStatus.PENDING:\n",
        "    if row.status == ReturnStatus.DONE and after is ReturnStatus.DONE:\n",
    ),
    (
        "disputes: money that was spent is no debt",
        _RETURNING,
        "        await debt_queries.insert(tx, row.id, row.user_id, lost, now)\n",
        "",
    ),
    (
        "top-ups: the ceiling of a month may be exceeded once",
        "market.payments.top_ups",
        "        if month.amount + row.amount > ceiling:\n",
        "        if month.amount > ceiling:\n",
    ),
    (
        "top-ups: a charge without an answer is forgotten",
        _PAYMENTS,
        "            taken = await self._find_charge(provider.cards, charge)\n",
        "            taken = None\n",
    ),
    (
        "top-ups: a removed card stays at the bank",
        "market.payments.cards",
        (
            "        await queries.forget(tx, row.card_id, row.provider, now)\n"
            "        await queries.clear_card(tx, user_id)\n"
        ),
        "        await queries.clear_card(tx, user_id)\n",
    ),
    (
        "payouts: an exported payout stays approved",
        "market.staff.money.paying",
        "            await steps.send(tx, context, row.id, batch_id)\n",
        "",
    ),
    (
        "payouts: a payout that failed keeps its money",
        _STEPS,
        "    if row is not None:\n        await _release(tx, context, row)\n    else:\n",
        "    if row is None:\n",
    ),
    (
        "payouts: a payout of a suspended user is sent",
        _ROWS,
        "SELECT 1 FROM suspended_parts AS s WHERE s.user_id = p.user_id",
        "SELECT 1 FROM suspended_parts AS s WHERE s.user_id = p.id",
    ),
    (
        "payouts: a step is taken in any state, also after a cancellation",
        _ROWS,
        "        WHERE id = :id AND state = :before\n",
        "        WHERE id = :id AND :before = :before\n",
    ),
    (
        "payouts: a doubtful batch is sent again",
        "market.payouts.providers",
        (
            "        if batch.tried_at is not None and now - batch.tried_at >="
            " self._provider.remembers_seconds:\n"
        ),
        "        if batch.tried_at is not None and now < batch.created_at:\n",
    ),
)

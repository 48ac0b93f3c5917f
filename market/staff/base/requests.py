"""Ends of requests that wait for a second person, and their end with an account.

The end of an account makes requests moot: they can be decided no more. A closing ends deposits that
wait: their money has not reached the account, and a request of the staff must not keep its user. It
ends other requests to close the account. An erasure ends requests to erase the account as well.
"""

from collections.abc import Collection
from enum import StrEnum

from market.events.context import Context
from market.staff.base.acts import USER, Act, Changes, act
from market.staff.base.roles import Action, Rule
from storage.engines.store import Transaction
from storage.staff.money import approvals as queries
from storage.staff.money import money_writes as writes
from storage.staff.money.approvals import ApprovalRow

BY_CLOSING = frozenset((Action.MONEY_DEPOSIT, Action.USER_CLOSE))
BY_ERASURE = BY_CLOSING | {Action.USER_ERASE}
RULE = Rule("closed accounts")


class Decision(StrEnum):
    """End of a request."""

    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"


async def end_moot(
    tx: Transaction, context: Context, user_id: str, actions: Collection[Action]
) -> Changes:
    """End the requests about a user within an act, and return them as its changes.

    A request that ends before its time was neither approved nor refused: it is moot.
    """
    rows = await _waiting(tx, user_id, actions)
    for row in rows:
        await writes.decide(tx, row.id, Decision.EXPIRED, by=None, now=context.now())
    return {f"approval {row.id}": ("waits", "moot") for row in rows}


async def end_before_closing(tx: Transaction, context: Context, user_id: str) -> None:
    """End the requests that would outlive the closing of an account by its user.

    A rule is the author of this act. It locks the log, so it comes first in its transaction.
    """
    if not await _waiting(tx, user_id, BY_CLOSING):
        return

    async def change(tx: Transaction) -> tuple[None, Changes]:
        return None, await end_moot(tx, context, user_id, BY_CLOSING)

    made = Act(RULE, Action.APPROVAL_REFUSE, USER, user_id, user_id)
    await act(tx, context, made, change)


async def _waiting(tx: Transaction, user_id: str, actions: Collection[Action]) -> list[ApprovalRow]:
    rows = await queries.undecided_of(tx, user_id)
    return [row for row in rows if row.action in actions]

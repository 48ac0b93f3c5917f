"""Money that goes to the house with an account: one person gives up no more than the limit.

The limit is that of corrections, and counts with them. A request above it names the money that its
user has, with the holds of proxy sessions, which end before a closing. The approval gives up no
more than that.
"""

from market.erasure.erasing import require_at_most
from market.events.context import Context
from market.money.money import Currency
from market.staff.base import requests
from market.staff.base.acts import REPEATED, Changes
from market.staff.base.roles import Action, Author
from market.staff.money import approvals
from market.staff.money.approvals import (
    Amount,
    Limits,
    Outcome,
    Payload,
    State,
    author_key,
    waived_by,
)
from market.staff.money.second_person_limit import needs_second_person
from storage.engines.store import Transaction
from storage.erasure import open_things
from storage.staff.base import log as log_queries
from storage.staff.money import approvals as queries

_WORDS = {Action.USER_CLOSE: "close", Action.USER_ERASE: "erase"}


async def request_of(tx: Transaction, action: Action, user_id: str, *, waives: bool) -> Amount:
    """Return the end of an account as an act that can wait, with the money that it gives up."""
    payload = {"waives": int(waives)}
    if waives:
        payload |= await open_things.money(tx, user_id)
    return Amount(action, f"{_WORDS[action]}:{user_id}", user_id, Currency.USD, 0, {**payload})


async def exceeds(
    tx: Transaction, context: Context, author: Author, new: Amount, limits: Limits
) -> bool:
    """Return whether the money that an act gives up needs a second person."""
    for each in _amounts(new, 0):
        if await needs_second_person(tx, context, author, each, limits):
            return True
    return False


async def ask(
    tx: Transaction, context: Context, author: Author, new: Amount
) -> tuple[Outcome, Changes]:
    """Store the end of an account as a request, unless an equal one waits.

    It replaces a request that names other money.
    """
    ended: Changes = {}
    found = await queries.find_open(tx, new.business_key)
    if found is not None and found.payload != approvals.encoded(new.payload):
        ended = await requests.end_moot(tx, context, new.user_id, (new.action,))
    waiting = await approvals.earlier(tx, context, new)
    if waiting is not None:
        return waiting, {REPEATED: (None, waiting.id)}
    outcome, changes = await approvals.ask(tx, context, author, new)
    return outcome, {**changes, **ended}


async def record(tx: Transaction, context: Context, author: Author, new: Amount) -> Changes:
    """Record the money that one person gives up alone, so that it counts towards the limit."""
    number = (await log_queries.head(tx)).number + 1
    changes: dict[str, tuple[None, int]] = {}
    for each in _amounts(new, number):
        await approvals.record(
            tx, context, author_key(author), each, act_id=new.user_id, approval_id=None
        )
        changes[f"waived_{each.currency}"] = (None, -each.amount)
    return changes


async def require_within(tx: Transaction, user_id: str, payload: Payload) -> None:
    """Check that a user has no more money than the payload of a request gives up.

    Raises:
        MarketError: `account_not_empty`.
    """
    if payload["waives"]:
        most = waived_by(payload)
        for currency, amount in (await open_things.money(tx, user_id)).items():
            require_at_most(Currency(currency), amount, most)


def done(new: Amount) -> Outcome:
    """Return the outcome of an act that is carried out."""
    return Outcome(
        State.DONE, new.user_id, new.user_id, new.currency, new.amount, moves_money=False
    )


def _amounts(new: Amount, number: int) -> list[Amount]:
    """Return the amounts that an act gives up, under keys of the row of the log with a number."""
    return [
        Amount(
            new.action,
            f"{new.business_key}:{number}:{currency}",
            new.user_id,
            currency,
            -amount,
            new.payload,
        )
        for currency, amount in waived_by(new.payload).items()
    ]

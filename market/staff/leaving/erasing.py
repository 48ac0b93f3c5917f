"""Erasure of accounts: by the staff, with a second person, and by the end of 14 closed days.

Each erasure has its row in the log. The second person approves it as an act that moves no money.
"""

import logging

from market.base.errors import Code, MarketError
from market.base.states import ClosureStatus
from market.base.sweeping import Sweep
from market.erasure import erasing
from market.erasure.erasing import Tools
from market.events.context import Context
from market.staff.base import requests
from market.staff.base.acts import USER, Act, Changes, act, reason
from market.staff.base.roles import Action, Author
from market.staff.finding.users import find
from market.staff.leaving import waiving
from market.staff.money.approvals import Amount, Limits, Outcome, Posting, waived_by
from storage.accounts import closures
from storage.engines.store import Transaction

DUE_MAX = 20  # of one look; an erasure may touch thousands of rows

_logger = logging.getLogger("erasure")


async def erase(
    context: Context,
    tools: Tools,
    author: Author,
    name: str,
    *,
    waives: bool,
    needs_second: bool,
    limits: Limits,
    why: str,
) -> Outcome:
    """Erase an account, or ask a second person to do it.

    Args:
        context: the store, identifiers and the time.
        tools: the last e-mail, and marks.
        author: of the act.
        name: of the user.
        waives: whether the user has given up the money that is left.
        needs_second: whether a second person has to approve it, whatever it gives up.
        limits: the money that one person may give up.
        why: the reason; the log keeps it, so it should name no person.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`;
            `account_not_empty`, with all that is open; `account_closed`, when it was erased before.
    """
    text = reason(why)
    user = await find(context, author, name)

    async def change(tx: Transaction) -> tuple[Outcome, Changes]:
        if await closures.is_erased(tx, user.id):
            raise MarketError(Code.ACCOUNT_CLOSED, "The account was erased before.")
        new = await waiving.request_of(tx, Action.USER_ERASE, user.id, waives=waives)
        if needs_second or await waiving.exceeds(tx, context, author, new, limits):
            return await waiving.ask(tx, context, author, new)
        outcome, changes = await _carry_out(tx, context, tools, new)
        return outcome, {**changes, **await waiving.record(tx, context, author, new)}

    made = Act(author, Action.USER_ERASE, USER, user.id, user.id, text)
    done = await context.store.write(act, context, made, change)
    tools.letters.wake()
    return done


class Eraser:
    """Carries out erasures that a second person approves."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def post(
        self, tx: Transaction, context: Context, new: Amount, _: Posting
    ) -> tuple[Outcome, Changes]:
        """Erase the account of a request.

        Raises:
            MarketError: as `market.erasure.erasing.erase`.
        """
        return await _carry_out(tx, context, self._tools, new)


async def _carry_out(
    tx: Transaction, context: Context, tools: Tools, new: Amount
) -> tuple[Outcome, Changes]:
    waives = bool(new.payload["waives"])
    most = waived_by(new.payload) if waives else None
    await erasing.erase(tx, context, tools, new.user_id, waives=waives, most=most)
    ended = await requests.end_moot(tx, context, new.user_id, requests.BY_ERASURE)
    return waiving.done(new), {"account": (None, "erased"), **ended}


class Erasures:
    """Erases closed accounts once their 14 days are over."""

    def __init__(self, context: Context, tools: Tools) -> None:
        self._context = context
        self._store = context.store
        self._tools = tools
        self._sweep = Sweep("the closed account %s cannot be erased", _logger)

    async def erase_due(self) -> int:
        """Erase the closed accounts that are due. Return their number.

        An account that has money again waits, and delays no other.

        Raises:
            StoreError: they are erased later.
        """
        now = self._context.now()

        async def due(limit: int) -> list[str]:
            return await self._store.read(closures.due, now=now, limit=limit)

        return await self._sweep.run(due, self._erase, most=DUE_MAX, now=now)

    async def _erase(self, user_id: str) -> None:
        async def change(tx: Transaction) -> tuple[None, Changes]:
            closure = await closures.find(tx, user_id)
            is_due = closure is not None and closure.due_at <= self._context.now()
            if closure is None or closure.state != ClosureStatus.CLOSED or not is_due:
                return None, {"account": (None, "open")}  # its user came back meanwhile
            await erasing.erase(tx, self._context, self._tools, user_id, waives=False)
            ended = await requests.end_moot(tx, self._context, user_id, requests.BY_ERASURE)
            return None, {"account": ("closed", "erased"), **ended}

        made = Act(requests.RULE, Action.USER_ERASE, USER, user_id, user_id)
        await self._store.write(act, self._context, made, change)
        self._tools.letters.wake()

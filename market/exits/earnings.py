"""Earnings of exits: posted every hour of a session, the rest at its settlement.

The house posts them to owners' pending accounts from its debt to exits (`ledger.exit_payable`). The
buyer's money is held meanwhile, and pays the house back when the session is settled. The row of
each earning has the number of its bytes, so the next earning begins behind them.

An exit's earning is computed from its count of bytes under each lease, rounded down. At settlement
the capture pays all of it to `exit_payable`, and the rest to the house's revenue. The row of a
posting is marked once, as paid or as reversed, by a guarded update.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from market.base.states import SessionStatus
from market.events.context import Context
from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency
from storage.bandwidth import sessions as bandwidth_queries
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction
from storage.exits import exits as queries
from storage.exits.exits import ActiveRow, EarnedRow, EarningRow

_logger = logging.getLogger("exits")


class AdvancePace(Struct, frozen=True):
    """The time between posts of earnings while sessions go on, and their sizes.

    Attributes:
        seconds: the time of the clock between two posts.
        least: a tenth of a cent. Less waits for more, or for the end of the session, so that no
            more rows are written for good than a thousand a dollar.
        sessions: the sessions of one transaction.
        earnings: the earnings of one transaction.
    """

    seconds: int = 3_600
    least: int = 1_000
    sessions: int = 100
    earnings: int = 1_000


USUAL_PACE = AdvancePace()


class ExitAdvances:
    """Posts the earnings of exits from sessions that continue."""

    def __init__(self, context: Context, pace: AdvancePace = USUAL_PACE) -> None:
        self.pace = pace
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._hour = -1  # in which all was posted last, counted from 1970

    async def advance_due(self) -> int:
        """Post all earnings, once per hour of the clock. Return the number of earnings.

        Raises:
            UnavailableError: the store did not answer; the next call begins again.
        """
        hour = self._now() // self.pace.seconds
        if hour == self._hour:
            return 0
        posted = await self.advance()
        self._hour = hour
        return posted

    async def advance(self) -> int:
        """Post the new earnings of exits. Return the number of earnings.

        A session that cannot be posted for is logged, and does not delay the others.

        Raises:
            UnavailableError: the store did not answer; the posted earnings stay.
        """
        posted, after = 0, ActiveRow(-1, "")
        while True:
            sessions = await self._store.read(
                queries.sessions_to_advance, after=after, limit=self.pace.sessions
            )
            if not sessions:
                return posted
            posted += await self._advance_some([each.id for each in sessions])
            after = sessions[-1]

    async def _advance_some(self, session_ids: Sequence[str]) -> int:
        """Post for some sessions together, and one by one if that fails."""
        try:
            return await self._advance(session_ids)
        except UnavailableError:
            raise
        except Exception:
            if len(session_ids) == 1:
                _logger.exception(
                    "session %s: the earnings of its exits cannot be posted", session_ids[0]
                )
                return 0
        posted = 0
        for session_id in session_ids:
            posted += await self._advance_some([session_id])
        return posted

    async def _advance(self, session_ids: Sequence[str]) -> int:
        total = 0
        while True:
            posted = await self._store.write(
                _advance, session_ids, self._identifiers.new(), self.pace, now=self._now()
            )
            total += posted
            if posted < self.pace.earnings:
                return total


def unposted(row: EarnedRow) -> EarningRow:
    """Return the earning of a device from a session that is not posted yet."""
    return EarningRow(
        row.session_id,
        row.device_id,
        row.postings,
        row.user_id,
        row.used_bytes - row.posted_bytes,
        row.amount - row.posted,
        row.is_barred,
    )


def movements(earnings: Sequence[EarningRow]) -> list[Movement]:
    """Return the movements of earnings: to each owner the earnings of exits that are not barred."""
    shares: Counter[str] = Counter()
    for each in earnings:
        if not each.is_barred:
            shares[ledger.pending(each.user_id)] += each.amount
    return [
        Movement(ledger.exit_payable(), account, amount)
        for account, amount in sorted(shares.items())
    ]


async def record(
    tx: Transaction, earnings: Sequence[EarningRow], reference: str, transfer_id: str, now: int
) -> None:
    """Store earnings, and post them to the pending accounts of their owners.

    The caller has locked their sessions and devices.

    Raises:
        LookupError: they were posted before; the table of earnings was changed by hand.
    """
    earnings = [each for each in earnings if each.amount]
    if not earnings:
        return
    await queries.insert_earnings(tx, earnings, now)
    first = min(earnings)
    # Each earning is recorded once, so the first of them names this transfer.
    key = f"exit:{first.session_id}:{first.device_id}:{first.number}:earning"
    kind, moved = TransferKind.EXIT_EARNING, movements(earnings)
    if not moved:
        return
    transfer = Transfer(transfer_id, key, kind, reference, Currency.USD, moved, now)
    if not await ledger.post(tx, transfer):
        raise LookupError(f"{key} was posted before")


async def _advance(
    tx: Transaction, session_ids: Sequence[str], transfer_id: str, pace: AdvancePace, *, now: int
) -> int:
    await bandwidth_queries.lock(tx, session_ids)
    statuses = await bandwidth_queries.status_of(tx, session_ids)
    active = [each for each in session_ids if statuses.get(each) == SessionStatus.ACTIVE]
    rows = await queries.to_advance(tx, active, least=pace.least, limit=pace.earnings)
    await record(tx, [unposted(row) for row in rows], "exits", transfer_id, now)
    return len(rows)

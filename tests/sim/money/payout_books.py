"""Rules about payouts: after every commit, at each sending, and at the end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from market.money.money import Currency
from market.payouts.providers import Progress
from market.payouts.rules import earnings_of
from tests.sim.checks import run_now
from tests.sim.money.plans import EARNERS, earner_name
from tests.sim.money.senders import Outside
from tests.sim.store import Commit

if TYPE_CHECKING:
    from tests.sim.clients import Network

_PAYOUTS = "SELECT id, user_id, state, usd - fee FROM payouts ORDER BY id"
_CAPTURED = """
    SELECT COALESCE(SUM(captured), 0) FROM holds
    WHERE user_id = :user AND currency = :currency AND id NOT LIKE 'payout:%'
"""
_SUSPENDED = "SELECT DISTINCT user_id FROM suspended_parts"
# Steps that a suspended user does not have.
_FORBIDDEN = frozenset((("", "requested"), ("requested", "approved"), ("approved", "sent")))


class PayoutBooks:
    """Compares the payouts with the money that has left.

    Args:
        network: has the database.
        outside: has the truth.
    """

    def __init__(self, network: "Network", outside: Outside) -> None:
        self.network = network
        self.outside = outside
        outside.asked = self.sent
        self._states: dict[str, str] = {}
        self._suspended: set[str] = set()

    def _rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.network.books.database.rows(sql, **values)

    def _fail(self, text: str) -> None:
        self.network.world.fail(text)

    def sent(self, payout_ids: Sequence[str]) -> None:
        """Fail if a payout leaves twice, or without the state `sent`."""
        states = {row[0]: (row[2], row[3]) for row in self._rows(_PAYOUTS)}
        for payout_id in payout_ids:
            state, _ = states.get(payout_id, ("unknown", 0))
            if payout_id in self.outside.sent:
                self._fail(f"the payout {payout_id[-6:]} leaves a second time")
            if state != "sent":
                self._fail(f"the payout {payout_id[-6:]} leaves, and is {state}")

    def committed(self, commit: Commit) -> None:
        """Compare the payouts after a commit."""
        rows = self._rows(_PAYOUTS)
        for payout_id, user_id, state, net in rows:
            before = self._states.get(payout_id, "")
            if before != state:
                self._moved(payout_id, before, state, net)
                if (before, state) in _FORBIDDEN and user_id in self._suspended:
                    self._fail(f"{commit.name} makes a payout of {user_id} {state}, in suspension")
        is_moved = {row[0]: row[2] for row in rows} != self._states
        self._states = {row[0]: row[2] for row in rows}
        self._suspended = {user_id for (user_id,) in self._rows(_SUSPENDED)}
        if is_moved:
            self._compare_earnings()

    def _moved(self, payout_id: str, before: str, state: str, net: int) -> None:
        """Fail if a payout has another state than its money."""
        progress = self.outside.progress.get(payout_id, Progress())
        sent, name = self.outside.sent.get(payout_id, []), payout_id[-6:]
        if state == "paid" and not (sent == [net] and self._has_arrived(progress)):
            self._fail(f"the payout {name} of {net} is paid, and {sent} has left: {progress}")
        if state == "failed" and sent and progress.failed is None:
            self._fail(f"the payout {name} has failed, and {sent} has left: {progress}")
        if state in ("cancelled", "rejected") and sent:
            self._fail(f"the payout {name} was {before}, is {state}, and {sent} has left")

    def _has_arrived(self, progress: Progress) -> bool:
        """Return whether a payout has arrived; it may have come back since."""
        return progress.is_paid or progress.failed is not None

    def _compare_earnings(self) -> None:
        """Fail if earnings are not available, held, in payouts, paid or kept as a fee."""
        for number in range(EARNERS):
            user_id = earner_name(number)
            for currency in Currency:

                async def read(store: Any, a: str = user_id, b: Currency = currency) -> Any:
                    return await store.read(earnings_of, a, b)

                found = run_now(read, self.network.books.database)
                ((captured,),) = self._rows(_CAPTURED, user=user_id, currency=currency)
                if not 0 <= found.spent <= captured:
                    self._fail(f"{user_id} has spent {found.spent} of {found} in {currency}")

    def check(self) -> None:
        """Fail if a payout is open, or has another end than its money."""
        for payout_id, _, state, net in self._rows(_PAYOUTS):
            progress = self.outside.progress.get(payout_id, Progress())
            sent, name = self.outside.sent.get(payout_id, []), payout_id[-6:]
            if state in ("requested", "approved", "sent"):
                self._fail(f"the payout {name} is {state} at the end: {sent}, {progress}")
            if (state == "paid") != progress.is_paid:
                self._fail(f"the payout {name} of {net} is {state} at the end: {sent}, {progress}")

"""Rewards for photos of good deeds, which the staff may take back.

The service keeps no photo. The evidence is the verdict of the model, the hash of the file, and the
other rewards of the user.
"""

from market.events.context import Context
from market.money.money import as_decimal
from market.staff.base.acts import Changes
from market.staff.cases.base import (
    HISTORY_MAX,
    Case,
    CaseKind,
    Decision,
    Evidence,
    Fact,
    Kind,
    PastEvent,
)
from storage.assistant import assistant as queries
from storage.assistant.assistant import RewardRow
from storage.engines.store import Transaction
from storage.staff.cases import case_decisions


class Rewards(CaseKind):
    """Paid rewards; the amount of a void one is taken back. Its photo earns nothing again."""

    async def find(self, tx: Transaction, case_id: str) -> Case | None:
        """Return a reward."""
        row = await queries.find_reward(tx, case_id)
        return None if row is None else _case(row)

    async def page(self, tx: Transaction, *, user_id: str, before: str, limit: int) -> list[Case]:
        """Return the newest rewards, of a user or of all users."""
        rows = await queries.rewards_page(tx, user_id=user_id, before=before, limit=limit)
        return [_case(row) for row in rows]

    async def evidence(self, tx: Transaction, case: Case) -> Evidence:
        """Return the verdict of the model, and the newest rewards of the user."""
        row = await queries.find_reward(tx, case.id)
        assert row is not None  # noqa: S101 - no reward is deleted
        others = await queries.rewards_page(tx, user_id=case.user_id, before="", limit=HISTORY_MAX)
        decided = await case_decisions.of_cases(tx, Kind.REWARD, [each.id for each in others])
        paid = await queries.paid_on(tx, day=row.day, user_id=row.user_id)
        facts = [
            Fact("category", row.category),
            Fact("confidence", row.confidence),
            Fact("model", row.model),
            Fact("amount in credits", as_decimal(row.amount)),
            Fact("sha256 of the photo", row.file_hash),
            Fact("credits of the user on that day", as_decimal(paid.to_user)),
            Fact("decisions about the user's rewards", len(decided)),
            Fact("of these void", sum(each.decision == "voided" for each in decided.values())),
        ]
        past = [
            PastEvent(
                each.created_at,
                f"reward: {each.category}",
                decided[each.id].decision if each.id in decided else as_decimal(each.amount),
            )
            for each in reversed(others)
            if each.id != case.id
        ]
        return Evidence(facts, past)

    async def void(self, _tx: Transaction, _context: Context, _case: Case, /) -> Changes:
        """Do nothing: a reward moved an amount only."""
        return {}

    def words(self, case: Case, decision: Decision) -> str:
        """Return the decision in a sentence for the user."""
        amount = as_decimal(-case.void_amount)
        if decision is Decision.UPHELD:
            return f"The staff has looked at your reward of {amount} credits for a photo. It stays."
        return f"The staff has taken back your reward of {amount} credits for a photo."


def _case(row: RewardRow) -> Case:
    return Case(
        Kind.REWARD,
        row.id,
        row.user_id,
        row.created_at,
        row.category,
        void_amount=-row.amount,
    )

"""Rewards for photos, without a photo and a model."""

import hashlib

from market.assistant import goodness
from market.assistant.goodness import DAY_SECONDS, RewardOutcome, RewardTerms
from market.events.context import Context
from market.money.money import MICRO
from market.photos.likeness import Likeness
from storage.assistant.assistant import RewardRow

TERMS = RewardTerms({"help": MICRO}, 0.5, 1_000 * MICRO, 10_000 * MICRO)


async def rewarded(context: Context, user: str, credits_: int) -> str:
    """Pay a user a reward of some credits, and return it."""
    now, reward_id = context.now(), context.identifiers.new()
    row = RewardRow(
        id=reward_id,
        user_id=user,
        day=now // DAY_SECONDS,
        category="help",
        confidence=0.9,
        model="a model",
        amount=credits_ * MICRO,
        file_hash=hashlib.sha256(reward_id.encode()).hexdigest(),
        created_at=now,
    )
    paid = await context.store.write(
        goodness.pay,
        context,
        row,
        Likeness((), ()),
        TERMS,
        transfer_id=context.identifiers.new(),
    )
    assert paid.outcome is RewardOutcome.PAID
    return reward_id

"""How the API shows the reputation of a device: as shares of 1."""

import math

from msgspec import Struct

from market.trust import reputation
from market.trust.reputation import WHOLE


class Reputation(Struct):
    """Share of accepted work that a device did, and share of its right results.

    `score` is the lesser of the two, and `trust.min_reputation` of a job or a deploy is compared
    with it.

    `reliability` is made of `attempts`, later ones weighing more, and is 0.5 before the first;
    `correctness` is made of `checks`, and 1 before the first.
    """

    score: float
    reliability: float
    correctness: float
    attempts: int
    checks: int


def in_millionths(share: float) -> int:
    """Return the least score that a buyer asks for; rounded up, or 0.9 might be 899,999."""
    return math.ceil(round(share * WHOLE, 3))


def shown(of: reputation.Reputation) -> Reputation:
    """Return a reputation as it is shown."""
    return Reputation(
        score=of.score / WHOLE,
        reliability=of.reliability / WHOLE,
        correctness=of.correctness / WHOLE,
        attempts=of.attempts,
        checks=of.checks,
    )

"""Reputation: how often a device did what it took on, and how often that was right.

Both are shares in millionths in which later events weigh more than earlier ones, and only whole
numbers are computed with, so that every daemon comes to the same. Who has done nothing yet is not
bad: such a device stands where one stands of whose attempts every other one was lost.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from market.attempts.attempts import FailureKind

WHOLE: Final = 1_000_000
# Where a device begins: above one that loses most of what it takes, below one that has shown more.
NEW_RELIABILITY: Final = WHOLE // 2
# An attempt moves the share by a sixteenth of the way: after ten good ones a new device has 0.74,
# after forty 0.96, and one that is lost then costs it what a dozen good ones bring back.
ATTEMPT_PARTS: Final = 16
CHECK_PARTS: Final = 16
# A result that is not right is no bad luck: half of the trust is gone.
WRONG_PARTS: Final = 2


class Reputation(Struct, frozen=True):
    """What is known of a device, or of all devices of an owner; shares in millionths.

    Attributes:
        reliability: the share of attempts that were neither lost nor failed at by the device.
        correctness: the share of checks in which its result was right.
        attempts: how many attempts have counted.
        checks: how many results were checked.
        streak: how many checks were right since one was not.
    """

    reliability: int = NEW_RELIABILITY
    correctness: int = WHOLE
    attempts: int = 0
    checks: int = 0
    streak: int = 0

    @property
    def score(self) -> int:
        """What a buyer's demand is compared with: nobody makes up for lies by being on time."""
        return min(self.reliability, self.correctness)

    def after_attempt(self, *, is_good: bool) -> "Reputation":
        """Return what it is after an attempt."""
        reliability = _moved(self.reliability, is_good, ATTEMPT_PARTS)
        return replace(self, reliability=reliability, attempts=self.attempts + 1)

    def after_check(self, *, is_right: bool) -> "Reputation":
        """Return what it is after a result was checked."""
        parts = CHECK_PARTS if is_right else WRONG_PARTS
        return replace(
            self,
            correctness=_moved(self.correctness, is_right, parts),
            checks=self.checks + 1,
            streak=self.streak + 1 if is_right else 0,
        )


NEW: Final = Reputation()


def of_device(device: Reputation | None, owner: Reputation | None) -> Reputation:
    """Return what counts for a device.

    A device that has done nothing yet begins no better than its owner stands: a new token forgets
    nothing. And whose other devices were caught is not believed with this one either.

    Args:
        device: what is known of itself; None for nothing.
        owner: what is known of all devices of its owner; None for nothing.
    """
    owner = owner or NEW
    if device is None:
        device = replace(NEW, reliability=min(NEW_RELIABILITY, owner.reliability))
    return replace(device, correctness=min(device.correctness, owner.correctness))


def is_good(outcome: str, kind: FailureKind | None, *, has_begun: bool) -> bool | None:
    """Say whether an attempt speaks for its device, or against it; None when for neither.

    What the job itself came to never counts: else a buyer could make devices look bad by jobs that
    fail. Nor does a device that refuses a job before it has begun: owners have rules of their own,
    which no job is matched with.

    Args:
        outcome: how the attempt ended.
        kind: whose fault it was, as the device says.
        has_begun: whether work had begun.
    """
    if outcome == "completed":
        return True
    if outcome != "lost":
        return None
    return False if kind is not FailureKind.REFUSED or has_begun else None


def _moved(share: int, is_up: bool, parts: int) -> int:
    """Return a share moved by a part of the way; by at least 1, unless it is there."""
    way = WHOLE - share if is_up else share
    step = -(-way // parts)
    return share + step if is_up else share - step

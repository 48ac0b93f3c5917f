"""Reputation: the share of attempts that a device completed, and the share of right results.

Both are shares in millionths in which later events weigh more than earlier ones. The arithmetic
uses integers, so that every daemon gets the same result. A new device is not bad: it has the same
value as a device that loses every second attempt.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from market.attempts.attempts import FailureKind

WHOLE: Final = 1_000_000
# Value of a new device: above a device that loses most of its attempts, below a device with a
# better record.
NEW_RELIABILITY: Final = WHOLE // 2
# An attempt moves the share by a sixteenth of the way: after ten good ones a new device has 0.74,
# after forty 0.96, and a lost one then costs it a loss that a dozen good ones make up for.
ATTEMPT_PARTS: Final = 16
CHECK_PARTS: Final = 16
# A result that is not right is no bad luck: half of the trust is gone.
WRONG_PARTS: Final = 2


class Loss(Struct, frozen=True):
    """Loss of a reputation by a wrong result.

    Attributes:
        correctness: the part that was lost, in millionths.
        streak: the number of right checks in a row before it.
        checks: the number of checks up to the wrong one.
    """

    correctness: int
    streak: int
    checks: int


class Reputation(Struct, frozen=True):
    """Record of a device, or of all devices of an owner; shares in millionths.

    Attributes:
        reliability: the share of attempts that were neither lost nor failed at by the device.
        correctness: the share of checks in which its result was right.
        attempts: the number of attempts that have counted.
        checks: the number of checked results.
        streak: the number of right checks since the last wrong one.
    """

    reliability: int = NEW_RELIABILITY
    correctness: int = WHOLE
    attempts: int = 0
    checks: int = 0
    streak: int = 0

    @property
    def score(self) -> int:
        """Value to compare with a buyer's minimum: reliability does not offset wrong results."""
        return min(self.reliability, self.correctness)

    def after_attempt(self, *, is_good: bool) -> "Reputation":
        """Return the reputation after an attempt."""
        reliability = _moved(self.reliability, is_good, ATTEMPT_PARTS)
        return replace(self, reliability=reliability, attempts=self.attempts + 1)

    def after_check(self, *, is_right: bool) -> "Reputation":
        """Return the reputation after the check of a result."""
        parts = CHECK_PARTS if is_right else WRONG_PARTS
        return replace(
            self,
            correctness=_moved(self.correctness, is_right, parts),
            checks=self.checks + 1,
            streak=self.streak + 1 if is_right else 0,
        )

    def loss_to(self, after: "Reputation") -> Loss:
        """Return what a wrong result has taken; `after` is the reputation after its check."""
        return Loss(self.correctness - after.correctness, self.streak, after.checks)

    def without(self, loss: Loss) -> "Reputation":
        """Return the reputation without a wrong check, which was none.

        The lost part comes back, up to the whole. Right checks since then count on from the row
        that the wrong one ended, unless there was another wrong one.
        """
        is_unbroken = self.checks - loss.checks == self.streak
        return replace(
            self,
            correctness=min(WHOLE, self.correctness + loss.correctness),
            checks=max(0, self.checks - 1),
            streak=self.streak + loss.streak if is_unbroken else self.streak,
        )


NEW: Final = Reputation()


def of_device(device: Reputation | None, owner: Reputation | None) -> Reputation:
    """Return the effective reputation of a device.

    A new device begins at most at its owner's value, so a new token does not clear a record. If
    other devices of the owner were caught, the correctness of this one falls as well.

    Args:
        device: its own record; None without one.
        owner: the record of all devices of its owner; None without one.
    """
    owner = owner or NEW
    if device is None:
        device = replace(NEW, reliability=min(NEW_RELIABILITY, owner.reliability))
    return replace(device, correctness=min(device.correctness, owner.correctness))


def is_good(outcome: str, kind: FailureKind | None, *, has_begun: bool) -> bool | None:
    """Return whether an attempt counts for its device or against it; None for neither.

    The result of the work itself never counts: otherwise a buyer could harm devices with jobs that
    fail. A refusal before the work has begun does not count either, because owners have rules of
    their own that the matching does not know.
    """
    if outcome == "completed":
        return True
    if outcome != "lost":
        return None
    return False if kind is not FailureKind.REFUSED or has_begun else None


def _moved(share: int, is_up: bool, parts: int) -> int:
    """Return a share moved towards a goal by a part of the way: by at least 1 if it differs."""
    way = WHOLE - share if is_up else share
    step = -(-way // parts)
    return share + step if is_up else share - step

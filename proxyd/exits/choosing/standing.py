"""Records of exits: their scores, their faults, and their rests.

The theory of operation is in `directory.py`.
"""

from typing import Final, final

HALF_LIFE_DIALS: Final = 200  # after this number of dials an outcome counts half
NEWCOMER_DIALS: Final = 50  # the score of an exit with fewer dials means little
NEWCOMER_SHARE: Final = 0.1  # part of the usual weight that a newcomer gets
COOLING_FAILURES: Final = 3  # in a row: one or two happen to every exit
COOLING_SECONDS: Final = 30.0  # doubled each time
COOLING_MOST_SECONDS: Final = 3600.0

_FADING: Final = 1 - 0.5 ** (1 / HALF_LIFE_DIALS)


@final
class Rest:
    """Rests after failures in a row: each is longer than the one before.

    `coolings` counts them since the last success.
    """

    __slots__ = ("coolings", "until")

    def __init__(self) -> None:
        self.coolings = 0
        self.until = 0.0

    def begin(self, now: float) -> None:
        """Rest, unless it rests already: dials that fail while it rests had begun before."""
        if now >= self.until:
            seconds = COOLING_SECONDS * 2.0 ** min(self.coolings, 10)
            self.until = now + min(seconds, COOLING_MOST_SECONDS)
            self.coolings += 1


@final
class Grudge:
    """The faults of one exit for one buyer since their last success; `failures` are in a row.

    `failed_at` is when the last one was counted.
    """

    __slots__ = ("failed_at", "failures", "rest")

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = 0.0
        self.rest = Rest()

    def fail(self, now: float, began: float) -> bool:
        """Count the fault of a dial that began at a time; False if the last fault stands for it."""
        if began < self.failed_at:
            return False
        self.failures += 1
        self.failed_at = now
        if self.failures >= COOLING_FAILURES:
            self.rest.begin(now)
        return True

    def forgive(self) -> None:
        """Subtract a fault: it was the target's."""
        self.failures -= 1
        if self.failures < COOLING_FAILURES:
            self.rest = Rest()


@final
class Standing:
    """The record of an exit: its score, and its rest.

    `score` is the mean of its dials' successes, the latest counting most. `faults` are its own
    since its last success, by site, with the buyer that met each: one of each buyer counts. The
    last one was counted at `failed_at`. `has_failed` says whether the latest dial was a fault, and
    `noted_at` when that was. `is_contradicted` says that another exit has reached a target that it
    called unreachable. `picks` is how often it was chosen in the minute `minute`.
    """

    __slots__ = (
        "dials",
        "failed_at",
        "faults",
        "has_failed",
        "is_contradicted",
        "minute",
        "noted_at",
        "picks",
        "rest",
        "score",
    )

    def __init__(self) -> None:
        self.score = 1.0
        self.dials = 0
        self.faults: dict[str, str] = {}
        self.failed_at = 0.0
        self.rest = Rest()
        self.has_failed = False
        self.is_contradicted = False
        self.noted_at = 0.0
        self.minute = 0
        self.picks = 0

    def succeed(self) -> None:
        """Record that the exit has reached a target."""
        self._rate(1.0)
        self.faults.clear()
        self.rest.coolings = 0

    def fail(self, site: str, buyer: str, now: float, began: float) -> None:
        """Record that a dial which began at a time has failed at a site for a buyer."""
        if began < self.failed_at or site in self.faults or buyer in self.faults.values():
            return
        self._rate(0.0)
        self.failed_at = now
        self.faults[site] = buyer
        if len(self.faults) >= COOLING_FAILURES:
            self.rest.begin(now)
            # The next fault after its rest has it rest again.
            del self.faults[next(iter(self.faults))]

    def absolve(self, site: str) -> None:
        """Take back a fault: it was the site's."""
        if self.faults.pop(site, None) is not None:
            self.score = min(1.0, self.score + max(_FADING, 1 / self.dials))

    def count(self, minute: int) -> None:
        """Record that the exit was chosen."""
        if self.minute != minute:
            self.minute, self.picks = minute, 0
        self.picks += 1

    def weight(self, minute: int) -> float:
        """Return how good a choice it is: better with a good score, worse when it is in use."""
        weight = self.score if self.dials >= NEWCOMER_DIALS else self.score * NEWCOMER_SHARE
        return weight / (1 + self.picks) if self.minute == minute else weight

    def _rate(self, success: float) -> None:
        self.dials += 1
        self.score += max(_FADING, 1 / self.dials) * (success - self.score)

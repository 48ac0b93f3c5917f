"""Plain counters of the daemon's work: cheap to keep, and read when metrics are collected."""

from collections import Counter
from typing import Final

# Of any length for the compiler, which otherwise makes objects of all these numbers for each loop.
LATENCY_BOUNDS_SECONDS: Final[tuple[float, ...]] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class Latency:
    """Distribution of a duration: the counts up to each bound, and the total count."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        index = 0  # most are below the first bounds, and found sooner than by bisection
        for bound in LATENCY_BOUNDS_SECONDS:
            if seconds <= bound:
                break
            index += 1
        self.counts[index] += 1
        self.seconds += seconds


class Counters:
    """Counts of the proxy's clients and their ends; bytes are those of ended connections."""

    __slots__ = (
        "accepted",
        "bytes_down",
        "bytes_up",
        "dial_failures",
        "dials",
        "handshake_failures",
        "open_relays",
        "refused",
        "relays",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.bytes_up = 0
        self.bytes_down = 0
        # Begun; open TCP relays are in `open_relays`.
        self.relays = {"tcp": 0, "udp": 0}
        self.open_relays = 0
        self.handshake_failures: Counter[str] = Counter()
        self.dial_failures: Counter[str] = Counter()
        self.dials = Latency()


class ExitCounters:
    """Counts of exits, of their connections, and of dials through them.

    `cut` are exits that were let go of, `refused` those that were not taken, each by reason.
    `canaries` are checks of an exit's honesty, by their results, and `canary_failures` the
    findings, by kind.
    """

    __slots__ = (
        "arrivals_refused",
        "attached",
        "canaries",
        "canary_failures",
        "cut",
        "dials",
        "failovers",
        "hedges",
        "parked",
        "refused",
        "seconds",
    )

    def __init__(self) -> None:
        self.attached = 0
        self.refused: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.arrivals_refused: Counter[str] = Counter()
        self.parked = 0  # now
        # By the outcome that the exit reported, or "lost".
        self.dials: Counter[str] = Counter()
        self.failovers = 0
        self.hedges = 0
        self.canaries: Counter[str] = Counter()
        self.canary_failures: Counter[str] = Counter()
        self.seconds = Latency()


class RuleCounters:
    """Counts of sessions that rules against abuse have found, and of their halts, by rule."""

    __slots__ = ("found", "stopped")

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()

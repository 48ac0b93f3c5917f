"""Faults of a run, as a list that `shrink` can shorten.

Each run leaves half of the kinds out, or more (swarm testing): few kinds at once reach states that
a mix of all of them hides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

LATENCY_LEAST_SECONDS = 0.000_2
LATENCY_MOST_SECONDS = 0.003
DELAY_MOST_SECONDS = 2.0
# Slightly less than the longest wait for an answer.
SLOW_MOST_SECONDS = 5.5


class Mode(NamedTuple):
    """How daemons share a database.

    Attributes:
        name: its name in the log.
        has_link: whether other processes may share the database.
        is_remote: whether a network lies between a process and the database.
    """

    name: str
    has_link: bool
    is_remote: bool


SOLO = Mode("solo", has_link=False, is_remote=False)
PROCESSES = Mode("processes", has_link=True, is_remote=False)
NODES = Mode("nodes", has_link=True, is_remote=True)
MODES = {each.name: each for each in (SOLO, PROCESSES, NODES)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, time, duration and target.

    Attributes:
        kind: one of `KINDS`.
        at: the time of its beginning, in seconds.
        seconds: how long it lasts, or until a stopped process starts again.
        target: the number of the process that it hits, modulo the number of processes.
        value: a probability, an offset in seconds, or a number, by its kind.
    """

    kind: str
    at: float
    seconds: float
    target: int
    value: float = 0.0

    @property
    def until(self) -> float:
        """Time of its end."""
        return self.at + self.seconds

    def __str__(self) -> str:
        return f"{self.kind}@{self.at:.2f}+{self.seconds:.2f} node {self.target} {self.value:.3g}"


# By kind: the longest time, the range of the value, and the modes that have it; "" for all.
KINDS: dict[str, tuple[float, tuple[float, float], str]] = {
    "before": (10.0, (0.01, 0.3), ""),  # requests are lost on their way
    "after": (10.0, (0.01, 0.3), "nodes"),  # answers are lost on their way
    "delay": (10.0, (0.01, 0.2), ""),  # requests or answers take up to two seconds
    "twice": (20.0, (0.05, 0.5), "nodes"),  # units conflict, and are run again
    "outage": (6.0, (0, 0), ""),  # the database answers nothing
    "partition": (8.0, (0, 0), "nodes"),  # a process cannot reach it
    "link": (0.0, (0, 0), "nodes"),  # the server ends the connection of a link
    "kill": (6.0, (0, 0), ""),  # SIGKILL, and a new start
    "commit": (6.0, (1, 60), ""),  # SIGKILL at a commit of the process: even before, odd after it
    "machine": (6.0, (0, 0), ""),  # the machine loses power, with the bytes in its queues
    "stop": (4.0, (0, 0), ""),  # an orderly stop, and a new start
    "freeze": (9.0, (0, 0), ""),  # SIGSTOP, then SIGCONT
    "sleep": (30.0, (0, 0), ""),  # the machine sleeps: its monotonic clock stands still
    "clock": (10.0, (-86_400, 86_400), ""),  # the wall clock of a process is set
    "dbclock": (10.0, (-86_400, 86_400), "nodes"),  # the clock of the database is set
    "cancel": (15.0, (0.1, 0.9), ""),  # clients of the API give up
    "answers": (15.0, (0.05, 0.5), ""),  # answers of the API are lost on their way
    "cut": (0.0, (0, 0), ""),  # every client of a process loses its connection
}
# A run with one subject has more kinds: "slow", answers take up to five seconds; "settle",
# settlements are lost on their way; "spent", SIGKILL when a session has just been used up, before
# the answer to that report (0) or at the next unit (1); "late", answers to openings take five
# seconds; "nap", the machine sleeps as soon as the database has the next renewal of a process (0),
# or the process stands still from its next opening on (1).
SILENCES_SHARE = 0.6
SILENCES = frozenset(("freeze", "outage", "partition", "sleep"))
SILENT_KINDS = frozenset(("answers", "cancel", "clock", "dbclock", "cut"))


class Trip(NamedTuple):
    """The fate of a request and its answer; times in seconds."""

    there: float
    back: float
    is_lost: bool
    is_answer_lost: bool
    is_twice: bool
    patience: float


def drawn(draw: Random, mode: Mode, seconds: float, timeout: float) -> list[Fault]:
    """Return the faults of a run.

    Args:
        draw: the random stream.
        mode: the mode, which has only some kinds of faults.
        seconds: the time in which faults hold.
        timeout: of nodes, in seconds; many silences are a little shorter or longer.
    """
    names = [kind for kind, (_, _, only) in KINDS.items() if only in ("", mode.name)]
    share = (0.15, 0.3, 0.5)[int(draw.random() * 3)]
    silent = SILENCES_SHARE if draw.random() < 0.5 else 0.0
    kept = [
        name
        for name in names
        if draw.random() < (max(share, silent) if name in SILENCES else share)
    ]
    faults = []
    for kind in kept:
        longest, (least, most), _ = KINDS[kind]
        for _ in range(1 + int(draw.random() * 2.5)):
            at = 0.5 + draw.random() * (seconds - 0.5)
            # Short times are more frequent: many bounds of the product are a few seconds.
            length = min(longest * draw.random() ** 2, max(0.0, seconds - at))
            silence = timeout * (0.7 + 0.9 * draw.random())
            if draw.random() < 0.5 and kind in SILENCES:
                at = min(at, max(0.5, seconds - silence))
                length = min(silence, seconds - at)
            value = least + (most - least) * draw.random()
            faults.append(
                Fault(kind, round(at, 3), round(length, 3), int(draw.random() * 12), value)
            )
    return sorted(faults, key=lambda each: each.at)


class Weather:
    """The faults that hold at the present time.

    Args:
        faults: all faults of the run.
        names: the names of the processes, in the order of their numbers.
        now: returns the time.
        skew: delay of the wall clock of every other process, in seconds, for the whole run.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        names: Sequence[str],
        now: Callable[[], float],
        skew: float = 0.0,
    ) -> None:
        self.faults = faults
        self._skewed = dict.fromkeys(names[1::2], -skew)
        self._names = names
        self._now = now
        self._by_kind: dict[str, list[Fault]] = {}
        for fault in faults:
            self._by_kind.setdefault(fault.kind, []).append(fault)
        # The greatest value of each kind that holds now, until the next fault begins or ends.
        self._values: dict[str, float] = {}
        self._changes = sorted({each for fault in faults for each in (fault.at, fault.until)})
        self._changes_at = 0.0

    def _holding(self) -> dict[str, float]:
        """Return the kinds of faults that hold now, each with its greatest value."""
        now = self._now()
        if now >= self._changes_at:
            self._values = {}
            for fault in self.faults:
                if fault.at <= now < fault.until:
                    value = self._values.get(fault.kind, fault.value)
                    self._values[fault.kind] = max(value, fault.value)
            self._changes_at = next((each for each in self._changes if each > now), inf)
        return self._values

    def latency(self, a: float) -> float:
        """Return the seconds that a message takes without faults; a few messages take ten times
        longer.
        """
        span = LATENCY_MOST_SECONDS * (10 if a > 0.98 else 1) - LATENCY_LEAST_SECONDS
        return LATENCY_LEAST_SECONDS + span * ((a * 97) % 1.0)

    def trip(self, unit: str, a: float, b: float, c: float, d: float, *, writes: bool) -> Trip:
        """Return the fate of a request to the database."""
        there, back = self.latency(a), self.latency(b)
        holding = self._holding()
        if not holding:
            return Trip(there, back, False, False, False, 0.0)
        value = holding.get
        delay = value("delay", 0.0)
        if delay and c < delay:
            if d < 0.5:
                there += DELAY_MOST_SECONDS * a
            else:
                back += DELAY_MOST_SECONDS * a
        if (c * 17) % 1.0 < value("slow", 0.0):
            back += SLOW_MOST_SECONDS * a
        if unit == "open_lease" and (c * 19) % 1.0 < value("late", 0.0):
            back += SLOW_MOST_SECONDS - 0.5 * a
        is_lost = b < value("before", 0.0)
        if unit in ("settle", "settle_or_recall") and (b * 13) % 1.0 < value("settle", 0.0):
            is_lost = True
        is_answer_lost = not is_lost and (b * 31) % 1.0 < value("after", 0.0)
        # Mostly the caller notices the broken connection soon; sometimes it waits for its timeout.
        patience = 0.02 + 0.3 * d if (is_lost or is_answer_lost) and c < 0.8 else 0.0
        if patience and is_answer_lost:
            patience += there
        is_twice = writes and d < value("twice", 0.0)
        return Trip(there, back, is_lost, is_answer_lost, is_twice, patience)

    def is_out(self) -> bool:
        """Return whether the database answers nothing now."""
        return "outage" in self._holding()

    def until_reachable(self, name: str, when: float) -> float:
        """Return the arrival time of a message from or to a process, delayed by a partition."""
        for fault in self._by_kind.get("partition", ()):
            if fault.at <= when < fault.until and self.name_of(fault) == name:
                return self.until_reachable(name, fault.until + 0.001)
        return when

    def of_wall_clock(self, name: str) -> float:
        """Return by how much the wall clock of a process is wrong."""
        skew = self._skewed.get(name, 0.0)
        if "clock" not in self._holding():
            return skew
        now = self._now()
        return skew + sum(
            each.value
            for each in self._by_kind["clock"]
            if each.at <= now < each.until and self.name_of(each) == name
        )

    def of_database_clock(self) -> float:
        """Return by how much the clock of the database is wrong."""
        return self._holding().get("dbclock", 0.0)

    def cancels(self, a: float) -> bool:
        """Return whether a client of the API gives up."""
        return a < self._holding().get("cancel", 0.0)

    def loses_answer(self, a: float) -> bool:
        """Return whether an answer of the API does not arrive."""
        return a < self._holding().get("answers", 0.0)

    def name_of(self, fault: Fault) -> str:
        """Return the name of the process that a fault hits."""
        return self._names[fault.target % len(self._names)]

    def is_broken(self, since: float, until: float) -> bool:
        """Return whether any fault that slows answers held in a time."""
        return any(
            each.at < until and each.until >= since
            for each in self.faults
            if each.kind not in SILENT_KINDS
        )

    def has_only_died(self, since: float, until: float) -> bool:
        """Return whether a single machine has died in a time, and nothing else was broken."""
        kinds = [
            each.kind
            for each in self.faults
            if each.at < until and each.until >= since and each.kind not in SILENT_KINDS
        ]
        return kinds == ["machine"]

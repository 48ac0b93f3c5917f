"""Steps that turn the replicas of a deploy into the replicas that its buyer wants.

The plan is a pure function of the present replicas, without a memory. So its executor can stop
after any step, and the next plan continues from there.
"""

from collections.abc import Sequence

from msgspec import Struct


class Strategy(Struct, frozen=True):
    """How replicas are replaced.

    Attributes:
        max_surge: how many more replicas than wanted there may be meanwhile; each is paid for as
            well, therefore none by default.
        max_unavailable: the number of wanted replicas that may be unavailable meanwhile.
        min_ready_s: for how many seconds a replica must be ready to be available.
        progress_s: after how many seconds without progress a rollout is stuck.
        auto_revert: whether one that is stuck goes back to the last revision that was available.
    """

    max_surge: int = 0
    max_unavailable: int = 1
    min_ready_s: int = 0
    progress_s: int = 600
    auto_revert: bool = False


class Goal(Struct, frozen=True):
    """The wanted replicas: one of `revision` for each of these numbers.

    `failed` are those of them that have failed for good with this revision. They are not started
    again, and count among those that are not available, so that a revision which does not work
    does not replace one replica after the other that does.
    """

    revision: int
    numbers: frozenset[int]
    failed: frozenset[int] = frozenset()


class Replica(Struct, frozen=True):
    """A replica that waits for a device or runs; `ready_at` in UTC seconds, None until it is."""

    job_id: str
    number: int
    revision: int
    ready_at: int | None = None

    def is_available(self, strategy: Strategy, now: int) -> bool:
        """Return whether it has been ready for the required time."""
        return self.ready_at is not None and now - self.ready_at >= strategy.min_ready_s


class Stop(Struct, frozen=True):
    """Stop a replica."""

    job_id: str


class Start(Struct, frozen=True):
    """Start a replica of the goal's revision."""

    number: int


class Wait(Struct, frozen=True):
    """No step is possible before a change; `until` is its time, if known."""

    until: int | None = None


Step = Stop | Start | Wait


def plan(goal: Goal, replicas: Sequence[Replica], strategy: Strategy, now: int) -> list[Step]:
    """Return the steps to take now, in order; none when the goal is reached.

    An unavailable replica can stop at any time, an available one only while enough others are
    available. Stopped replicas make room for new ones, so starts come last.

    Args:
        goal: the replicas that the buyer wants.
        replicas: the present replicas.
        strategy: the rules for the replacement of replicas.
        now: UTC seconds.
    """
    available = {each.job_id for each in replicas if each.is_available(strategy, now)}
    kept = _kept(goal, replicas, available)
    surplus = [each for each in replicas if each.job_id not in kept.values()]
    stops = [Stop(each.job_id) for each in surplus if each.job_id not in available]
    spare = len(available) - max(len(goal.numbers) - strategy.max_unavailable, 0)
    # First the replicas outside the goal, then the oldest.
    surplus.sort(key=lambda each: (each.number in goal.numbers, each.revision, each.number))
    unneeded = [each for each in surplus if each.job_id in available]
    stops += [Stop(each.job_id) for each in unneeded[: max(spare, 0)]]
    failed = (goal.failed & goal.numbers) - kept.keys()
    room = len(goal.numbers) - len(failed) + strategy.max_surge - (len(replicas) - len(stops))
    missing = sorted(goal.numbers - failed - kept.keys())
    steps: list[Step] = [*stops, *(Start(number) for number in missing[: max(room, 0)])]
    if steps or (not surplus and all(each in available for each in kept.values())):
        return steps
    later = [
        each.ready_at + strategy.min_ready_s
        for each in replicas
        if each.ready_at is not None and each.job_id not in available
    ]
    return [Wait(min(later, default=None))]


def _kept(goal: Goal, replicas: Sequence[Replica], available: set[str]) -> dict[int, str]:
    """Return the replica that stays for each number; of two, the available one."""
    kept: dict[int, str] = {}
    for each in sorted(replicas, key=lambda each: (each.job_id not in available, each.job_id)):
        if each.revision == goal.revision and each.number in goal.numbers:
            kept.setdefault(each.number, each.job_id)
    return kept
